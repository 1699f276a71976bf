"""Leader election on a real API server, by clocks of the candidates alone."""

import threading
from uuid import uuid4

import pytest

from tests.cluster.controllers import QUICK_LEASE, eventually
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import api_client
from webhook.cluster.leader import LeaderElector


def candidate(plane: ControlPlane, lease: str, identity: str) -> LeaderElector:
    return LeaderElector(api_client(plane), "default", lease, identity, timings=QUICK_LEASE)


def test_two_that_are_first_at_once(plane: ControlPlane) -> None:
    name = f"lease-{uuid4()}"
    candidates = [candidate(plane, name, f"candidate-{number}") for number in range(4)]
    threads = [threading.Thread(target=each.try_once) for each in candidates]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(each.is_leader() for each in candidates) == 1


@pytest.mark.slow
def test_an_api_server_that_is_away_ends_the_lead(plane: ControlPlane) -> None:
    leader = candidate(plane, f"lease-{uuid4()}", "alone")
    leader.try_once()

    assert leader.is_leader()
    assert eventually(lambda: not leader.is_leader(), seconds=QUICK_LEASE.renew + 1)

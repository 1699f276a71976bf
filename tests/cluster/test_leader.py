"""Leader election on a real API server, by clocks of the candidates alone."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest

from tests.cluster.controllers import QUICK_LEASE, eventually
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import api_client
from webhook.cluster.leader import LeaderElector


def candidate(plane: ControlPlane, lease: str, identity: str) -> LeaderElector:
    return LeaderElector(api_client(plane), "default", lease, identity, timings=QUICK_LEASE)


@contextmanager
def running(leader: LeaderElector) -> Iterator[None]:
    stopping = threading.Event()
    thread = threading.Thread(target=leader.run, args=(stopping,))
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(30)


@pytest.mark.slow
def test_one_leads_until_it_lets_go(plane: ControlPlane) -> None:
    name = f"lease-{uuid4()}"
    lease = f"/apis/coordination.k8s.io/v1/namespaces/default/leases/{name}"
    first, second = candidate(plane, name, "first"), candidate(plane, name, "second")
    with running(first):
        assert eventually(lambda: first.is_leader)
        with running(second):
            time.sleep(2 * QUICK_LEASE.lease)
            assert (first.is_leader, second.is_leader) == (True, False)
            assert plane.client().get(lease)[1]["spec"]["holderIdentity"] == "first"
    third = candidate(plane, name, "third")
    with running(third):
        # Nobody has to wait until what was let go of has run out.
        assert eventually(lambda: third.is_leader, seconds=QUICK_LEASE.lease - 1)
    spec = plane.client().get(lease)[1]["spec"]
    assert spec["leaseTransitions"] >= 1
    assert "holderIdentity" not in spec


@pytest.mark.slow
def test_a_lease_that_nobody_renews_is_taken_after_its_time(plane: ControlPlane) -> None:
    name = f"lease-{uuid4()}"
    dead, heir = candidate(plane, name, "dead"), candidate(plane, name, "heir")
    dead.try_once()
    assert dead.is_leader
    with running(heir):
        started = time.monotonic()
        assert eventually(lambda: heir.is_leader)

    assert time.monotonic() - started >= QUICK_LEASE.lease
    assert not dead.is_leader  # it stopped by itself before anybody could follow


def test_two_that_are_first_at_once(plane: ControlPlane) -> None:
    name = f"lease-{uuid4()}"
    candidates = [candidate(plane, name, f"candidate-{number}") for number in range(4)]
    threads = [threading.Thread(target=each.try_once) for each in candidates]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(each.is_leader for each in candidates) == 1


@pytest.mark.slow
def test_an_api_server_that_is_away_ends_the_lead(plane: ControlPlane) -> None:
    leader = candidate(plane, f"lease-{uuid4()}", "alone")
    leader.try_once()

    assert leader.is_leader
    assert eventually(lambda: not leader.is_leader, seconds=QUICK_LEASE.renew + 1)

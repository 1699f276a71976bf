"""The large pod of a controller is admitted while a crowd of small pods comes and goes in its namespace."""

import itertools
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from policies.quota.amounts import GPUS
from tests.all_faults import ALL_FAULTS
from tests.cluster.controllers import Command, eventually
from tests.cluster.quota.quotas import gpu_pod
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import Namespace
from tests.controlplane.replicas import Replicas

HARD = 300
PER_SECOND, LIFETIME_SECONDS = 30, 2.0
"""Of the crowd: some 60 GPUs are used."""
LEFT_FREE = 12
"""By the large pod, for what is created meanwhile: that of 0.4 s."""
ATTEMPTS = 30 if ALL_FAULTS else 12
OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "0b5f9a1e", "controller": True}


@pytest.fixture
def team(full_plane: ControlPlane) -> Iterator[Namespace]:
    with Replicas(full_plane, 3, arguments=("--kubeconfig", full_plane.kubeconfig())) as replicas:
        replicas.register()
        controller = Command(full_plane, "controller-of-a-crowd")
        controller.start()
        yield Namespace(full_plane)
        full_plane.processes.kill(controller.name)
        replicas.unregister()


@contextmanager
def crowd(team: Namespace) -> Iterator[None]:
    """Create pods of one GPU, each of which is deleted again, for the length of the block."""
    stopping = threading.Event()

    def come_and_go() -> None:
        living: deque[tuple[str, float]] = deque()
        began = time.monotonic()
        with ThreadPoolExecutor(16) as pool:
            for number in itertools.count():
                if stopping.wait(max(0.0, began + number / PER_SECOND - time.monotonic())):
                    return
                name = f"crowd-{number}"
                pool.submit(team.client.post, team.path("pods"), gpu_pod(name))
                living.append((name, time.monotonic()))
                while living[0][1] + LIFETIME_SECONDS < time.monotonic():
                    path = team.path("pods", living.popleft()[0])
                    pool.submit(team.client.delete, path, {"gracePeriodSeconds": 0})

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def ask(team: Namespace, number: int) -> bool:
    """Create a pod of a controller for all that is free but LEFT_FREE; delete it again. Return whether it was admitted."""
    stored = team.client.get(team.path("pods"))[1]["items"]
    # On a busy machine what has ended is given back late.
    held = max(len(stored), int(team.ledger_object().held.get(GPUS, 0)))
    large = gpu_pod(f"large-{number}", HARD - held - LEFT_FREE)
    large["metadata"]["ownerReferences"] = [OWNER]
    status, answer = team.create(large)
    assert status in {201, 403}, answer
    if status == 201:
        # The garbage collector may be first: there is no such Job.
        team.client.delete(team.path("pods", f"large-{number}"), {"gracePeriodSeconds": 0})
    return bool(status == 201)


@pytest.mark.slow
def test_a_controllers_large_pod_is_admitted_beside_a_crowd(team: Namespace) -> None:
    team.quota({"gpus": str(HARD)})
    assert eventually(team.in_force)
    used = PER_SECOND * LIFETIME_SECONDS
    admitted = []
    with crowd(team):
        for number in range(ATTEMPTS):
            # The former one is given back, and the crowd is as large as it will be.
            assert eventually(lambda: used * 0.8 < (team.used() or {}).get(GPUS, 0) < used * 1.5)
            admitted.append(ask(team, number))
            time.sleep(0.5)

    # On a busy machine more than LEFT_FREE is created meanwhile, now and then; the controller would ask again.
    assert sum(admitted) >= ATTEMPTS / 2, admitted

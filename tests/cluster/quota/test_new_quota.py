"""A new quota denies nobody: a review that meets it waits until it is counted, some two seconds.

Replicas answer by what they read in the newest epoch. So one that is stopped, or has no route to the API server, admits nothing
by an old answer once the quota counts. GPU_ADMISSION_ALL_FAULTS=1 repeats it more often.
"""

import itertools
import os
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import yaml

from tests.all_faults import ALL_FAULTS, longer
from tests.cluster.controllers import Command, eventually
from tests.cluster.pulse import Writes, delay, pulse
from tests.cluster.quota.quotas import gpu_pod
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import Namespace
from tests.controlplane.replicas import Replicas
from webhook.configuration.documents import API_VERSION

_numbers = itertools.count(1)

WITHIN = 3.5
"""Seconds from the creation of a quota until a pod is admitted by it, without what the machine adds."""
TEAMS = 50 if ALL_FAULTS else 20
"""Namespaces that get their first quota beside a replica that is stopped, while others create pods."""
WRITES = 6
"""Of the quota, its ledger, the epoch, the first count, the reservation, and the pod."""

QUOTA = {"apiVersion": API_VERSION, "kind": "GPUQuota", "metadata": {"name": "default"}}


@contextmanager
def running(plane: ControlPlane, count: int) -> Iterator[Replicas]:
    """Serve by so many replicas, and count by a controller."""
    with Replicas(plane, count, arguments=("--kubeconfig", plane.kubeconfig()), follow=0.2) as replicas:
        replicas.register()
        controller = Command(plane, f"controller-of-{count}-{next(_numbers)}")
        controller.start()
        first = Namespace(plane)
        first.quota({"gpus": 1})
        assert eventually(first.in_force, seconds=60), "it leads"
        yield replicas
        plane.processes.kill(controller.name)
        replicas.unregister()


def manifest(name: str, gpus: int, *pods: str) -> str:
    """Return a quota and pods in one file."""
    documents: list[dict[str, Any]] = [QUOTA | {"spec": {"hard": {"gpus": gpus}}}]
    documents += [{"apiVersion": "v1", "kind": "Pod", **gpu_pod(each)} for each in pods]
    return yaml.safe_dump_all(
        document | {"metadata": document["metadata"] | {"namespace": name}} for document in documents
    )


def first_admission(team: Namespace, writes: Writes) -> float:
    """Create a quota, then a pod, and return after how many seconds it was admitted, at the first attempt.

    What the machine added, by `writes` of the same time, is not counted.
    """
    begun = time.time()
    team.quota({"gpus": 4})
    status, answer = team.create(gpu_pod("first"))
    assert status == 201, answer
    ended = time.time()
    return ended - begun - delay(WRITES, writes, begun, ended)


def has_no_ledger(team: Namespace) -> bool:
    return team.store.read(team.name, 5) is None


@pytest.mark.timeout(180)
@pytest.mark.parametrize("rounds", [1, pytest.param(3, marks=[pytest.mark.slow, longer])])
def test_a_quota_and_what_it_admits_may_stand_in_one_file(own_plane: ControlPlane, rounds: int) -> None:
    with running(own_plane, 1), pulse(own_plane) as writes:
        for _ in range(rounds):
            team = Namespace(own_plane)
            assert first_admission(team, writes) <= WITHIN
            team.delete_quota()
            team.delete_pod("first")
            assert eventually(partial(has_no_ledger, team))
            assert first_admission(team, writes) <= WITHIN, "one that is made again"

        team = Namespace(own_plane)
        applied = own_plane.kubectl("apply", "-f", "-", stdin=manifest(team.name, 2, "one", "two"))
        assert "pod/two created" in applied.stdout
        assert eventually(team.in_force)
        assert team.ledger_object().held["gpus"] == 2


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("count", [pytest.param(1, marks=longer), 3])
def test_how_long_it_takes(own_plane: ControlPlane, count: int) -> None:
    with running(own_plane, count), pulse(own_plane) as writes:
        teams = [Namespace(own_plane) for _ in range(20)]
        with ThreadPoolExecutor(4) as pool:
            taken = list(pool.map(partial(first_admission, writes=writes), teams))
    assert max(taken) <= WITHIN, f"p50 {statistics.median(taken):.2f} s, longest {max(taken):.2f} s"


@contextmanager
def load(plane: ControlPlane, troubles: list[str]) -> Iterator[None]:
    """Create pods in namespaces with a quota and without, some 40 a second."""
    teams, ending = [Namespace(plane) for _ in range(4)], threading.Event()
    for team in teams[:2]:
        team.quota({"gpus": 100_000})

    def create(team: Namespace) -> None:
        number = 0
        while not ending.is_set():
            number += 1
            try:
                status, answer = team.create(gpu_pod(f"load-{number}"))
                if status != 201:
                    troubles.append(str(answer.get("message")))
            except OSError as error:
                troubles.append(str(error))
            time.sleep(0.1)

    with ThreadPoolExecutor(len(teams)) as pool:
        for team in teams:
            pool.submit(create, team)
        try:
            yield
        finally:
            ending.set()


@contextmanager
def stopped(replicas: Replicas, number: int) -> Iterator[None]:
    pids = replicas.each[number].pids()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_no_first_pod_is_denied_under_load_beside_a_replica_that_is_stopped(own_plane: ControlPlane) -> None:
    troubles: list[str] = []
    with running(own_plane, 3) as replicas, load(own_plane, troubles), stopped(replicas, 0):
        time.sleep(15)  # it is out of the endpoints then, and its connections have ended
        troubles.clear()
        teams = [Namespace(own_plane) for _ in range(TEAMS)]

        def problem(team: Namespace) -> str:
            only = manifest(team.name, 1, "only")
            done = own_plane.kubectl("apply", "-f", "-", stdin=only, check=False)
            return done.stderr if done.returncode else ""

        with ThreadPoolExecutor(5) as pool:
            failed = [each for each in pool.map(problem, teams) if each]
    assert (failed, troubles) == ([], [])

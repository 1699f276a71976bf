"""Nothing is admitted by a "no quota" of before once a quota counts, also for a namespace that joins a team."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cases import cases
from tests.cluster.controllers import Command, eventually
from tests.cluster.proxy import Proxy, address, through
from tests.cluster.quota.quotas import gpu_pod
from tests.cluster.quota.teams import Team
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import Namespace
from tests.controlplane.webhook import Webhook, serving

SLACK = 0.2
"""Seconds between the count and the moment at which a test sees it, and between an answer of ours and that of the API server."""


class Scene:
    """A namespace in which pods are created all the time, and the answers: when, and whether the pod is stored."""

    def __init__(self, plane: ControlPlane, webhook: Webhook, proxy: Proxy) -> None:
        self.plane, self.webhook, self.proxy = plane, webhook, proxy
        self.team = Team(plane, f"joins-{time.monotonic_ns()}", 1)
        (self.namespace,) = self.team.namespaces
        self.stored: list[float] = []
        self._numbers = iter(range(1_000_000))
        self._ending = threading.Event()

    @contextmanager
    def creating(self) -> Iterator[None]:
        with ThreadPoolExecutor(6) as pool:
            for _ in range(6):
                pool.submit(self._create)
            assert eventually(lambda: len(self.stored) > 20)
            yield
            self._ending.set()

    def _create(self) -> None:
        while not self._ending.is_set():
            if self.namespace.create(gpu_pod(f"pod-{next(self._numbers)}"))[0] == 201:
                self.stored.append(time.monotonic())
            time.sleep(0.05)

    def signals(self, number: int) -> None:
        for pid in self.webhook.pids():
            os.kill(pid, number)


@pytest.fixture
def scene(own_plane: ControlPlane, tmp_path: Path) -> Iterator[Scene]:
    """Serve by one replica, whose way to the API server may be cut, and count by a controller with another way."""
    with Proxy(address(own_plane)) as proxy:
        kubeconfig = through(own_plane, proxy, tmp_path)
        with serving(own_plane, host=71, arguments=("--kubeconfig", kubeconfig)) as webhook:
            controller = Command(own_plane, f"controller-{time.monotonic_ns()}")
            controller.start()
            first = Namespace(own_plane)
            first.quota({"gpus": 1})
            assert eventually(first.in_force, seconds=30), "it leads"
            yield Scene(own_plane, webhook, proxy)
            own_plane.processes.kill(controller.name)


def a_quota(scene: Scene) -> None:
    scene.namespace.quota({"gpus": 0})


def a_team(scene: Scene) -> None:
    scene.team.grant({"gpus": 0})


def nothing(_: Scene) -> None: ...


def stop(scene: Scene) -> None:
    scene.signals(signal.SIGSTOP)


def go_on(scene: Scene) -> None:
    scene.signals(signal.SIGCONT)


def cut_off(scene: Scene) -> None:
    scene.proxy.close()


def reach(scene: Scene) -> None:
    scene.proxy.listen()


@pytest.mark.slow
@pytest.mark.timeout(120)
@cases(
    ("appears", "before", "after"),
    a_new_quota=(a_quota, nothing, nothing),
    a_namespace_that_joins=(a_team, nothing, nothing),
    a_replica_that_is_stopped_with_reviews_in_flight=(a_quota, stop, go_on),
    a_replica_without_a_route=(a_quota, cut_off, reach),
    a_replica_without_a_route_and_a_team=(a_team, cut_off, reach),
)
def test_nothing_is_admitted_once_it_counts(
    scene: Scene,
    appears: Callable[[Scene], None],
    before: Callable[[Scene], None],
    after: Callable[[Scene], None],
) -> None:
    def counts() -> bool:
        if appears is a_team:
            return scene.team.has(scene.namespace)
        return scene.namespace.in_force()

    with scene.creating():
        before(scene)
        created = time.monotonic()
        appears(scene)
        assert eventually(counts, seconds=20)
        counted = time.monotonic()
        time.sleep(1.0)
        after(scene)
        time.sleep(3.0)
    late = [f"{each - counted:.2f}" for each in scene.stored if each > counted + SLACK]
    assert late == [], f"seconds after the count, which came {counted - created:.2f} s after the quota"

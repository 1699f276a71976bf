"""A controller that is never killed takes no more memory however many pods come and go.

It is compared at rest, once the controller remembers none of those that are gone. GPU_ADMISSION_ALL_FAULTS=1 has them come and go
for 12 minutes.
"""

import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from statistics import mean
from typing import NamedTuple

import pytest
import yaml

from tests.all_faults import ALL_FAULTS
from tests.cluster.configuration import install_configuration_kinds
from tests.cluster.controllers import Command, published_catalogues
from tests.cluster.mixed.watched import EVERY, MARK
from tests.cluster.quota.quotas import gpu_pod, in_force
from tests.cluster.quota.teams import Team
from tests.cluster.waiting.line import POLICY, let_account_do_all
from tests.controlplane import ControlPlane
from tests.controlplane.client import accepted
from tests.controlplane.gpuquota import INSTALLATION, Namespace, install_quota_kind
from tests.controlplane.replicas import Replicas
from webhook.cluster.objects import CONTROLLER

CHURNS = (360.0, 360.0) if ALL_FAULTS else (12.0, 20.0)
"""Seconds for which pods come and go, before the first and before the second measurement."""
REMEMBERED = 120.0 if ALL_FAULTS else 15.0
"""Seconds for which the controller remembers pods that are gone. A short run shortens them."""
MODE = ("sampled", "0") if ALL_FAULTS else ("traced", f"{REMEMBERED:.0f}")
"""A short run traces objects."""
LIVE = 6
"""Pods of a namespace at a time, of which its quota has room for four."""
BUDGET = {"budget": {"gpuHours": 1000}} if ALL_FAULTS else {}
"""The history of what a budget counts has 4,096 points at most, 2 MB, which are made in some minutes."""
PER_SECOND = 15
"""Pods that are created at least: fewer would not show a leak."""
LEAK = 120.0
"""Bytes of objects that a pod leaves behind at most."""
WORKING = 0.25e6
"""Bytes by which the objects in use differ between two measurements, whether or not pods leave any behind."""
RESIDENT = 1.03
"""By how much the resident memory of a long run may grow. Where objects come and go, there is more room between them."""

log = logging.getLogger(__name__)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


class Sample(NamedTuple):
    """The bytes that Python has allocated, the resident memory in KiB, and how many pods were created until then."""

    allocated: float
    resident: float
    created: int


class Churn:
    """One who creates pods of a namespace, and deletes the oldest of them, as fast as the API server answers."""

    def __init__(self, space: Namespace) -> None:
        self._space = space
        self._names: list[str] = []
        self.created = 0

    def run(self, until: float, least: float) -> None:
        """Go on until this time, and on a busy machine until at least so many pods were created."""
        while time.time() < until or self.created < least:
            name = f"pod-{self.created}"
            if (
                self._space.create(gpu_pod(name))[0] == 201
            ):  # the first ones are denied: the policy takes two seconds
                self.created += 1
                self._names.append(name)
            if len(self._names) > LIVE:
                path = self._space.path("pods", self._names.pop(0))
                self._space.client.delete(path, {"gracePeriodSeconds": 0})


@pytest.fixture
def samples() -> Iterator[list[Sample]]:
    with ExitStack() as started:
        plane = started.enter_context(ControlPlane())
        install_quota_kind(plane.client())
        install_configuration_kinds(plane)
        let_account_do_all(plane)
        started.enter_context(published_catalogues(plane))
        arguments = ("--kubeconfig", plane.kubeconfig())
        started.enter_context(Replicas(plane, 1, arguments=arguments)).register()
        accepted(plane.client().apply(yaml.safe_load(POLICY))[:2])
        controller = Command(plane, "controller", program=("tests.cluster.mixed.watched", *MODE))
        controller.kubeconfig = plane.account_kubeconfig(INSTALLATION, CONTROLLER)
        controller.start()
        spaces = [Namespace(plane, f"churned-{number}") for number in range(2)]
        for space in spaces:
            in_force(space, {"gpus": "4"}, **BUDGET)
        team = Team(plane, "churned-team", 2)
        team.grant({"gpus": "8"}, guaranteed={team.namespaces[0].name: {"gpus": "2"}})
        team.await_force()
        churns = [Churn(space) for space in (*spaces, *team.namespaces)]
        yield [measured(controller, churns, seconds) for seconds in CHURNS]


def measured(controller: Command, churns: list[Churn], seconds: float) -> Sample:
    """Have pods come and go for so long, then measure twice at rest."""
    until, least = time.time() + seconds, PER_SECOND * seconds / len(churns)
    with ThreadPoolExecutor(len(churns)) as pool:
        list(pool.map(lambda churn: churn.run(until, churn.created + least + 1), churns))
    time.sleep(REMEMBERED + 3 * EVERY)
    lines = [line for line in controller.log().splitlines() if line.startswith(MARK)]
    found = [line.removeprefix(MARK).split()[1:] for line in lines[-2:]]
    allocated, resident = (mean(map(int, each)) for each in zip(*found, strict=True))
    return Sample(allocated, resident, sum(churn.created for churn in churns))


def test_memory_does_not_grow_with_the_pods_that_came_and_went(samples: list[Sample]) -> None:
    first, last = samples
    created = last.created - first.created
    grown, resident = last.allocated - first.allocated, last.resident / first.resident
    log.info("%d pods, %.0f bytes, resident times %.3f: %s", created, grown, resident, samples)
    assert created > PER_SECOND * CHURNS[-1]
    assert grown < LEAK * created + WORKING
    assert resident < RESIDENT or not ALL_FAULTS

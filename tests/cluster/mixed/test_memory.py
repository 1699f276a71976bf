"""A controller that is never killed takes no more memory however many pods come and go.

GPU_ADMISSION_ALL_FAULTS=1 has them come and go for 12 minutes.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from statistics import mean
from typing import NamedTuple

import pytest
import yaml

from tests.all_faults import ALL_FAULTS
from tests.cluster.configuration import install_configuration_kinds
from tests.cluster.controllers import Command, published_catalogues
from tests.cluster.mixed.watched import MARK
from tests.cluster.quota.quotas import gpu_pod, in_force
from tests.cluster.quota.teams import Team
from tests.cluster.waiting.line import POLICY, let_account_do_all
from tests.controlplane import ControlPlane
from tests.controlplane.client import accepted
from tests.controlplane.gpuquota import INSTALLATION, Namespace, install_quota_kind
from tests.controlplane.replicas import Replicas
from webhook.cluster.objects import CONTROLLER

MINUTES = 12.0 if ALL_FAULTS else 2.0
BEFORE, AFTER = ((4.0, 6.0), (10.0, 12.0)) if ALL_FAULTS else ((0.7, 1.0), (1.7, 2.0))
"""Minutes that are compared."""
MODE = ("sampled", "0") if ALL_FAULTS else ("traced", "15")
"""A short run traces objects, and the controller remembers pods that are gone for 15 s; by itself it does for two minutes."""
LIVE = 6
"""Pods of a namespace at a time, of which its quota has room for four."""
BUDGET = {"budget": {"gpuHours": 1000}} if ALL_FAULTS else {}
"""The history of what a budget counts has 4,096 points at most, 2 MB, which are made in some minutes."""
LEAK = 400.0
"""Bytes of objects that a pod leaves behind at most."""
WORKING = 1.5e6
"""Bytes by which the objects in use differ between samples, whether or not pods leave any behind. On a busy machine few pods come
and go between the samples, so that these bytes alone would exceed LEAK for each pod."""
RESIDENT = 1.03
"""By how much the resident memory of a long run may grow. Where objects come and go, there is more room between them."""

log = logging.getLogger(__name__)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


class Sample(NamedTuple):
    """`minutes` since the beginning, the bytes that Python has allocated, the resident memory in KiB."""

    minutes: float
    allocated: int
    resident: int


class Churn:
    """One who creates pods of a namespace, and deletes the oldest of them, as fast as the API server answers."""

    def __init__(self, space: Namespace) -> None:
        self._space = space
        self.created = 0

    def run(self, until: float) -> None:
        names: list[str] = []
        while time.time() < until:
            name = f"pod-{self.created}"
            if (
                self._space.create(gpu_pod(name))[0] == 201
            ):  # the first ones are denied: the policy takes two seconds
                self.created += 1
                names.append(name)
            if len(names) > LIVE:
                path = self._space.path("pods", names.pop(0))
                self._space.client.delete(path, {"gracePeriodSeconds": 0})


@pytest.fixture
def churned() -> Iterator[tuple[list[Sample], list[Churn]]]:
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
        began = time.time()
        churns = [Churn(space) for space in (*spaces, *team.namespaces)]
        until = began + 60 * MINUTES
        threads = [threading.Thread(target=churn.run, args=(until,), daemon=True) for churn in churns]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        yield samples(controller, began), churns


def samples(controller: Command, began: float) -> list[Sample]:
    lines = controller.log().splitlines()
    found = [line.removeprefix(MARK).split() for line in lines if line.startswith(MARK)]
    return [
        Sample((float(at) - began) / 60, int(allocated), int(resident)) for at, allocated, resident in found
    ]


def test_memory_does_not_grow_with_the_pods_that_came_and_went(
    churned: tuple[list[Sample], list[Churn]],
) -> None:
    found, churns = churned
    created = sum(churn.created for churn in churns)
    early, late = ([each for each in found if begin <= each.minutes <= end] for begin, end in (BEFORE, AFTER))
    between = created / MINUTES * (mean(AFTER) - mean(BEFORE))
    grown = mean(each.allocated for each in late) - mean(each.allocated for each in early)
    resident = mean(each.resident for each in late) / mean(each.resident for each in early)
    log.info("%d pods, %.0f bytes a pod, resident times %.3f: %s", created, grown / between, resident, found)
    assert created > 1000 * MINUTES
    assert grown < LEAK * between + WORKING
    assert resident < RESIDENT or not ALL_FAULTS

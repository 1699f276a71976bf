"""A team in whose namespaces pods wait is never exceeded, nor is a namespace of it, and all who wait start once others end.

The referee replays every revision of etcd.
"""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.cluster.controllers import eventually
from tests.cluster.quota import history
from tests.cluster.quota.team_referee import replay_teams
from tests.cluster.waiting.conftest import queueing
from tests.cluster.waiting.gangs import create, delete_job, job, member
from tests.cluster.waiting.line import Line
from tests.cluster.waiting.team import Team
from tests.controlplane import ControlPlane
from tests.controlplane.client import accepted
from tests.controlplane.gpuquota import install_kinds
from webhook.quota.team_documents import TEAM_PLURAL, team_path

STEPS, HARD = 120, 12
ALL_STARTED_WITHIN = 90.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@dataclass
class Tenant:
    """One who creates pods and gangs of two pods in a namespace, and deletes them."""

    plane: ControlPlane
    line: Line
    draw: random.Random
    units: list[list[str]] = field(default_factory=list)
    made: int = 0

    def act(self) -> None:
        if self.units and self.draw.random() < 0.35:
            self.delete(self.draw.choice(self.units))
            return
        self.made += 1
        name, gpus = f"pod-{self.made}", self.draw.randint(1, 4)
        if self.draw.random() < 0.3:
            metadata = member(create(self.plane, self.line, job(name, 2)))
            names = [f"{name}-0", f"{name}-1"]
            for each in names:
                self.line.pod(each, (gpus + 1) // 2, metadata=metadata)
            self.units.append(names)
        else:
            self.line.pod(name, gpus)
            self.units.append([name])

    def delete(self, unit: list[str]) -> None:
        """Delete a pod, or a gang with its Job: one that still asks for pods keeps their quota."""
        self.units.remove(unit)
        if len(unit) > 1:
            delete_job(self.plane, self.line, unit[0].removesuffix("-0"))
        for name in unit:
            self.line.delete_pod(name)

    def waits(self) -> list[str]:
        return [name for unit in self.units for name in unit if self.line.waits(name)]

    def end_some(self) -> None:
        """End all that run as a whole."""
        waiting = set(self.waits())
        for unit in [each for each in self.units if waiting.isdisjoint(each)]:
            self.delete(unit)


@pytest.fixture(scope="module")
def readable(readable: ControlPlane) -> Iterator[ControlPlane]:
    install_kinds(readable.client(), TEAM_PLURAL)
    with queueing(readable):
        yield readable


def test_a_team_with_pods_that_wait_is_never_exceeded_and_all_of_them_start(readable: ControlPlane) -> None:
    since, draw = history.revision(readable), random.Random(1)  # noqa: S311 - the same choices in every run
    team = Team(readable, HARD, "a", "b", "c", a=3)
    team.lines["b"].quota({"gpus": "6"})
    tenants = [Tenant(readable, line, draw) for line in team.lines.values()]
    waited = 0
    for number in range(STEPS):
        tenant = draw.choice(tenants)
        tenant.act()
        waited += bool(tenant.units and tenant.line.waits(tenant.units[-1][0]))
        if number % 30 == 29:
            hard = {"spec": {"hard": {"gpus": draw.choice([8, HARD, 16])}}}
            accepted(readable.client().patch(team_path(team.name), hard))
    accepted(readable.client().patch(team_path(team.name), {"spec": {"hard": {"gpus": HARD}}}))

    until = time.monotonic() + ALL_STARTED_WITHIN
    while any(each.waits() for each in tenants) and time.monotonic() < until:
        for each in tenants:
            each.end_some()
        time.sleep(0.3)
    left = {each.line.name: each.waits() for each in tenants}
    assert not any(left.values()), left
    assert eventually(lambda: not any(len(each.line.ledger_object().reservations) for each in tenants))
    seen = replay_teams([each.line.name for each in tenants], history.events(readable, since))
    assert seen.breaches == []
    assert waited > STEPS / 10

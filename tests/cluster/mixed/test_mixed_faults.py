"""Everything goes on while processes are killed and quotas change. Two judges who share no code read etcd's history afterwards.

GPU_ADMISSION_ALL_FAULTS=1 has it go on for 490 s.
"""

import json
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.all_faults import ALL_FAULTS
from tests.cluster.mixed import amounts, facts, lines
from tests.cluster.mixed.recording import Timed
from tests.cluster.mixed.world import BUDGETED, KINDS, World, world
from tests.cluster.quota.team_referee import TeamReplay, replay_teams

SECONDS = float(os.environ.get("MIXED_SECONDS", "490" if ALL_FAULTS else "75"))
WHOLE_WITHIN = 2.0
DRAINED_WITHIN, ZERO_WITHIN = 90.0, 60.0

log = logging.getLogger(__name__)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <ssl.SSLSocket:pytest.PytestUnraisableExceptionWarning"
    ),
]


@dataclass
class Run:
    """What came of a run: who still waited, what was not zero, and the history."""

    world: World
    events: list[Timed] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    zero_after: float = 0.0

    def __post_init__(self) -> None:
        with self.world.busy(SECONDS):
            pass
        self.stuck = self.world.drain(DRAINED_WITHIN)
        began = time.monotonic()
        self.world.delete_all()
        while (left := self.world.left()) and time.monotonic() < began + ZERO_WITHIN:
            time.sleep(0.5)
        self.left, self.zero_after = left, time.monotonic() - began
        self.events = self.world.recording.complete()
        self.facts = facts.read(self.events)

    @property
    def faults(self) -> list[tuple[float, float]]:
        return [(began, ended) for began, ended, _ in self.world.faults]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with world(every=0.6) as found:
        done = Run(found)
        if folder := os.environ.get("MIXED_FOLDER"):
            _dump(done, folder)
        yield done


def _dump(done, folder):
    import pickle
    with open(f"{folder}/run.pickle", "wb") as file:
        pickle.dump(
            dict(events=[(tuple(e.event), e.at) for e in done.events], faults=done.world.faults, changes=done.world.changes,
                 denials=[d for t in done.world.tenants.values() for d in t.denials],
                 said={n: t.said for n, t in done.world.tenants.items()}, created={n: t.created for n, t in done.world.tenants.items()},
                 stuck=done.stuck, left=done.left, zero_after=done.zero_after,
                 logs={c.name: c.log() for c in done.world.controllers}), file)


def test_nobody_is_stuck_and_at_last_all_is_zero(run: Run) -> None:
    assert run.stuck == []
    assert run.left == [], f"after {run.zero_after:.1f} s"


def test_amounts(run: Run) -> None:
    seen = amounts.judge(run.facts)
    log.info("%d rows compared", seen.compared)
    assert seen.differ == []
    assert seen.over == []


@pytest.fixture(scope="module")
def replayed(run: Run) -> TeamReplay:
    return replay_teams(KINDS, [event for event, _ in run.events])


def test_amounts_by_the_other_judge(replayed: TeamReplay) -> None:
    assert replayed.breaches == []


def test_order(run: Run) -> None:
    seen = lines.order(run.facts)
    replacing = [each for each in seen.passed if each.namespace == "replacing"]
    others = [each for each in seen.passed if each.namespace != "replacing"]
    assert seen.held > 50
    assert [str(each) for each in others] == []
    assert [str(each) for each in lines.unearned(run.facts, replacing)] == []


def test_gangs_are_whole(run: Run) -> None:
    halves = lines.halves(run.facts)
    assert halves, "pods of a gang start one after the other"
    assert [each for each in halves if lines.late(run.facts, each, run.faults, WHOLE_WITHIN)] == []


def test_denials_have_a_reason(run: Run) -> None:
    denials = [each for tenant in run.world.tenants.values() for each in tenant.denials]
    lookback = lines.Lookback(run.faults)
    assert lines.unfounded(run.facts, denials, lookback) == []
    assert lines.broken_guarantees(run.facts, denials, lookback) == []


@pytest.mark.parametrize("namespace", BUDGETED)
def test_gpu_hours(run: Run, namespace: str) -> None:
    spent = amounts.gpu_seconds(run.facts, namespace)
    assert spent is not None
    assert spent.unknown == 0
    assert spent.spent == pytest.approx(spent.truth, rel=0.005, abs=2.0)

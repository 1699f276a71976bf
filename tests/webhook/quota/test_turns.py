"""Replicas that write one row lose few swaps to each other, wait for each other only where they met, and starve nobody.

Simulated with a clock of its own: every run is the same on every machine.
"""

import heapq
import itertools
import random
from collections.abc import Callable, Generator

import pytest
from msgspec.structs import replace

from policies.quota.ledger.quota_ledger import COUNTED_SECONDS, SHORTEST_TURN, QuotaLedger
from tests.webhook.quota.world import NAMESPACE
from webhook.quota import turns
from webhook.quota.turns import LONGEST_TURN, REMEMBERED_WRITES, Turns

EMPTY = QuotaLedger(quota_uid=NAMESPACE, generation=1, hard={}, unpinned="Deny")  # type: ignore[arg-type]
Steps = Generator[float, None, None]


class Simulation:
    """Replicas, a row, and the seconds that reads and writes of it take."""

    def __init__(self, seconds: tuple[float, float] = (0.004, 0.012)) -> None:
        self.now = 0.0
        self.random = random.Random(7)  # noqa: S311 - the same in every run
        self.version, self.ledger = 0, EMPTY
        self.reads = self.writes = self.conflicts = 0
        self._seconds = seconds
        self._due: list[tuple[float, int, Steps]] = []
        self._numbers = itertools.count()

    def begin(self, steps: Steps) -> None:
        heapq.heappush(self._due, (self.now, next(self._numbers), steps))

    def run(self, until: float) -> None:
        while self._due and self._due[0][0] <= until:
            self.now, _, steps = heapq.heappop(self._due)
            pause = next(steps, None)
            if pause is not None:
                heapq.heappush(self._due, (self.now + pause, next(self._numbers), steps))
        self.now = until

    def read(self) -> Generator[float, None, tuple[int, QuotaLedger]]:
        self.reads += 1
        yield self.takes()
        found = self.version, self.ledger
        yield self.takes() / 2
        return found

    def swap(self, version: int, ledger: QuotaLedger) -> Generator[float, None, bool]:
        self.writes += 1
        yield self.takes()
        is_current = version == self.version
        if is_current:
            self.version, self.ledger = self.version + 1, ledger
        else:
            self.conflicts += 1
        yield self.takes() / 2
        return is_current

    def takes(self) -> float:
        return self.random.uniform(*self._seconds) / 2

    @property
    def share_of_conflicts(self) -> float:
        return self.conflicts / self.writes


class SimulatedReplica:
    """Requests that come at random, `per_second`, and what `ReservationBatcher` does with them."""

    def __init__(
        self, simulation: Simulation, name: str, per_second: float, clock_is_off: float = 0.0
    ) -> None:
        self.simulation = simulation
        self.turns = Turns(name, lambda: simulation.now, lambda: simulation.now + clock_is_off)
        self.waiting: list[float] = []
        self.waited: list[float] = []
        self.alive = True
        self._per_second = per_second
        self._leads = False
        self._known: tuple[int, QuotaLedger] | None = None
        simulation.begin(self.clients())

    def clients(self) -> Steps:
        while self.alive and self._per_second:
            yield self.simulation.random.expovariate(self._per_second)
            self.ask()

    def ask(self) -> None:
        self.waiting.append(self.simulation.now)
        if not self._leads:
            self._leads = True
            self.simulation.begin(self.lead())

    def lead(self) -> Steps:
        while self.waiting and self.alive:
            yield from self.decide()
        self._leads = False

    def decide(self) -> Steps:
        fresh = False
        while True:
            yield self.turns.seconds_ahead()
            if not self.alive:
                return
            fresh = self.turns.begin() or fresh or self._known is None
            if fresh:
                begun = self.simulation.now
                self._known = yield from self.simulation.read()
                self.turns.read(self._known[1], begun)
            assert self._known is not None
            version, ledger = self._known
            batch, self.waiting = self.waiting, []
            after = self.turns.signed(ledger)
            if (yield from self.simulation.swap(version, after)):
                self.turns.written(after, len(batch))
                self._known = version + 1, after
                self.waited += [self.simulation.now - each for each in batch]
                return
            self.waiting = batch + self.waiting
            self.turns.conflicted()
            fresh = True


def replicas(simulation: Simulation, *per_second: float, clocks_off: float = 0.0) -> list[SimulatedReplica]:
    return [
        SimulatedReplica(simulation, name, rate, clocks_off * number)
        for number, (name, rate) in enumerate(zip("abcdefghij", per_second, strict=False))
    ]


Loads = pytest.mark.parametrize(
    "per_second",
    [
        pytest.param((50, 50, 50), id="32-clients"),
        pytest.param((20, 20, 20), id="8-clients"),
        pytest.param((100, 10, 10), id="uneven"),
        pytest.param((60, 60), id="two"),
        pytest.param((20,) * 10, id="ten"),
    ],
)


@Loads
def test_few_swaps_fail_and_nobody_waits_for_more_than_a_round(per_second: tuple[float, ...]) -> None:
    simulation = Simulation()
    each = replicas(simulation, *per_second)
    simulation.run(30)
    assert simulation.share_of_conflicts < 0.1
    for replica in each:
        assert max(replica.waited) < 3 * len(each) * SHORTEST_TURN * 2 / 1000


@Loads
def test_without_turns_many_fail(per_second: tuple[float, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "CONTENDED_SECONDS", 0.0)
    simulation = Simulation()
    replicas(simulation, *per_second)
    simulation.run(30)
    assert simulation.share_of_conflicts > 0.2, "what the test above would not allow"


def test_clocks_that_disagree_cost_conflicts_and_nothing_else() -> None:
    simulation = Simulation()
    each = replicas(simulation, 50, 50, 50, clocks_off=1.003)
    simulation.run(30)
    assert simulation.share_of_conflicts < 0.3
    assert all(max(replica.waited) < 0.5 for replica in each)


def test_a_clock_that_is_set_anew_keeps_nobody_waiting() -> None:
    simulation = Simulation()
    off = [0.0]
    each = replicas(simulation, 50, 50, 50)
    each[0].turns._wall_clock = lambda: simulation.now - off[0]
    simulation.run(5)
    off[0] = 3600.0
    simulation.run(10)
    assert max(each[0].waited) < 0.5


def test_one_client_never_waits_for_turns() -> None:
    simulation = Simulation()
    each = replicas(simulation, 0, 0, 0)
    waits = []
    for number in range(60):
        replica = each[number % 3]
        waits.append(replica.turns.seconds_ahead())
        replica.ask()
        simulation.run(simulation.now + 0.05)
    assert set(waits) == {0.0}
    assert simulation.conflicts == 1, "of the first replica, before it knew of others"
    assert simulation.reads == 60


def test_a_replica_alone_reads_once_and_then_only_writes() -> None:
    simulation = Simulation()
    (alone,) = replicas(simulation, 0)
    for _ in range(60):
        alone.ask()
        simulation.run(simulation.now + 0.05)
    assert (simulation.reads, simulation.writes, simulation.conflicts) == (1, 60, 0)


def test_what_is_remembered_for_long_is_read_again() -> None:
    simulation = Simulation()
    (alone,) = replicas(simulation, 0)
    for _ in range(5):
        alone.ask()
        simulation.run(simulation.now + COUNTED_SECONDS + 0.1)
    assert (simulation.reads, simulation.conflicts) == (5, 0)


def test_the_turns_of_a_replica_that_died_end() -> None:
    simulation = Simulation()
    each = replicas(simulation, 50, 50, 50)
    simulation.run(5)
    each[1].alive = False
    simulation.run(10)
    assert sorted(simulation.ledger.writers) == ["a", "c"]
    assert all(max(replica.waited) < 0.5 for replica in (each[0], each[2]))


def test_turns_end_when_replicas_meet_no_more() -> None:
    simulation = Simulation()
    each = replicas(simulation, 50, 50, 50)
    simulation.run(5)
    for replica in each[1:]:
        replica.alive = False
    assert each[0].turns._is_contended
    simulation.run(5 + 2 * turns.CONTENDED_SECONDS)
    assert each[0].turns.seconds_ahead() in {0.0, turns.GATHERING}


@pytest.mark.parametrize(
    ("seconds", "milliseconds"),
    [
        pytest.param((0.001, 0.003), {SHORTEST_TURN}, id="fast"),
        pytest.param((0.02, 0.04), {64, 128}, id="slow"),
        pytest.param((0.5, 0.9), {LONGEST_TURN}, id="slower-than-any-turn"),
    ],
)
def test_a_turn_is_as_long_as_a_read_and_a_write_need(
    seconds: tuple[float, float], milliseconds: set[int]
) -> None:
    simulation = Simulation(seconds)
    replicas(simulation, 50, 50, 50)
    simulation.run(60)
    assert simulation.ledger.turn_milliseconds in milliseconds


@pytest.mark.parametrize("milliseconds", [-1, 0, 10**9])
def test_a_length_that_no_replica_writes_is_not_taken_from_a_row(milliseconds: int) -> None:
    simulation = Simulation()
    simulation.ledger = replace(EMPTY, turn_milliseconds=milliseconds)
    each = replicas(simulation, 50, 50, 50)
    simulation.run(10)
    assert simulation.conflicts
    assert all(max(replica.waited) < 2.0 for replica in each)
    assert SHORTEST_TURN <= simulation.ledger.turn_milliseconds <= LONGEST_TURN


def test_writers_are_numbered_and_forgotten() -> None:
    ledger = EMPTY
    clock: Callable[[], float] = lambda: 0.0  # noqa: E731 - the type of a clock
    ledger = Turns("early", clock).signed(ledger)
    late = Turns("late", clock)
    for _ in range(REMEMBERED_WRITES - 1):
        ledger = late.signed(ledger)
    assert dict(ledger.writers) == {"early": 1, "late": REMEMBERED_WRITES}
    assert dict(late.signed(ledger).writers) == {"late": REMEMBERED_WRITES + 1}

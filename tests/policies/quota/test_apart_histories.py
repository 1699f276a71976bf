"""Histories of objects that never wait beside a line that is never empty (tests/model/apart.pml), with the functions that decide.

In a round the oldest that runs ends, a controller counts and takes a turn, and then some come in any order.
"""

import random
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.quota.ledger import decide as decisions
from policies.quota.ledger.credits import Mark
from policies.quota.ledger.decide import Line, ReservationRequest, VerdictReason, decide
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import Reservation, Reservations
from policies.quota.waiting import QueueSpec, Waiter
from tests.builders import quota_ledger
from tests.policies.quota.turns import next_to_start
from webhook.controller.waiting_line import mark_waiters

HARD, ROUND_MS, IN_LINE = 2, 31_000, 3
START = 1_790_000_000_000
ROUNDS = 40
"""In line at most: a tenant who polled for so long and then stays away for twice as long holds up the others meanwhile."""


class World:
    """A namespace of two GPUs. Strangers need one each, `watched` needs both."""

    def __init__(self, seed: int, before: int = 3, *, is_greedy: bool = True) -> None:
        self.draw, self.now, self.is_greedy = random.Random(seed), START, is_greedy  # noqa: S311 - no secret
        self.ledger: QuotaLedger = quota_ledger(
            hard={"gpus": Fraction(HARD)}, used={"gpus": Fraction(0)}, class_catalogue="now"
        )
        self.waiting: dict[str, Waiter] = {}
        self.running: dict[str, int] = {}
        """GPUs by uid, the oldest first."""
        self.number = 0
        for _ in range(before):
            self.round()

    def waits(self, uid: str, gpus: int) -> None:
        mark = Mark({"gpus": Fraction(gpus)}, self.now, self.now)
        (waiter,) = mark_waiters(replace(self.ledger, marks={uid: mark}))
        self.waiting[uid] = waiter

    def stranger_waits(self) -> None:
        if len(self.waiting) < IN_LINE:
            self.number += 1
            self.waits(f"{self.draw.randrange(16):x}-{self.number}", 1)

    def comes(self, owner: str, gpus: int) -> bool:
        """Try to create an object that never waits. Return whether it was admitted."""
        self.number += 1
        uid = f"{owner}-{self.number}"
        requested = ReservationRequest(
            reservation=Reservation(uid, {"gpus": Fraction(gpus)}, name=f"pods/{uid}"),
            catalogue_versions=frozenset({"now"}),
            line=Line.NEVER_WAITS,
            owner=owner,
        )
        decided = decide(self.ledger, [requested], now=self.now)
        self.ledger = decided.ledger
        is_admitted = decided.verdicts[0].reason is VerdictReason.RESERVED
        if is_admitted:
            self.running[uid] = gpus
        self.check()
        return is_admitted

    def counts(self) -> None:
        """Count and take a turn, as the controller does. What is held for a pod starts it."""
        ledger = self.ledger.without_late_marks(self.now)
        lifts = [each for each in ledger.reservations if each.is_lift and each.object_uid in ledger.marks]
        counted = replace(
            ledger,
            used={"gpus": Fraction(sum(self.running.values()))},
            waiting=len(self.waiting),
            reservations=Reservations.of(*lifts),
            scarce={},
        )
        waiters = [*self.waiting.values(), *mark_waiters(counted)]
        turn = next_to_start(counted, waiters, {}, QueueSpec())
        self.ledger = turn.ledger
        for uid in turn.ungate_uids:
            if uid in self.waiting:
                self.running[uid] = int(self.waiting.pop(uid).demand["gpus"])
        self.check()

    def check(self) -> None:
        assert self.ledger.held.get("gpus", 0) <= HARD
        assert sum(self.running.values()) <= HARD

    def round(self, owner: str = "") -> bool:
        """Return whether the watched object came and was admitted."""
        for uid in list(self.running)[: 1 if self.is_greedy else self.draw.randrange(1, 3)]:
            del self.running[uid]  # it has ended
        self.counts()
        deeds: list[Callable[[], object]] = [self.stranger_waits] * self.draw.randrange(4)
        deeds += [lambda: self.comes("tenant", 1)] * (HARD if self.is_greedy else self.draw.randrange(3))
        admitted = []
        if owner:
            deeds.append(lambda: admitted.append(self.comes(owner, 2)))
        self.draw.shuffle(deeds)
        for deed in deeds:
            deed()
        self.now += ROUND_MS
        return any(admitted)


def rounds_until_the_head_starts(world: World) -> int:
    world.waits("f-watched", 2)
    for number in range(ROUNDS):
        if "f-watched" not in world.waiting:
            return number
        world.round()
    return ROUNDS


def rounds_until_it_is_admitted(world: World) -> int:
    """Only histories that deny it while others wait."""
    denied = 0
    for _ in range(3 * ROUNDS):
        others_wait = bool(world.ledger.scarce)
        if world.round("watched"):
            return denied
        denied += others_wait
    return denied


@given(st.integers(0, 2**32), st.integers(0, 6), st.booleans())
def test_everybody_starts_in_the_end(seed: int, before: int, is_greedy: bool) -> None:
    for rounds in (rounds_until_the_head_starts, rounds_until_it_is_admitted):
        assert rounds(World(seed, before, is_greedy=is_greedy)) < ROUNDS


def test_without_a_mark_it_never_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "with_mark", lambda marks, *_: marks)

    assert max(rounds_until_it_is_admitted(World(seed)) for seed in range(10)) >= ROUNDS


def test_if_nothing_is_closed_the_head_never_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions._Batch, "_others_go_first", lambda *_: False)

    found = [rounds_until_the_head_starts(World(seed)) for seed in range(10)]
    assert max(found) >= ROUNDS

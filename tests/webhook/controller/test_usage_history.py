"""What was held between any two moments, in tables; and that the memory is bounded."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.quota.amounts import GPUS
from policies.quota.budget import HeldOverTime
from tests.cases import cases
from webhook.controller import namespace_sum
from webhook.controller.namespace_sum import Gap, UsageHistory

STEPS = [(1000, 4), (2000, 0), (5000, 7)]
"""So much was used until a moment, from 0 on."""


def history(gap: Gap | None = None) -> UsageHistory:
    made = UsageHistory([GPUS], gap or Gap(0, 0))
    for until, used in STEPS:
        made.elapse(until, {GPUS: Fraction(used)})
    return made


@cases(
    ("since", "until", "gpu_ms"),
    all_of_it=(0, 5000, 4000 + 21000),
    one_step=(0, 1000, 4000),
    within_a_step=(250, 750, 2000),
    over_a_change=(500, 2500, 2000 + 3500),
    nothing_was_held=(1000, 2000, 0),
    no_time=(700, 700, 0),
    from_before_its_beginning=(-500, 1000, 4000),
)
def test_what_was_held_between_two_moments(since: int, until: int, gpu_ms: int) -> None:
    assert history().held(since, until) == HeldOverTime({GPUS: gpu_ms * 1000}, {})


@cases(
    ("since", "until", "known", "unknown"),
    all_of_it=(-1000, 0, 500, 100),
    a_part_of_it=(-500, 0, 250, 50),
    and_what_was_seen=(-500, 500, 250 + 2000, 50),
    only_what_was_seen=(0, 1000, 4000, 0),
)
def test_a_history_begins_with_what_nobody_watched(since: int, until: int, known: int, unknown: int) -> None:
    gap = Gap(-1000, 0, HeldOverTime({GPUS: 500_000}, {GPUS: 100_000}))
    found = history(gap).held(since, until)
    assert found.known == {GPUS: known * 1000}
    assert found.unknown.get(GPUS, 0) == unknown * 1000


def test_a_seventh_of_a_gpu_is_rounded_to_a_microsecond() -> None:
    made = UsageHistory([GPUS], Gap(0, 0))
    for moment in range(1, 1001):
        made.elapse(moment, {GPUS: Fraction(1, 7)})
    assert made.held(0, 1000).known[GPUS] == pytest.approx(1_000_000 / 7, rel=1e-3)


def test_a_clock_that_stands_still_or_goes_back_adds_nothing() -> None:
    made = history()
    made.elapse(5000, {GPUS: Fraction(9)})
    made.elapse(4000, {GPUS: Fraction(9)})
    assert made.held(0, 5000) == history().held(0, 5000)


@given(st.integers(0, 5000), st.integers(0, 5000))
def test_two_counts_add_what_one_would(one: int, other: int) -> None:
    first, second = sorted((one, other))
    made = history()
    parts = [made.held(0, first), made.held(first, second), made.held(second, 5000)]
    assert sum(each.known[GPUS] for each in parts) == made.held(0, 5000).known[GPUS]


def test_what_was_counted_is_forgotten() -> None:
    made = history()
    made.forget(1500)
    assert len(made._moments) == 3
    assert made.held(1500, 5000) == history().held(1500, 5000)


def test_a_long_history_keeps_its_sum_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace_sum, "MAX_POINTS", 16)
    made = UsageHistory([GPUS], Gap(0, 0))
    for moment in range(1, 1001):
        made.elapse(moment * 10, {GPUS: Fraction(moment % 7)})
        assert len(made._moments) <= 16
    want = sum(10 * (moment % 7) for moment in range(1, 1001))
    assert made.held(0, 10_000).known[GPUS] == want * 1000

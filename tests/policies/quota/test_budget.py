"""Periods, sums of GPU-hours, and when they are spent, in tables."""

from contextlib import nullcontext
from fractions import Fraction

import msgspec
import pytest

from policies.quota.amounts import GPUS
from policies.quota.budget import (
    GPU_HOUR,
    Budget,
    BudgetSpec,
    HeldOverTime,
    Period,
    Spending,
    advance,
    keys_reached,
    moment,
    must_be_written,
    next_change,
    will_be_spent,
)
from tests.budgets import HOUR, MONTH, T4, at, budget, spending
from tests.cases import cases


@cases(
    ("period", "now", "start", "end"),
    a_day=(Period.DAY, "2026-11-26T18:30:00", "2026-11-26", "2026-11-27"),
    its_first_moment=(Period.DAY, "2026-11-26T00:00:00", "2026-11-26", "2026-11-27"),
    its_last_moment=(Period.DAY, "2026-11-26T23:59:59.999", "2026-11-26", "2026-11-27"),
    a_week_from_monday=(Period.WEEK, "2026-11-26T18:30:00", "2026-11-23", "2026-11-30"),
    sunday_is_its_last_day=(Period.WEEK, "2026-11-29T23:59:59", "2026-11-23", "2026-11-30"),
    a_week_over_new_year=(Period.WEEK, "2027-01-02T01:00:00", "2026-12-28", "2027-01-04"),
    a_month=(Period.MONTH, "2026-11-26T18:30:00", "2026-11-01", "2026-12-01"),
    a_month_of_31_days=(Period.MONTH, "2026-12-31T23:59:59", "2026-12-01", "2027-01-01"),
    february=(Period.MONTH, "2028-02-29T12:00:00", "2028-02-01", "2028-03-01"),
)
def test_a_period_begins_at_midnight_utc(period: Period, now: str, start: str, end: str) -> None:
    assert period.bounds(at(now)) == (at(start), at(end))


@cases(
    ("spec", "want"),
    hours_and_classes=({"gpuHours": 5000, "byClass": {"nvidia-t4": "0.5"}}, []),
    only_classes=({"byClass": {"nvidia-t4": 1}, "period": "day", "warnAt": 1}, []),
    nothing_granted=({"period": "week"}, [("", "must have gpuHours, byClass or both")]),
    every_error_at_once=(
        {"gpuHours": "many", "byClass": {"nvidia-t4": "-1"}, "warnAt": 0},
        [
            ("gpuHours", 'must be an amount such as 16, "0.5" or "2/7", not "many"'),
            ("byClass[nvidia-t4]", 'must be an amount such as 16, "0.5" or "2/7", not "-1"'),
            ("warnAt", "must be more than 0 and at most 1, such as 0.8"),
        ],
    ),
    a_percentage=(
        {"gpuHours": 1, "warnAt": 80},
        [("warnAt", "must be more than 0 and at most 1, such as 0.8")],
    ),
    too_many=({"gpuHours": 10**9 + 1}, [("gpuHours", "must be at most 1000000000 GPU-hours")]),
)
def test_a_spec(spec: dict[str, object], want: list[tuple[str, str]]) -> None:
    read = msgspec.convert(spec, BudgetSpec)
    assert list(read.problems()) == want
    with pytest.raises(ValueError, match=r"^budget") if want else nullcontext():
        assert read.budget.granted


@cases(
    ("spec", "message"),
    another_period=({"gpuHours": 1, "period": "year"}, r"Invalid enum value 'year' - at `\$.period`"),
    a_misspelt_field=({"gpuhours": 1}, "contains unknown field `gpuhours`"),
)
def test_a_spec_that_cannot_be_read(spec: dict[str, object], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(spec, BudgetSpec)


def test_what_is_granted_is_exact() -> None:
    spec = msgspec.convert({"gpuHours": "2/7", "byClass": {"nvidia-t4": "1.5"}}, BudgetSpec)
    assert spec.budget == Budget(
        Period.MONTH, {GPUS: round(GPU_HOUR * Fraction(2, 7)), T4: 3 * GPU_HOUR // 2}, 0.8
    )


def one_gpu(since: int, until: int) -> HeldOverTime:
    """Return what one GPU adds: as much known as unknown use."""
    return HeldOverTime({GPUS: (until - since) * 1000}, {GPUS: (until - since) * 1000})


NOON = at("2026-11-26T12:00:00")


@cases(
    ("before", "now", "want"),
    the_first_count=(None, "2026-11-26T12:00:00", spending(until=NOON)),
    an_hour_later=(
        spending(spent=2.0, unknown=1.0, until=NOON),
        "2026-11-26T13:00:00",
        spending(spent=3.0, unknown=2.0, until=NOON + HOUR),
    ),
    the_same_moment=(spending(spent=2.0, until=NOON), "2026-11-26T12:00:00", spending(spent=2.0, until=NOON)),
    a_clock_behind=(spending(spent=2.0, until=NOON), "2026-11-26T11:00:00", spending(spent=2.0, until=NOON)),
    a_new_month_begins_at_zero=(
        spending(spent=99.0, unknown=9.0, until=at("2026-11-30T22:00:00")),
        "2026-12-01T03:00:00",
        spending(
            start=at("2026-12-01"),
            end=at("2027-01-01"),
            until=at("2026-12-01T03:00:00"),
            spent=3.0,
            unknown=3.0,
        ),
    ),
    months_later=(
        spending(spent=99.0, until=NOON),
        "2027-02-01T01:00:00",
        spending(
            start=at("2027-02-01"),
            end=at("2027-03-01"),
            until=at("2027-02-01T01:00:00"),
            spent=1.0,
            unknown=1.0,
        ),
    ),
    another_length_of_period_begins_at_its_first_count=(
        spending(start=at("2026-11-26"), end=at("2026-11-27"), spent=99.0, until=NOON),
        "2026-11-26T14:00:00",
        spending(until=NOON + 2 * HOUR, spent=2.0, unknown=2.0),
    ),
)
def test_a_count_adds_the_time_since_the_last_one(before: Spending | None, now: str, want: Spending) -> None:
    assert advance(budget(gpus=100), before, at(now), one_gpu) == want


def test_amounts_beyond_64_bits_are_cut() -> None:
    held = HeldOverTime({GPUS: 10**30})
    found = advance(budget(gpus=1), spending(until=NOON), NOON + HOUR, lambda *_: held)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Spending) == found


@cases(
    ("spent", "share", "want"),
    nothing=({}, 1.0, set()),
    just_below=({GPUS: 100 * GPU_HOUR - 1}, 1.0, set()),
    all_of_it=({GPUS: 100 * GPU_HOUR}, 1.0, {GPUS}),
    of_a_class=({GPUS: 10 * GPU_HOUR, T4: 10 * GPU_HOUR}, 1.0, {T4}),
    the_share_at_which_it_warns=({GPUS: 80 * GPU_HOUR, T4: 8 * GPU_HOUR - 1}, 0.8, {GPUS}),
)
def test_what_is_reached(spent: dict[str, int], share: float, want: set[str]) -> None:
    spent_now = Spending(start=MONTH[0], end=MONTH[1], until=NOON, spent=spent)
    assert keys_reached(budget(gpus=100, t4=10), spent_now, share) == want


@cases(
    ("spent", "used", "change", "spent_at"),
    nothing_is_used=(50.0, 0, "2026-12-01T00:00:00", None),
    first_it_warns=(50.0, 10, "2026-11-26T15:00:00", "2026-11-26T17:00:00"),
    then_it_is_spent=(80.0, 10, "2026-11-26T14:00:00", "2026-11-26T14:00:00"),
    it_lasts=(50.0, "1/10", "2026-12-01T00:00:00", None),
    it_warns_and_lasts=(50.0, "3/10", "2026-11-30T16:00:00", None),
    it_is_spent=(100.0, 10, "2026-12-01T00:00:00", None),
)
def test_when_something_changes(spent: float, used: int | str, change: str, spent_at: str | None) -> None:
    before, vector = spending(spent=spent, until=NOON), {GPUS: Fraction(used)}
    limits = budget(gpus=100)
    assert moment(next_change(limits, before, vector)) == moment(at(change))
    assert will_be_spent(limits, before, vector, limits.granted) == (spent_at and at(spent_at))


@cases(
    ("before", "after", "want"),
    nothing_came_or_went=(spending(spent=1.0, until=NOON), spending(spent=2.0, until=NOON + 36_000), False),
    something_came_and_went=(spending(spent=1.0, until=NOON), spending(spent=2.1, until=NOON + 36_000), True),
    something_went_and_came=(spending(spent=1.0, until=NOON), spending(spent=1.9, until=NOON + 36_000), True),
    the_first_count=(None, spending(until=NOON), True),
    a_moment_later=(spending(spent=1.0, until=NOON), spending(spent=1.0278, until=NOON + 1000), False),
    five_minutes_later=(spending(spent=1.0, until=NOON), spending(spent=1.1, until=NOON + 300_000), True),
    it_warns=(spending(spent=79.9, until=NOON), spending(spent=80.0, until=NOON + 1), True),
    it_is_spent=(spending(spent=99.9, until=NOON), spending(spent=100.0, until=NOON + 1), True),
    a_new_period=(
        spending(until=MONTH[1] - 1),
        spending(start=MONTH[1], end=at("2027-01-01"), until=MONTH[1] + 1),
        True,
    ),
)
def test_when_a_count_must_be_written(before: Spending | None, after: Spending, want: bool) -> None:
    assert must_be_written(budget(gpus=100), before, after, every=300_000, used={GPUS: Fraction(100)}) is want

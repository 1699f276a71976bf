"""The statistics of the benchmarks: medians of paired ratios and the intervals that have them."""

import random
from collections.abc import Sequence
from math import inf

import pytest

from tests.bench.intervals import Interval, median_interval, paired


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param([3, 1, 2, 5, 4], Interval(3, -inf, inf), id="five-values-bound-nothing"),
        pytest.param([6, 3, 1, 2, 5, 4], Interval(3.5, 1, 6), id="of-six-all-values-are-the-interval"),
        pytest.param(range(1, 10), Interval(5, 2, 8), id="of-nine-the-second-and-the-eighth"),
        pytest.param(range(1, 41), Interval(20.5, 14, 27), id="of-forty-as-tables-of-the-sign-test-have-it"),
    ],
)
def test_interval_is_that_of_tables(values: Sequence[float], expected: Interval) -> None:
    assert median_interval(values) == expected


def test_interval_has_the_median_in_95_of_100_runs_of_a_skewed_cost() -> None:
    chance = random.Random(1)  # noqa: S311 - no secret
    runs = [median_interval([chance.lognormvariate(0, 0.5) for _ in range(40)]) for _ in range(10_000)]
    held = sum(run.low <= 1 <= run.high for run in runs) / len(runs)

    assert 0.955 <= held <= 0.97  # 0.9615: P(14 to 26 of 40 are below)


@pytest.mark.parametrize(
    ("interval", "is_wide"),
    [
        pytest.param(Interval(1.0, 0.96, 1.04), False, id="four-percent"),
        pytest.param(Interval(1.0, 0.99, 1.06), True, id="one-end-is-six-percent-away"),
        pytest.param(Interval(2.0, 1.85, 2.0), True, id="the-share-is-of-the-median"),
        pytest.param(Interval(1.0, -inf, inf), True, id="too-few-values"),
        pytest.param(Interval(0.0, 0.0, 0.0), True, id="a-median-of-nothing-has-no-share"),
    ],
)
def test_wide_is_what_reaches_further_than_five_percent(interval: Interval, is_wide: bool) -> None:
    assert interval.is_wide is is_wide


def test_a_machine_that_slows_down_changes_no_paired_ratio() -> None:
    slower = [1.0, 1.5, 3.0]

    assert paired([2 * lap for lap in slower], slower) == [2, 2, 2]

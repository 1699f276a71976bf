"""Dates of exemptions."""

from datetime import UTC, date, datetime

import pytest

from policies.policy import end_of


@pytest.mark.parametrize(
    ("day", "want"),
    [
        pytest.param(
            date(2026, 12, 31), datetime(2027, 1, 1, tzinfo=UTC), id="a-day-ends-as-the-next-begins"
        ),
        pytest.param(date(2028, 2, 28), datetime(2028, 2, 29, tzinfo=UTC), id="leap-year"),
    ],
)
def test_end_of_a_day(day: date, want: datetime) -> None:
    assert end_of(day) == want

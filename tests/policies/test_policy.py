"""Dates of exemptions."""

from datetime import UTC, date, datetime

from policies.policy import end_of
from tests.cases import cases


@cases(
    ("day", "want"),
    {
        "a-day-ends-as-the-next-begins": (date(2026, 12, 31), datetime(2027, 1, 1, tzinfo=UTC)),
        "leap-year": (date(2028, 2, 28), datetime(2028, 2, 29, tzinfo=UTC)),
    },
)
def test_end_of_a_day(day: date, want: datetime) -> None:
    assert end_of(day) == want

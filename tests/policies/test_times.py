"""The form in which people read moments."""

from datetime import UTC, datetime, timedelta, timezone

from policies.times import utc
from tests.cases import cases

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
EAST = timezone(timedelta(hours=9))


@cases(
    ("moment", "now", "want"),
    today=(datetime(2026, 11, 28, 7, 13, 20, tzinfo=UTC), NOW, "07:13:20 UTC"),
    another_day=(datetime(2026, 11, 27, 7, 13, 20, tzinfo=UTC), NOW, "2026-11-27 07:13:20 UTC"),
    without_seconds=(datetime(2026, 12, 1, tzinfo=UTC), NOW, "2026-12-01 00:00 UTC"),
    in_a_text_that_is_stored=(datetime(2026, 11, 28, 7, 13, tzinfo=UTC), None, "2026-11-28 07:13 UTC"),
    in_another_zone=(datetime(2026, 11, 29, 1, 0, 5, tzinfo=EAST), NOW, "16:00:05 UTC"),
    on_a_day_of_another_zone=(NOW, datetime(2026, 11, 29, 1, tzinfo=EAST), "12:00 UTC"),
)
def test_a_moment_in_words(moment: datetime, now: datetime | None, want: str) -> None:
    assert utc(moment, now) == want

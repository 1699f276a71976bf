"""In which words every surface says how old the figures of quotas are."""

from datetime import UTC, datetime, timedelta

from tests.cases import cases
from webhook.tools.status.freshness import ago, stale_figures

NOW = datetime(2026, 11, 26, 22, tzinfo=UTC)


@cases(
    ("seconds", "want"),
    at_once=(0, "now"),
    a_clock_that_is_behind=(-5, "now"),
    seconds=(45, "45 s ago"),
    minutes=(119, "1 min ago"),
    hours=(7300, "2 h ago"),
    days=(2 * 86400, "2 d ago"),
)
def test_how_long_ago(seconds: int, want: str) -> None:
    assert ago(NOW - timedelta(seconds=seconds), NOW) == want


def test_figures_that_nobody_counts() -> None:
    said = "quotas as of 45 s ago (21:59:15 UTC), not counted now: no controller leads; gpu-admission doctor says why"
    assert stale_figures(NOW - timedelta(seconds=45), NOW) == said

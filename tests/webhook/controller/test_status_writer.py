"""When a status is written: what changed for the object itself comes before what changed for others, and a failure delays it."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.cases import cases
from tests.webhook.controller.clock import Clock
from webhook.cluster import errors
from webhook.cluster.objects import Condition
from webhook.controller import status_writer
from webhook.controller.status_writer import DATED_SECONDS, EVERY_SECONDS, FAILED_SECONDS, StatusWriter, dated
from webhook.quota.documents import QuotaRecord, QuotaStatus


class Writer(StatusWriter[QuotaRecord]):
    """Notes what is written, and fails with the next of `failures`."""

    kind = "Kind"

    def __init__(self) -> None:
        nothing: Any = None
        super().__init__(
            nothing, lambda: ["a", "b"], nothing, stale=str, is_ready_leader=lambda: True, events=nothing
        )
        self.written: list[str] = []
        self.failures: list[errors.ApiError] = []

    def write(self, key: str) -> bool:
        if self.failures:
            raise self.failures.pop()
        self.written.append(key)
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(status_writer, "monotonic", clock)
    monkeypatch.setattr(status_writer, "sleep", lambda _seconds: None)
    return clock


@cases(
    ("changes", "due"),
    once=([EVERY_SECONDS], EVERY_SECONDS),
    later=([15.0], 15.0),
    soon_after_a_later_one=([15.0, EVERY_SECONDS], EVERY_SECONDS),
    a_later_one_after_it=([EVERY_SECONDS, 15.0], EVERY_SECONDS),
)
def test_the_earliest_change_decides_when_a_status_is_written(
    clock: Clock, changes: list[float], due: float
) -> None:
    writer = Writer()
    for within in changes:
        writer.changed("a", within)

    clock.now += due - 0.1
    writer.sync()
    assert writer.written == []
    clock.now += 0.2
    writer.sync()
    writer.sync()
    assert writer.written == ["a"]


def test_a_change_does_not_shorten_the_pause_after_a_failure(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Writer()
    writer.changed("a")
    writer.failures = [errors.Unavailable("a webhook failed")]
    clock.now += EVERY_SECONDS
    writer.sync()
    assert caplog.messages == ["a: the status of the Kind cannot be written: a webhook failed"]

    writer.changed("a")
    clock.now += FAILED_SECONDS - 0.1
    writer.sync()
    assert writer.written == []
    clock.now += 0.2
    writer.sync()
    assert writer.written == ["a"]

    writer.changed("a")
    clock.now += EVERY_SECONDS
    writer.sync()
    assert writer.written == ["a", "a"], "the pause is over"


def test_all_statuses_are_looked_at_again_when_they_are_to_be_dated(clock: Clock) -> None:
    writer = Writer()

    clock.now += DATED_SECONDS
    writer.sync()
    clock.now += EVERY_SECONDS
    writer.sync()
    clock.now += EVERY_SECONDS
    writer.sync()

    assert writer.written == ["a", "b"]


def status(counted_at: str = "", *, ready: str = "True", stale: str = "False", **fields: Any) -> QuotaStatus:
    conditions = (Condition("Ready", ready, "", "", ""), Condition("Stale", stale, "", "", ""))
    return QuotaStatus(conditions=conditions, counted_at=counted_at, **fields)


NOON, LATER = "2026-11-21T12:00:00Z", "2026-11-21T12:02:29Z"
AT_LAST = "2026-11-21T12:02:30Z"


@cases(
    ("before", "after", "now", "want"),
    the_first_count=(QuotaStatus(), status(), NOON, NOON),
    nothing_changed=(status(NOON), status(), LATER, NOON),
    nothing_changed_for_long=(status(NOON), status(), AT_LAST, AT_LAST),
    something_changed=(status(NOON), status(observed_generation=2), LATER, LATER),
    changes_do_not_arrive=(status(NOON), status(stale="True"), AT_LAST, NOON),
    not_counted=(QuotaStatus(), status(ready="False"), NOON, ""),
)
def test_a_status_has_the_time_of_its_count(
    before: QuotaStatus, after: QuotaStatus, now: str, want: str
) -> None:
    assert dated(after, before, datetime.fromisoformat(now).astimezone(UTC)).counted_at == want

"""Events in a bounded queue: what is lost is counted."""

from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.webhook.cluster.event_writer import Writer
from webhook.cluster import errors, events
from webhook.cluster.api import ApiClient
from webhook.cluster.events import EventQueue, EventRecord, EventWriter
from webhook.quota.documents import quota_reference

TEAM = quota_reference("team", "uid-of-quota")


class WrittenEvents:
    def __init__(self) -> None:
        self.writer, self.lost = Writer(), 0
        self.events = EventQueue(cast(EventWriter, self.writer), self.lose)
        self.events.start()

    def lose(self) -> None:
        self.lost += 1

    def warn(self, number: int, reason: str = "Exceeded") -> None:
        self.events.put(EventRecord(regarding=TEAM, reason=reason, message=f"{number}"))


@pytest.fixture
def written() -> WrittenEvents:
    return WrittenEvents()


def test_what_is_waiting_at_the_end_is_written(written: WrittenEvents) -> None:
    written.writer.answers.set()
    for number in range(9):
        written.warn(number)
    written.events.stop()
    assert [each.message for each in written.writer.requested] == [f"{number}" for number in range(9)]
    assert {each.count for each in written.writer.requested} == {1}
    about = written.writer.requested[0].regarding
    assert (about.kind, about.name, about.namespace, about.uid) == (
        *("GPUQuota", "default"),
        *("team", "uid-of-quota"),
    )
    assert written.lost == 0


def test_an_event_has_its_own_times_or_the_present(written: WrittenEvents) -> None:
    written.writer.answers.set()
    begin = datetime.now(UTC)
    first, last = begin - timedelta(hours=2), begin - timedelta(hours=1)
    written.events.put(EventRecord(regarding=TEAM, reason="Exceeded", message="1", first=first, last=last))
    written.warn(2)
    written.events.stop()
    past, present = written.writer.requested
    assert (past.first, past.last) == (first, last)
    assert present.first is None
    assert begin <= present.last


def test_what_does_not_fit_into_the_queue_is_counted(written: WrittenEvents) -> None:
    written.warn(-1)
    assert eventually(written.events._waiting.empty), "it is being written"
    for number in range(510):
        written.warn(number)
    assert written.lost == 10
    written.writer.answers.set()
    written.events.stop()
    assert len(written.writer.requested) == 501


def test_what_the_api_server_does_not_take_is_counted(written: WrittenEvents) -> None:
    written.writer.answers.set()
    written.warn(0, "Refused")
    written.warn(1)
    written.events.stop()
    assert (len(written.writer.requested), written.lost) == (2, 1)


def test_an_event_that_others_always_write_first_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Contested:
        def patch(self, *_: object, **__: object) -> bytes:
            raise errors.Conflict("another wrote")

    monkeypatch.setattr(events, "PAUSE_SECONDS", 0.0)
    event = EventRecord(regarding=TEAM, reason="Exceeded", message="1")

    assert not EventWriter(cast(ApiClient, Contested()), "gpu-admission").write(event)
    assert caplog.messages == [
        "team: event Exceeded of GPUQuota default was not written: 20 times another replica wrote first"
    ]


@cases("waiting", one_under_way=0, a_full_queue=500)
def test_the_end_waits_for_no_api_server(
    written: WrittenEvents, waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "STOP_SECONDS", 0.01)
    written.warn(-1)
    assert eventually(written.events._waiting.empty), "it is being written"
    for number in range(waiting):
        written.warn(number)
    written.events.stop()
    assert written.writer.requested == []
    written.writer.answers.set()

"""The status of every document is written once, and Events say what changed."""

import threading
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import jsonpatch
import msgspec
import pytest

from tests.cases import cases
from tests.webhook.configuration.written import record
from webhook.configuration.cluster_source import DocumentStatus, Record, documents_in_force, statuses
from webhook.configuration.documents import Document
from webhook.controller.document_status import changes, ended_pauses, status_patch, write_statuses

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
GOOD, BAD = {"priority": 1}, {"priority": 1, "rules": {"gpu-class": {"default": "none"}}}

A, B = {"priority": 1}, {"priority": 2}
CAPACITY_CONFIG_MAP = {"capacity": {"nodes": 2}}


@cases(
    ("before", "after"),
    the_first=(DocumentStatus(), DocumentStatus(observed_generation=1, accepted=A)),
    another_spec=(DocumentStatus(observed_generation=1, accepted=A), DocumentStatus(accepted=B)),
    refused_at_first=(DocumentStatus(), DocumentStatus(observed_generation=1)),
    accepted_at_last=(DocumentStatus(observed_generation=1), DocumentStatus(accepted=A)),
    accepted_no_more=(DocumentStatus(observed_generation=1, accepted=A), DocumentStatus()),
)
def test_a_status_is_replaced_without_the_capacity_that_another_writes(
    before: DocumentStatus, after: DocumentStatus
) -> None:
    stored = msgspec.to_builtins(before) | (CAPACITY_CONFIG_MAP if before != DocumentStatus() else {})
    operations = msgspec.to_builtins(status_patch(before, after))
    patched = jsonpatch.apply_patch({"status": stored} if stored else {}, operations)["status"]
    assert msgspec.convert(patched, DocumentStatus) == after
    assert patched.get("capacity") == stored.get("capacity")


def test_a_status_is_written_once_by_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    api: Any = SimpleNamespace(patch=lambda path, *_, **__: written.append(path))
    source: Any = SimpleNamespace(evaluated=documents_in_force([record("a", GOOD)], None))
    leads, before = iter([False, True, True]), list[int]()

    def is_leader() -> bool:
        before.append(len(written))
        return next(leads)

    stopping = threading.Event()
    looks = iter([False, False, False])
    monkeypatch.setattr(stopping, "wait", lambda _seconds: next(looks, True))
    write_statuses(api, source, is_leader, stopping)

    assert written == ["/apis/gpu-admission.dev/v1alpha1/gpupolicies/a/status"]
    assert before == [0, 0, 1]


PAUSED = {**GOOD, "pausedUntil": "2026-11-21T13:00:00Z"}
LONGER = {**GOOD, "pausedUntil": "2026-11-21T14:00:00Z"}
OVER = {**GOOD, "pausedUntil": "2026-11-21T11:00:00Z"}


def said(record: Record, last_good: tuple[Document, ...] | None = None) -> list[tuple[str, str, str]]:
    """Return type, reason and message of each Event about the document."""
    [(_, status)] = statuses(documents_in_force([record], last_good), NOW)
    return [(each.kind, each.reason, each.message) for each in changes(record, status, NOW)]


def paused(until: str) -> tuple[str, str, str]:
    return "Warning", "Paused", f"until {until} its rules only log what they would deny or change"


REFUSED = 'the previous version stays in force: spec.rules.gpu-class.default: must be a class or a family, not "none"'


@cases(
    ("before", "spec", "want"),
    paused=(GOOD, PAUSED, paused("2026-11-21 13:00 UTC")),
    created_paused=(None, PAUSED, paused("2026-11-21 13:00 UTC")),
    paused_for_longer=(PAUSED, LONGER, paused("2026-11-21 14:00 UTC")),
    resumed=(PAUSED, GOOD, ("Normal", "Resumed", "its rules are in force again")),
    changed_while_paused=(PAUSED, {**PAUSED, "priority": 2}, None),
    a_pause_that_had_ended_is_removed=(OVER, GOOD, None),
    a_pause_in_the_past=(GOOD, OVER, None),
    created=(None, GOOD, None),
    refused=(GOOD, BAD, ("Warning", "Rejected", REFUSED)),
)
def test_event_of_a_change(before: Any, spec: dict[str, Any], want: tuple[str, str, str] | None) -> None:
    status = None if before is None else DocumentStatus(accepted=before)
    last_good = None if before is None else (Document("GPUPolicy", "a", before),)
    assert said(record("a", spec, status), last_good) == ([want] if want else [])


def test_a_document_that_stays_refused_is_one_event() -> None:
    [(_, status)] = statuses(documents_in_force([record("a", BAD)], None), NOW)
    assert said(record("a", BAD, status)) == []


@cases(
    ("accepted", "want"),
    ended=(PAUSED, ["the pause until 2026-11-21 13:00 UTC has ended: its rules are in force again"]),
    still_paused=(LONGER, []),
    earlier=(OVER, []),
    not_paused=(GOOD, []),
)
def test_a_pause_that_ends_by_itself(accepted: dict[str, Any], want: list[str]) -> None:
    evaluated = documents_in_force([record("a", accepted, DocumentStatus(accepted=accepted))], None)
    at = datetime(2026, 11, 21, 13, tzinfo=UTC)
    ended = ended_pauses(evaluated, at - timedelta(seconds=1), at)
    assert [each.message for each in ended] == want


def test_a_problem_that_quotes_a_document_obeys_nobody() -> None:
    hostile = {"rules": {"gpu-class": {"default": "a\x1b[2J\u202eb\u2028"}}}
    [(_, status)] = statuses(documents_in_force([record("a", hostile)], None), NOW)
    [refused] = changes(record("a", hostile), status, NOW)

    for text in (status.conditions[0].message, refused.message):
        assert 'must be a class or a family, not "a\ufffd[2J\ufffdb\ufffd"' in text
        assert text.replace("\n", "").isprintable()

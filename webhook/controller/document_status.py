"""The status of every GPUPolicy, GPUClass and GPUResourceMapping: in force, invalid with every problem, or held back by another.

The leader writes it, and an Event when a document is rejected, paused or resumed. No decision depends on them.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from policies.policy import end_of_pause
from policies.times import utc
from webhook.cluster import errors
from webhook.cluster.api import JSON_PATCH, ApiClient
from webhook.cluster.events import NORMAL, WARNING, EventRecord, EventWriter, Regarding
from webhook.cluster.objects import CONTROLLER
from webhook.configuration.cluster_source import (
    INVALID,
    ClusterSource,
    DocumentStatus,
    EvaluatedDocuments,
    Record,
    path_of,
    statuses,
)
from webhook.configuration.documents import API_VERSION, PAUSE, is_valid_pause

LOOK_SECONDS = 0.5
FAILED_SECONDS = 10.0
REJECTED, PAUSED, RESUMED = "Rejected", "Paused", "Resumed"
"""Reasons of Events."""

log = logging.getLogger("gpu_admission.configuration")


def write_statuses(
    api: ApiClient, source: ClusterSource, is_leader: Callable[[], bool], stopping: threading.Event
) -> None:
    """Write each status that is not up to date, until `stopping`. A write that failed or was overwritten is repeated."""
    events = EventWriter(api, CONTROLLER)
    written: EvaluatedDocuments | None = None
    looked = datetime.now(UTC)
    while not stopping.wait(LOOK_SECONDS):
        before, looked, evaluated = looked, datetime.now(UTC), source.evaluated
        if evaluated is None or not is_leader():
            continue
        for event_record in ended_pauses(evaluated, before, looked):
            events.write(event_record)
        if evaluated is written:
            continue
        try:
            _write(api, evaluated, events)
            written = evaluated
        except errors.ApiError as error:
            log.warning("the status of the configuration cannot be written: %s", error)
            stopping.wait(FAILED_SECONDS)


def _write(api: ApiClient, evaluated: EvaluatedDocuments, events: EventWriter) -> None:
    now = datetime.now(UTC)
    for record, status in statuses(evaluated, now):
        if status == record.status:
            continue
        body = msgspec.json.encode(status_patch(record.status, status))
        try:
            api.patch(path_of(record.document, "status"), body, content_type=JSON_PATCH)
        except errors.NotFound:
            log.info("%s was deleted", record.document.title)
            continue
        for event_record in changes(record, status, now):
            events.write(event_record)


def status_patch(before: DocumentStatus, after: DocumentStatus) -> list[dict[str, Any]]:
    """Return the operations that make one status the other, and leave alone the capacity of a class."""
    if before == DocumentStatus():
        return [{"op": "add", "path": "/status", "value": after}]
    fields: dict[str, Any] = {"observedGeneration": after.observed_generation, "conditions": after.conditions}
    if after.accepted is not None:
        fields["accepted"] = after.accepted
    gone: list[dict[str, Any]] = (
        [{"op": "remove", "path": "/status/accepted"}] if before.accepted and not after.accepted else []
    )
    return [
        *gone,
        *({"op": "add", "path": f"/status/{name}", "value": field} for name, field in fields.items()),
    ]


def changes(record: Record, status: DocumentStatus, now: datetime) -> Iterator[EventRecord]:
    """Yield an Event if the new status says that the document was rejected, paused or resumed."""
    [condition] = status.conditions
    known = {present.message for present in record.status.conditions}
    if condition.reason == INVALID and condition.message not in known:
        yield _event_record(record, REJECTED, condition.message.replace("\n", " "), now)
    before, after = (_paused_until(spec, now) for spec in (record.status.accepted, status.accepted))
    if after is not None and after != before:
        only_log = f"until {utc(after)} its rules only log what they would deny or change"
        yield _event_record(record, PAUSED, only_log, now)
    if before is not None and after is None:
        yield _event_record(record, RESUMED, "its rules are in force again", now)


def ended_pauses(evaluated: EvaluatedDocuments, before: datetime, now: datetime) -> Iterator[EventRecord]:
    """Yield an Event for each pause that ended by itself between these times."""
    for record in evaluated.records:
        until = _paused_until(record.status.accepted, before)
        if until is not None and until <= now:
            ended = f"the pause until {utc(until)} has ended: its rules are in force again"
            yield _event_record(record, RESUMED, ended, now)


def _paused_until(spec: dict[str, Any] | None, now: datetime) -> datetime | None:
    """Return the end of the pause of a policy, None if the policy is not paused now."""
    value = (spec or {}).get(PAUSE)
    if value is None or not is_valid_pause(value):
        return None
    return end_of_pause(msgspec.convert(value, datetime), now)


def _event_record(record: Record, reason: str, message: str, now: datetime) -> EventRecord:
    document = record.document
    regarding = Regarding(API_VERSION, document.kind, document.name, record.uid)
    kind = NORMAL if reason == RESUMED else WARNING
    return EventRecord(regarding=regarding, reason=reason, message=message, first=now, last=now, kind=kind)

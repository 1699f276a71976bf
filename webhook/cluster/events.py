"""Events of core/v1, which `kubectl describe` shows below an object. A repetition raises the count of the same Event.

Object, reason and cause make the name of an Event, so all replicas count in the same Event. They need the rights to `create` and
`patch` events, but not to read them: an empty patch returns the stored Event.
"""

import contextlib
import logging
import queue
import random
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from time import sleep

import msgspec

from policies.finding import truncate
from webhook.cluster import errors
from webhook.cluster.api import ApiClient, api_path
from webhook.cluster.objects import ObjectMeta, timestamp
from webhook.threads import thread

log = logging.getLogger("gpu_admission.events")

NORMAL, WARNING = "Normal", "Warning"
FAILED_UPDATE = "FailedUpdate"
"""The reason of an Event on a pod whose change by a program was denied, and on its controller."""
CLUSTER_SCOPED = "default"
"""The namespace of Events on cluster-scoped objects. The API server accepts no other (`legacyValidateEvent` in
`k8s.io/kubernetes/pkg/apis/core/validation`)."""
LONGEST_MESSAGE = 1024
"""Characters, as in events.k8s.io (`NoteLengthLimit`, in the same package)."""
MAX_COUNT = 2**31 - 1
"""The largest count. Anybody who may write Events can create one with our name and any count."""
LONGEST_PROBLEM = 200
"""Characters of an error in the log. An error of the API server may repeat the stored Event, which others may have written."""
MAX_NAME_PREFIX = 236
"""Characters of an object's name in the name of its Event. With the 17 that follow they make 253, the limit of a name."""
CALL_SECONDS = 5.0
ATTEMPTS = 20
"""Attempts to raise a count that other replicas raise at the same time, with jittered pauses up to PAUSE_SECONDS."""
PAUSE_SECONDS = 0.1
MAX_WAITING = 500
"""Events in a queue at most; more are only logged. Each takes two calls."""
STOP_SECONDS = 5.0
"""For the last Events of a queue, and again for a place in a full one."""


class Regarding(msgspec.Struct, frozen=True, rename="camel"):
    """The object that an Event is about. `namespace` is empty for a cluster-scoped object."""

    api_version: str
    kind: str
    name: str
    uid: str
    namespace: str = ""


class EventRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to an object, `count` times from `first` to `last`. The same `cause` and `reason` make one Event."""

    regarding: Regarding
    reason: str
    message: str
    last: datetime = msgspec.field(default_factory=partial(datetime.now, UTC))
    first: datetime | None = None
    """None if it happened once, at `last`."""
    kind: str = WARNING
    cause: str = ""
    count: int = 1
    related: Regarding | None = None
    """An object that has an Event of its own about the same."""

    @property
    def name(self) -> str:
        """The name of the Event: the name of the object, and 64 bits of a hash of object, reason and cause."""
        identity = f"{self.regarding.kind}\n{self.regarding.uid}\n{self.reason}\n{self.cause}"
        beginning = self.regarding.name[:MAX_NAME_PREFIX].rstrip(".-")
        return f"{beginning}.{sha256(identity.encode()).hexdigest()[:16]}"


class _StoredEvent(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    count: int = 0


_STORED_EVENT = msgspec.json.Decoder(_StoredEvent)


class EventWriter:
    """Writes Events as `component`, for any number of threads. Nothing depends on an Event, so a failed write is only logged."""

    def __init__(self, api: ApiClient, component: str) -> None:
        self._api = api
        self._component = component

    def write(self, event_record: EventRecord) -> bool:
        """Create the Event, or add to the count of the stored one. Return whether that succeeded."""
        try:
            self._write(event_record)
        except (errors.ApiError, msgspec.MsgspecError) as error:
            regarding, problem = event_record.regarding, truncate(str(error), LONGEST_PROBLEM)
            event = f"event {event_record.reason} of {regarding.kind} {regarding.name}"
            log.warning("%s: %s was not written: %s", regarding.namespace or CLUSTER_SCOPED, event, problem)
            return False
        return True

    def _write(self, event_record: EventRecord) -> None:
        namespace = event_record.regarding.namespace or CLUSTER_SCOPED
        events = api_path("/api/v1", "namespaces", namespace, "events")
        path = api_path(events, event_record.name)
        for _ in range(ATTEMPTS):
            with contextlib.suppress(errors.Conflict, errors.AlreadyExists):
                try:
                    stored = _STORED_EVENT.decode(self._api.patch(path, b"{}", timeout=CALL_SECONDS))
                except errors.NotFound:
                    self._api.post(events, self._event(event_record, namespace), timeout=CALL_SECONDS)
                else:
                    self._api.patch(path, _count_patch(event_record, stored), timeout=CALL_SECONDS)
                return
            sleep(random.uniform(0.0, PAUSE_SECONDS))  # noqa: S311 - jitter
        raise errors.Conflict(f"{ATTEMPTS} times another replica wrote first")

    def _event(self, event_record: EventRecord, namespace: str) -> bytes:
        return msgspec.json.encode(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": event_record.name, "namespace": namespace},
                "involvedObject": event_record.regarding,
                **({"related": event_record.related} if event_record.related else {}),
                "type": event_record.kind,
                "reason": event_record.reason,
                "message": truncate(event_record.message, LONGEST_MESSAGE),
                "source": {"component": self._component},
                "firstTimestamp": timestamp(event_record.first or event_record.last),
                "lastTimestamp": timestamp(event_record.last),
                "count": event_record.count,
            }
        )


def _count_patch(event_record: EventRecord, stored: _StoredEvent) -> bytes:
    """Return a patch that fails if another replica has raised the count in between."""
    return msgspec.json.encode(
        {
            "metadata": {"resourceVersion": stored.metadata.resource_version},
            "count": min(stored.count + event_record.count, MAX_COUNT),
            "lastTimestamp": timestamp(event_record.last),
            "message": truncate(event_record.message, LONGEST_MESSAGE),
        }
    )


class EventQueue:
    """Writes Events in a thread of its own: neither a review nor a count waits for the API server.

    `lost` is called for each Event that is not written.
    """

    def __init__(self, writer: EventWriter, lost: Callable[[], object]) -> None:
        self._writer = writer
        self._lost = lost
        self._waiting: queue.Queue[EventRecord | None] = queue.Queue(MAX_WAITING)
        self._thread = thread("events", self._run, threading.Event())

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write the waiting Events, for at most STOP_SECONDS."""
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=STOP_SECONDS)
            self._thread.join(STOP_SECONDS)

    def put(self, event_record: EventRecord) -> None:
        try:
            self._waiting.put_nowait(event_record)
        except queue.Full:
            self._lost()

    def _run(self, _stopping: threading.Event) -> None:
        while (event_record := self._waiting.get()) is not None:
            if not self._writer.write(event_record):
                self._lost()

"""Events of core/v1, which `kubectl describe` shows below an object; what happens again raises the count of one Event.

Its name says what happened to which object because of whom, so all replicas count in the same one. They need the rights to
`create` and `patch` events, and none to read any: a patch that changes nothing returns what is stored.
"""

import logging
import random
from datetime import datetime
from hashlib import sha256
from time import monotonic, sleep

import msgspec

from policies.finding import truncate
from webhook.cluster import errors
from webhook.cluster.api import ApiClient, api_path
from webhook.cluster.objects import ObjectMeta, timestamp

log = logging.getLogger("gpu_admission.events")

NORMAL, WARNING = "Normal", "Warning"
CLUSTER_SCOPED = "default"
"""Namespace of Events on objects that have none: the API server takes no other (`legacyValidateEvent` in
`k8s.io/kubernetes/pkg/apis/core/validation`)."""
LONGEST_MESSAGE = 1024
"""Characters, as events.k8s.io has it (`NoteLengthLimit`, beside the former)."""
MOST = 2**31 - 1
"""Of a count. Who may write Events can take a name before us, with any count."""
LONGEST_PROBLEM = 200
"""Characters of an error in the log: the API server's may repeat the stored Event, with the text of whoever wrote it."""
LONGEST_BEGINNING = 236
"""Characters of an object's name in that of its Event: with the 17 that follow, the 253 of a name."""
CALL_SECONDS = 5.0
ATTEMPTS = 20
"""Until a count is written that other replicas raise at the same time, with jittered pauses up to PAUSE_SECONDS."""
PAUSE_SECONDS = 0.1
REPEAT_SECONDS = 600.0
"""When a trouble that stays the same, such as a right that is missing, is logged again."""


class Regarding(msgspec.Struct, frozen=True, rename="camel"):
    """The object that an Event is about; `namespace` is empty where it has none."""

    api_version: str
    kind: str
    name: str
    uid: str
    namespace: str = ""


class EventRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to an object, `count` times from `first` to `last`; the same `cause` and `reason` make one Event."""

    regarding: Regarding
    reason: str
    message: str
    first: datetime
    last: datetime
    kind: str = WARNING
    cause: str = ""
    count: int = 1

    @property
    def name(self) -> str:
        """The name of its Event: that of the object, and 64 bits of what makes it another one."""
        said = f"{self.regarding.kind}\n{self.regarding.uid}\n{self.reason}\n{self.cause}"
        beginning = self.regarding.name[:LONGEST_BEGINNING].rstrip(".-")
        return f"{beginning}.{sha256(said.encode()).hexdigest()[:16]}"


class _Stored(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    count: int = 0


_STORED = msgspec.json.Decoder(_Stored)


class EventWriter:
    """Writes Events as `component`, for any number of threads. One that cannot be written is logged: nothing depends on it."""

    def __init__(self, api: ApiClient, component: str) -> None:
        self._api = api
        self._component = component
        self._logged = ("", 0.0)

    def write(self, event_record: EventRecord) -> None:
        """Create the Event, or add to the count of the one that is there."""
        try:
            self._write(event_record)
        except (errors.ApiError, msgspec.MsgspecError) as error:
            problem, (before, at) = truncate(str(error), LONGEST_PROBLEM), self._logged
            if problem != before or monotonic() - at > REPEAT_SECONDS:
                self._logged = problem, monotonic()
                title = f"{event_record.regarding.kind} {event_record.regarding.name}"
                log.warning("event %s of %s was not written: %s", event_record.reason, title, problem)

    def _write(self, event_record: EventRecord) -> None:
        """Write it. Raises `errors.ApiError`."""
        namespace = event_record.regarding.namespace or CLUSTER_SCOPED
        path = api_path("/api/v1", "namespaces", namespace, "events")
        for _ in range(ATTEMPTS):
            try:
                return self._count(path, event_record, namespace)
            except (errors.Conflict, errors.AlreadyExists):
                sleep(random.uniform(0.0, PAUSE_SECONDS))  # noqa: S311 - jitter
        raise errors.Conflict(f"{ATTEMPTS} times another replica wrote first", code=409)

    def _count(self, path: str, event_record: EventRecord, namespace: str) -> None:
        """Add to the Event that is there, else create it. Raises errors.Conflict, AlreadyExists where another replica did so."""
        named = api_path(path, event_record.name)
        try:
            stored = _STORED.decode(self._api.patch(named, b"{}", timeout=CALL_SECONDS))
        except errors.NotFound:
            self._api.post(path, self._event(event_record, namespace), timeout=CALL_SECONDS)
        else:
            self._api.patch(named, _repeated(event_record, stored), timeout=CALL_SECONDS)

    def _event(self, event_record: EventRecord, namespace: str) -> bytes:
        return msgspec.json.encode(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": event_record.name, "namespace": namespace},
                "involvedObject": event_record.regarding,
                "type": event_record.kind,
                "reason": event_record.reason,
                "message": truncate(event_record.message, LONGEST_MESSAGE),
                "source": {"component": self._component},
                "firstTimestamp": timestamp(event_record.first),
                "lastTimestamp": timestamp(event_record.last),
                "count": event_record.count,
            }
        )


def _repeated(event_record: EventRecord, stored: _Stored) -> bytes:
    """Return a patch that fails if somebody has counted meanwhile."""
    return msgspec.json.encode(
        {
            "metadata": {"resourceVersion": stored.metadata.resource_version},
            "count": min(stored.count + event_record.count, MOST),
            "lastTimestamp": timestamp(event_record.last),
            "message": truncate(event_record.message, LONGEST_MESSAGE),
        }
    )

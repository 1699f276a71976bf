"""Writes statuses at most once a second each, and all of them at a pace that leaves the API server time for others."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from math import inf
from time import monotonic, sleep
from typing import ClassVar, Generic, TypeVar

from msgspec.structs import replace

from webhook.cluster import errors
from webhook.cluster.api import METADATA, ApiClient
from webhook.cluster.events import WARNING, EventQueue, EventRecord, Regarding
from webhook.cluster.objects import timestamp
from webhook.quota.documents import READY, STALE, LimitsRecord, LimitsStatus, encode_status

EVERY_SECONDS = 1.0
"""Seconds from the first change to the write that shows all changes. So a status is written at most once a second."""
PACE_SECONDS = 0.02
"""Seconds between two writes. 50 writes a second, of some 4 ms each, take the API server a fifth of a core."""
FAILED_SECONDS = 10.0
"""Pause of a status after a failed write, and of all statuses if the API server did not answer."""
DATED_SECONDS = 150.0
"""A status that does not change is dated again between once and twice this time: 2,000 quotas make at most 14 writes a second."""
LOOK_SECONDS = 0.1
CALL_SECONDS = 10.0

log = logging.getLogger("gpu_admission.controller")

Record = TypeVar("Record", bound=LimitsRecord)
Status = TypeVar("Status", bound=LimitsStatus)


class StatusWriter(Generic[Record]):
    """Writes the statuses of the objects of `kind`, while this process leads.

    Objects have a key: their namespace, or their name. `keys` returns all, `record` one of them, `path` its API path or that of
    its subresource, and `reference` what an Event on that is about, with its uid. `stale` returns why counts may lag, or "": when
    it changes between the two, all statuses are written. A subclass defines `desired_status`.
    """

    kind = ""
    path: "ClassVar[staticmethod[[str, str], str]]"
    reference: "ClassVar[staticmethod[[str, str], Regarding]]"
    with_event: tuple[str, ...] = ()
    """The conditions that cause an Event when they become True."""

    def __init__(
        self,
        api: ApiClient,
        keys: Callable[[], Iterable[str]],
        record: Callable[[str], Record | None],
        stale: Callable[[], str],
        is_ready_leader: Callable[[], bool],
        events: EventQueue,
    ) -> None:
        self._api, self.keys, self.record, self.stale = api, keys, record, stale
        self._is_ready_leader, self._events = is_ready_leader, events
        self._lock = threading.Lock()
        self._due: dict[str, float] = {}
        self._failed: set[str] = set()
        self._was_stale = False
        self._dated_at = monotonic()

    def desired_status(self, record: Record) -> LimitsStatus | None:
        """Return the status that the object should have. None if that is not known."""
        raise NotImplementedError

    def write(self, key: str) -> bool:
        """Write the status of an object if it differs, and return whether it did. Raises `errors.ApiError`."""
        record = self.record(key)
        status = self.desired_status(record) if record else None
        if record is not None and status is not None:
            status = dated(status, record.status, datetime.now(UTC))
        if record is None or status is None or status == record.status:
            return False
        regarding = self.reference(key, record.uid)
        try:
            body = encode_status(regarding, record.version, status)
            self._api.put(self.path(key, "status"), body, timeout=CALL_SECONDS, accept=METADATA)
        except errors.NotFound:
            return False
        for reason, message, kind in self.news(record.status, status):
            self._events.put(EventRecord(regarding=regarding, reason=reason, message=message, kind=kind))
        return True

    def news(self, before: LimitsStatus, after: LimitsStatus) -> Iterator[tuple[str, str, str]]:
        """Yield reason, message and type of each Event about a new status."""
        for kind in self.with_event:
            if (condition := after.condition_if_true(kind)) and not before.condition_if_true(kind):
                yield kind, condition.message, WARNING

    def changed(self, key: str, within: float = EVERY_SECONDS) -> None:
        """Have the status written in `within` seconds. A change that was noted before is not written later."""
        due = monotonic() + within
        with self._lock:
            if key not in self._failed:  # a change must not shorten the pause
                self._due[key] = min(due, self._due.get(key, inf))

    def all_changed(self) -> None:
        for key in self.keys():
            self.changed(key)

    def run(self, stopping: threading.Event) -> None:
        """Write until `stopping`; the body of a thread."""
        while not stopping.wait(self.sync()):
            pass

    def sync(self) -> float:
        """Write the statuses that are due, while this process leads. Return the seconds until the next call."""
        if not self._is_ready_leader():
            return LOOK_SECONDS
        if bool(self.stale()) != self._was_stale:
            self._was_stale = not self._was_stale
            self.all_changed()
        if monotonic() - self._dated_at >= DATED_SECONDS:
            self._dated_at = monotonic()
            self.all_changed()
        while self._is_ready_leader() and (key := self._take(monotonic())) is not None:
            try:
                if self.write(key):
                    sleep(PACE_SECONDS)
            except errors.Conflict:  # the watch will show the newer version
                self.changed(key)
            except errors.ApiError as error:
                log.warning("%s: the status of the %s cannot be written: %s", key, self.kind, error)
                with self._lock:
                    self._failed.add(key)
                    self._due[key] = monotonic() + FAILED_SECONDS
                if isinstance(error, errors.Unreachable):
                    return FAILED_SECONDS
                sleep(PACE_SECONDS)
            except Exception:  # a bug with one object must not end the work on the others
                log.exception("%s: the status of the %s was not written", key, self.kind)
        return LOOK_SECONDS

    def _take(self, now: float) -> str | None:
        with self._lock:
            due, key = min(((due, name) for name, due in self._due.items()), default=(inf, ""))
            if due > now:
                return None
            del self._due[key]
            self._failed.discard(key)
            return key


def dated(after: Status, before: Status, now: datetime) -> Status:
    """Return the status with the time of its count: now if it is counted and changes, or was not dated for DATED_SECONDS."""
    kept = replace(after, counted_at=before.counted_at)
    is_counted = after.condition_if_true(READY) is not None and after.condition_if_true(STALE) is None
    is_late = before.counted_at <= timestamp(now - timedelta(seconds=DATED_SECONDS))
    return replace(after, counted_at=timestamp(now)) if is_counted and (kept != before or is_late) else kept

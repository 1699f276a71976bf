"""Events on GPUQuotas, written by a thread of their own: an API server that does not answer delays no count."""

import logging
import queue
import threading
from datetime import UTC, datetime

from policies.quota.ledger.quota_ledger import DenialNote, QuotaLedger
from policies.quota.spec import NAME
from webhook.cluster.events import EventRecord, EventWriter, Regarding
from webhook.quota.documents import GROUP, KIND, VERSION

log = logging.getLogger("gpu_admission.controller")

MOST_WAITING = 500
"""Events: what exceeds it is in the logs alone. Each takes two calls."""
POLL_SECONDS = 0.5


class QuotaEvents:
    """Takes what happened to quotas, from any thread, and writes it."""

    def __init__(self, events: EventWriter) -> None:
        self._events = events
        self._waiting: queue.Queue[EventRecord] = queue.Queue(MOST_WAITING)

    def warn(self, namespace: str, quota_uid: str, reason: str, message: str) -> None:
        """Take a warning about the quota of a namespace, of now."""
        now = datetime.now(UTC)
        regarding = _quota(namespace, quota_uid)
        self._take(EventRecord(regarding=regarding, reason=reason, message=message, first=now, last=now))

    def denied(self, namespace: str, ledger: QuotaLedger) -> None:
        """Take the denials that replicas of serve left in a ledger."""
        for note in ledger.denials:
            try:
                self._take(_denied(namespace, ledger.quota_uid, note))
            except ValueError as error:  # no replica of ours writes a time like that
                log.warning("%s: the note of a denial cannot be read: %s", namespace, error)

    def run(self, stopping: threading.Event) -> None:
        """Write until `stopping`; the body of a thread."""
        while not stopping.is_set():
            try:
                event_record = self._waiting.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            self._events.write(event_record)

    def _take(self, event_record: EventRecord) -> None:
        try:
            self._waiting.put_nowait(event_record)
        except queue.Full:
            return


def _denied(namespace: str, quota_uid: str, note: DenialNote) -> EventRecord:
    """Return what a note says. Raises ValueError."""
    return EventRecord(
        regarding=_quota(namespace, quota_uid),
        reason=note.reason,
        message=f"{note.owner}: {note.message}" if note.owner else note.message,
        first=datetime.fromisoformat(note.first),
        last=datetime.fromisoformat(note.last),
        cause=note.owner,
        count=note.count,
    )


def _quota(namespace: str, uid: str) -> Regarding:
    return Regarding(f"{GROUP}/{VERSION}", KIND, NAME, uid, namespace)

"""Events on GPUQuotas, written by a thread of their own: neither a review nor a count waits for the API server."""

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from policies.quota.spec import NAME
from webhook.cluster.events import EventRecord, EventWriter, Regarding
from webhook.configuration.documents import API_VERSION, QUOTA

MAX_WAITING = 500
"""Events at most; more are only logged. Each takes two calls."""
STOP_SECONDS = 5.0
"""For the last Events, and again for a place in a full queue."""


class QuotaEvents:
    """Writes Events of quotas for any thread. `lost` is called for each Event that is not written."""

    def __init__(self, writer: EventWriter, lost: Callable[[], object]) -> None:
        self._writer = writer
        self._lost = lost
        self._waiting: queue.Queue[EventRecord | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write the waiting Events, as far as there is time."""
        with suppress(queue.Full):
            self._waiting.put(None, timeout=STOP_SECONDS)
            self._thread.join(STOP_SECONDS)

    def warn(
        self,
        namespace: str,
        quota_uid: str,
        reason: str,
        message: str,
        *,
        cause: str = "",
        count: int = 1,
        first: datetime | None = None,
        last: datetime | None = None,
    ) -> None:
        """Queue a warning about the quota of a namespace. It never waits."""
        now = datetime.now(UTC)
        record = EventRecord(
            regarding=Regarding(API_VERSION, QUOTA, NAME, quota_uid, namespace),
            reason=reason,
            message=message,
            first=first or now,
            last=last or now,
            cause=cause,
            count=count,
        )
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            self._lost()

    def _run(self) -> None:
        while (record := self._waiting.get()) is not None:
            if not self._writer.write(record):
                self._lost()

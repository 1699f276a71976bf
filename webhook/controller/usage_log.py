"""Audit lines about what pods and claims hold: one when it is given back, and one an hour while it is held.

So `gpu-admission usage` knows from when to when each was charged, also where no line says that it ended: a controller that is
away for a while writes none. Only the leader writes.
"""

import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import msgspec

from webhook.cluster.objects import timestamp
from webhook.controller.records import CountedRecord

HELD_SECONDS = 3600.0
"""Between two lines about what is held: some 350 bytes each, 3.5 MB an hour for 10,000 pods."""
AT_ONCE, PAUSE_SECONDS = 1_000, 0.5
"""Lines that are handed to the log together, a tenth of what may wait there, and the pause until the next ones."""
POLL_SECONDS = 1.0


class Holding(msgspec.Struct, frozen=True):
    """What an object of the kind is charged: the fields `demand` and `class` of its line."""

    kind: str
    record: CountedRecord
    counted: dict[str, Any]


class UsageLog:
    """Writes the lines by `write`. `leads` says whether this process is the one that does."""

    def __init__(
        self,
        write: Callable[[dict[str, Any]], object],
        leads: Callable[[], bool],
        *,
        replica: str,
        seconds: float = HELD_SECONDS,
    ) -> None:
        self._write, self._leads = write, leads
        self._replica, self._seconds = replica, seconds

    def released(self, holding: Holding) -> None:
        """Write that an object holds nothing any more."""
        if self._leads():
            self._line(holding, "released")

    def run(self, holdings: Callable[[], Iterable[Holding]], stopping: threading.Event) -> None:
        """Write what is held, as soon as this process leads and then once a period, until `stopping`."""
        due = 0.0
        while not stopping.wait(POLL_SECONDS):
            if not self._leads():
                due = 0.0
            elif monotonic() >= due:
                due = monotonic() + self._seconds
                for number, holding in enumerate(holdings(), start=1):
                    self._line(holding, "held")
                    if number % AT_ONCE == 0:
                        stopping.wait(PAUSE_SECONDS)

    def _line(self, holding: Holding, verdict: str) -> None:
        record = holding.record
        line = {
            "time": timestamp(datetime.now(UTC), "milliseconds"),
            "phase": "count",
            "kind": holding.kind,
            "namespace": record.namespace,
            "name": record.name,
            "verdict": verdict,
            "replica": self._replica,
            "objectUid": record.uid,
            "owner": record.holder,
            "since": record.since,
            **holding.counted,
        }
        self._write(line)

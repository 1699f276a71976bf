"""Audit lines about the usage of pods and claims: when an object is first counted, each hour while it holds, at its end.

Every COUNTING_SECONDS a line says that this process leads, also without any pod. So a gap in a log can be seen.
A pod that waited for quota has one more line, since it holds nothing before.
So `gpu-admission usage` knows the time of each use, even if no line says that it ended: no controller may have run at that time.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

from webhook.cluster.objects import timestamp
from webhook.controller.usage_cache import UsageCache
from webhook.controller.usage_counter import Holding
from webhook.controller.waiting_reports import WaitingReports
from webhook.quota.counted_records import CountedPod

HELD_SECONDS = 3600.0
"""Seconds between two lines about one object. A line has some 350 bytes, so 10,000 pods make 3.5 MB an hour."""
COUNTING_SECONDS = 30.0
"""Seconds between two lines that say this process leads: some 0.5 MB a day."""
AT_ONCE, PAUSE_SECONDS = 1_000, 0.5
"""Lines that go to the log at once, a tenth of those that may wait there, and the pause after them."""
POLL_SECONDS = 1.0


class UsageLog:
    """Writes lines while `is_ready_leader` returns true.

    Hears: usage_cache.events.began, usage_cache.events.ended, reports.gate_removed.
    """

    def __init__(
        self,
        write: Callable[[dict[str, Any]], object],
        usage_cache: UsageCache,
        reports: WaitingReports,
        is_ready_leader: Callable[[], bool],
        team_of: Callable[[str], str],
        *,
        replica: str,
    ) -> None:
        """`team_of` returns the ClusterGPUQuota of a namespace, "" if it has none."""
        self._write, self._usage_cache, self._is_ready_leader = write, usage_cache, is_ready_leader
        self._team_of, self._replica = team_of, replica
        self._new: deque[Holding] = deque()
        usage_cache.events.began.subscribe(self.began)
        usage_cache.events.ended.subscribe(self.ended)
        reports.gate_removed.subscribe(self.started)

    def began(self, digest: str, holding: Holding) -> None:
        """Write a line soon, for an object that begins to hold demand. `run` writes it, so that many do not come at once."""
        if digest == self._usage_cache.own_counter.digest and self._is_ready_leader():
            self._new.append(holding)

    def ended(self, digest: str, holding: Holding) -> None:
        own = self._usage_cache.own_counter
        # Until our own counter has its first list, only an older one sees what ends.
        if (digest == own.digest or not own.synced) and self._is_ready_leader():
            self._write_line(holding, "released")

    def started(self, pod: CountedPod) -> None:
        """Write that a pod which waited for quota lost its scheduling gate: from now on it holds its demand."""
        self._write_line(Holding("Pod", pod, {}), "started")

    def run(self, stopping: threading.Event) -> None:
        """Write a line for each holding when this process begins to lead, and then once a period, until `stopping`."""
        due = counted_at = 0.0
        while not stopping.wait(POLL_SECONDS):
            if not self._is_ready_leader():
                due = counted_at = 0.0
                self._new.clear()
                continue
            if not counted_at or monotonic() >= counted_at + COUNTING_SECONDS:
                counted_at = self._write_counting(counted_at)
            self._write_held(self._take_begun(), stopping, first=True)
            if monotonic() >= due:
                due = monotonic() + HELD_SECONDS
                self._write_held(self._usage_cache.own_counter.holdings(), stopping)
        if counted_at:
            self._write_counting(counted_at)

    def _write_counting(self, counted_at: float) -> float:
        """Write that this process has led since it said so last, by monotonic time; 0: since now. Return when it says so now."""
        at, now = monotonic(), datetime.now(UTC)
        since = now - timedelta(seconds=at - counted_at if counted_at else 0.0)
        self._write(
            {
                "time": timestamp(now, "milliseconds"),
                "phase": "count",
                "kind": "Controller",
                "name": self._replica,
                "verdict": "counting",
                "replica": self._replica,
                "since": timestamp(since, "milliseconds"),
            }
        )
        return at

    def _take_begun(self) -> Iterator[Holding]:
        while self._new:
            yield self._new.popleft()

    def _write_held(self, holdings: Iterable[Holding], stopping: threading.Event, **fields: bool) -> None:
        for number, holding in enumerate(holdings, start=1):
            self._write_line(holding, "held", **fields)
            if number % AT_ONCE == 0:
                stopping.wait(PAUSE_SECONDS)

    def _write_line(self, holding: Holding, verdict: str, **fields: bool) -> None:
        record = holding.record
        team = self._team_of(record.namespace)
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
            **({"team": team} if team else {}),
            **fields,
            **holding.counted,
        }
        self._write(line)

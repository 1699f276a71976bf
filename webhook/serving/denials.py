"""What reviews deny, gathered by owner and window: a line of the log each and, of a quota, an Event on the GPUQuota.

Controllers repeat what was denied for as long as they exist. A review only hands its denial over; a thread writes what has
gathered, soon after the first of an owner, then once a window.
"""

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from math import inf
from time import monotonic
from typing import NamedTuple

import msgspec

from policies.printable import printable
from webhook.quota.events import QuotaEvents
from webhook.serving.engine import Decision
from webhook.serving.handling import Review, ReviewResult

log = logging.getLogger("gpu_admission.denials")

WINDOW_SECONDS = 60.0
LOOK_SECONDS = 0.5
"""Between two looks for what is due; the first denial of an owner waits at most so long."""
MOST_OWNERS = 20
"""Owners of one namespace with lines of their own in a window: anybody can make up owners."""
MOST_GATHERED = 500
"""Of all namespaces; what exceeds it is in the audit log alone."""
OTHERS = "others"

POD = "Pod"
CAN_NEVER_FIT, REFUSED = "CanNeverFit", "Refused"
"""Reasons of Events on a GPUQuota: of what asks for more than the quota grants in all, and of what it denied otherwise."""


class Denial(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was denied, and the first line of the message.

    owner: who makes it again and again, as `ReplicaSet/train-5d9`; empty for a pod without a controller.
    reason, quota_uid: of the Event and its GPUQuota; empty where it was not a quota that denied.
    """

    namespace: str
    owner: str
    message: str
    reason: str = ""
    quota_uid: str = ""


def denial_of(review: Review, result: ReviewResult) -> Denial:
    """Return the denial of a review whose answer is no."""
    request, status = review.request, result.response.status
    owner = result.metadata.controlled_by if result.metadata else ""
    if not owner and request.kind.kind != POD:
        owner = f"{request.kind.kind}/{request.name}"
    reason, quota_uid = _denied_by_quota(result.decisions)
    return Denial(
        namespace=request.namespace,
        owner=printable(owner),
        message=printable(status.message.partition("\n")[0] if status else ""),
        reason=reason,
        quota_uid=quota_uid,
    )


def _denied_by_quota(decisions: Sequence[Decision]) -> tuple[str, str]:
    """Return reason and uid of the Event; the quota is only asked where nothing else denies."""
    outcome = decisions[0].reservation if decisions else None
    if outcome is None or outcome.ledger is None:
        return "", ""
    shortfalls = outcome.verdict.shortfalls if outcome.verdict else ()
    never = any(shortfall.requested > shortfall.hard for shortfall in shortfalls)
    return CAN_NEVER_FIT if never else REFUSED, outcome.ledger.quota_uid


class _Key(NamedTuple):
    namespace: str
    owner: str
    reason: str


class _Gathered:
    """The denials of a key since the last line of it; `due` is when the next one is, a moment of `monotonic`."""

    def __init__(self, due: float = 0.0) -> None:
        self.due = due
        self.count = 0
        self.first = self.last = datetime.now(UTC)
        self.message = self.quota_uid = ""

    def add(self, denial: Denial) -> None:
        self.last = datetime.now(UTC)
        self.first = self.first if self.count else self.last
        self.count += 1
        self.message, self.quota_uid = denial.message, denial.quota_uid


class DenialReports:
    """Gathers denials, and writes of each owner what came in a window. Without `events`, only to the log."""

    def __init__(self, events: QuotaEvents | None = None, *, window: float = WINDOW_SECONDS) -> None:
        self._events = events
        self._window = window
        self._lock = threading.Lock()
        self._gathered: dict[_Key, _Gathered] = {}
        self._owners: Counter[str] = Counter()
        """Keys of `_gathered` by namespace: no review looks through all of them."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="denials", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and write what has gathered."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._write(inf)

    def take(self, denial: Denial) -> None:
        """Take one denial; it never waits for what is being written."""
        key = _Key(denial.namespace, denial.owner, denial.reason)
        with self._lock:
            if key not in self._gathered and self._owners[denial.namespace] >= MOST_OWNERS:
                key = key._replace(owner=OTHERS)
            if key not in self._gathered:
                if len(self._gathered) >= MOST_GATHERED:
                    return
                self._gathered[key] = _Gathered()
                self._owners[key.namespace] += 1
            self._gathered[key].add(denial)

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            self._write(monotonic())

    def _write(self, now: float) -> None:
        """Write the lines of what is due `now`, and hand its Events on."""
        for key, gathered in self._take_due(now):
            log.info("%s", self._line(key, gathered))
            if self._events is not None and gathered.quota_uid:
                self._events.warn(
                    key.namespace,
                    gathered.quota_uid,
                    key.reason,
                    f"{key.owner}: {gathered.message}" if key.owner else gathered.message,
                    cause=key.owner,
                    count=gathered.count,
                    first=gathered.first,
                    last=gathered.last,
                )

    def _take_due(self, now: float) -> list[tuple[_Key, _Gathered]]:
        with self._lock:
            due = [(key, gathered) for key, gathered in self._gathered.items() if gathered.due <= now]
            for key, gathered in due:
                if gathered.count:
                    self._gathered[key] = _Gathered(now + self._window)
                else:
                    del self._gathered[key]
                    self._owners[key.namespace] -= 1
                    if not self._owners[key.namespace]:
                        del self._owners[key.namespace]
        return [(key, gathered) for key, gathered in due if gathered.count]

    def _line(self, key: _Key, gathered: _Gathered) -> str:
        of = f" of {key.owner}" if key.owner else ""
        if gathered.count == 1:
            return f"{key.namespace}: 1 request{of} denied: {gathered.message}"
        seconds = (gathered.last - gathered.first).total_seconds()
        return f"{key.namespace}: {gathered.count} requests{of} denied within {seconds:.0f} s; the last: {gathered.message}"

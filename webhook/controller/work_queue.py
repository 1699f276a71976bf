"""The work queue of the controller, for any number of workers. Namespaces for which somebody waits come first, up to a rate."""

import heapq
import threading
from math import inf
from time import monotonic

HURRIED_EVERY, HURRIED_AT_ONCE = 0.2, 5
"""Seconds between hurried turns of a name, and how many turns may come at once before that rate holds."""
SPARE_ENTRIES = 64
"""A heap is sorted again when it has more than two entries for each waiting name, and these in addition."""


class WorkQueue:
    """Names with the times at which they are due. Hurried names come before other names that are due.

    A name is queued once, for the earliest time for which it was added. Only one worker at a time has a name. If it is added
    meanwhile, it comes again afterwards.
    """

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._hurried: set[str] = set()
        self._heaps: dict[bool, list[tuple[float, str]]] = {True: [], False: []}
        """Due times of free names, hurried or not. Outdated entries stay until they reach the top, or are too many."""
        self._paced: dict[str, float] = {}
        """The time by name until which its hurried turns have used up their rate."""
        self._busy: set[str] = set()
        self._changed = threading.Condition()

    def add(self, name: str, delay: float = 0.0) -> None:
        due = monotonic() + max(delay, 0.0)
        with self._changed:
            self._add(name, due)

    def hurry(self, name: str) -> None:
        """Let the name come at once and before others. After HURRIED_AT_ONCE turns, only every HURRIED_EVERY seconds."""
        now, ahead = monotonic(), HURRIED_EVERY * (HURRIED_AT_ONCE - 1)
        with self._changed:
            is_new = name not in self._hurried
            self._hurried.add(name)
            self._add(name, max(now, self._paced.get(name, 0.0) - ahead), moved=is_new)

    def take(self, seconds: float) -> str | None:
        """Return a name that is due, after waiting at most so long. The caller must call `done` with it."""
        until = monotonic() + seconds
        with self._changed:
            while True:
                now = monotonic()
                following = [self._first(hurried=True), self._first(hurried=False)]
                for due, name in following:
                    if due <= now:
                        self._take(name, now)
                        return name
                if now >= until:
                    return None
                self._changed.wait(min(*(due for due, _ in following), until) - now)

    def done(self, name: str) -> None:
        with self._changed:
            self._busy.discard(name)
            self._push(name)

    def _add(self, name: str, due: float, *, moved: bool = False) -> None:
        if moved or due < self._due.get(name, inf):
            self._due[name] = min(due, self._due.get(name, inf))
            self._push(name)

    def _take(self, name: str, now: float) -> None:
        del self._due[name]
        self._busy.add(name)
        if name in self._hurried:
            self._hurried.remove(name)
            self._paced[name] = max(now, self._paced.pop(name, now)) + HURRIED_EVERY
            while self._paced[oldest := next(iter(self._paced))] <= now:
                del self._paced[oldest]

    def _first(self, *, hurried: bool) -> tuple[float, str]:
        heap = self._heaps[hurried]
        while heap and not self._is_free(*heap[0], hurried=hurried):
            heapq.heappop(heap)
        return heap[0] if heap else (inf, "")

    def _push(self, name: str) -> None:
        if name not in self._due or name in self._busy:
            return
        hurried = name in self._hurried
        heap = self._heaps[hurried]
        heapq.heappush(heap, (self._due[name], name))
        if len(heap) > 2 * len(self._due) + SPARE_ENTRIES:
            heap[:] = [
                (due, each) for each, due in self._due.items() if self._is_free(due, each, hurried=hurried)
            ]
            heapq.heapify(heap)
        self._changed.notify()

    def _is_free(self, due: float, name: str, *, hurried: bool) -> bool:
        return self._due.get(name) == due and name not in self._busy and (name in self._hurried) == hurried

"""The work queue of the controller, for any number of workers: what somebody waits for comes first, and not without bound."""

import heapq
import threading
from math import inf
from time import monotonic

HURRIED_EVERY, HURRIED_AT_ONCE = 0.2, 5
"""Seconds between hurried turns of one name while they are asked for without a pause, and how many come at once before that."""
SPARE_ENTRIES = 64
"""Of a heap, beyond two for each name that waits: below that it is not worth sorting again."""


class WorkQueue:
    """Names and the moments at which they are due; of those that are due, the hurried come first.

    A name is queued once, at the earliest time it was added for, and taken by one worker at a time: added meanwhile, it comes up
    again afterwards.
    """

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._hurried: set[str] = set()
        self._heaps: dict[bool, list[tuple[float, str]]] = {True: [], False: []}
        """When free names are due, hurried and others; those that are no longer so stay until they come up, or are most of it."""
        self._paced: dict[str, float] = {}
        """By name, the moment until which its hurried turns have used up their share."""
        self._busy: set[str] = set()
        self._changed = threading.Condition()

    def add(self, name: str, delay: float = 0.0) -> None:
        due = monotonic() + max(delay, 0.0)
        with self._changed:
            self._add(name, due)

    def hurry(self, name: str) -> None:
        """Have the name taken at once and before others; after HURRIED_AT_ONCE such turns, only each HURRIED_EVERY seconds."""
        now, ahead = monotonic(), HURRIED_EVERY * (HURRIED_AT_ONCE - 1)
        with self._changed:
            is_new = name not in self._hurried
            self._hurried.add(name)
            self._add(name, max(now, self._paced.get(name, 0.0) - ahead), moved=is_new)

    def take(self, seconds: float) -> str | None:
        """Wait at most so long for a name that is due, and return it; `done` must be called with it."""
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

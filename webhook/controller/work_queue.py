"""The work queue of the controller, for any number of workers. Namespaces for which somebody waits come first, up to a rate."""

import threading
from math import inf
from time import monotonic

HURRIED_EVERY, HURRIED_AT_ONCE = 0.2, 5
"""Seconds between hurried turns of a name, and how many turns may come at once before that rate holds."""


class WorkQueue:
    """Names with the times at which they are due. Hurried names come before other names that are due.

    A name is queued once, for the earliest time for which it was added. Only one worker at a time has a name. If it is added
    meanwhile, it comes again afterwards.
    """

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._hurried: set[str] = set()
        self._paced: dict[str, float] = {}
        """The time by name until which its hurried turns have used up their rate."""
        self._busy: set[str] = set()
        self._changed = threading.Condition()

    def add(self, name: str, delay: float = 0.0) -> None:
        with self._changed:
            self._add(name, monotonic() + max(delay, 0.0))

    def hurry(self, name: str) -> None:
        """Let the name come at once and before others. After HURRIED_AT_ONCE turns, only every HURRIED_EVERY seconds."""
        now, ahead = monotonic(), HURRIED_EVERY * (HURRIED_AT_ONCE - 1)
        with self._changed:
            self._hurried.add(name)
            self._add(name, max(now, self._paced.get(name, 0.0) - ahead))

    def take(self, seconds: float) -> str | None:
        """Return a name that is due within so many seconds, to call `done` with. A look at 1,000 names takes 0.1 ms."""
        until = monotonic() + seconds
        with self._changed:
            while True:
                now = monotonic()
                free = [(due, name) for name, due in self._due.items() if name not in self._busy]
                ready = [(name not in self._hurried, due, name) for due, name in free if due <= now]
                if ready:
                    return self._taken(min(ready)[-1], now)
                if now >= until:
                    return None
                self._changed.wait(min([until, *(due for due, _ in free)]) - now)

    def done(self, name: str) -> None:
        with self._changed:
            self._busy.discard(name)
            self._changed.notify()

    def _add(self, name: str, due: float) -> None:
        if due < self._due.get(name, inf):
            self._due[name] = due
            self._changed.notify()

    def _taken(self, name: str, now: float) -> str:
        del self._due[name]
        self._busy.add(name)
        if name in self._hurried:
            self._hurried.remove(name)
            self._paced[name] = max(now, self._paced.pop(name, now)) + HURRIED_EVERY
            while self._paced[oldest := next(iter(self._paced))] <= now:
                del self._paced[oldest]
        return name

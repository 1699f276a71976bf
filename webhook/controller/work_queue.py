"""Which namespace is to be looked at, and when. A name stands in it once, at the earliest time asked for.

No name is handed out twice at once: what is added while it is being worked on comes up again afterwards.
"""

import threading
from time import monotonic


class WorkQueue:
    """Names and the moments at which they are due, for any number of workers."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._busy: set[str] = set()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        with self._changed:
            return len(self._due)

    def add(self, name: str, delay: float = 0.0) -> None:
        due = monotonic() + max(delay, 0.0)
        with self._changed:
            if due < self._due.get(name, float("inf")):
                self._due[name] = due
                self._changed.notify()

    def remove(self, name: str) -> None:
        with self._changed:
            self._due.pop(name, None)

    def take(self, seconds: float) -> str | None:
        """Return the name that is due, waiting for one that long; `done` must be called with it."""
        until = monotonic() + seconds
        with self._changed:
            while True:
                now = monotonic()
                free = [(due, name) for name, due in self._due.items() if name not in self._busy]
                due, name = min(free, default=(float("inf"), ""))
                if due <= now:
                    del self._due[name]
                    self._busy.add(name)
                    return name
                if now >= until:
                    return None
                self._changed.wait(min(due, until) - now)

    def done(self, name: str) -> None:
        with self._changed:
            self._busy.discard(name)
            self._changed.notify_all()

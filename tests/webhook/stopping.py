"""An event for the bodies of threads, whose waits take no time."""

import threading


class Stopping(threading.Event):
    """Set after so many waits, which take no time. `paused` has their seconds."""

    def __init__(self, waits: int) -> None:
        super().__init__()
        self.paused: list[float] = []
        self._waits = waits

    def wait(self, timeout: float | None = None) -> bool:
        self.paused.append(timeout or 0.0)
        if len(self.paused) == self._waits:
            self.set()
        return self.is_set()

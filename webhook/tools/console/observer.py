"""Reads the cluster again and again while somebody looks, so that pages answer at once and quotas have a history."""

import logging
import threading
from collections.abc import Callable
from time import monotonic, sleep
from typing import Generic, TypeVar

from webhook.cluster import errors

PAUSE_SECONDS = 5.0
SHARE = 10
"""The pause is at least so many times as long as the last reading took: a large cluster is read less often."""

WATCHED_SECONDS = 600.0
"""Without a request for so long, reading stops. Browsers ask once a minute for a page in the background."""

T = TypeVar("T")

log = logging.getLogger("gpu_admission.console")


class Observer(Generic[T]):
    """Calls `read` in a thread of its own, and `changed` with each result. The first caller waits for the first result."""

    def __init__(
        self,
        read: Callable[[], T],
        changed: Callable[[T], None],
        pause: float = PAUSE_SECONDS,
        watched: float = WATCHED_SECONDS,
    ) -> None:
        self._read, self._changed, self._pause, self._watched = read, changed, pause, watched
        self._condition = threading.Condition()
        self._observation: tuple[T | None, str] | None = None
        self._requested_at = monotonic()
        self._thread: threading.Thread | None = None

    def observation(self) -> tuple[T | None, str]:
        """Return what was read last, None before anything was, and why the reading after it failed, "" where none did."""
        with self._condition:
            self._requested_at = monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="observer", daemon=True)
                self._thread.start()
            while self._observation is None:
                self._condition.wait()
            return self._observation

    def _run(self) -> None:
        while True:
            began = monotonic()
            self._observe()
            pause = max(self._pause, SHARE * (monotonic() - began))
            with self._condition:
                if monotonic() - self._requested_at > self._watched:
                    self._thread = None  # the next caller starts another
                    return
            sleep(pause)

    def _observe(self) -> None:
        problem, read = "", self._observation[0] if self._observation else None
        try:
            read = self._read()
            self._changed(read)
        except errors.ApiError as error:
            problem = str(error)
        except Exception:
            log.exception("the cluster was not read")
            problem = "the console failed; its output on the terminal says why"
        with self._condition:
            self._observation = read, problem
            self._condition.notify_all()

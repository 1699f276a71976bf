"""The long-running threads of `serve` and `controller`. An exception does not end them.

Pools of threads for calls that end (`waiting_line`, `fetching`, `release`) are not made here.

A body catches the errors that it expects. Any other exception is a bug: it is logged with its traceback and counted, and the body
starts again after a pause, as controller-runtime does with a reconciler that panics (`RecoverPanic`). The process lives on: a
restart would end all of its threads, and the same object could then end them again.
"""

import logging
import threading
from collections.abc import Callable
from time import monotonic

from prometheus_client import Counter

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before a body starts again. The pause doubles after each failure, up to LONGEST_PAUSE. A run that was longer than
LONGEST_PAUSE resets it."""

POLL_SECONDS = 0.5
"""Seconds between two looks at whether this process leads."""

Body = Callable[[threading.Event], object]
"""Works until the event is set. It returns earlier only if it has nothing more to do."""

log = logging.getLogger("gpu_admission.threads")

_FAILURES = Counter(
    "gpu_admission_thread_failures",
    "Exceptions that ended the work of a thread, which then started again; the log has the traceback.",
    ["thread"],
)


def thread(name: str, body: Body, stopping: threading.Event) -> threading.Thread:
    """Return a thread that runs the body, not started yet. It is a daemon: a call that hangs does not keep the process alive."""
    return threading.Thread(target=_run, args=(name, body, stopping), name=name, daemon=True)


def every(seconds: float, act: Callable[[], object]) -> Body:
    """Return a body that calls `act`, waits `seconds`, and repeats."""

    def body(stopping: threading.Event) -> None:
        while not stopping.is_set():
            act()
            stopping.wait(seconds)

    return body


def while_leading(
    is_leading: Callable[[], bool], seconds: float, act: Callable[[], object], forget: Callable[[], object]
) -> Body:
    """Return a body: `act` when this process begins to lead, and then once a period; `forget` while it does not."""

    def body(stopping: threading.Event) -> None:
        due = 0.0
        while not stopping.wait(POLL_SECONDS):
            if not is_leading():
                due = 0.0
                forget()
            elif monotonic() >= due:
                due = monotonic() + seconds
                act()

    return body


def _run(name: str, body: Body, stopping: threading.Event) -> None:
    pause = FIRST_PAUSE
    while not stopping.is_set():
        begun = monotonic()
        try:
            body(stopping)
        except Exception:
            if monotonic() - begun > LONGEST_PAUSE:
                pause = FIRST_PAUSE
            _FAILURES.labels(name).inc()
            log.exception("thread %s failed, and starts again in %.0f s", name, pause)
            stopping.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        else:
            return

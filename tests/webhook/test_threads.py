"""A body that raises starts again after a pause that grows, and is counted and logged."""

import threading
from collections.abc import Callable

import pytest
from prometheus_client import REGISTRY

from tests.cases import cases
from tests.webhook.stopping import Stopping
from webhook import threads
from webhook.threads import every, thread


def failures(name: str) -> float | None:
    return REGISTRY.get_sample_value("gpu_admission_thread_failures_total", {"thread": name})


def ran(name: str, body: Callable[[threading.Event], object], stopping: threading.Event) -> None:
    started = thread(name, body, stopping)
    started.start()
    started.join(10)
    assert not started.is_alive()


def raising(_stopping: threading.Event) -> None:
    raise TypeError("a bug")


def test_a_body_that_raises_starts_again(caplog: pytest.LogCaptureFixture) -> None:
    stopping = Stopping(8)
    ran("broken", raising, stopping)

    assert stopping.paused == [1, 2, 4, 8, 16, 32, 60, 60]
    assert failures("broken") == 8
    assert caplog.messages[:2] == [
        "thread broken failed, and starts again in 1 s",
        "thread broken failed, and starts again in 2 s",
    ]
    assert 'raise TypeError("a bug")' in caplog.text


def test_a_body_that_ran_for_long_starts_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 0.0, 10.0, 10.0, 20.0, 81.0])
    monkeypatch.setattr(threads, "monotonic", lambda: next(now))
    stopping = Stopping(3)
    ran("long", raising, stopping)

    assert stopping.paused == [1, 2, 1]


@cases("is_stopped", has_nothing_more_to_do=False, is_stopped_before=True)
def test_a_body_that_returns_is_over(is_stopped: bool) -> None:
    calls, stopping = list[threading.Event](), threading.Event()
    if is_stopped:
        stopping.set()
    ran("short", calls.append, stopping)

    assert calls == ([] if is_stopped else [stopping])
    assert failures("short") is None


def test_a_periodic_body_acts_once_a_period() -> None:
    acted, stopping = list[int](), Stopping(4)
    every(0.5, lambda: acted.append(len(stopping.paused)))(stopping)

    assert acted == [0, 1, 2, 3]
    assert stopping.paused == [0.5] * 4

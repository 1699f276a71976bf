"""The observer reads in a thread of its own, keeps what it read last, and says why it could not."""

import threading
import time
from collections.abc import Callable

import pytest

from tests.cases import cases
from webhook.cluster import errors
from webhook.prometheus.client import PrometheusError
from webhook.tools.console.app import Observer

QUICK = {"pause": 0.01, "watched": 0.0}
"""Every thread ends as soon as nobody asks."""


def eventually(check: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30
    while not check() and time.monotonic() < deadline:
        time.sleep(0.01)
    return check()


def test_the_first_who_asks_waits_for_the_first_result() -> None:
    may_read = threading.Event()

    def read() -> str:
        assert may_read.wait(30)
        return "read"

    observed = Observer(read, **QUICK)
    threading.Timer(0.05, may_read.set).start()

    assert observed.observation() == ("read", "")


def test_it_reads_again_while_somebody_looks() -> None:
    results = iter(range(10**6))
    observed = Observer(lambda: next(results), **QUICK)

    assert eventually(lambda: (observed.observation()[0] or 0) > 3)


def test_a_failure_leaves_what_was_read_before() -> None:
    answers = iter([lambda: "read"])

    def read() -> str:
        answer = next(answers, None)
        if answer is None:
            raise errors.Unreachable("GET /version: refused")
        return answer()

    observed = Observer(read, **QUICK)

    assert eventually(lambda: observed.observation() == ("read", "GET /version: refused"))


@cases("error", of_the_cluster=errors.Forbidden("not you"), of_prometheus=PrometheusError("not you"))
def test_a_failure_at_first_is_an_answer(error: Exception) -> None:
    def read() -> str:
        raise error

    assert Observer(read, **QUICK).observation() == (None, "not you")


def test_who_does_not_wait_gets_the_result_when_it_is_there() -> None:
    may_read = threading.Event()
    observed = Observer(lambda: "read" if may_read.wait(30) else "", **QUICK)

    assert observed.observation(waits=False) == (None, "")
    may_read.set()
    assert eventually(lambda: observed.observation(waits=False) == ("read", ""))


def test_a_defect_is_logged_and_shown_without_its_details(caplog: pytest.LogCaptureFixture) -> None:
    def read() -> str:
        raise KeyError("a defect")

    found = Observer(read, **QUICK).observation()

    assert found == (None, "the console failed; its output on the terminal says why")
    assert "a defect" in caplog.text


def test_it_rests_when_nobody_looks_and_begins_again() -> None:
    readers = list[threading.Thread]()
    observed = Observer(lambda: readers.append(threading.current_thread()), **QUICK)
    observed.observation()

    assert eventually(lambda: not any(each.is_alive() for each in readers))
    assert eventually(lambda: observed.observation()[1] == "" and len(set(readers)) > 1)

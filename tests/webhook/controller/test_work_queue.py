"""Which namespace is counted next, and how often."""

import threading
from collections.abc import Callable

import pytest

from tests.cases import cases
from tests.webhook.controller.clock import Clock
from webhook.controller.work_queue import WorkQueue


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("webhook.controller.work_queue.monotonic", clock)
    return clock


def test_the_earliest_time_asked_for_holds() -> None:
    queue = WorkQueue()
    queue.add("team", 60)
    queue.add("team")
    queue.add("team", 30)

    assert queue.take(0) == "team"
    assert queue.take(0) is None


def test_what_is_due_first_comes_first() -> None:
    queue = WorkQueue()
    queue.add("second", 1.0)
    queue.add("first", 0.01)

    assert [queue.take(10), queue.take(10)] == ["first", "second"]


@cases("again", added=WorkQueue.add, hurried=WorkQueue.hurry)
def test_a_name_that_comes_again_while_it_is_busy_is_handed_out_once_it_is_done(
    again: Callable[[WorkQueue, str], None],
) -> None:
    queue = WorkQueue()
    again(queue, "team")
    assert queue.take(0) == "team"
    again(queue, "team")

    assert queue.take(0.02) is None
    queue.done("team")
    assert queue.take(0) == "team"


def test_a_worker_that_waits_is_woken() -> None:
    queue = WorkQueue()
    taken: list[str | None] = []
    worker = threading.Thread(target=lambda: taken.append(queue.take(30)))
    worker.start()
    queue.add("team")
    worker.join(30)

    assert taken == ["team"]


def test_what_is_hurried_comes_before_what_has_been_due_for_longer() -> None:
    queue = WorkQueue()
    for name in ("new-0", "new-1", "release"):
        queue.add(name)
    queue.hurry("release")

    assert [queue.take(0) for _ in range(4)] == ["release", "new-0", "new-1", None]


@pytest.mark.usefixtures("clock")
def test_a_quiet_name_that_is_hurried_is_due_at_once() -> None:
    queue = WorkQueue()
    queue.add("team", 60)
    queue.hurry("team")

    assert queue.take(0) == "team"
    queue.done("team")
    assert queue.take(0) is None, "that was all"


@pytest.mark.parametrize("step", [0.001, 0.013, 0.19, 0.21])
def test_a_name_that_is_hurried_all_the_time_is_taken_so_often_and_no_more(clock: Clock, step: float) -> None:
    queue, seconds, taken = WorkQueue(), 10.0, 0
    for _ in range(int(seconds / step)):
        queue.hurry("team")
        while queue.take(0) == "team":
            taken += 1
            queue.done("team")
        clock.now += step

    at_most = 5 + seconds / 0.2
    assert min(at_most, seconds / step) - 2 <= taken <= at_most


def test_what_was_hurried_once_is_remembered_no_longer_than_it_matters(clock: Clock) -> None:
    queue = WorkQueue()
    for number in range(1000):
        queue.hurry(f"team-{number}")
        assert queue.take(0) == f"team-{number}"
        queue.done(f"team-{number}")
        clock.now += 0.1

    assert len(queue._paced) < 10

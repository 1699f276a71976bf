"""Which namespace is counted next, and how often."""

import threading
from collections.abc import Callable

import pytest

from tests.cases import cases
from tests.webhook.controller.clock import Clock
from webhook.controller.work_queue import WorkItem, WorkQueue

TEAM = WorkItem("team", ("team",))


def names(queue: WorkQueue, turns: int, seconds: float = 0.0) -> list[str | None]:
    """Return the names of so many turns that have one name each."""
    taken = (queue.take(seconds) for _ in range(turns))
    return ["+".join(turn.names) if turn else None for turn in taken]


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

    assert queue.take(0) == TEAM
    assert queue.take(0) is None


def test_names_that_are_not_among_those_asked_for_stay() -> None:
    queue = WorkQueue({"a": "team", "b": "team"}.get)  # type: ignore[arg-type] # of two names
    queue.add("a")
    queue.add("b")

    assert queue.take(0, ()) is None
    assert queue.take(0, {"b"}) == WorkItem("team", ("b",))
    queue.done(WorkItem("team", ("b",)))
    assert queue.take(0) == WorkItem("team", ("a",))


def test_what_is_due_first_comes_first() -> None:
    queue = WorkQueue()
    queue.add("second", 1.0)
    queue.add("first", 0.01)

    assert names(queue, 2, 10) == ["first", "second"]


@cases("again", added=WorkQueue.add, hurried=WorkQueue.hurry)
def test_a_name_that_comes_again_while_it_is_busy_is_handed_out_once_it_is_done(
    again: Callable[[WorkQueue, str], None],
) -> None:
    queue = WorkQueue()
    again(queue, "team")
    assert queue.take(0) == TEAM
    again(queue, "team")

    assert queue.take(0.02) is None
    queue.done(TEAM)
    assert queue.take(0) == TEAM


def test_a_worker_that_waits_is_woken() -> None:
    queue = WorkQueue()
    taken: list[WorkItem | None] = []
    worker = threading.Thread(target=lambda: taken.append(queue.take(30)))
    worker.start()
    queue.add("team")
    worker.join(30)

    assert taken == [TEAM]


def test_what_is_hurried_comes_before_what_has_been_due_for_longer() -> None:
    queue = WorkQueue()
    for name in ("new-0", "new-1", "release"):
        queue.add(name)
    queue.hurry("release")

    assert names(queue, 4) == ["release", "new-0", "new-1", None]


@pytest.mark.usefixtures("clock")
def test_a_quiet_name_that_is_hurried_is_due_at_once() -> None:
    queue = WorkQueue()
    queue.add("team", 60)
    queue.hurry("team")

    assert queue.take(0) == TEAM
    queue.done(TEAM)
    assert queue.take(0) is None, "that was all"


@pytest.mark.parametrize("step", [0.001, 0.013, 0.19, 0.21])
def test_a_name_that_is_hurried_all_the_time_is_taken_so_often_and_no_more(clock: Clock, step: float) -> None:
    queue, seconds, taken = WorkQueue(), 10.0, 0
    for _ in range(int(seconds / step)):
        queue.hurry("team")
        while queue.take(0) == TEAM:
            taken += 1
            queue.done(TEAM)
        clock.now += step

    at_most = 5 + seconds / 0.2
    assert min(at_most, seconds / step) - 2 <= taken <= at_most


def test_what_was_hurried_once_is_remembered_no_longer_than_it_matters(clock: Clock) -> None:
    queue = WorkQueue()
    for number in range(1000):
        queue.hurry(f"team-{number}")
        taken = queue.take(0)
        assert taken == WorkItem(f"team-{number}", (f"team-{number}",))
        queue.done(taken)
        clock.now += 0.1

    assert len(queue._paced) < 10


# The namespaces of a team.


@pytest.fixture
def of_teams() -> WorkQueue:
    return WorkQueue(lambda name: f"team-{name[0]}" if len(name) == 2 else name, rest=1.0)


def test_who_takes_one_of_a_group_takes_all_of_it_that_are_due(of_teams: WorkQueue) -> None:
    for name, delay in {"a1": 0.0, "b1": 0.0, "a2": 0.0, "a3": 30.0}.items():
        of_teams.add(name, delay)

    assert of_teams.take(0) == WorkItem("team-a", ("a1", "a2"))
    assert of_teams.take(0) == WorkItem("team-b", ("b1",))


@pytest.mark.usefixtures("clock")
def test_only_one_worker_has_a_group(of_teams: WorkQueue) -> None:
    of_teams.add("a1")
    turn = of_teams.take(0)
    assert turn is not None
    of_teams.add("a2")

    assert of_teams.take(0) is None
    of_teams.done(turn)
    assert of_teams.take(0) == WorkItem("team-a", ("a2",))


def test_only_one_worker_has_a_name_whose_group_changes() -> None:
    groups: dict[str, str] = {}
    queue = WorkQueue(lambda name: groups.get(name, name))
    queue.add("a1")
    alone = queue.take(0)
    assert alone is not None
    groups["a1"] = "team-a"
    queue.add("a1")

    assert queue.take(0) is None
    queue.done(alone)
    assert queue.take(0) == WorkItem("team-a", ("a1",))


@cases(
    ("before", "after", "want"),
    what_was_due_during_the_rest=(("a2", 0.5), None, 1.0),
    what_is_added_during_the_rest=(None, ("a2", 0.5), 1.0),
    what_is_due_later=(("a2", 1.5), None, 1.5),
    what_is_due_at_once=(None, ("a2", 0.0), 0.0),
    another_group=(("b2", 0.5), None, 0.5),
)
def test_a_group_rests_after_a_turn(
    of_teams: WorkQueue,
    clock: Clock,
    before: tuple[str, float] | None,
    after: tuple[str, float] | None,
    want: float,
) -> None:
    of_teams.add("a1")
    if before:
        of_teams.add(*before)
    turn = of_teams.take(0)
    assert turn is not None
    of_teams.done(turn)
    if after:
        of_teams.add(*after)

    clock.now += want - 0.01
    assert want == 0.0 or of_teams.take(0) is None
    clock.now += 0.02
    assert of_teams.take(0) is not None


def test_a_group_that_is_hurried_all_the_time_is_taken_as_often_as_one_name(
    of_teams: WorkQueue, clock: Clock
) -> None:
    taken = 0
    for number in range(1000):
        of_teams.hurry(f"a{number % 10}")
        while (turn := of_teams.take(0)) is not None:
            taken += 1
            of_teams.done(turn)
        clock.now += 0.01

    assert 45 <= taken <= 55

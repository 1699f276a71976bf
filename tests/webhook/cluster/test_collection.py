"""Lists and a watch, merged in every order in which they can come: what has a position is the collection at that revision."""

from contextlib import ExitStack
from random import Random

import msgspec
import pytest

from tests.cases import cases
from webhook.cluster.collection import CLUSTER, NOWHERE, MergedCollection, ObjectVersion, Position

NAMESPACES = ("red", "blue")
State = dict[str, ObjectVersion["Item"]]


class Item(msgspec.Struct, frozen=True):
    uid: str
    namespace: str
    version: int


def line(uid: str, namespace: str, version: int, *, kept: bool) -> ObjectVersion[Item]:
    return ObjectVersion(namespace, hash(uid), version, Item(uid, namespace, version) if kept else None)


class Reading(msgspec.Struct):
    """A list on its way: what it has, of which the lines that were known when it was compared come without their item."""

    stack: ExitStack
    namespace: str
    at: Position
    lines: list[ObjectVersion[Item]]


class LaggingCollection:
    """A server with its history, a watch that lags behind and begins again, and lists that take their time."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.sums = dict.fromkeys(NAMESPACES, 0)
        self.held = MergedCollection[Item]("things", self.changed)
        self.history: list[State] = [{}, {}]
        self.events: list[tuple[ObjectVersion[Item], bool] | None] = [None, None]
        self.watch = 1
        self.held.watch_from(1)
        self.readings: list[Reading] = []
        self.shown = {name: set[str]() for name in NAMESPACES}
        self.began: dict[float, int] = {}
        self.timed = 0
        """Changes of which a revision before is known."""

    def changed(self, before: Item | None, after: Item | None) -> None:
        if before is not None and before.version <= self.held.changed_after:
            self.timed += 1
            as_it_was = self.history[self.held.changed_after].get(before.uid)
            assert as_it_was is not None
            assert as_it_was.item == before
        for item, sign in ((before, -1), (after, 1)):
            if item is not None:
                self.sums[item.namespace] += sign * item.version

    @property
    def now(self) -> int:
        return len(self.history) - 1

    def step(self) -> None:
        steps = [self.write, self.show, self.show, self.show, self.read, self.merge]
        self.random.choice(steps)() if self.random.random() < 0.97 else self.begin_again()
        self.check()

    def write(self) -> None:
        state = dict(self.history[-1])
        uid = str(self.random.randrange(self.now * 2))  # an old one, or a new one
        if uid in state and self.random.random() < 0.6:
            event = state.pop(uid)._replace(version=self.now + 1), True
        elif uid in state or not any(uid in each for each in self.history):
            namespace = state[uid].namespace if uid in state else self.random.choice(NAMESPACES)
            state[uid] = line(uid, namespace, self.now + 1, kept=self.random.random() < 0.7)
            event = state[uid], False
        else:
            return  # no uid comes back
        self.history.append(state)
        self.events.append(event)

    def show(self) -> None:
        if self.watch < self.now:
            self.watch += 1
            event = self.events[self.watch]
            assert event is not None
            self.held.event(event[0], deleted=event[1])

    def begin_again(self) -> None:
        self.watch = self.now
        self.held.watch_from(self.watch)

    def read(self) -> None:
        namespace = self.random.choice((*NAMESPACES, CLUSTER))
        stack = ExitStack()
        started = stack.enter_context(self.held.reading())
        self.began[started] = self.now
        lines = [each for each in self.history[-1].values() if namespace in {CLUSTER, each.namespace}]
        lines = [each._replace(item=None) if self.held.is_known(each) else each for each in lines]
        self.readings.append(Reading(stack, namespace, Position(self.now, started), lines))

    def merge(self) -> None:
        if not self.readings:
            return
        reading = self.readings.pop(self.random.randrange(len(self.readings)))
        with reading.stack:
            if reading.namespace:
                self.held.merge(reading.namespace, reading.at, reading.lines)
                return
            shown = {each.namespace for each in reading.lines}
            for namespace in shown:
                of = [each for each in reading.lines if each.namespace == namespace]
                self.held.merge(namespace, reading.at, of)
            self.held.merge_whole(reading.at, shown)

    def check(self) -> None:
        """Check that what has a position is the namespace as it was at that revision, and what `changed` made of it."""
        assert self.held.missed == 0
        for namespace in NAMESPACES:
            items, deleted, position = (
                self.held.items(namespace),
                self.held.deleted(namespace),
                self.held.position(namespace),
            )
            assert deleted.isdisjoint(self.history[-1]), "a stored object is not deleted"
            shown = self.shown[namespace]
            held = self.held._versions.get(namespace, {})
            gone = {uid for uid in shown if hash(uid) not in held}
            assert gone <= deleted, "an object that is not held any more was deleted"
            shown.clear()
            shown |= {each.uid for each in items}
            assert sum(each.version for each in items) == self.sums[namespace]
            if position == NOWHERE:
                continue
            state = self.history[position.revision].values()
            assert set(items) == {each.item for each in state if each.namespace == namespace} - {None}
            assert position.revision >= self.began[position.list_started]

    def end(self) -> None:
        """Check that lists of everything give each namespace a position, and that nothing is kept for lists that are over."""
        while self.readings:
            self.merge()
        while self.held.position("red").revision < self.now or self.held.position("blue").revision < self.now:
            self.read()
            self.merge()
        self.check()
        assert self.held._deleted_while_reading == {}


@pytest.mark.parametrize("seed", range(4))
def test_what_has_a_position_is_the_collection_at_that_revision(seed: int) -> None:
    positions, timed = 0, 0
    for each in range(100):
        lagging = LaggingCollection(Random(f"{seed}/{each}"))  # noqa: S311 - the same in every run
        for _ in range(60):
            lagging.step()
            positions += lagging.held.position("red") != NOWHERE
        lagging.end()
        timed += lagging.timed
    assert positions > 3_000
    assert timed > 50


def held() -> MergedCollection[Item]:
    """Return one with `kept` at 5 and `other`, whose item is not kept, at 6; the watch has come to 10."""
    made = MergedCollection[Item]("things", lambda *_: None)
    made.watch_from(1)
    with made.reading() as started:
        lines = [line("kept", "red", 5, kept=True), line("other", "red", 6, kept=False)]
        made.merge("red", Position(7, started), lines)
        made.merge_whole(Position(7, started), {"red"})
    made.bookmark(10)
    return made


@cases(
    ("listed", "changed", "missed", "position"),
    one_object_changed_at_8_and_one_went_at_9=(9, 8, 2, 10),
    the_watch_has_yet_to_show_it=(12, 11, 0, 12),
)
def test_what_a_list_shows_that_the_watch_had_passed_was_missed(
    listed: int, changed: int, missed: int, position: int
) -> None:
    """The watch came to 10 and showed neither change."""
    collection = held()
    with collection.reading() as started:
        collection.merge("red", Position(listed, started), [line("kept", "red", changed, kept=True)])

    assert collection.missed == missed
    assert [each.version for each in collection.items("red")] == [changed]
    assert collection.position("red") == (position, started)


def test_a_namespace_is_nowhere_until_it_is_listed_after_the_watch_began_again() -> None:
    collection = held()
    with collection.reading() as early:
        collection.watch_from(20)
        assert collection.position("red") == NOWHERE
        collection.merge("red", Position(19, early), [])
        assert collection.position("red") == NOWHERE, "that list is of before"
    with collection.reading() as started:
        collection.merge("red", Position(20, started), [])

    assert collection.position("red") == (20, started)
    assert collection.position("blue") == NOWHERE
    assert collection.whole_list_started == 0.0
    assert collection.missed == 0


def test_what_was_held_and_a_later_list_lacks_was_deleted() -> None:
    collection = held()
    with collection.reading() as early:
        collection.watch_from(20)
        collection.merge("red", Position(4, early), [])
        assert collection.deleted("red") == frozenset(), "that list is of before"
        collection.merge("red", Position(20, early), [])

    assert collection.deleted("red") == {"kept"}

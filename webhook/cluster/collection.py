"""A collection of the API server in memory, merged from lists and from a watch that continues during the lists.

A list is complete at its revision. So an object that it lacks is removed, unless the watch showed the object later. An object
does not come back if the watch showed its deletion since the list began. Events up to the revision of a list are ignored.

A new watch has missed earlier changes. So a namespace mixes revisions, and has no `position`, until a list of it is merged that
is as new as the start of the watch.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import monotonic
from typing import Any, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

log = logging.getLogger("gpu_admission.cluster")

CLUSTER = ""
"""The namespace key of cluster-scoped objects."""

DELETED_SECONDS = 120.0
"""A deletion is remembered for this long: longer than any wait for the deleted object."""

P = ParamSpec("P")


class Subscribers(Generic[P]):
    """Calls the subscribers one after another, in the order in which they subscribed. They must not block."""

    def __init__(self, name: str, *subscribers: Callable[P, object]) -> None:
        self._name, self._subscribers = name, list(subscribers)

    def subscribe(self, subscriber: Callable[P, object]) -> None:
        self._subscribers.append(subscriber)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for subscriber in self._subscribers:
            try:
                subscriber(*args, **kwargs)
            except Exception:  # a bug with one object must not hide the others, or stop other subscribers
                log.exception("%s: a change was not taken in", self._name)


class CachedObject(Protocol):
    """The projection of an object in an informer."""

    @property
    def uid(self) -> str: ...
    @property
    def namespace(self) -> str: ...


Item = TypeVar("Item", bound=CachedObject)


class Position(NamedTuple):
    """The revision at which a namespace is held, and the monotonic time when its list began.

    Zeros: the namespace must be listed before it is consistent.
    """

    revision: int
    list_started: float

    def newest(self, other: "Position") -> "Position":
        """Return the later revision, and the later beginning of a list."""
        return Position(max(self.revision, other.revision), max(self.list_started, other.list_started))


NOWHERE = Position(0, 0.0)
EVER_LISTED = 1e-9
"""Later than "never" (0.0) and earlier than any list began."""


class ObjectVersion(NamedTuple, Generic[Item]):
    """An object in a list or an event. `item` is its projection, None if that is not kept.

    `key` is the hash of its uid, which takes less than half of the memory. Nobody can choose a uid.
    """

    namespace: str
    key: int
    version: int
    item: Item | None


class MergedCollection(Generic[Item]):
    """Holds the items, and the version of every object, also of objects without an item.

    Calls each subscriber with the item before and after a difference, in order, with `lock` held, before the new revision
    becomes visible.
    """

    def __init__(
        self,
        name: str,
        *subscribers: Callable[[Item | None, Item | None], object],
        lock: AbstractContextManager[bool] | None = None,
    ) -> None:
        self._name = name
        self._changed = Subscribers(name, *subscribers)
        self.subscribe = self._changed.subscribe
        self.lock: AbstractContextManager[bool] = lock or threading.RLock()
        self._items: dict[str, dict[int, Item]] = {}
        """By namespace and key."""
        self._versions: dict[str, dict[int, int]] = {}
        """By namespace and key. Some 110 bytes for an object: 22 MB for 200,000."""
        self._revision = self._watched_from = 0
        """Up to which revision the watch has shown everything, and where it began."""
        self._whole_list = NOWHERE
        """The last list of all namespaces."""
        self._lists: dict[str, Position] = {}
        """The last list of a namespace alone, where that is newer."""
        self._deleted: dict[str, dict[str, float]] = {}
        """By namespace and uid: when an object was deleted, within the last DELETED_SECONDS."""
        self._deletions: deque[tuple[float, str, str]] = deque()
        """The same in their order: time, namespace, uid."""
        self._reading: list[float] = []
        """When each list that is being read began."""
        self._deleted_while_reading: dict[int, float] = {}
        """By key: when an object was deleted, since the oldest of these lists began."""
        self.changed_after = 0
        """While subscribers are called: a revision at which the object had not changed yet."""
        self.missed = 0
        """Changes that a list showed and the watch had missed."""

    @property
    def revision(self) -> int:
        """The revision up to which the watch has shown everything."""
        return self._revision

    @property
    def whole_list_started(self) -> float:
        """When the last list of all namespaces began. 0.0 if there was none since the watch began."""
        return self._whole_list.list_started if self._whole_list.revision >= self._watched_from else 0.0

    def position(self, namespace: str = CLUSTER) -> Position:
        with self.lock:
            listed = self._listed(namespace)
            if listed.revision < self._watched_from:
                return NOWHERE
            return Position(max(self._revision, listed.revision), listed.list_started)

    def items(self, namespace: str = CLUSTER) -> tuple[Item, ...]:
        with self.lock:
            return tuple(self._items.get(namespace, {}).values())

    def first(self, namespace: str) -> Item | None:
        """Return an item of a namespace, for kinds with one object in each. None without one."""
        return next(iter(self.items(namespace)), None)

    def deleted(self, namespace: str) -> frozenset[str]:
        """Return the uids of the objects that were deleted in the last two minutes.

        The watch showed the deletion, or a list lacks an object that was held before.
        """
        with self.lock:
            return frozenset(self._deleted.get(namespace, ()))

    def namespaces(self) -> list[str]:
        with self.lock:
            return [namespace for namespace, items in self._items.items() if items]

    def all(self) -> list[Item]:
        with self.lock:
            return [item for items in self._items.values() for item in items.values()]

    def is_known(self, seen: ObjectVersion[Item]) -> bool:
        """Whether this version of an object, or a newer one, is held."""
        return seen.version <= self._versions.get(seen.namespace, {}).get(seen.key, 0)

    def was_listed(self, namespace: str) -> bool:
        return self._listed(namespace).revision > 0

    def total(self) -> int:
        """Return the number of objects, also of objects without an item."""
        with self.lock:
            return sum(map(len, self._versions.values()))

    def size(self, namespace: str) -> int:
        return len(self._versions.get(namespace, ()))

    def watch_from(self, revision: int) -> None:
        with self.lock:
            self._revision = self._watched_from = revision

    def bookmark(self, revision: int) -> None:
        with self.lock:
            self._revision = max(self._revision, revision)

    def event(self, seen: ObjectVersion[Item], *, deleted: bool) -> None:
        with self.lock:
            self._revision = seen.version
            if deleted:
                if self._reading:
                    self._deleted_while_reading[seen.key] = monotonic()
                if seen.item is not None:
                    self._remember_deleted(seen.item)
            if seen.version <= self._listed(seen.namespace).revision:
                return
            self._changes_after(self._listed(seen.namespace), seen.version - 1)
            if deleted:
                self._remove(seen.namespace, seen.key)
            else:
                self._keep(seen)

    @contextmanager
    def reading(self) -> Iterator[float]:
        """Remember deletions while a list is read and merged. Yield when it began."""
        started = monotonic()
        with self.lock:
            self._reading.append(started)
        try:
            yield started
        finally:
            with self.lock:
                self._reading.remove(started)
                oldest = min(self._reading, default=float("inf"))
                self._deleted_while_reading = {
                    key: at for key, at in self._deleted_while_reading.items() if at >= oldest
                }

    def merge(self, namespace: str, listed: Position, versions: Iterable[ObjectVersion[Item]]) -> None:
        """Merge a list of one namespace, inside `reading`. An object whose version is held already needs no item."""
        shown = {seen.key: seen for seen in versions}
        with self.lock:
            before = self._listed(namespace)
            self._changes_after(before, self._revision)
            self._lists[namespace] = before.newest(listed)
            if listed.revision < before.revision:
                return  # a later list is merged already
            missed = 0
            known = self._versions.setdefault(namespace, {})
            for key in [key for key, at in known.items() if key not in shown and at <= listed.revision]:
                if (item := self._items.get(namespace, {}).get(key)) is not None:
                    self._remember_deleted(item)
                self._remove(namespace, key)
                missed += listed.revision <= self._revision
            for key, seen in shown.items():
                if key not in self._deleted_while_reading and seen.version > known.get(key, 0):
                    self._keep(seen)
                    missed += seen.version <= self._revision
            if missed and before.revision >= self._watched_from:
                self.missed += missed
                log.warning("%s of %s: the watch had missed %d changes", self._name, namespace, missed)

    def merge_whole(self, listed: Position, namespaces: Collection[str]) -> None:
        """Note that a list of everything had objects only in these namespaces, and that all of them are merged."""
        with self.lock:
            for namespace in self._versions.keys() - namespaces:
                self.merge(namespace, listed, ())
            self._whole_list = self._whole_list.newest(listed)
            newer = {name: each for name, each in self._lists.items() if each.revision > listed.revision}
            self._lists = newer
            self._versions = {name: versions for name, versions in self._versions.items() if versions}
            self._items = {name: items for name, items in self._items.items() if items}

    def _listed(self, namespace: str) -> Position:
        return self._lists.get(namespace, self._whole_list)

    def _changes_after(self, listed: Position, watched: int) -> None:
        # What a new watch has not shown may have changed at any time since the list before.
        is_watched = listed.revision >= self._watched_from
        self.changed_after = max(listed.revision, watched if is_watched else 0)

    def _keep(self, seen: ObjectVersion[Item]) -> None:
        self._versions.setdefault(seen.namespace, {})[seen.key] = seen.version
        items = self._items.setdefault(seen.namespace, {})
        before = items.pop(seen.key, None)
        if seen.item is not None:
            items[seen.key] = seen.item
        self._notify(before, seen.item)

    def _remove(self, namespace: str, key: int) -> None:
        self._versions.get(namespace, {}).pop(key, None)
        self._notify(self._items.get(namespace, {}).pop(key, None), None)

    def _notify(self, before: Item | None, after: Item | None) -> None:
        if before != after:
            self._changed(before, after)

    def _remember_deleted(self, item: Item) -> None:
        now, namespace, uid = monotonic(), item.namespace, item.uid
        self._deleted.setdefault(namespace, {})[uid] = now
        self._deletions.append((now, namespace, uid))
        while now - self._deletions[0][0] > DELETED_SECONDS:
            at, name, old = self._deletions.popleft()
            uids = self._deleted.get(name, {})
            if uids.get(old) == at:  # no later event
                del uids[old]
                if not uids:
                    del self._deleted[name]


def update_by_key(records: dict[Any, Any], before: Any, after: Any) -> None:
    """Replace a record by key, or remove it. A newer object with the same key stays."""
    if after is not None:
        records[after.key] = after
    elif records.get(before.key) == before:
        del records[before.key]

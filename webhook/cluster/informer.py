"""An informer: a collection of the API server in memory, from a consistent list and a watch that is never assumed to be alive.

Its snapshot is the collection as it was at one revision, never a mixture, however old that revision is. A watch that ends, is
cut, is silent for longer than the interval of bookmarks, or gets a 410 is started again, with a new list where necessary; between
failures there is a growing, jittered pause. `age` is the time since the last message; an opened watch is one: what happened
since its revision follows at once.

Silence is a dead connection, or a kind that nobody changes: the API server sends no bookmarks of a kind of which it has seen no
event since its own start (`dispatchEvents` in `k8s.io/apiserver/pkg/storage/cacher`). They differ only
once the watch is opened again, so silence alone does not count as a failure.

`refresh` lists one namespace now: afterwards its snapshot is no older than the call, even if the watch still lags behind. Events
that the list already contained are then ignored.
"""

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from time import monotonic
from typing import Generic, Protocol, TypeVar

import msgspec
import urllib3

from webhook.cluster import errors
from webhook.cluster.api import JSON, METADATA, METADATA_LIST, ApiClient, Listed, api_path
from webhook.cluster.nesting import decoded
from webhook.cluster.objects import ObjectMeta, PartialObject

log = logging.getLogger("gpu_admission.cluster")

CLUSTER = ""
"""The namespace under which objects without one are kept."""

DELETED_SECONDS = 120.0
"""How long a deletion is remembered: longer than anything waits for the deleted object."""
REPEAT_SECONDS = 600.0
"""When a trouble that stays the same, such as a right that is missing, is logged again."""


class CachedObject(Protocol):
    """The projection of an object in an informer."""

    @property
    def uid(self) -> str: ...
    @property
    def namespace(self) -> str: ...


K = TypeVar("K", bound=CachedObject)


class Resource(msgspec.Struct, frozen=True):
    """A collection of the API: `/api/v1` and `pods`. With `metadata_only` the API server sends neither spec nor status."""

    prefix: str
    plural: str
    metadata_only: bool = False
    field_selector: str = ""

    def path(self, namespace: str = CLUSTER, *name: str) -> str:
        """Return the path of the collection, or of the object `name` and its subresource."""
        scope = ("namespaces", namespace) if namespace else ()
        return api_path(self.prefix, *scope, self.plural, *name)

    def query(self) -> dict[str, str]:
        return {"fieldSelector": self.field_selector} if self.field_selector else {}


class WatchTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. The API server sends a bookmark about every minute, so after a longer silence the watch is opened again."""

    watch: float = 270.0
    silence: float = 80.0
    relist: float = 1800.0
    pause_least: float = 0.2
    pause_most: float = 10.0


class Snapshot(msgspec.Struct, Generic[K], frozen=True):
    """A namespace's objects at `revision`; `list_started` is when (monotonic) the list began from which all of them come.

    `deleted` are the uids for which the watch sent a DELETED event in the last two minutes: each was stored, and is no longer.
    Objects that a list merely lacks are not among them; the list may be old.
    """

    items: tuple[K, ...]
    revision: int
    list_started: float
    deleted: frozenset[str] = frozenset()


class Position(msgspec.Struct, frozen=True):
    """At which revision a namespace is held, and when (monotonic) the list began from which all of it comes."""

    revision: int
    list_started: float


class _EventObject(PartialObject, frozen=True):
    """The object of an event, or the Status of an ERROR."""

    metadata: ObjectMeta = ObjectMeta()
    code: int = 0


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _NamespaceList(msgspec.Struct, frozen=True):
    """The last list of one namespace alone: its revision, and when it began."""

    revision: int
    started: float


_NEVER = _NamespaceList(0, 0.0)
_EVENT = msgspec.json.Decoder(_Event)
_EVENT_OBJECT = msgspec.json.Decoder(_EventObject)


class Informer(Generic[K]):
    """Keeps what `project` makes of every object; None is not kept. `changed(before, after)` is called with every difference.

    `changed` is called with `lock` held, in the order of the changes, and before anybody sees the revision that has them: sums
    that it keeps are of `position(namespace).revision` for whoever holds the lock. It must not block. Informers whose
    callbacks read one another must share one lock.
    """

    def __init__(
        self,
        api: ApiClient,
        resource: Resource,
        project: Callable[[msgspec.Raw], K | None],
        changed: Callable[[K | None, K | None], object],
        *,
        timings: WatchTimings | None = None,
        lock: AbstractContextManager[bool] | None = None,
    ) -> None:
        self.resource = resource
        self._api = api
        self._project = project
        self._changed = changed
        self._timings = timings or WatchTimings()
        self.lock: AbstractContextManager[bool] = lock or threading.RLock()
        self._items: dict[str, dict[str, K]] = {}
        self._revision = 0
        self._list_started = 0.0
        self._namespace_lists: dict[str, _NamespaceList] = {}
        self._deleted: dict[str, dict[str, float]] = {}
        self._deletions: deque[tuple[float, str, str]] = deque()
        self._last_message = monotonic()
        self._logged = ("", 0.0)
        self._synced = threading.Event()
        self.relists = 0
        self.failures = 0
        self.is_missing = False
        """Whether the API server answered 404 last: it does not serve this kind."""

    @property
    def age(self) -> float:
        """Seconds since the last message about this collection; up to 80 are normal."""
        return monotonic() - self._last_message

    @property
    def synced(self) -> bool:
        """Whether the first list is complete."""
        return self._synced.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait for the first list; return whether it was complete in that time."""
        return self._synced.wait(seconds)

    def position(self, namespace: str = CLUSTER) -> Position:
        with self.lock:
            alone = self._namespace_lists.get(namespace, _NEVER)
            return Position(max(self._revision, alone.revision), alone.started or self._list_started)

    def snapshot(self, namespace: str = CLUSTER) -> Snapshot[K]:
        with self.lock:
            position = self.position(namespace)
            items = tuple(self._items.get(namespace, {}).values())
            deleted = frozenset(self._deleted.get(namespace, ()))
            return Snapshot(items, position.revision, position.list_started, deleted)

    def namespaces(self) -> list[str]:
        with self.lock:
            return [namespace for namespace, items in self._items.items() if items]

    def all(self) -> list[K]:
        with self.lock:
            return [item for items in self._items.values() for item in items.values()]

    def refresh(self, namespace: str = CLUSTER) -> None:
        """List one namespace (of a collection without namespaces: all of it) now. Raises `errors.ApiError`."""
        started = monotonic()
        listed = self._listed(namespace)
        revision = int(listed.resource_version)
        items = {item.uid: item for item in listed.items}
        with self.lock:
            alone = self._namespace_lists.get(namespace, _NEVER)
            current = max(self._revision, alone.revision)
            # The watch may have overtaken the list, which then has nothing new.
            differences = self._replace(namespace, items) if revision >= current else []
            if started > alone.started:
                self._namespace_lists[namespace] = _NamespaceList(max(current, revision), started)
            self._last_message = max(self._last_message, started)
            self._notify(differences)

    def run(self, stopping: threading.Event) -> None:
        """Follow the collection until `stopping`; the body of a thread."""
        pause = self._timings.pause_least
        listed_at: float | None = None
        while not stopping.is_set():
            started = monotonic()
            try:
                if listed_at is None or monotonic() - listed_at > self._timings.relist:
                    self._list()
                    listed_at = monotonic()
                self._watch(stopping)
                pause = self._timings.pause_least
                continue
            except errors.Silent as silence:
                log.debug("%s: watching again: %s", self.resource.plural, silence)
                continue
            except errors.Gone:
                log.info("%s: the revision of the watch is too old; listing again", self.resource.plural)
                listed_at = None
            except (errors.ApiError, msgspec.MsgspecError, ValueError) as error:
                self.is_missing = isinstance(error, errors.NotFound)
                self._warn(str(error))
            except Exception:  # a bug must not end the watch; what it missed is listed again
                log.exception("%s: watch failed", self.resource.plural)
                listed_at = None
            self.failures += 1
            if monotonic() - started > self._timings.pause_most:
                pause = self._timings.pause_least  # it worked for a while
            stopping.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
            pause = min(pause * 2, self._timings.pause_most)

    def start(self, stopping: threading.Event) -> None:

        name = f"watch {self.resource.plural}"
        threading.Thread(target=self.run, args=(stopping,), name=name, daemon=True).start()

    def _warn(self, problem: str) -> None:
        before, at = self._logged
        if problem != before or monotonic() - at > REPEAT_SECONDS:
            self._logged = problem, monotonic()
            log.warning("%s: %s", self.resource.plural, problem)

    def _listed(self, namespace: str = CLUSTER) -> Listed[K]:
        resource = self.resource
        accept = METADATA_LIST if resource.metadata_only else JSON
        return self._api.list(resource.path(namespace), self._project, accept=accept, query=resource.query())

    def _list(self) -> None:
        started = monotonic()
        listed = self._listed()
        by_namespace: dict[str, dict[str, K]] = {}
        for item in listed.items:
            by_namespace.setdefault(item.namespace, {})[item.uid] = item
        revision = int(listed.resource_version)
        differences: list[tuple[K | None, K | None]] = []
        with self.lock:
            for namespace in {*self._items, *by_namespace}:
                if revision >= self._namespace_lists.get(namespace, _NEVER).revision:
                    differences += self._replace(namespace, by_namespace.get(namespace, {}))
            self._revision = revision
            self._list_started = started
            newer = {name: each for name, each in self._namespace_lists.items() if each.revision > revision}
            self._namespace_lists = newer
            self._last_message = monotonic()
            self._notify(differences)
        self.relists += 1
        self.is_missing = False
        self._synced.set()

    def _replace(self, namespace: str, items: dict[str, K]) -> list[tuple[K | None, K | None]]:
        before = self._items.get(namespace, {})
        self._items[namespace] = items
        return [(before.get(uid), items.get(uid)) for uid in {**before, **items}]

    def _watch(self, stopping: threading.Event) -> None:
        seconds = self._timings.watch * random.uniform(0.8, 1.0)  # noqa: S311 - so that watches do not end together
        query = {
            **self.resource.query(),
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(self._revision),
            "timeoutSeconds": str(max(1, int(seconds))),
        }
        path, silence = self.resource.path(), self._timings.silence
        accept = METADATA if self.resource.metadata_only else JSON
        with self._api.stream(path, query=query, read_seconds=silence, accept=accept) as response:
            self._last_message = monotonic()
            for line in _lines(response):
                self._last_message = monotonic()
                self._apply(decoded(_EVENT.decode, line))
                if stopping.is_set():
                    return

    def _apply(self, event: _Event) -> None:
        seen = _EVENT_OBJECT.decode(event.object)
        if event.type == "ERROR":
            raise errors.of_response(seen.code or 500, bytes(event.object))
        revision = int(seen.metadata.resource_version)
        if event.type == "BOOKMARK":
            with self.lock:
                self._revision = max(self._revision, revision)
            return
        projected = self._project(event.object)
        uid, namespace = seen.metadata.uid, (seen.metadata if projected is None else projected).namespace
        deleted = event.type == "DELETED"
        after = None if deleted else projected
        with self.lock:
            self._revision = revision
            if deleted and projected is not None:
                self._remember_deleted(namespace, uid)
            if revision <= self._namespace_lists.get(namespace, _NEVER).revision:
                return
            items = self._items.setdefault(namespace, {})
            before = items.pop(uid, None)
            if after is not None:
                items[uid] = after
            self._notify([(before, after)])

    def _remember_deleted(self, namespace: str, uid: str) -> None:
        now = monotonic()
        self._deleted.setdefault(namespace, {})[uid] = now
        self._deletions.append((now, namespace, uid))
        while now - self._deletions[0][0] > DELETED_SECONDS:
            at, name, old = self._deletions.popleft()
            uids = self._deleted.get(name, {})
            if uids.get(old) == at:  # no later event
                del uids[old]
                if not uids:
                    del self._deleted[name]

    def _notify(self, differences: list[tuple[K | None, K | None]]) -> None:
        for before, after in differences:
            if before != after:
                try:
                    self._changed(before, after)
                except Exception:  # a bug met with one object must not hide the others
                    log.exception("%s: a change was not taken in", self.resource.plural)


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Yield each complete line as it arrives. The rest that a cut connection leaves is dropped."""
    rest = b""
    for chunk in response.stream(65536):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line)

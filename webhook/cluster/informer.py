"""A collection of the API server mirrored in memory: consistent list, then a watch that is never trusted to be alive.

What the mirror shows is the collection as it was at one revision, never a mixture, however old that revision is. A watch
that ends, is cut, falls silent for longer than bookmarks do, or is told 410 is begun again, from a new list where it
must be; between failures there is a growing, jittered pause. `age` says how long nothing has been heard.

`refresh` lists one namespace now and takes that in: afterwards its view is no older than the call, although the watch may
still lag behind. Events that the list already contained are then passed over.
"""

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Generic, Protocol, TypeVar

import msgspec
import urllib3

from webhook.cluster import errors
from webhook.cluster.api import JSON, METADATA, METADATA_LIST, ApiClient

log = logging.getLogger("gpu_admission.cluster")

CLUSTER = ""
"""The namespace under which objects without one are kept."""


GONE_SECONDS = 120.0
"""How long a deletion is remembered: longer than anything waits for what was deleted."""


class Kept(Protocol):
    """What a mirror keeps of an object."""

    @property
    def uid(self) -> str: ...
    @property
    def namespace(self) -> str: ...


K = TypeVar("K", bound=Kept)


class Resource(msgspec.Struct, frozen=True):
    """Where a collection is served: `/api/v1` and `pods`; of `metadata_only` neither spec nor status is sent.

    With a field selector only that part of it is looked at.
    """

    prefix: str
    plural: str
    metadata_only: bool = False
    field_selector: str = ""

    @property
    def list_accept(self) -> str:
        return METADATA_LIST if self.metadata_only else JSON

    @property
    def watch_accept(self) -> str:
        return METADATA if self.metadata_only else JSON

    def path(self, namespace: str = CLUSTER) -> str:
        scope = f"/namespaces/{namespace}" if namespace else ""
        return f"{self.prefix}{scope}/{self.plural}"

    def query(self) -> dict[str, str]:
        return {"fieldSelector": self.field_selector} if self.field_selector else {}


class WatchTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. The API server sends a bookmark about every minute, so a longer silence is a dead connection."""

    watch: float = 270.0
    silence: float = 80.0
    relist: float = 1800.0
    pause_least: float = 0.2
    pause_most: float = 10.0


class Snapshot(msgspec.Struct, Generic[K], frozen=True):
    """A namespace's objects at `revision`; `begun` is when (monotonic) the list began on which all of it rests.

    `gone` are uids of which the watch told, in the last two minutes, that they were deleted: each was stored, and is no more.
    What a list merely lacks is not among them; it may be the list that is old.
    """

    items: tuple[K, ...]
    revision: int
    begun: float
    gone: frozenset[str] = frozenset()


class _Metadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    uid: str = ""
    namespace: str = CLUSTER


class _Object(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    code: int = 0
    message: str = ""


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Floor(msgspec.Struct):
    """A list of one namespace that was taken in: its revision, and when it began."""

    revision: int
    begun: float


_EVENT = msgspec.json.Decoder(_Event)
_OBJECT = msgspec.json.Decoder(_Object)


class Informer(Generic[K]):
    """Keeps what `project` makes of every object; None is not kept. `changed(before, after)` is told every difference.

    `changed` is called in the thread that found the difference, without a lock held; it must not block for long.
    """

    def __init__(
        self,
        api: ApiClient,
        resource: Resource,
        project: Callable[[msgspec.Raw], K | None],
        changed: Callable[[K | None, K | None], object],
        *,
        pace: WatchTimings | None = None,
    ) -> None:
        self.resource = resource
        self._api = api
        self._project = project
        self._changed = changed
        self._pace = pace or WatchTimings()
        self._lock = threading.Lock()
        self._items: dict[str, dict[str, K]] = {}
        self._revision = 0
        self._begun = 0.0
        self._floors: dict[str, _Floor] = {}
        self._gone: dict[str, dict[str, float]] = {}
        self._gone_in_order: deque[tuple[float, str, str]] = deque()
        self._heard = monotonic()
        self._synced = threading.Event()
        self.relists = 0
        self.failures = 0
        self.is_missing = False
        """Whether the API server said, when it was asked last, that there is no such kind."""

    @property
    def age(self) -> float:
        """Seconds since the API server was last heard about this collection; up to a minute is normal."""
        return monotonic() - self._heard

    @property
    def synced(self) -> bool:
        """Whether the first list has been taken in."""
        return self._synced.is_set()

    def wait(self, seconds: float) -> bool:
        """Return whether the first list was taken in within that time."""
        return self._synced.wait(seconds)

    def view(self, namespace: str = CLUSTER) -> Snapshot[K]:
        with self._lock:
            floor = self._floors.get(namespace)
            items = tuple(self._items.get(namespace, {}).values())
            gone = frozenset(self._gone.get(namespace, ()))
            if floor is None:
                return Snapshot(items, self._revision, self._begun, gone)
            return Snapshot(items, max(self._revision, floor.revision), floor.begun, gone)

    def namespaces(self) -> list[str]:
        with self._lock:
            return [namespace for namespace, items in self._items.items() if items]

    def all(self) -> list[K]:
        with self._lock:
            return [item for items in self._items.values() for item in items.values()]

    def refresh(self, namespace: str = CLUSTER) -> None:
        """List one namespace (of a collection without namespaces: all of it) now. Raises `errors.ApiError`."""
        begun = monotonic()
        listed = self._api.list(
            self.resource.path(namespace),
            self._project,
            accept=self.resource.list_accept,
            query=self.resource.query(),
        )
        revision = int(listed.resource_version)
        items = {item.uid: item for item in listed.items}
        with self._lock:
            floor = self._floors.get(namespace)
            current = max(self._revision, floor.revision if floor else 0)
            # An older list than what is shown already (the watch overtook it) proves nothing but its age.
            differences = self._replace(namespace, items) if revision >= current else []
            if floor is None or begun > floor.begun:
                self._floors[namespace] = _Floor(max(current, revision), begun)
            self._heard = max(self._heard, begun)
        self._tell(differences)

    def run(self, stopping: threading.Event) -> None:
        """Keep the mirror until `stopping`; the body of a thread."""
        pause = self._pace.pause_least
        listed_at: float | None = None
        while not stopping.is_set():
            begun = monotonic()
            try:
                if listed_at is None or monotonic() - listed_at > self._pace.relist:
                    self._list()
                    listed_at = monotonic()
                self._watch(stopping)
                pause = self._pace.pause_least
                continue
            except errors.Gone:
                log.info("%s: the watch is too far behind; listing again", self.resource.plural)
                listed_at = None
            except (errors.ApiError, msgspec.MsgspecError, ValueError) as error:
                self.is_missing = isinstance(error, errors.NotFound)
                log.warning("%s: %s", self.resource.plural, error)
            except (
                Exception
            ):  # a defect in a callback must not end the mirroring; what it missed is listed again
                log.exception("%s: cannot be followed", self.resource.plural)
                listed_at = None
            self.failures += 1
            if monotonic() - begun > self._pace.pause_most:
                pause = self._pace.pause_least  # it had worked for a while
            stopping.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
            pause = min(pause * 2, self._pace.pause_most)

    def _list(self) -> None:
        begun = monotonic()
        listed = self._api.list(
            self.resource.path(), self._project, accept=self.resource.list_accept, query=self.resource.query()
        )
        by_namespace: dict[str, dict[str, K]] = {}
        for item in listed.items:
            by_namespace.setdefault(item.namespace, {})[item.uid] = item
        revision = int(listed.resource_version)
        differences: list[tuple[K | None, K | None]] = []
        with self._lock:
            for namespace in {*self._items, *by_namespace}:
                floor = self._floors.get(namespace)
                if floor is None or revision >= floor.revision:
                    differences += self._replace(namespace, by_namespace.get(namespace, {}))
            self._revision = revision
            self._begun = begun
            self._floors = {name: floor for name, floor in self._floors.items() if floor.revision > revision}
            self._heard = monotonic()
        self.relists += 1
        self.is_missing = False
        self._synced.set()
        self._tell(differences)

    def _replace(self, namespace: str, items: dict[str, K]) -> list[tuple[K | None, K | None]]:
        before = self._items.get(namespace, {})
        self._items[namespace] = items
        return [(before.get(uid), items.get(uid)) for uid in {**before, **items}]

    def _watch(self, stopping: threading.Event) -> None:
        seconds = self._pace.watch * random.uniform(0.8, 1.0)  # noqa: S311 - so that watches do not end together
        query = {
            **self.resource.query(),
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(self._revision),
            "timeoutSeconds": str(max(1, int(seconds))),
        }
        accept, silence = self.resource.watch_accept, self._pace.silence
        with self._api.stream(
            self.resource.path(), query=query, read_seconds=silence, accept=accept
        ) as response:
            for line in _lines(response):
                self._heard = monotonic()
                self._take(_EVENT.decode(line))
                if stopping.is_set():
                    return

    def _take(self, event: _Event) -> None:
        seen = _OBJECT.decode(event.object)
        if event.type == "ERROR":
            raise errors.of_response(seen.code or 500, bytes(event.object))
        revision = int(seen.metadata.resource_version)
        if event.type == "BOOKMARK":
            with self._lock:
                self._revision = max(self._revision, revision)
            return
        uid, namespace = seen.metadata.uid, seen.metadata.namespace
        projected = self._project(event.object)
        deleted = event.type == "DELETED"
        after = None if deleted else projected
        with self._lock:
            self._revision = revision
            if deleted and projected is not None:
                self._remember_gone(namespace, uid)
            floor = self._floors.get(namespace)
            if floor is not None and revision <= floor.revision:
                return
            items = self._items.setdefault(namespace, {})
            before = items.pop(uid, None)
            if after is not None:
                items[uid] = after
        self._tell([(before, after)])

    def _remember_gone(self, namespace: str, uid: str) -> None:
        now = monotonic()
        self._gone.setdefault(namespace, {})[uid] = now
        self._gone_in_order.append((now, namespace, uid))
        while now - self._gone_in_order[0][0] > GONE_SECONDS:
            at, name, old = self._gone_in_order.popleft()
            uids = self._gone.get(name, {})
            if uids.get(old) == at:  # it was not told of again since
                del uids[old]
                if not uids:
                    del self._gone[name]

    def _tell(self, differences: list[tuple[K | None, K | None]]) -> None:
        for before, after in differences:
            if before != after:
                self._changed(before, after)


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Yield every complete line as soon as it is there. What a cut connection left of the last one is dropped."""
    rest = b""
    for chunk in response.stream(65536):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line)

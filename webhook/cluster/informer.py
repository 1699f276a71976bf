"""An informer: a collection of the API server in memory, from consistent lists and a watch that is never assumed to be alive.

A watch that ends, is cut, or is silent for longer than the interval of bookmarks is started again where it was; between failures
there is a growing, jittered pause. After a 410 it begins anew at once, from the present revision, and what was missed is listed
in a thread of its own, while the watch goes on (`collection` merges them): before everything else the namespaces for which
somebody waits, the smallest first, if they are few. `age` is the time since the last message; an opened watch is one: what
happened since its revision follows at once.

Silence is a dead connection, or a kind that nobody changes: the API server sends no bookmarks of a kind of which it has seen no
event since its own start (`dispatchEvents` in `k8s.io/apiserver/pkg/storage/cacher`). They differ only
once the watch is opened again, so silence alone does not count as a failure.

`refresh` lists now: afterwards what is held is no older than the call, even if the watch still lags behind. A list is of metadata
alone, since a resourceVersion says which body an object has; only of what is not held in that version the bodies are read.
"""

import logging
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from math import inf
from time import monotonic
from typing import NamedTuple

import msgspec
import urllib3

from webhook.cluster import errors
from webhook.cluster.api import IDENTITIES_PAGE, JSON, METADATA, METADATA_LIST, ApiClient, api_path
from webhook.cluster.collection import AT_ALL, CLUSTER, NOWHERE, K, Line, MergedCollection, Position
from webhook.cluster.nesting import decoded
from webhook.cluster.objects import decode_metadata
from webhook.cluster.pages import Identity

log = logging.getLogger("gpu_admission.cluster")

REPEAT_SECONDS = 600.0
"""When a trouble that stays the same, such as a right that is missing, is logged again."""
AWAY_SECONDS = 1.0
"""The longest pause while the API server does not answer. As it starts it refuses what it will answer a moment later: pauses then
grow beyond this by a tenth of the time that it has answered."""
FEW, ONE_IN = 32, 20
"""Objects of a namespace that are read one by one, or one in so many of all. More are read with their namespace: a page of 500
takes as long as some 20 of them."""
LISTS_OF_A_PAGE = 4
"""Lists of small namespaces that take as long as a page of a list of everything, of some 50 ms. One takes 5 ms, or 40 where
other kinds are written: a consistent list waits until the API server's cache has asked etcd for its revision, each 100 ms
(`progressRequestPeriod` in `k8s.io/apiserver/pkg/storage/cacher/progress`). The pages after a first one do not wait."""


class Resource(msgspec.Struct, frozen=True):
    """A collection of the API: `/api/v1` and `pods`. With `metadata_only` the API server sends neither spec nor status.

    `in_full`: every list is of bodies. It must be where records have another namespace than their objects.
    """

    prefix: str
    plural: str
    metadata_only: bool = False
    field_selector: str = ""
    in_full: bool = False

    def path(self, namespace: str = CLUSTER, *name: str) -> str:
        """Return the path of the collection, or of the object `name` and its subresource."""
        scope = ("namespaces", namespace) if namespace else ()
        return api_path(self.prefix, *scope, self.plural, *name)

    def query(self, *selectors: str) -> dict[str, str]:
        """Return the query of the collection, of it what these field selectors select, too."""
        both = [each for each in (self.field_selector, *selectors) if each]
        return {"fieldSelector": ",".join(both)} if both else {}


class WatchTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. The API server sends a bookmark about every minute, so after a longer silence the watch is opened again.

    After `relist` everything is listed again, for the case that a watch does not show everything.
    """

    watch: float = 270.0
    silence: float = 80.0
    relist: float = 1800.0
    pause_least: float = 0.02
    pause_most: float = 10.0


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    code: int = 500


_EVENT = msgspec.json.Decoder(_Event)
_STATUS = msgspec.json.Decoder(_Status)


class _Listed(msgspec.Struct, frozen=True):
    metadata: Identity


class _Unread(NamedTuple):
    """A listed object that is not held in this version."""

    namespace: str
    name: str


_LISTED = msgspec.json.Decoder(_Listed)


class Pauses:
    """Jittered seconds between failures, each pause twice as long as the one before."""

    def __init__(self, timings: WatchTimings) -> None:
        self._timings = timings
        self._away = -inf
        self.reset()

    def reset(self) -> None:
        """Begin with the shortest again."""
        self._following = self._timings.pause_least

    def unanswered(self) -> None:
        """Note that the API server has not answered just now."""
        self._away = monotonic()

    def next(self) -> float:
        longest = min(self._timings.pause_most, AWAY_SECONDS + (monotonic() - self._away) / 10)
        pause = min(self._following, longest)
        self._following = pause * 2
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 - jitter


class Informer(MergedCollection[K]):
    """Keeps the projection of every object, unless that is None. Calls `changed(before, after)` for every difference.

    `changed` runs in order, with `lock` held, before the new revision becomes visible. So its sums match
    `position(namespace).revision` for the holder of the lock. It must not block. Informers whose callbacks read one another must
    share one lock.

    `awaited` returns the namespaces to list first after a new watch began, unless a list of everything is faster.
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
        awaited: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        super().__init__(resource.plural, changed, lock)
        self.resource = resource
        self._api = api
        self._project = project
        self._timings = timings or WatchTimings()
        self.awaited = awaited
        self._is_listing = False
        self._turns = threading.Condition()
        self._listed_now: set[str] = set()
        self._last_message = monotonic()
        self._logged = ("", 0.0)
        self._synced = threading.Event()
        self.relists = 0
        self.failures = 0
        self.is_missing = False
        """Whether the last answer was 404: the API server does not serve this kind."""

    @property
    def age(self) -> float:
        """Seconds since the last message about this collection; up to 80 are normal."""
        return monotonic() - self._last_message

    @property
    def synced(self) -> bool:
        """Whether the first list is complete."""
        return self._synced.is_set()

    def is_longer(self, namespaces: int) -> bool:
        """Whether single lists of so many namespaces take longer than one list of everything, both as metadata."""
        return namespaces > LISTS_OF_A_PAGE * (1 + self.total() // IDENTITIES_PAGE)

    def wait(self, seconds: float) -> bool:
        """Wait for the first list, and return whether it was complete in time."""
        return self._synced.wait(seconds)

    def refresh(self, namespace: str = CLUSTER, *, since: float = inf) -> None:
        """List one namespace, or everything, unless its last list began at `since` or later.

        Raises `errors.ApiError`.
        """
        if self.position(namespace).list_started >= since:
            return  # even while a list for another caller is running
        with self._turn_of(namespace):
            if self.position(namespace).list_started < since:
                self._refresh(namespace)

    def _refresh(self, namespace: str) -> None:
        with self.reading() as started:
            revision, listed = self._compared(namespace)
            by_namespace: dict[str, list[Line[K] | _Unread]] = {namespace: []} if namespace else {}
            for each in listed:
                by_namespace.setdefault(each.namespace, []).append(each)
            for name, found in by_namespace.items():
                at, lines = self._with_bodies(name, revision, found)
                self.merge(name, Position(at, started), lines)
            if not namespace:
                self.merge_whole(Position(revision, started), by_namespace.keys())
                self.relists += 1
                self._synced.set()
        self._last_message = max(self._last_message, started)

    @contextmanager
    def _turn_of(self, namespace: str) -> Iterator[None]:
        """Allow one list of a namespace at a time. A caller that waited may not need another list."""
        with self._turns:
            self._turns.wait_for(lambda: namespace not in self._listed_now)
            self._listed_now.add(namespace)
        try:
            yield
        finally:
            with self._turns:
                self._listed_now.discard(namespace)
                self._turns.notify_all()

    def run(self, stopping: threading.Event) -> None:
        """Follow the collection until `stopping`; the body of a thread."""
        pauses = Pauses(self._timings)
        is_begun = False
        while not stopping.is_set():
            started = monotonic()
            try:
                if not is_begun:
                    self.watch_from(self._api.revision(self.resource.path(), self.resource.query()))
                    self.is_missing, is_begun = False, True
                self._list_if_due(stopping)
                self._watch(stopping)
                pauses.reset()
                continue
            except errors.Silent as silence:
                log.debug("%s: watching again: %s", self.resource.plural, silence)
                continue
            except errors.Gone:
                log.info("%s: the revision of the watch is too old; listing again", self.resource.plural)
                is_begun = False
                self.failures += 1
            except (errors.ApiError, msgspec.MsgspecError, ValueError) as error:
                self._failed(error, pauses)
            except Exception:  # a bug must not end the watch; what it missed is listed again
                log.exception("%s: watch failed", self.resource.plural)
                is_begun = False
                self.failures += 1
            if monotonic() - started > AWAY_SECONDS:
                pauses.reset()  # it worked for a while
            stopping.wait(pauses.next())

    def start(self, stopping: threading.Event) -> None:
        name = f"watch {self.resource.plural}"
        threading.Thread(target=self.run, args=(stopping,), name=name, daemon=True).start()

    def _list_if_due(self, stopping: threading.Event) -> None:
        """If lists are due, start a thread for the awaited namespaces, and for everything unless that runs already."""
        with self.lock:
            if not self._list_is_due:
                return
            everything, self._is_listing = not self._is_listing, True
        name = f"list {self.resource.plural}"
        threading.Thread(target=self._list, args=(stopping, everything), name=name, daemon=True).start()

    @property
    def _list_is_due(self) -> bool:
        started = self.whole_list_started
        return not started or monotonic() - started > self._timings.relist

    def _list(self, stopping: threading.Event, everything: bool) -> None:
        pauses = Pauses(self._timings)
        while not stopping.is_set():
            try:
                awaited = self._missed_and_awaited()
                if not everything or not self.is_longer(len(awaited)):
                    for namespace in awaited:
                        self.refresh(namespace, since=AT_ALL)
                if everything:
                    self.refresh()
            except (errors.ApiError, msgspec.MsgspecError, ValueError) as error:
                self._failed(error, pauses)
                stopping.wait(pauses.next())
            except Exception:  # nor may it end this thread: nobody would list again
                log.exception("%s: list failed", self.resource.plural)
                stopping.wait(pauses.next())
            if not everything:
                return  # what failed comes with everything
            with self.lock:  # the watch may have begun anew meanwhile
                self._is_listing = self._list_is_due
                if not self._is_listing:
                    return

    def _missed_and_awaited(self) -> list[str]:
        awaited = (name for name in self.awaited() if self.was_listed(name))
        return sorted((name for name in awaited if self.position(name) == NOWHERE), key=self.size)

    def _failed(self, error: Exception, pauses: Pauses) -> None:
        self.failures += 1
        if isinstance(error, errors.Unreachable):
            pauses.unanswered()
        self.is_missing = isinstance(error, errors.NotFound)
        before, at = self._logged
        problem = str(error)
        if problem != before or monotonic() - at > REPEAT_SECONDS:
            self._logged = problem, monotonic()
            log.warning("%s: %s", self.resource.plural, problem)

    def _compared(self, namespace: str) -> tuple[int, Sequence[Line[K] | _Unread]]:
        """List metadata; at first, and of few objects, bodies."""
        resource = self.resource
        few = resource.metadata_only or resource.in_full or resource.field_selector
        if few or not self.was_listed(namespace):
            return self._listed_in_full(namespace)

        listed = self._api.identities(resource.path(namespace))
        return int(listed.resource_version), [self._compared_one(each) for each in listed.items]

    def _compared_one(self, identity: Identity) -> Line[K] | _Unread:
        line: Line[K] = _line(identity, identity.namespace, None)
        return line if self.is_known(line) else _Unread(line.namespace, identity.name)

    def _with_bodies(
        self, namespace: str, revision: int, found: list[Line[K] | _Unread]
    ) -> tuple[int, list[Line[K]]]:
        """Return the namespace at this revision or a later one, with the bodies of what is not held."""
        lines = [each for each in found if isinstance(each, Line)]
        unread = [each.name for each in found if isinstance(each, _Unread)]
        if len(unread) > max(FEW, len(found) // ONE_IN):
            return self._listed_in_full(namespace)
        path = self.resource.path(namespace)
        for name in unread:
            query = {"resourceVersion": str(revision), "resourceVersionMatch": "Exact"}
            query["fieldSelector"] = f"metadata.name={name}"
            try:
                lines += self._api.list(path, self._read, query=query).items
            except errors.Gone:  # compacted meanwhile, five minutes after the list at the latest
                return self._listed_in_full(namespace)
        return revision, lines

    def _listed_in_full(self, namespace: str) -> tuple[int, list[Line[K]]]:
        resource = self.resource
        accept = METADATA_LIST if resource.metadata_only else JSON
        listed = self._api.list(resource.path(namespace), self._read, accept=accept, query=resource.query())
        return int(listed.resource_version), listed.items

    def _read(self, raw: msgspec.Raw) -> Line[K]:
        metadata, item = _LISTED.decode(raw).metadata, self._project(raw)
        return _line(metadata, metadata.namespace if item is None else item.namespace, item)

    def _watch(self, stopping: threading.Event) -> None:
        seconds = self._timings.watch * random.uniform(0.8, 1.0)  # noqa: S311 - so that watches do not end together
        query = {
            **self.resource.query(),
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(self.revision),
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
        if event.type == "ERROR":
            status = _STATUS.decode(event.object)
            raise errors.of_response(status.code, bytes(event.object))
        if event.type == "BOOKMARK":
            self.bookmark(int(decode_metadata(event.object).resource_version))
        else:
            self.event(self._read(event.object), deleted=event.type == "DELETED")


def _line(metadata: Identity, namespace: str, item: K | None) -> Line[K]:
    return Line(sys.intern(namespace), hash(metadata.uid), int(metadata.resource_version), item)


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Yield each complete line as it arrives. The rest that a cut connection leaves is dropped."""
    rest = b""
    for chunk in response.stream(65536):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line)

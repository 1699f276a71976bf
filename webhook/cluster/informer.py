"""An informer: a collection of the API server in memory, from consistent lists and a watch that may break at any time.

A watch that ends, or is silent for longer than the interval of bookmarks, starts again at its last revision. Between failures
there is a growing, jittered pause. After a 410 the watch starts at once from the present revision. Another thread then lists what
was missed, while the watch continues: first the namespaces for which somebody waits, the smallest first, if they are few.

Silence has two causes: a dead connection, or a kind that nobody changes. The API server sends no bookmarks of a kind for which it
has seen no event since its own start (`dispatchEvents` in `k8s.io/apiserver/pkg/storage/cacher`). Only a new watch shows which
cause it is, so silence alone does not count as a failure.

`refresh` lists now, so afterwards nothing held is older than the call, even if the watch lags behind. It lists only metadata,
because the resourceVersion says whether the held body is still right. It reads the body of the other objects.
"""

import logging
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from math import inf
from time import monotonic

import msgspec
import urllib3

from webhook.cluster import errors
from webhook.cluster.api import (
    IDENTITIES_PAGE_SIZE,
    JSON,
    METADATA,
    METADATA_LIST,
    ApiClient,
    Identified,
    Identity,
    api_path,
    decode_bounded,
)
from webhook.cluster.collection import (
    CLUSTER,
    EVER_LISTED,
    NOWHERE,
    Item,
    MergedCollection,
    ObjectVersion,
    Position,
)
from webhook.cluster.objects import decode_metadata
from webhook.threads import thread

log = logging.getLogger("gpu_admission.cluster")

UNANSWERED_SECONDS = 1.0
"""The longest pause while the API server does not answer. A starting API server rejects calls for a moment, so pauses then grow
beyond this by a tenth of the time since the last call without an answer."""
SINGLE_READS, SINGLE_READS_ONE_IN = 32, 20
"""Bodies are read one by one up to this number, or up to one in so many objects of the namespace. Otherwise the whole namespace
is listed: a page of 500 takes as long as some 20 single reads."""
LISTS_OF_A_PAGE = 4
"""So many lists of small namespaces take as long as one page of a list of everything, some 50 ms. One takes 5 ms, or 40 ms if
other kinds are written: a consistent list waits until the API server's cache has asked etcd for its revision, each 100 ms
(`progressRequestPeriod` in `k8s.io/apiserver/pkg/storage/cacher/progress`). Pages after the first do not wait."""

STALE_SECONDS = 150.0
"""Silence of a watch after which nothing that it shows is believed: two and a half intervals of bookmarks."""


class Resource(msgspec.Struct, frozen=True):
    """A collection of the API: `/api/v1` and `pods`. With `metadata_only` the API server sends neither spec nor status.

    `in_full`: every list has bodies. Needed if records have another namespace than their objects.
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
        """Return the query of the collection, with these field selectors in addition to its own."""
        both = [selector for selector in (self.field_selector, *selectors) if selector]
        return {"fieldSelector": ",".join(both)} if both else {}


class WatchTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. The API server sends a bookmark about every minute, so the watch is opened again after a longer silence.

    Everything is listed again after `relist`, in case the watch does not show everything.
    """

    watch: float = 270.0
    silence: float = 80.0
    relist: float = 1800.0
    pause_least: float = 0.02
    pause_most: float = 10.0


TIMINGS = WatchTimings()


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


_EVENT = msgspec.json.Decoder(_Event)
_IDENTIFIED = msgspec.json.Decoder(Identified)


class Pauses:
    """Jittered seconds between failures, each pause twice as long as the one before, from `least` up to `most`."""

    def __init__(self, least: float, most: float) -> None:
        self._least, self._most = least, most
        self._unanswered_at = -inf
        self.reset()

    def reset(self) -> None:
        self._following = self._least

    def note_unanswered(self) -> None:
        self._unanswered_at = monotonic()

    def next(self) -> float:
        longest = min(self._most, UNANSWERED_SECONDS + (monotonic() - self._unanswered_at) / 10)
        pause = min(self._following, longest)
        self._following = pause * 2
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 - jitter


class Informer(MergedCollection[Item]):
    """Keeps the projection of every object, unless that is None. Parts of a process share one for each kind, and subscribe to it.

    Subscribers hear of changes in order, with `lock` held, before the new revision becomes visible. So their sums match
    `position(namespace).revision` for the holder of the lock. Informers whose subscribers read one another must share one lock.
    Subscribe before `start`.

    `awaited` returns the namespaces to list first after a new watch began, unless a list of everything is faster.
    """

    def __init__(
        self,
        api: ApiClient,
        resource: Resource,
        project: Callable[[msgspec.Raw], Item | None],
        *subscribers: Callable[[Item | None, Item | None], object],
        timings: WatchTimings | None = None,
        lock: AbstractContextManager[bool] | None = None,
        awaited: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        super().__init__(resource.plural, *subscribers, lock=lock)
        self.resource = resource
        self._api = api
        self._project = project
        self._timings = timings or TIMINGS
        self.awaited = awaited
        self._is_listing = False
        self._turns = threading.Condition()
        self._listed_now: set[str] = set()
        self._last_message = monotonic()
        self.synced = False
        """Whether everything was listed once."""
        self.relists = 0
        self.failures = 0
        self.is_missing = False
        """Whether the last answer was 404: the API server does not serve this kind."""

    @property
    def age(self) -> float:
        """Seconds since the last message, or since the watch was opened. Up to 80 are normal."""
        return monotonic() - self._last_message

    @property
    def is_current(self) -> bool:
        return self.synced and self.age < STALE_SECONDS

    def is_longer(self, namespaces: int) -> bool:
        """Whether one list for each of this number of namespaces takes longer than one list of everything, both of metadata."""
        return namespaces > LISTS_OF_A_PAGE * (1 + self.total() // IDENTITIES_PAGE_SIZE)

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
            revision, listed = self._listed_identities(namespace)
            by_namespace = dict[str, list[ObjectVersion[Item] | Identity]](
                {namespace: []} if namespace else {}
            )
            for version in listed:
                by_namespace.setdefault(version.namespace, []).append(version)
            for name, of_namespace in by_namespace.items():
                at, versions = self._with_bodies(name, revision, of_namespace)
                self.merge(name, Position(at, started), versions)
            if not namespace:
                self.merge_whole(Position(revision, started), by_namespace.keys())
                self.relists += 1
                self.synced = True
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
        pauses = Pauses(self._timings.pause_least, self._timings.pause_most)
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
                self._note_failure(error, pauses)
            except Exception:  # a bug must not end the watch; a new list shows what it missed
                log.exception("%s: watch failed", self.resource.plural)
                is_begun = False
                self.failures += 1
            if monotonic() - started > UNANSWERED_SECONDS:
                pauses.reset()  # it worked for a while
            stopping.wait(pauses.next())

    def start(self, stopping: threading.Event) -> None:
        thread(f"watch {self.resource.plural}", self.run, stopping).start()

    def _list_if_due(self, stopping: threading.Event) -> None:
        """If lists are due, start a thread for the awaited namespaces, and for everything unless that runs already."""
        with self.lock:
            if not self._list_is_due:
                return
            everything, self._is_listing = not self._is_listing, True
        thread(f"list {self.resource.plural}", partial(self._list, everything=everything), stopping).start()

    @property
    def _list_is_due(self) -> bool:
        return not (started := self.whole_list_started) or monotonic() - started > self._timings.relist

    def _list(self, stopping: threading.Event, *, everything: bool) -> None:
        pauses = Pauses(self._timings.pause_least, self._timings.pause_most)
        while not stopping.is_set():
            try:
                awaited = self._awaited_and_missed()
                if not everything or not self.is_longer(len(awaited)):
                    for namespace in awaited:
                        self.refresh(namespace, since=EVER_LISTED)
                if everything:
                    self.refresh()
            except (errors.ApiError, msgspec.MsgspecError, ValueError) as error:
                self._note_failure(error, pauses)
                stopping.wait(pauses.next())
            if not everything:
                return  # the list of everything has it, too
            with self.lock:  # the watch may have started again meanwhile
                self._is_listing = self._list_is_due
                if not self._is_listing:
                    return

    def _awaited_and_missed(self) -> list[str]:
        awaited = (name for name in self.awaited() if self.was_listed(name))
        return sorted((name for name in awaited if self.position(name) == NOWHERE), key=self.size)

    def _note_failure(self, error: Exception, pauses: Pauses) -> None:
        self.failures += 1
        if isinstance(error, errors.Unreachable):
            pauses.note_unanswered()
        else:
            self.is_missing = isinstance(error, errors.NotFound)
        log.warning("%s: %s", self.resource.plural, error)

    def _listed_identities(self, namespace: str) -> tuple[int, Sequence[ObjectVersion[Item] | Identity]]:
        """List metadata, and return only the identity of an object that is not held in its version.

        The first list, and a list of few objects, has the bodies.
        """
        resource = self.resource
        needs_bodies = resource.metadata_only or resource.in_full or resource.field_selector
        if needs_bodies or not self.was_listed(namespace):
            return self._listed_in_full(namespace)
        listed = self._api.identities(resource.path(namespace))
        compared: list[ObjectVersion[Item] | Identity] = []
        for item in listed.items:
            seen: ObjectVersion[Item] = _object_version(item, item.namespace, None)
            compared.append(seen if self.is_known(seen) else item)
        return int(listed.resource_version), compared

    def _with_bodies(
        self, namespace: str, revision: int, listed: list[ObjectVersion[Item] | Identity]
    ) -> tuple[int, list[ObjectVersion[Item]]]:
        """Return the namespace at this revision or a later one, with the bodies of the objects that are not held."""
        versions = [version for version in listed if isinstance(version, ObjectVersion)]
        unread = [identity.name for identity in listed if isinstance(identity, Identity)]
        if len(unread) > max(SINGLE_READS, len(listed) // SINGLE_READS_ONE_IN):
            return self._listed_in_full(namespace)
        path = self.resource.path(namespace)
        for name in unread:
            query = {"resourceVersion": str(revision), "resourceVersionMatch": "Exact"}
            query["fieldSelector"] = f"metadata.name={name}"
            try:
                versions += self._api.list(path, self._read, query=query).items
            except errors.Gone:  # compacted meanwhile, five minutes after the list at the latest
                return self._listed_in_full(namespace)
        return revision, versions

    def _listed_in_full(self, namespace: str) -> tuple[int, list[ObjectVersion[Item]]]:
        resource = self.resource
        accept = METADATA_LIST if resource.metadata_only else JSON
        listed = self._api.list(resource.path(namespace), self._read, accept=accept, query=resource.query())
        return int(listed.resource_version), listed.items

    def _read(self, raw: msgspec.Raw) -> ObjectVersion[Item]:
        metadata, item = _IDENTIFIED.decode(raw).metadata, self._project(raw)
        return _object_version(metadata, metadata.namespace if item is None else item.namespace, item)

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
                self._apply(decode_bounded(_EVENT.decode, line))
                if stopping.is_set():
                    return

    def _apply(self, event: _Event) -> None:
        if event.type == "ERROR":
            raise errors.of_status(bytes(event.object))
        if event.type == "BOOKMARK":
            self.bookmark(int(decode_metadata(event.object).resource_version))
        else:
            self.event(self._read(event.object), deleted=event.type == "DELETED")


def _object_version(metadata: Identity, namespace: str, item: Item | None) -> ObjectVersion[Item]:
    return ObjectVersion(sys.intern(namespace), hash(metadata.uid), int(metadata.resource_version), item)


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Yield each complete line as it arrives. Drop an incomplete line at the end of a cut connection."""
    rest = b""
    for chunk in response.stream(65536):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line)

"""Counts the demand of the stored pods and claims of a namespace, from informers of pods, claims and nodes.

A count uses what the informers hold. `refresh` lists again if the protocol needs a list that began after some moment. The node of
a bound pod decides its class, and the nodes that another pod selects decide the class of that pod.

A UsageCache has the UsageCounter of our own catalogue, and of each published catalogue that a ledger object names. `verify` lists
namespaces again, one after the other. So an object that the watch missed is counted after a period at most.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from fractions import Fraction
from functools import partial
from time import monotonic, time
from typing import Any

import msgspec

from policies.placement.named_nodes import NamedNode
from policies.quota.amounts import Vector
from policies.quota.catalogue import CatalogueVersion, catalogue_digest
from policies.quota.demand import Catalogues, UnclassifiedPods
from policies.quota.ledger.quota_ledger import QuotaLedger, Revisions
from policies.quota.ledger.reconcile import Listing, StoredObject
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.capacity import CountedNode, counted_node_reader
from webhook.cluster.collection import CLUSTER
from webhook.cluster.informer import STALE_SECONDS, Informer
from webhook.cluster.nodes import WHOLE_NODES
from webhook.configuration.dynamic_resources import served_resource
from webhook.controller.metrics import ControllerMetrics
from webhook.controller.usage_log import Holding
from webhook.controller.usage_sums import UsageSums
from webhook.quota.audit_fields import demand_fields
from webhook.quota.catalogues import PublishedCatalogues, digests_of
from webhook.quota.counted_records import PODS, ClaimHistory, ClaimRecord, CountedRecord, PodRecord

log = logging.getLogger("gpu_admission.controller")

POLL_SECONDS = 1.0
ROUND_SHARE, FRESH_SHARE = 0.8, 0.1
"""Parts of the period. All namespaces are verified within ROUND_SHARE. A list younger than FRESH_SHARE is not repeated. So no
list gets older than the period."""

DELETED = StoredObject({}, terminal=True)
"""A deleted object, which was perhaps never counted. It counts as terminal, so its reservation goes at once."""

_Change = Callable[[Any, Any], frozenset[str]]


class Counted(msgspec.Struct, frozen=True):
    """A listing, and when its older list (of pods or claims) began."""

    listing: Listing
    list_started: float


class UsageCounter:
    """The informers and sums of one catalogue.

    Calls `changed` with a namespace whose count may differ, and whether that frees quota or a pod waits for it. Calls `began` for
    an object that is new since the first list, and `ended` for one that ended, each with the digest of the catalogue and the
    demand of the object.
    `awaited` returns the namespaces that are listed first, because a caller waits for their counts. `idle` returns since when
    holders of a namespace are idle. `clock` returns ms since 1970.
    """

    def __init__(
        self,
        api: ApiClient,
        catalogues: Catalogues,
        changed: Callable[[str, bool], object],
        *,
        began: Callable[[str, Holding], object] = lambda _digest, _holding: None,
        ended: Callable[[str, Holding], object] = lambda _digest, _holding: None,
        awaited: Callable[[], Iterable[str]] = tuple,
        idle: Callable[[str], Mapping[str, str]] = lambda _namespace: {},
        history: ClaimHistory | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.catalogues = catalogues
        self.digest = catalogue_digest(catalogues)
        self._changed, self._began, self._ended, self._idle = changed, began, ended, idle
        self._history = history or ClaimHistory()
        self._stopping = threading.Event()
        self.sums = UsageSums(catalogues, self._history, clock)
        self._lock: AbstractContextManager[bool] = threading.RLock()
        """Shared by the sums and all three informers: the demand of an object in one depends on the others."""
        claims, nodes = served_resource(api, "resourceclaims"), counted_node_reader(catalogues)
        reader = self.sums.reader
        watch = partial(Informer, api, lock=self._lock)
        self.pods: Informer[PodRecord] = watch(
            PODS, reader.read_pod, partial(self._object_changed, self.sums.pod_changed), awaited=awaited
        )
        self.nodes: Informer[CountedNode] = watch(WHOLE_NODES, nodes, self._node_changed)
        self.claims: Informer[ClaimRecord] | None = (
            watch(claims, reader.read_claim, self._claim_changed, awaited=awaited) if claims else None
        )

    @property
    def informers(self) -> dict[str, Informer[Any]]:
        return {each.resource.plural: each for each in (self.pods, self.nodes, self.claims) if each}

    def start(self) -> None:
        for informer in self.informers.values():
            informer.start(self._stopping)

    def stop(self) -> None:
        self._stopping.set()

    @property
    def synced(self) -> bool:
        return all(informer.synced for informer in self.informers.values())

    def is_listed(self, namespace: str, since: float) -> bool:
        """Whether all lists behind a count of the namespace began at `since` or later."""
        spaces = {self.nodes.resource.plural: CLUSTER}
        return all(
            informer.position(spaces.get(name, namespace)).list_started >= since
            for name, informer in self.informers.items()
        )

    def refresh_all(self, since: float) -> None:
        """List everything again, unless the lists began at `since` or later. Raises `errors.ApiError`."""
        for informer in self.informers.values():
            informer.refresh(since=since)

    def refresh(self, namespace: str, *, since: float, nodes_since: float) -> None:
        """List the namespace and the nodes again if their lists began before these moments. Raises `errors.ApiError`."""
        self.pods.refresh(namespace, since=since)
        if self.claims is not None:
            self.claims.refresh(namespace, since=since)
        self.nodes.refresh(since=nodes_since)

    def deleted(self, namespace: str) -> frozenset[str]:
        """Return the uids of the objects that the watches lately showed as deleted."""
        return frozenset().union(*(each.deleted(namespace) for each in (self.pods, self.claims) if each))

    def count(
        self,
        namespace: str,
        ledger: QuotaLedger,
        unclassified_pods: UnclassifiedPods,
        deleted: Collection[str],
    ) -> Counted:
        """Count a namespace. `deleted` are the deletions of the watches of all catalogues, because ours may have begun later.

        While a watch is silent, nothing is added to what is spent of a budget.
        """
        with self._lock:
            pods, nodes = self.pods.position(namespace), self.nodes.position()
            # If the API server does not serve claims, there are none at the revision of the pods.
            claims = self.claims.position(namespace) if self.claims else pods
            gone = self._gone_claims(namespace)
            idle = self._idle(namespace)
            used, holders, objects = self.sums.sum(namespace, unclassified_pods, ledger, gone, idle)
            spending = ledger.spending
            if self._is_silent:
                # A history that begins now would take what was stored before the silence for what is stored now.
                self.sums.forget_histories()
            else:
                spending = self.sums.spending(namespace, unclassified_pods, ledger)
            waiting = len(self.sums.waiting(namespace))
        settled = (each.object_uid for each in ledger.reservations if each.object_uid in deleted)
        listing = Listing(
            used=used,
            waiting=waiting,
            objects={**dict.fromkeys(settled, DELETED), **objects},
            revisions=Revisions(pods=pods.revision, resource_claims=claims.revision, nodes=nodes.revision),
            catalogue=str(CatalogueVersion(self.digest, unclassified_pods)),
            holders=holders,
            spending=spending,
            at=self.sums.clock(),
        )
        return Counted(listing, min(pods.list_started, claims.list_started))

    def follow(self, namespace: str, ledger: QuotaLedger, unclassified_pods: UnclassifiedPods) -> None:
        """Keep what the ledger's budget needs, also in a process that does not lead. A watch that was silent knows too little."""
        if not self.synced:
            return
        with self._lock:
            if self._is_silent:
                self.sums.forget_histories()
            else:
                self.sums.follow(namespace, unclassified_pods, ledger)

    @property
    def _is_silent(self) -> bool:
        return any(each.age > STALE_SECONDS for each in self.informers.values())

    def pods_of(self, namespace: str) -> list[PodRecord]:
        """Return the pods of a namespace, also those that have ended."""
        with self._lock:
            return self.sums.pods(namespace)

    def waiting_pods(self, namespace: str) -> list[PodRecord]:
        """Return the pods of a namespace that wait under our scheduling gate."""
        with self._lock:
            return self.sums.waiting(namespace)

    def has_waiting(self, namespace: str) -> bool:
        """Whether pods of the namespace wait under our scheduling gate."""
        with self._lock:
            return bool(self.sums.waiting(namespace))

    def waiting_namespaces(self) -> set[str]:
        """Return the namespaces in which pods wait."""
        with self._lock:
            return self.sums.waiting_namespaces()

    def unbound_gpus(self, namespace: str, unclassified_pods: UnclassifiedPods, before: str) -> Fraction:
        """Return the GPUs of the pods that have held quota without a node since `before`, a time in RFC 3339."""
        with self._lock:
            return self.sums.unbound_gpus(namespace, unclassified_pods, before)

    def demand_if_started(self, record: PodRecord, unclassified_pods: UnclassifiedPods) -> Vector:
        """Return the demand that a pod will have without our scheduling gate."""
        with self._lock:
            return self.sums.demand_if_started(record, unclassified_pods)

    def recount(self, namespace: str) -> None:
        """Sum up the namespace from its objects, and log an error if that changes the sums."""
        with self._lock:
            is_same = self.sums.recount(namespace)
        if not is_same:
            log.error("%s: the sums of its pods and claims were not those of a full count", namespace)

    def holdings(self) -> Iterator[Holding]:
        held = (self._holding(record) for record in self._held())
        yield from (each for each in held if each is not None)

    def demands(self) -> Iterator[tuple[CountedRecord, Vector]]:
        """Yield the pods and claims of all namespaces that hold something, and what they hold."""
        for record in self._held():
            if vector := self._demand(record):
                yield record, vector

    def _held(self) -> Iterator[CountedRecord]:
        for informer in (self.pods, self.claims):
            records: Iterable[CountedRecord] = informer.all() if informer else ()
            yield from filter(_is_counted, records)

    def keep(self, wanted: Collection[tuple[str, UnclassifiedPods]]) -> None:
        with self._lock:
            self.sums.keep(wanted)
            for namespace in self._history.namespaces():
                self._gone_claims(namespace)

    def _gone_claims(self, namespace: str) -> dict[str, ClaimRecord]:
        listed, deleted = self.pods.position(namespace).list_started, self.pods.deleted(namespace)

        def has_ended(uid: str, since: float) -> bool:
            # The watch may not have shown an unknown pod yet. Only a later list proves that it does not exist.
            pod = self.sums.pod(namespace, uid)
            return pod.is_terminal if pod is not None else uid in deleted or listed > since

        return self._history.gone(namespace, has_ended)

    # Called by the informers, with the lock held.

    def _claim_changed(self, before: ClaimRecord | None, after: ClaimRecord | None) -> None:
        if before is not None and after is None:
            self._history.add_gone(before)
        self._object_changed(self.sums.claim_changed, before, after)

    def _node_changed(self, before: NamedNode | None, after: NamedNode | None) -> None:
        for namespace in self._summed(self.sums.node_changed, before, after):
            self._changed(namespace, False)

    def _object_changed(
        self, change: _Change, before: CountedRecord | None, after: CountedRecord | None
    ) -> None:
        ends = _is_counted(before) and not _is_counted(after)
        # A pod that waits may start at once. What the controller holds for it is free once it has ended.
        frees = ends or _waits(after) or (_waits(before) and not _is_counted(after))
        # Compute this first: the demand may depend on a node that is forgotten with the object.
        held = self._holding(before) if before is not None and ends else None
        namespaces = self._summed(change, before, after)
        if held is not None:
            self._ended(self.digest, held)
        # The first list is not news: the log has a line for everything that is held, in portions.
        begins = self.synced and _is_counted(after) and not _is_counted(before)
        if after is not None and begins and (new := self._holding(after)) is not None:
            self._began(self.digest, new)
        for namespace in namespaces:
            self._changed(namespace, frees)

    def _summed(self, change: _Change, before: object, after: object) -> frozenset[str]:
        """Drop all sums if a change fails halfway. The next count makes new ones, so a bug cannot lead to too low a sum."""
        try:
            return change(before, after)
        except Exception:
            self.sums.keep(())
            raise

    def _holding(self, record: CountedRecord) -> Holding | None:
        """Return the demand of an object. None without demand, and for a claim that the scheduler made for a pod."""
        vector = self._demand(record)
        kind = "Pod" if isinstance(record, PodRecord) else "ResourceClaim"
        return Holding(kind, record, demand_fields(vector, self.catalogues.classes)) if vector else None

    def _demand(self, record: CountedRecord) -> Vector:
        """Return the demand of an object, nothing for a claim that the scheduler made for a pod."""
        return {} if isinstance(record, ClaimRecord) and record.made_for else self.sums.demand(record)


def _waits(record: CountedRecord | None) -> bool:
    return isinstance(record, PodRecord) and record.waits


def _is_counted(record: CountedRecord | None) -> bool:
    return record is not None and (not isinstance(record, PodRecord) or record.holds_quota)


class UsageCache:
    """The UsageCounters of a process by catalogue digest. Thread-safe; it holds no lock while it calls the API."""

    def __init__(
        self,
        api: ApiClient,
        namespace: str,
        catalogues: Catalogues,
        new_counter: Callable[[Catalogues], UsageCounter],
    ) -> None:
        self._new_counter = new_counter
        self._lock = threading.Lock()
        self.own = self._new_counter(catalogues)
        self._counters = {self.own.digest: self.own}
        self._published = PublishedCatalogues(api, namespace, lambda: self.own.catalogues)

    def configure(self, catalogues: Catalogues) -> bool:
        """Replace our own catalogue, and return whether it changed. Keeps the old one if it raises `errors.ApiError`."""
        if catalogue_digest(catalogues) == self.own.digest:
            return False  # only policies changed, on which demand does not depend
        self._add(catalogues, is_own=True)
        return True

    def of(self, digest: str) -> UsageCounter | None:
        """Return the running counter of a catalogue, None if that is not published. Raises `errors.ApiError`."""
        with self._lock:
            found = self._counters.get(digest)
        if found is None and (catalogues := self._published.get(digest)) is not None:
            log.info("counting by class catalogue %s, too", digest)
            found = self._add(catalogues)
        return found

    def deleted(self, namespace: str) -> frozenset[str]:
        """Return the uids of objects that were deleted lately, by the watches of all counters: an older watch may know more."""
        with self._lock:
            every = list(self._counters.values())
        return frozenset().union(*(each.deleted(namespace) for each in every))

    def verify(self, namespace: str, *, since: float, nodes_since: float) -> None:
        """Verify objects and sums of a namespace by lists that began at these times or later. Raises `errors.ApiError`."""
        for counter in list(self._counters.values()):
            if counter.synced:
                counter.refresh(namespace, since=since, nodes_since=nodes_since)
                counter.recount(namespace)

    def publish(self, counter: UsageCounter) -> bool:
        return self._published.publish(counter.catalogues)

    def follow(self, ledgers: Mapping[str, QuotaLedger]) -> None:
        """Have the counters of all ledgers with a budget keep what it needs."""
        with self._lock:
            counters = dict(self._counters)
        for namespace, ledger in ledgers.items():
            versions = ledger.catalogue_versions if ledger.budget is not None else ()
            for version in filter(None, map(CatalogueVersion.parse, versions)):
                if version.digest in counters:
                    counters[version.digest].follow(namespace, ledger, version.unclassified_pods)

    def prune(self, ledgers: Mapping[str, QuotaLedger], *, is_leader: bool) -> None:
        """Remove counters and sums that no ledger needs. The leader writes the catalogues. Raises `errors.ApiError`."""
        ledger_digests = frozenset().union(*map(digests_of, ledgers.values()))
        with self._lock:
            named = ledger_digests | {self.own.digest}
            gone = [self._counters.pop(each) for each in self._counters.keys() - named]
        for counter in gone:
            counter.stop()
        summed = {
            (namespace, each)
            for namespace, ledger in ledgers.items()
            for each in _unclassified_pods_of(ledger)
        }
        for counter in list(self._counters.values()):
            counter.keep(summed)
        if is_leader:
            self._published.prune(named)
            for counter in list(self._counters.values()):
                self.publish(counter)
        else:
            self._published.forget()

    def stop(self) -> None:
        for counter in list(self._counters.values()):
            counter.stop()

    def _add(self, catalogues: Catalogues, *, is_own: bool = False) -> UsageCounter:
        counter = self._new_counter(catalogues)
        with self._lock:
            kept = self._counters.setdefault(counter.digest, counter)
            if is_own:  # under the lock, because `prune` would stop a counter that no ledger names
                self.own = kept
        if kept is counter:
            kept.start()
        return kept


def _unclassified_pods_of(ledger: QuotaLedger) -> frozenset[UnclassifiedPods]:
    catalogue_versions = filter(None, map(CatalogueVersion.parse, ledger.catalogue_versions))
    return frozenset({ledger.unclassified_pods, *(each.unclassified_pods for each in catalogue_versions)})


def verify(
    usage_cache: UsageCache,
    metrics: ControllerMetrics,
    namespaces: Callable[[], Collection[str]],
    verified: Callable[[str], object],
    period: float,
    stopping: threading.Event,
) -> None:
    """Verify the namespaces, evenly spread over the period, until `stopping`. Call `verified` after each namespace."""
    queue: deque[str] = deque()
    last = monotonic()
    while not stopping.is_set():
        current, waiting = namespaces(), frozenset(queue)
        queue.extend(name for name in current if name not in waiting)
        delay = last + ROUND_SHARE * period / max(1, len(queue)) - monotonic()
        if not queue or delay > 0:
            stopping.wait(min(delay, POLL_SECONDS) if queue else POLL_SECONDS)
            continue
        last = monotonic()
        namespace = queue.popleft()
        if namespace not in current:
            continue
        queue.append(namespace)
        try:
            usage_cache.verify(
                namespace, since=last - FRESH_SHARE * period, nodes_since=last - ROUND_SHARE * period
            )
        except errors.ApiError as error:
            log.warning("%s: not verified: %s", namespace, error)
            continue
        if namespace in namespaces():
            metrics.recount_time.labels(namespace).set(time())
            verified(namespace)

"""Counts the demand of the stored pods and claims of a namespace, from informers of pods, claims and nodes.

A count uses what the informers hold. `refresh` lists again if the protocol needs a list that began after some moment. The node of
a bound pod decides its class, and the nodes that another pod selects decide the class of that pod.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from time import monotonic
from typing import Any

import msgspec

from policies.placement.nodes import NamedNode
from policies.quota.amounts import Amounts
from policies.quota.catalogue import CatalogueVersion, catalogue_digest
from policies.quota.demand import Catalogue, UnclassifiedPods
from policies.quota.ledger.quota_ledger import QuotaLedger, Revisions
from policies.quota.ledger.reconcile import Listing, StoredObject
from webhook.cluster.api import ApiClient
from webhook.cluster.capacity import CountedNode, counted_node_reader
from webhook.cluster.collection import CLUSTER, Subscribers
from webhook.cluster.informer import STALE_SECONDS, Informer
from webhook.cluster.nodes import NODES_IN_FULL
from webhook.configuration.dynamic_resources import served_resource
from webhook.controller.allocations import is_binding
from webhook.controller.device_slices import DeviceSlices
from webhook.controller.usage_sums import UsageSums
from webhook.quota.counted_records import (
    PODS,
    ClaimHistory,
    CountedClaim,
    CountedPod,
    CountedRecord,
    demand_fields,
)

log = logging.getLogger("gpu_admission.controller")

DELETED_OBJECT = StoredObject({}, terminal=True)
"""A deleted object, which may never have been counted. It counts as terminal, so its reservation is removed at once."""

CLAIMS_SECONDS, CLAIMS_A_SECOND = 1.0, 500
"""Minimum of seconds between two lists of the claims of a namespace for pods that were bound, and claims that are listed for this
in a second on average. A list has only metadata."""

_Change = Callable[[Any, Any], frozenset[str]]


class Holding(msgspec.Struct, frozen=True):
    """A pod or claim with demand. `counted` has the fields `demand` and `class` of its line.

    `has_succeeded`: it ended so, and nobody deleted it. `was_handed_over`: its owner was another one before.
    """

    kind: str
    record: CountedRecord
    counted: dict[str, Any]
    has_succeeded: bool = False
    was_handed_over: bool = False


class UsageEvents:
    """What the counters of a process report.

    changed: a namespace whose count may differ, and whether that frees quota or a pod waits for it. began: an object that is new
    since the first list. ended: an object that ended. Both come with the digest of the catalogue that counts them.
    """

    def __init__(self) -> None:
        self.changed = Subscribers[[str, bool]]("usage")
        self.began = Subscribers[[str, Holding]]("usage")
        self.ended = Subscribers[[str, Holding]]("usage")


class Counted(msgspec.Struct, frozen=True):
    """A listing, and when its older list (of pods or claims) began."""

    listing: Listing
    list_started: float


class UsageCounter:
    """The informers and sums of one catalogue.

    `awaited` returns the namespaces that are listed first, because a caller waits for their counts. `clock`: ms since 1970.
    """

    def __init__(
        self,
        api: ApiClient,
        catalogue: Catalogue,
        events: UsageEvents,
        *,
        history: ClaimHistory,
        slices: DeviceSlices,
        clock: Callable[[], int],
        awaited: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self.catalogue = catalogue
        self.digest = catalogue_digest(catalogue)
        self._events = events
        self._history = history
        self._stopping = threading.Event()
        self._handed_over = set[str]()
        """The uids of stored pods whose owner was another one before."""
        self._slices = slices
        kind_of = partial(slices.kind_of, catalogue.resource_mapping.device_types)
        self.sums = UsageSums(catalogue, history, kind_of, clock)
        self._lock = self.sums.lock
        claims, nodes = served_resource(api, "resourceclaims"), counted_node_reader(catalogue)
        reader = self.sums.reader
        watch = partial(Informer, api, lock=self._lock)
        self.pods: Informer[CountedPod] = watch(
            PODS, reader.read_pod, partial(self._object_changed, self.sums.pod_changed), awaited=awaited
        )
        self.nodes: Informer[CountedNode] = watch(NODES_IN_FULL, nodes, self._node_changed)
        self.claims: Informer[CountedClaim] | None = (
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

    def refresh(self, namespace: str, *, since: float, nodes_since: float, slices_since: float = 0.0) -> None:
        """List what is counted again if the lists began before these moments. Raises `errors.ApiError`."""
        self.pods.refresh(namespace, since=since)
        if self.claims is not None:
            self.claims.refresh(namespace, since=since)
        self.nodes.refresh(since=nodes_since)
        self._slices.refresh(slices_since)

    def claims_wait(self, namespace: str) -> float | None:
        """Return the seconds until `refresh_claims` is due, because a pod was bound after what is held of its claims.

        None if it is not needed. Events may show the same before.
        """
        bound = self.sums.last_binding(namespace)
        if self.claims is None or not self.synced or not bound:
            return None
        position = self.claims.position(namespace)
        if position.revision >= bound:
            return None
        pause = max(CLAIMS_SECONDS, self.claims.size(namespace) / CLAIMS_A_SECOND)
        return max(0.0, position.list_started + pause - monotonic())

    def refresh_claims(self, namespace: str) -> None:
        """List the claims of the namespace if that is due. Raises `errors.ApiError`.

        The list shows every change from before the last binding that was seen, even if its revision is of another etcd.
        """
        if self.claims is not None and self.claims_wait(namespace) == 0:
            bound = self.sums.last_binding(namespace)
            self.claims.refresh(namespace, since=monotonic())
            with self._lock:
                self.sums.claims_reached(namespace, bound)

    def deleted(self, namespace: str) -> frozenset[str]:
        """Return the uids of the objects that the watches lately showed as deleted."""
        return frozenset().union(*(each.deleted(namespace) for each in (self.pods, self.claims) if each))

    def count(
        self,
        namespace: str,
        ledger: QuotaLedger,
        unclassified_pods: UnclassifiedPods,
        deleted: Collection[str],
        idle: Mapping[str, str],
    ) -> Counted:
        """Count a namespace. `deleted` are the deletions of the watches of all catalogues, because ours may have begun later.

        `idle` says since when holders are idle. While a watch is silent, nothing is added to what is spent of a budget.
        """
        with self._lock:
            pods, nodes = self.pods.position(namespace), self.nodes.position()
            # If the API server does not serve claims, there are none at the revision of the pods.
            claims = self.claims.position(namespace) if self.claims else pods
            self.sums.claims_reached(namespace, claims.revision)
            gone = self._deleted_claims_in_use(namespace)
            used, holders, objects = self.sums.sum(namespace, unclassified_pods, ledger, gone, idle)
            spending = ledger.spending
            if self._is_silent:
                # A history that begins now would show the objects from before the silence as those of now.
                self.sums.forget_histories()
            else:
                spending = self.sums.spending(namespace, unclassified_pods, ledger)
            waiting = len(self.sums.waiting(namespace))
            slices = self._slices.revision
        settled = (each.object_uid for each in ledger.reservations if each.object_uid in deleted)
        listing = Listing(
            used=used,
            waiting=waiting,
            objects={**dict.fromkeys(settled, DELETED_OBJECT), **objects},
            revisions=Revisions(
                pods=pods.revision,
                resource_claims=claims.revision,
                nodes=nodes.revision,
                resource_slices=slices or ledger.revisions.resource_slices,
            ),
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
        return any(informer.age > STALE_SECONDS for informer in self.informers.values())

    def recount(self, namespace: str) -> None:
        """Sum up the namespace from its objects, and log an error if that changes the sums."""
        with self._lock:
            is_same = self.sums.recount(namespace)
        if not is_same:
            log.error("%s: the sums of its pods and claims were not those of a full count", namespace)

    def holdings(self) -> Iterator[Holding]:
        held = (self._holding(record) for record in self._counted_records())
        yield from (holding for holding in held if holding is not None)

    def demands(self) -> Iterator[tuple[CountedRecord, Amounts]]:
        """Yield the pods and claims of all namespaces that hold something, and what they hold."""
        for record in self._counted_records():
            if vector := self._demand(record):
                yield record, vector

    def _counted_records(self) -> Iterator[CountedRecord]:
        for informer in (self.pods, self.claims):
            records: Iterable[CountedRecord] = informer.all() if informer else ()
            yield from filter(_is_counted, records)

    def keep(self, wanted: Collection[tuple[str, UnclassifiedPods]]) -> None:
        with self._lock:
            self.sums.keep(wanted)
            for namespace in self._history.namespaces():
                self._deleted_claims_in_use(namespace)

    def _deleted_claims_in_use(self, namespace: str) -> dict[str, CountedClaim]:
        listed, deleted = self.pods.position(namespace).list_started, self.pods.deleted(namespace)

        def has_ended(uid: str, since: float) -> bool:
            # The watch may not have shown an unknown pod yet. Only a later list proves that it does not exist.
            pod = self.sums.pod(namespace, uid)
            return pod.is_terminal if pod is not None else uid in deleted or listed > since

        return self._history.gone(namespace, has_ended)

    def _with_pods_of_groups(self, claim: CountedClaim) -> CountedClaim:
        """Return the claim as reserved for each pod of its PodGroups: the group may be deleted before its pods end."""
        if not claim.groups:
            return claim
        users = (pod.uid for pod in self.pods.items(claim.namespace) if pod.is_in_group(claim.groups))
        return msgspec.structs.replace(claim, reserved_for=(*claim.reserved_for, *users))

    # Called by the informers, with the lock held.

    def _claim_changed(self, before: CountedClaim | None, after: CountedClaim | None) -> None:
        if before is not None and after is None:
            self._history.add_deleted(self._with_pods_of_groups(before))
        self._object_changed(self.sums.claim_changed, before, after)

    def slices_changed(self) -> None:
        """Find the kinds of devices again. Takes the lock."""
        with self._lock:
            for namespace in self._change_sums(lambda *_: self.sums.slices_changed(), None, None):
                self._events.changed(namespace, True)

    def _node_changed(self, before: NamedNode | None, after: NamedNode | None) -> None:
        for namespace in self._change_sums(self.sums.node_changed, before, after):
            self._events.changed(namespace, False)

    def _object_changed(
        self, change: _Change, before: CountedRecord | None, after: CountedRecord | None
    ) -> None:
        ends = _is_counted(before) and not _is_counted(after)
        # A pod that waits may start at once. What the controller holds for it is free once it has ended. Claims of a pod that is
        # bound count only for the devices that they have.
        is_free = ends or _waits(after) or (_waits(before) and not _is_counted(after))
        frees = is_free or is_binding(before, after)
        # Compute this first: the demand may depend on a node that is forgotten with the object.
        held = self._holding(before) if before is not None and ends else None
        namespaces = self._change_sums(change, before, after)
        if (
            isinstance(before, CountedPod)
            and isinstance(after, CountedPod)
            and before.owner not in {None, after.owner}
        ):
            self._handed_over.add(after.uid)
        if held is not None:
            succeeded = isinstance(after, CountedPod) and after.has_succeeded and not after.is_deleted
            handed_over = held.record.uid in self._handed_over
            ended = msgspec.structs.replace(held, has_succeeded=succeeded, was_handed_over=handed_over)
            self._events.ended(self.digest, ended)
        if before is not None and after is None:
            self._handed_over.discard(before.uid)
        # The first list is not news: the log has a line for everything that is held, in portions.
        begins = self.synced and _is_counted(after) and not _is_counted(before)
        if after is not None and begins and (new := self._holding(after)) is not None:
            self._events.began(self.digest, new)
        for namespace in namespaces:
            self._events.changed(namespace, frees)

    def _change_sums(self, change: _Change, before: object, after: object) -> frozenset[str]:
        """Drop all sums if a change fails halfway. The next count makes new ones, so a bug cannot lead to too low a sum."""
        try:
            return change(before, after)
        except Exception:
            self.sums.keep(())
            raise

    def _holding(self, record: CountedRecord) -> Holding | None:
        """Return the demand of an object. None without demand, and for a claim that the scheduler made for a pod."""
        vector = self._demand(record)
        kind = "Pod" if isinstance(record, CountedPod) else "ResourceClaim"
        return Holding(kind, record, demand_fields(vector, self.catalogue.classes)) if vector else None

    def _demand(self, record: CountedRecord) -> Amounts:
        """Return the demand of an object, nothing for a claim that the scheduler made for a pod."""
        return {} if isinstance(record, CountedClaim) and record.extended_pod else self.sums.demand(record)


def _waits(record: CountedRecord | None) -> bool:
    return isinstance(record, CountedPod) and record.waits


def _is_counted(record: CountedRecord | None) -> bool:
    return record is not None and (not isinstance(record, CountedPod) or record.holds_quota)

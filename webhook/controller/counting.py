"""The count of a namespace: its stored pods and claims, and what they cost, from informers of pods, claims and nodes.

A count is of the informers' snapshots; `refresh` lists again where the protocol needs a list that began after some moment. Bound
pods are charged by the labels of their node, others by those of the nodes that they select.
"""

import heapq
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from fractions import Fraction
from typing import Any

import msgspec

from policies.placement.named_nodes import NO_NODES, NamedNode, NodeIndex
from policies.quota.amounts import NOTHING
from policies.quota.catalogue import Basis, catalogue_digest
from policies.quota.charge import Catalogues, Unpinned
from policies.quota.ledger.quota_ledger import HOLDERS_SHOWN, Holder, QuotaLedger, Revisions
from policies.quota.ledger.reconcile import Listing, StoredObject
from webhook.cluster.api import ApiClient
from webhook.cluster.informer import Informer, Snapshot, WatchTimings
from webhook.cluster.nodes import NODES, node_reader
from webhook.configuration.dynamic_resources import served_resource
from webhook.controller.records import (
    PODS,
    ChargedPod,
    ClaimReader,
    ClaimRecord,
    CountedRecord,
    ExtendedClaims,
    PodReader,
    PodRecord,
)
from webhook.controller.usage_log import Holding
from webhook.serving.audit_line import charged

DELETED = StoredObject({}, terminal=True)
"""A deleted object, perhaps never counted: treated as terminal, so that its reservation does not wait to expire."""


class Counted(msgspec.Struct, frozen=True):
    """A listing, and when the older one of the lists of pods and claims behind it began."""

    listing: Listing
    list_started: float


class Counting:
    """Informers of all that is counted by one catalogue.

    `changed` is called with every namespace whose count may differ, and whether the change frees quota; `ended` with the digest
    of the catalogue, and what an object held that holds nothing any more.
    """

    def __init__(
        self,
        api: ApiClient,
        catalogues: Catalogues,
        changed: Callable[[str, bool], object],
        *,
        ended: Callable[[str, Holding], object] = lambda _digest, _holding: None,
        given: ExtendedClaims | None = None,
        timings: WatchTimings | None = None,
    ) -> None:
        self.catalogues = catalogues
        self.digest = catalogue_digest(catalogues)
        self._changed, self._ended = changed, ended
        self._given = given or ExtendedClaims()
        self._stopping = threading.Event()
        self._pods = PodReader(catalogues.classes, catalogues.resource_mapping)
        self._claims = ClaimReader(catalogues.classes, catalogues.resource_mapping, self._given)
        self._label_keys, claims = catalogues.classes.label_keys, served_resource(api, "resourceclaims")
        self._gone: dict[str, NamedNode] = {}
        """Deleted nodes that pods are still on: until those are deleted, too, they cost what they did."""
        self._nodes_changed = object()
        self._index: tuple[object, NodeIndex] = (None, NO_NODES)
        self.lock: AbstractContextManager[bool] = threading.RLock()
        """Of all three informers: what changes in one is charged by what the others hold."""
        self.pods = Informer(
            api, PODS, self._pods.record, self._object_changed, timings=timings, lock=self.lock
        )
        self.nodes = Informer(
            api, NODES, node_reader(self._label_keys), self._node_changed, timings=timings, lock=self.lock
        )
        self.claims = (
            Informer(api, claims, self._claims.record, self._object_changed, timings=timings, lock=self.lock)
            if claims
            else None
        )

    @property
    def informers(self) -> dict[str, Informer[Any]]:
        """The informers by the plural of their resource."""
        return {each.resource.plural: each for each in (self.pods, self.nodes, self.claims) if each}

    def start(self) -> None:
        for informer in self.informers.values():
            informer.start(self._stopping)

    def stop(self) -> None:
        self._stopping.set()

    @property
    def synced(self) -> bool:
        return all(informer.synced for informer in self.informers.values())

    def refresh(self, namespace: str, *, since: float, nodes_since: float) -> None:
        """Make counts rest on lists that began at these moments or later. Raises `errors.ApiError`."""
        if self.pods.snapshot(namespace).list_started < since:
            self.pods.refresh(namespace)
        if self.claims is not None and self.claims.snapshot(namespace).list_started < since:
            self.claims.refresh(namespace)
        if self.nodes.snapshot().list_started < nodes_since:
            self.nodes.refresh()

    def deleted(self, namespace: str) -> frozenset[str]:
        """Return the uids of what the watches showed deleted lately."""
        claims = self.claims.snapshot(namespace).deleted if self.claims else frozenset()
        return self.pods.snapshot(namespace).deleted | claims

    def count(
        self, namespace: str, ledger: QuotaLedger, unpinned: Unpinned, deleted: frozenset[str]
    ) -> Counted:
        """Count what is stored, by this catalogue and `unpinned`.

        `ledger` was read before the lists began. `deleted` is what any watch showed deleted: this one may have begun later.
        """
        changed = self._nodes_changed  # read first: the next count indexes what changes meanwhile
        pods, nodes = self.pods.snapshot(namespace), self.nodes.snapshot()
        # Where claims are not served there are none, at the revision of the pods too.
        claims: Snapshot[ClaimRecord] = (
            self.claims.snapshot(namespace) if self.claims else Snapshot((), pods.revision, pods.list_started)
        )
        objects, holders = self._objects(pods, claims, self._known(nodes, changed), unpinned)
        objects = {**dict.fromkeys(deleted, DELETED), **objects}
        listing = Listing(
            objects,
            Revisions(pods=pods.revision, resource_claims=claims.revision, nodes=nodes.revision),
            row_uid=ledger.row_uid,
            quota_uid=ledger.quota_uid,
            generation=ledger.generation,
            catalogue=str(Basis(self.digest, unpinned)),
            holders=largest_holders(objects, holders, ledger),
        )
        return Counted(listing, min(pods.list_started, claims.list_started))

    def _objects(
        self,
        pods: Snapshot[PodRecord],
        claims: Snapshot[ClaimRecord],
        nodes: NodeIndex,
        unpinned: Unpinned,
    ) -> tuple[dict[str, StoredObject], dict[str, str]]:
        objects: dict[str, StoredObject] = {}
        holders: dict[str, str] = {}
        for pod in pods.items:
            charge = self._pods.charge(pod, unpinned, nodes)
            objects[pod.uid] = StoredObject(charge.vector, pod.is_terminal, pod.version, f"pods/{pod.name}")
            holders[pod.uid] = pod.holder
        charged = {
            pod.uid: ChargedPod(pod.extended_claim, objects[pod.uid].demand)
            for pod in pods.items
            if not pod.is_terminal
        }
        for claim in claims.items:
            cost = self._claims.charge(claim, unpinned, charged)
            objects[claim.uid] = StoredObject(
                cost, version=claim.version, name=f"resourceclaims/{claim.name}"
            )
            holders[claim.uid] = claim.holder
        return objects, holders

    def _object_changed(self, before: CountedRecord | None, after: CountedRecord | None) -> None:
        record = after or before
        if record is not None and after is None:
            self._forget(record)
        if record is not None:
            frees = _is_charged(before) and not _is_charged(after)
            self._changed(record.namespace, frees)
            if before is not None and frees and (held := self._holding(before)) is not None:
                self._ended(self.digest, held)

    def holdings(self) -> Iterator[Holding]:
        """Yield what each stored pod and claim is charged."""
        for informer in (self.pods, self.claims):
            records: Iterable[CountedRecord] = informer.all() if informer else ()
            held = (self._holding(record) for record in records if _is_charged(record))
            yield from (each for each in held if each is not None)

    def _holding(self, record: CountedRecord) -> Holding | None:
        """Return what an object is charged; None of a claim that the scheduler made: its pod is charged."""
        if isinstance(record, PodRecord):
            changed = self._nodes_changed
            nodes = self._known(self.nodes.snapshot(), changed)
            vector = self._pods.charge(record, Unpinned.TOTAL_ONLY, nodes).vector
            return Holding("Pod", record, charged(vector, self.catalogues.classes)) if vector else None
        if not isinstance(record, ClaimRecord) or record.made_for:
            return None
        vector = self._claims.charge(record, Unpinned.TOTAL_ONLY, {})
        return Holding("ResourceClaim", record, charged(vector, self.catalogues.classes)) if vector else None

    def _forget(self, gone: CountedRecord) -> None:
        """Forget which claim a pod was given that is gone, and whose claims may still change until they are gone, too."""
        if isinstance(gone, PodRecord):
            self._given.forget(gone.uid)
        elif isinstance(gone, ClaimRecord) and gone.made_for:
            stored = {pod.uid for pod in self.pods.snapshot(gone.namespace).items}
            if gone.made_for not in stored:
                self._given.forget(gone.made_for)

    def _known(self, nodes: Snapshot[NamedNode], changed: object) -> NodeIndex:
        """Return the nodes; most of their events change no name or label, and to index 10,000 takes some 50 ms."""
        indexed, index = self._index
        if indexed is not changed:
            index = NodeIndex(self._label_keys, (*self._gone.values(), *nodes.items))
            self._index = changed, index
        return index

    def _node_changed(self, before: NamedNode | None, after: NamedNode | None) -> None:
        pods = self.pods.all()
        changed = frozenset(reference for node in (before, after) if node for reference in node.references)
        left = {pod.node_name for pod in pods} if after is None else set()
        if after is None and before is not None:
            gone = {**self._gone, before.name: before}
            self._gone = {name: each for name, each in gone.items() if name in left}
        elif after is not None and after.name in self._gone:
            self._gone = {name: each for name, each in self._gone.items() if name != after.name}
        self._nodes_changed = object()
        for namespace in {pod.namespace for pod in pods if not changed.isdisjoint(pod.nodes)}:
            self._changed(namespace, False)


def _is_charged(record: CountedRecord | None) -> bool:
    return record is not None and not (isinstance(record, PodRecord) and record.is_terminal)


def largest_holders(
    objects: Mapping[str, StoredObject], holders: Mapping[str, str], ledger: QuotaLedger
) -> dict[str, tuple[Holder, ...]]:
    """Return the largest holders of each dimension of `hard`, the pods of one owner as one."""
    held: dict[str, defaultdict[str, Fraction]] = {key: defaultdict(Fraction) for key in ledger.hard}
    for uid, stored in objects.items():
        if not stored.terminal:
            for key, amount in stored.demand.items():
                if key in held and amount > NOTHING:
                    held[key][holders[uid]] += amount
    return {
        key: tuple(
            Holder(name, str(amount))
            # Equal amounts by name: the result must not depend on the order of a list.
            for name, amount in heapq.nsmallest(
                HOLDERS_SHOWN, by_holder.items(), key=lambda pair: (-pair[1], pair[0])
            )
        )
        for key, by_holder in held.items()
        if by_holder
    }

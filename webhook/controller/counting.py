"""What is stored in a namespace and what it costs, from mirrors of pods, claims and nodes.

A count rests on what the mirrors show at their revisions; `refresh` lists anew where the protocol asks for a list begun
after some moment. Bound pods are charged by the labels of their node.
"""

import heapq
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from fractions import Fraction

import msgspec

from policies.quota.amounts import NOTHING
from policies.quota.charge import Unpinned, catalogue_digest, counted_by
from policies.quota.ledger.quota_ledger import HOLDERS_SHOWN, Holder, QuotaLedger, Revisions
from policies.quota.ledger.reconcile import Listing, Stored
from webhook.cluster.api import ApiClient
from webhook.cluster.informer import Informer, Snapshot, WatchTimings
from webhook.configuration.loader import Configuration
from webhook.controller.claims import ClaimReader, ClaimRecord, claims_resource
from webhook.controller.nodes import NODES, NodeRecord, node_reader
from webhook.controller.pods import PODS, Labels, PodReader, PodRecord

GONE = Stored({}, terminal=True)
"""What was deleted, perhaps before it was ever counted: as good as ended, so that its reservation does not wait to expire."""


class Counted(msgspec.Struct, frozen=True):
    """A listing, and when the older one of the lists of pods and claims that it rests on began."""

    listing: Listing
    begun: float


class Counting:
    """Mirrors of all that is counted under one configuration.

    `changed` is told every namespace whose count may differ, and whether that gives something back.
    """

    def __init__(
        self,
        api: ApiClient,
        configuration: Configuration,
        changed: Callable[[str, bool], object],
        *,
        pace: WatchTimings | None = None,
    ) -> None:
        self.catalogue = catalogue_of(configuration)
        self._changed = changed
        self._pods = PodReader(configuration.classes, configuration.resource_mapping)
        self._claims = ClaimReader(configuration.classes, configuration.resource_mapping)
        self.pods: Informer[PodRecord] = Informer(
            api, PODS, self._pods.record, self._object_changed, pace=pace
        )
        self.nodes: Informer[NodeRecord] = Informer(
            api, NODES, node_reader(configuration.classes.label_keys), self._node_changed, pace=pace
        )
        resource = claims_resource(api)
        self.claims: Informer[ClaimRecord] | None = (
            Informer(api, resource, self._claims.record, self._object_changed, pace=pace)
            if resource
            else None
        )

    @property
    def mirrors(self) -> dict[str, Informer[PodRecord] | Informer[NodeRecord] | Informer[ClaimRecord]]:
        """The mirrors by the name of what they show."""
        mirrors: dict[str, Informer[PodRecord] | Informer[NodeRecord] | Informer[ClaimRecord]] = {
            "pods": self.pods,
            "nodes": self.nodes,
        }
        if self.claims is not None:
            mirrors["resourceclaims"] = self.claims
        return mirrors

    def start(self, stopping: threading.Event) -> None:
        for name, mirror in self.mirrors.items():
            threading.Thread(target=mirror.run, args=(stopping,), name=f"watch {name}", daemon=True).start()

    def counted_by(self, row: QuotaLedger) -> str:
        """Return what the row says in `class_catalogue` once it is counted by this configuration."""
        return counted_by(self.catalogue, row.unpinned)

    @property
    def synced(self) -> bool:
        return all(mirror.synced for mirror in self.mirrors.values())

    def refresh(self, namespace: str, *, since: float, nodes_since: float) -> None:
        """See to it that counts rest on lists begun at these moments or later. Raises `errors.ApiError`."""
        if self.pods.view(namespace).begun < since:
            self.pods.refresh(namespace)
        if self.claims is not None and self.claims.view(namespace).begun < since:
            self.claims.refresh(namespace)
        if self.nodes.view().begun < nodes_since:
            self.nodes.refresh()

    def count(self, namespace: str, row: QuotaLedger, *, generation: int) -> Counted:
        """Count what is stored. `generation` is that of the quota, `row.quota_uid`, as read before the lists began."""
        pods, nodes = self.pods.view(namespace), self.nodes.view()
        # Where claims are not served there are none: as true at this revision as the pods are.
        claims: Snapshot[ClaimRecord] = (
            self.claims.view(namespace) if self.claims else Snapshot((), pods.revision, pods.begun)
        )
        labels = {node.name: node.labels for node in nodes.items}
        objects, holders = self._objects(pods, claims, labels, row.unpinned)
        listing = Listing.of(
            objects,
            Revisions(pods=pods.revision, resource_claims=claims.revision, nodes=nodes.revision),
            quota_uid=row.quota_uid,
            generation=generation,
            catalogue=self.counted_by(row),
            holders=largest_holders(objects, holders, row),
        )
        return Counted(listing, min(pods.begun, claims.begun))

    def _objects(
        self,
        pods: Snapshot[PodRecord],
        claims: Snapshot[ClaimRecord],
        labels: Mapping[str, Labels],
        unpinned: Unpinned,
    ) -> tuple[dict[str, Stored], dict[str, str]]:
        objects: dict[str, Stored] = {}
        holders: dict[str, str] = {}
        for pod in pods.items:
            charge = self._pods.charge(pod, unpinned, labels.get(pod.node_name))
            objects[pod.uid] = Stored(charge.vector, pod.is_terminal, pod.version)
            holders[pod.uid] = pod.holder
        charged = {pod.uid: pod for pod in pods.items if not pod.is_terminal and objects[pod.uid].demand}
        for claim in claims.items:
            cost = self._claims.charge(claim, unpinned, charged)
            objects[claim.uid] = Stored(cost, version=claim.version)
            holders[claim.uid] = claim.holder
        for uid in pods.gone | claims.gone:
            objects.setdefault(uid, GONE)
        return objects, holders

    def _object_changed(
        self, before: PodRecord | ClaimRecord | None, after: PodRecord | ClaimRecord | None
    ) -> None:
        record = after or before
        if record is not None:
            self._changed(record.namespace, _counts(before) and not _counts(after))

    def _node_changed(self, before: NodeRecord | None, after: NodeRecord | None) -> None:
        node = after or before
        if node is not None:
            for namespace in {pod.namespace for pod in self.pods.all() if pod.node_name == node.name}:
                self._changed(namespace, False)


def _counts(record: PodRecord | ClaimRecord | None) -> bool:
    return record is not None and not (isinstance(record, PodRecord) and record.is_terminal)


def catalogue_of(configuration: Configuration) -> str:
    """Return the digest of what charges depend on."""
    return catalogue_digest(configuration.classes, configuration.resource_mapping)


def largest_holders(
    objects: Mapping[str, Stored], holders: Mapping[str, str], row: QuotaLedger
) -> dict[str, tuple[Holder, ...]]:
    """Return who holds most of each dimension of `hard`, the pods of one owner taken together."""
    held: dict[str, defaultdict[str, Fraction]] = {key: defaultdict(Fraction) for key in row.hard}
    for uid, stored in objects.items():
        if not stored.terminal:
            for key, amount in stored.demand.items():
                if key in held and amount > NOTHING:
                    held[key][holders[uid]] += amount
    return {
        key: tuple(
            Holder(name, str(amount))
            # The name decides between equals: who is named must not depend on the order of a list.
            for name, amount in heapq.nsmallest(
                HOLDERS_SHOWN, by_holder.items(), key=lambda pair: (-pair[1], pair[0])
            )
        )
        for key, by_holder in held.items()
        if by_holder
    }

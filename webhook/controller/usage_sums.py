"""The usage of stored pods and claims under one catalogue, kept up to date as objects are added, changed and deleted.

The first count of a namespace makes its sums, one for each `unclassifiedPods`. After that, the time for a change or a count does
not depend on the number of objects, only on the number of their holders. Where a quota has a budget, its sum has a history.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from fractions import Fraction
from typing import TypeVar

from msgspec.structs import replace

from policies.placement.nodes import NODE_NAME_FIELD, NamedNode, NodeIndex, NodeReference
from policies.quota.amounts import GPUS, ZERO, Amounts
from policies.quota.budget import Spending, advance
from policies.quota.demand import Catalogue, UnclassifiedPods
from policies.quota.ledger.quota_ledger import Holder, QuotaLedger
from policies.quota.ledger.reconcile import StoredObject
from webhook.cluster.objects import timestamp
from webhook.controller.allocations import Allocations, KindOf
from webhook.controller.namespace_sum import (
    Gap,
    Life,
    NamespaceSum,
    UsageHistory,
    largest_holders,
)
from webhook.quota.counted_records import ClaimHistory, CountedClaim, CountedPod, CountedRecord, RecordReader

R = TypeVar("R", bound=CountedRecord)


class _Namespace:
    """The stored pods and claims of one namespace by uid, and their sums.

    `gone` has deleted claims by uid, while pods still use their devices. `claims_by_pod` has the uids of the claims that a pod
    owns, by the uid of the pod.
    """

    def __init__(self) -> None:
        self.pods: dict[str, CountedPod] = {}
        self.waiting: set[str] = set()
        """The uids of the pods that wait under our scheduling gate."""
        self.unbound: dict[str, str] = {}
        """By uid of a pod that holds quota and has no node: since when."""
        self.claims: dict[str, CountedClaim] = {}
        self.gone: dict[str, CountedClaim] = {}
        self.claims_by_pod: dict[str, set[str]] = {}
        self.allocations = Allocations()
        self.sums: dict[UnclassifiedPods, NamespaceSum] = {}
        self.uids: defaultdict[str, dict[str, str]] = defaultdict(dict)
        """By resource and name."""

    def note_unbound(self, before: CountedPod | None, after: CountedPod | None) -> None:
        """Note since when a pod holds quota without a node: since its creation, or since our gate was removed."""
        if after is None or after.node_name or not after.holds_quota:
            if before is not None:
                self.unbound.pop(before.uid, None)
        elif before is not None and before.waiting is not None:
            self.unbound[after.uid] = timestamp(datetime.now(UTC))
        else:
            self.unbound.setdefault(after.uid, after.since)

    def replace_claim(self, before: CountedClaim | None, after: CountedClaim | None) -> None:
        _replace_record(self.claims, self.uids["resourceclaims"], before, after)
        if before is not None and before.pod:
            owned = self.claims_by_pod.get(before.pod, set())
            owned.discard(before.uid)
            if not owned:
                self.claims_by_pod.pop(before.pod, None)
        if after is not None and after.pod:
            self.claims_by_pod.setdefault(after.pod, set()).add(after.uid)

    def find(self, uid: str, name: str) -> Iterator[CountedRecord]:
        """Yield the objects with this uid or this name, such as `pods/train-0`."""
        resource, _, name = name.partition("/")
        for old_uid in {uid, self.uids[resource].get(name, "")}:
            record = self.pods.get(old_uid) or self.claims.get(old_uid)
            if record is not None:
                yield record


def _replace_record(stored: dict[str, R], uids: dict[str, str], before: R | None, after: R | None) -> None:
    if after is not None:
        stored[after.uid] = after
        uids[after.name] = after.uid
    elif before is not None:
        stored.pop(before.uid, None)
        if uids.get(before.name) == before.uid:
            del uids[before.name]


class UsageSums:
    """The sums of all namespaces. The caller holds `lock`, except for what takes it. `clock`: ms since 1970."""

    def __init__(
        self, catalogue: Catalogue, history: ClaimHistory, kind_of: KindOf, clock: Callable[[], int]
    ) -> None:
        self.reader = RecordReader(catalogue, history)
        self._kind_of = kind_of
        self.lock: AbstractContextManager[bool] = threading.RLock()
        """Shared with the three informers: the demand of an object in one depends on the others."""
        self._history = history
        self.clock = clock
        self._namespaces: defaultdict[str, _Namespace] = defaultdict(_Namespace)
        self._nodes = NodeIndex(catalogue.classes.label_keys)
        self._deleted_nodes: dict[str, NamedNode] = {}
        """Deleted nodes by name. A pod keeps its demand as long as it is on a deleted node."""
        self._by_node: dict[NodeReference, dict[str, str]] = {}
        """Uid and namespace of the pods whose demand depends on the nodes of the reference."""

    def pod_changed(self, before: CountedPod | None, after: CountedPod | None) -> frozenset[str]:
        """Return the namespaces whose sums may differ. The last pod of a deleted node affects pods that select the node."""
        record = after or before
        if record is None:
            return frozenset()
        space = self._namespaces[record.namespace]
        _replace_record(space.pods, space.uids["pods"], before, after)
        space.note_unbound(before, after)
        space.allocations.pod_changed(before, after)
        (space.waiting.add if after is not None and after.waits else space.waiting.discard)(record.uid)
        self._index_nodes(before, after)
        self._count(space, record)
        namespaces = frozenset({record.namespace})
        if before is not None and (after is None or after.node_name != before.node_name):
            namespaces |= self._forget_empty_node(before.node_name)
        if after is None:
            self._history.forget(record.uid)
            self._drop_empty(record.namespace)
        return namespaces

    def claim_changed(self, before: CountedClaim | None, after: CountedClaim | None) -> frozenset[str]:
        record = after or before
        if record is None:
            return frozenset()
        space = self._namespaces[record.namespace]
        if after is not None:
            after = space.allocations.with_devices(space.claims.get(record.uid), after)
        else:
            space.allocations.forget(record.uid)
        space.replace_claim(before, after)
        space.allocations.find_kinds(record.uid, after.devices if after is not None else (), self._kind_of)
        self._count(space, record)
        if after is None:
            # A change of the claim may have come after its pod was forgotten.
            if record.extended_pod and record.extended_pod not in space.pods:
                self._history.forget(record.extended_pod)
            self._drop_empty(record.namespace)
        return frozenset({record.namespace})

    def node_changed(self, before: NamedNode | None, after: NamedNode | None) -> frozenset[str]:
        if after is None and before is not None and self._has_bound_pods(before.name):
            self._deleted_nodes[before.name] = before
            return frozenset()
        gone = self._deleted_nodes.pop(after.name, None) if after is not None else None
        self._nodes.replace(gone, None)
        self._nodes.replace(before, after)
        return self._count_again(named_node for named_node in (gone, before, after) if named_node is not None)

    def slices_changed(self) -> frozenset[str]:
        """Find the kinds of all allocated devices again."""
        namespaces = set[str]()
        for namespace, space in self._namespaces.items():
            for claim in (*space.gone.values(), *space.claims.values()):
                if space.allocations.find_kinds(claim.uid, claim.devices, self._kind_of):
                    self._count(space, claim)
                    namespaces.add(namespace)
        return frozenset(namespaces)

    def claims_reached(self, namespace: str, revision: int) -> None:
        """Note the revision at which the claims of a namespace are held. Pods that were bound before have the devices shown."""
        if (space := self._namespaces.get(namespace)) is not None:
            for pod in space.allocations.reached(revision):
                self._count(space, space.pods[pod])

    def last_binding(self, namespace: str) -> int:
        """Return the revision of the last binding of a pod that the claims do not reach; 0 if they reach all."""
        space = self._namespaces.get(namespace)
        return space.allocations.last_binding if space else 0

    def grown_claims(self, namespace: str, unclassified_pods: UnclassifiedPods) -> int:
        """Return the number of claims that count for more than they were admitted with. Takes the lock."""
        with self.lock:
            space = self._namespaces.get(namespace, _Namespace())
            claims = {**space.gone, **space.claims}
            known = (claims[uid] for uid in space.allocations.claims_with_known_devices & claims.keys())
            both = (
                [self._demand(space, claim, unclassified_pods).get(GPUS, ZERO) for claim in (now, admitted)]
                for now, admitted in ((claim, replace(claim, devices=())) for claim in known)
            )
            return sum(now > admitted for now, admitted in both)

    def pod(self, namespace: str, uid: str) -> CountedPod | None:
        space = self._namespaces.get(namespace)
        return space.pods.get(uid) if space else None

    def sum(
        self,
        namespace: str,
        unclassified_pods: UnclassifiedPods,
        ledger: QuotaLedger,
        gone: Mapping[str, CountedClaim] | None = None,
        idle: Mapping[str, str] | None = None,
    ) -> tuple[Amounts, dict[str, tuple[Holder, ...]], dict[str, StoredObject]]:
        """Return usage and largest holders by dimension, and the objects with the uid or the name of a reservation.

        `idle` has since when holders are idle.
        """
        space = self._namespaces[namespace]
        self._count_deleted_claims(space, gone or {})
        namespace_sum = self._sum(space, unclassified_pods, ledger)
        wanted = ((reservation.object_uid, reservation.name) for reservation in ledger.reservations)
        records = (record for found in wanted for record in space.find(*found))
        objects = {
            record.uid: _stored_object(record, namespace_sum.counted(record.uid)) for record in records
        }
        return dict(namespace_sum.used), largest_holders(namespace_sum, ledger.hard, idle or {}), objects

    def spending(
        self, namespace: str, unclassified_pods: UnclassifiedPods, ledger: QuotaLedger
    ) -> Spending | None:
        """Return what is spent of the budget of a ledger until now."""
        namespace_sum = self._sum(self._namespaces[namespace], unclassified_pods, ledger)
        if ledger.budget is None or namespace_sum.history is None:
            return ledger.spending
        return advance(ledger.budget, ledger.spending, namespace_sum.elapse(), namespace_sum.history.held)

    def follow(self, namespace: str, unclassified_pods: UnclassifiedPods, ledger: QuotaLedger) -> None:
        """Keep the history for the budget of a ledger, from its last count on."""
        history = self._sum(self._namespaces[namespace], unclassified_pods, ledger).history
        if history is not None and ledger.spending is not None:
            history.forget(ledger.spending.until)

    def forget_histories(self) -> None:
        """Forget all histories, because changes were seen late."""
        for space in self._namespaces.values():
            for usage_sum in space.sums.values():
                usage_sum.history = None

    def _sum(
        self, space: _Namespace, unclassified_pods: UnclassifiedPods, ledger: QuotaLedger
    ) -> NamespaceSum:
        """Return the sum in the dimensions of the ledger, with a history if it has a budget."""
        namespace_sum = space.sums.get(unclassified_pods)
        if namespace_sum is None or namespace_sum.dimensions != ledger.dimensions:
            demands = self._demands(space, unclassified_pods)
            namespace_sum = space.sums[unclassified_pods] = NamespaceSum(
                ledger.dimensions, demands, self.clock
            )
        if ledger.budget is None:
            namespace_sum.history = None
        elif namespace_sum.history is None or namespace_sum.history.keys != ledger.budget.granted.keys():
            lives = self._lives(space, unclassified_pods)
            namespace_sum.history = UsageHistory(ledger.budget.granted, Gap.of(ledger, lives, self.clock()))
        return namespace_sum

    def _lives(self, space: _Namespace, unclassified_pods: UnclassifiedPods) -> Iterator[Life]:
        """Yield all stored objects, with the demand that they have or had."""
        for record in (*space.pods.values(), *{**space.gone, **space.claims}.values()):
            if isinstance(record, CountedPod) and record.is_terminal and record.waiting is None:
                demand = self.reader.demand_of_pod(record, unclassified_pods, self._nodes)
                yield Life(demand, record.since, record.ended)
            else:
                yield Life(self._demand(space, record, unclassified_pods), record.since)

    def recount(self, namespace: str) -> bool:
        """Compare the sums of a namespace with a full count. Drop sums that differ. Return whether none did."""
        space = self._namespaces.get(namespace, _Namespace())
        wrong = [
            key for key, each in space.sums.items() if not each.equals_full_count(self._demands(space, key))
        ]
        for unclassified_pods in wrong:
            del space.sums[unclassified_pods]
        return not wrong

    def pods(self, namespace: str) -> list[CountedPod]:
        """Return the pods of a namespace, also those that have ended. Takes the lock."""
        with self.lock:
            space = self._namespaces.get(namespace)
            return list(space.pods.values()) if space else []

    def waiting(self, namespace: str) -> list[CountedPod]:
        """Return the pods of a namespace that wait under our scheduling gate. Takes the lock."""
        with self.lock:
            space = self._namespaces.get(namespace)
            return [space.pods[uid] for uid in space.waiting] if space else []

    def unbound_gpus(self, namespace: str, unclassified_pods: UnclassifiedPods, before: str) -> Fraction:
        """Return the GPUs of the pods that have held quota without a node since `before` (RFC 3339). Takes the lock."""
        with self.lock:
            space = self._namespaces.get(namespace, _Namespace())
            pods = (space.pods[uid] for uid, since in space.unbound.items() if since <= before)
            gpus = Counter(self._demand(space, pod, unclassified_pods).get(GPUS, ZERO) for pod in pods)
            return sum((amount * number for amount, number in gpus.items()), ZERO)

    def waiting_namespaces(self) -> set[str]:
        """Return the namespaces in which pods wait. Takes the lock."""
        with self.lock:
            return {name for name, space in self._namespaces.items() if space.waiting}

    def demand_if_started(self, record: CountedPod, unclassified_pods: UnclassifiedPods) -> Amounts:
        """Return the demand that a pod will have without our scheduling gate. Takes the lock."""
        with self.lock:
            return self.reader.demand_of_pod(record, unclassified_pods, self._nodes)

    def keep(self, wanted: Collection[tuple[str, UnclassifiedPods]]) -> None:
        for namespace, space in list(self._namespaces.items()):
            space.sums = {key: each for key, each in space.sums.items() if (namespace, key) in wanted}
            self._drop_empty(namespace)

    def demand(self, record: CountedRecord) -> Amounts:
        """Return the demand of one object under TOTAL_ONLY. Takes the lock."""
        with self.lock:
            space = self._namespaces.get(record.namespace, _Namespace())
            stored = space.claims.get(record.uid, record)
            return self._demand(space, stored, UnclassifiedPods.TOTAL_ONLY)

    def _demands(
        self, space: _Namespace, unclassified_pods: UnclassifiedPods
    ) -> dict[str, tuple[str, Amounts]]:
        return {
            record.uid: (record.holder, self._demand(space, record, unclassified_pods))
            for record in (*space.pods.values(), *{**space.gone, **space.claims}.values())
        }

    def _demand(
        self, space: _Namespace, record: CountedRecord | None, unclassified_pods: UnclassifiedPods
    ) -> Amounts:
        if isinstance(record, CountedClaim):
            pod = space.pods.get(record.pod)
            pods = {(pod.uid, pod.extended_claim): self._demand(space, pod, unclassified_pods)} if pod else {}
            kinds = space.allocations.kinds(record, pod)
            return self.reader.demand_of_claim(record, unclassified_pods, pods, kinds)
        if isinstance(record, CountedPod) and record.holds_quota:
            return self.reader.demand_of_pod(record, unclassified_pods, self._nodes)
        return {}

    def _count(self, space: _Namespace, record: CountedRecord) -> None:
        """Count the present demand of an object, and of the claims that were made for it if it is a pod."""
        uid = record.uid
        stored = space.pods.get(uid) or space.claims.get(uid) or space.gone.get(uid)
        if (claim := space.claims.get(uid)) is not None:
            space.allocations.note(claim, space.pods.get(claim.pod))
        for unclassified_pods, usage_sum in space.sums.items():
            usage_sum.replace(uid, record.holder, self._demand(space, stored, unclassified_pods))
        for owned in space.claims_by_pod.get(uid, ()):
            self._count(space, space.claims[owned])
        for gone in space.gone.values():
            if gone.pod == uid:
                self._count(space, gone)

    def _count_deleted_claims(self, space: _Namespace, gone: Mapping[str, CountedClaim]) -> None:
        for uid in space.gone.keys() - gone.keys():
            space.allocations.find_kinds(uid, (), self._kind_of)
            self._count(space, space.gone.pop(uid))
        for uid in gone.keys() - space.gone.keys():
            space.gone[uid] = claim = self.reader.adopted(gone[uid])
            space.allocations.find_kinds(uid, claim.devices, self._kind_of)
            self._count(space, claim)

    def _index_nodes(self, before: CountedPod | None, after: CountedPod | None) -> None:
        if before is not None:
            for reference in before.nodes:
                pods = self._by_node.get(reference, {})
                pods.pop(before.uid, None)
                if not pods:
                    self._by_node.pop(reference, None)
        if after is not None:
            for reference in after.nodes:
                self._by_node.setdefault(reference, {})[after.uid] = after.namespace

    def _has_bound_pods(self, node: str) -> bool:
        pods = self._by_node.get((NODE_NAME_FIELD, node), {})
        return any(self._namespaces[namespace].pods[uid].node_name for uid, namespace in pods.items())

    def _forget_empty_node(self, node: str) -> frozenset[str]:
        """Forget a deleted node if no pod is on it any more."""
        if node not in self._deleted_nodes or self._has_bound_pods(node):
            return frozenset()
        gone = self._deleted_nodes.pop(node)
        self._nodes.replace(gone, None)
        return self._count_again([gone])

    def _count_again(self, nodes: Iterable[NamedNode]) -> frozenset[str]:
        references = frozenset[NodeReference]().union(*(node.references for node in nodes))
        pods = {
            uid: each for reference in references for uid, each in self._by_node.get(reference, {}).items()
        }
        for uid, namespace in pods.items():
            space = self._namespaces[namespace]
            self._count(space, space.pods[uid])
        return frozenset(pods.values())

    def _drop_empty(self, namespace: str) -> None:
        space = self._namespaces[namespace]
        if not (space.pods or space.claims or space.sums):
            del self._namespaces[namespace]


def _stored_object(record: CountedRecord, demand: Amounts) -> StoredObject:
    name = f"{'pods' if isinstance(record, CountedPod) else 'resourceclaims'}/{record.name}"
    stored = StoredObject(demand, version=record.version, name=name)
    if not isinstance(record, CountedPod):
        return stored
    return replace(stored, terminal=record.is_terminal, waits=record.waits)

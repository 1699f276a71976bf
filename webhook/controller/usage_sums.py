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
from heapq import nsmallest
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from policies.placement.named_nodes import NODE_NAME, NamedNode, NodeIndex, NodeReference
from policies.quota.amounts import GPUS, NOTHING, Vector, key_order
from policies.quota.budget import Spending, advance
from policies.quota.demand import Catalogue, UnclassifiedPods
from policies.quota.ledger.quota_ledger import Holder, QuotaLedger
from policies.quota.ledger.reconcile import StoredObject
from webhook.cluster.objects import timestamp
from webhook.controller.usage_history import Gap, Life, UsageHistory, anchored_clock
from webhook.quota.counted_records import ClaimHistory, ClaimRecord, CountedRecord, PodRecord, RecordReader

HOLDERS_SHOWN = 5
"""Holders of one dimension that the ledger names: so many idle ones at most, and so many others."""
HOLDERS_LIMIT = 16 * 1024
"""Bytes of all holders as JSON at most; one takes some 55. The ledger is written often, so they must be few."""

R = TypeVar("R", bound=CountedRecord)


class _Sum:
    """The sum of one namespace under one `unclassifiedPods`. `demands` has the holder and the demand of each object by uid."""

    def __init__(
        self, dimensions: Collection[str], demands: Mapping[str, tuple[str, Vector]], clock: Callable[[], int]
    ) -> None:
        self.dimensions = dimensions
        self._clock = clock
        self.history: UsageHistory | None = None
        self.used: Vector = dict.fromkeys(dimensions, NOTHING)
        self._held: dict[str, dict[str, Fraction]] = {key: {} for key in dimensions}
        """The amount of each holder by dimension."""
        self._counted = {uid: demand for uid, demand in demands.items() if demand[1]}
        vectors = {id(vector): vector for _, vector in self._counted.values()}
        equal = Counter((holder, id(vector)) for holder, vector in self._counted.values())
        for (holder, identity), times in equal.items():
            self._add(holder, vectors[identity], times=times)

    def replace(self, uid: str, holder: str, vector: Vector) -> None:
        """Count this demand of an object instead of its former one."""
        before, after = self._counted.get(uid, ("", {})), (holder, vector)
        if before == after:
            return
        if vector:
            self._counted[uid] = after
        else:
            self._counted.pop(uid, None)
        self._add(*before, times=-1)
        self._add(*after)

    def equals_full_count(self, demands: Mapping[str, tuple[str, Vector]]) -> bool:
        other = _Sum(self.dimensions, demands, self._clock)
        return (other._counted, other.used, other._held) == (self._counted, self.used, self._held)

    def counted(self, uid: str) -> Vector:
        return self._counted.get(uid, ("", {}))[1]

    def elapse(self) -> int:
        """Add the time until now to the history, and return now."""
        now = self._clock()
        if self.history is not None:
            self.history.elapse(now, self.used)
        return now

    def _add(self, holder: str, vector: Vector, *, times: int = 1) -> None:
        if self.history is not None:
            self.elapse()
        for key, amount in vector.items():
            if key in self.used and amount:
                added = amount if times == 1 else amount * times
                self.used[key] += added
                held = self._held[key]
                held[holder] = held.get(holder, NOTHING) + added
                if not held[holder]:
                    del held[holder]

    def largest(self, key: str, idle: Mapping[str, str]) -> tuple[Holder, ...]:
        """Return the largest idle holders in a dimension and then the largest others, equal amounts by name.

        `idle` has since when holders are idle. It takes 2 ms among 10,000 holders.
        """
        held = self._held[key]
        # Whole amounts as an int: these compare ten times as fast as a Fraction.
        ranked = (
            (-(each.numerator if each.denominator == 1 else each), name)
            for name, each in held.items()
            if name not in idle
        )
        idle_ones = nsmallest(HOLDERS_SHOWN, ((-held[name], name) for name in idle if name in held))
        return (
            *(Holder(name, str(-negative), idle[name]) for negative, name in idle_ones),
            *(Holder(name, str(-negative)) for negative, name in nsmallest(HOLDERS_SHOWN, ranked)),
        )


class _Namespace:
    """The stored pods and claims of one namespace by uid, and their sums.

    `gone` has deleted claims by uid, while pods still use their devices. `made_for` has the uids of the claims that the scheduler
    made for a pod, by the uid of the pod.
    """

    def __init__(self) -> None:
        self.pods: dict[str, PodRecord] = {}
        self.waiting: set[str] = set()
        """The uids of the pods that wait under our scheduling gate."""
        self.unbound: dict[str, str] = {}
        """By uid of a pod that holds quota and has no node: since when."""
        self.claims: dict[str, ClaimRecord] = {}
        self.gone: dict[str, ClaimRecord] = {}
        self.made_for: dict[str, set[str]] = {}
        self.sums: dict[UnclassifiedPods, _Sum] = {}
        self.uids: defaultdict[str, dict[str, str]] = defaultdict(dict)
        """By resource and name."""

    def note_unbound(self, before: PodRecord | None, after: PodRecord | None) -> None:
        """Note since when a pod holds quota without a node: since its creation, or since our gate was removed."""
        if after is None or after.node_name or not after.holds_quota:
            if before is not None:
                self.unbound.pop(before.uid, None)
        elif before is not None and before.waiting is not None:
            self.unbound[after.uid] = timestamp(datetime.now(UTC))
        else:
            self.unbound.setdefault(after.uid, after.since)

    def replace_claim(self, before: ClaimRecord | None, after: ClaimRecord | None) -> None:
        _replace(self.claims, self.uids["resourceclaims"], before, after)
        if before is not None and before.made_for:
            made = self.made_for.get(before.made_for, set())
            made.discard(before.uid)
            if not made:
                self.made_for.pop(before.made_for, None)
        if after is not None and after.made_for:
            self.made_for.setdefault(after.made_for, set()).add(after.uid)

    def find(self, uid: str, name: str) -> Iterator[CountedRecord]:
        """Yield the objects with this uid or this name, such as `pods/train-0`."""
        resource, _, name = name.partition("/")
        for each in {uid, self.uids[resource].get(name, "")}:
            record = self.pods.get(each) or self.claims.get(each)
            if record is not None:
                yield record


def _replace(stored: dict[str, R], uids: dict[str, str], before: R | None, after: R | None) -> None:
    if after is not None:
        stored[after.uid] = after
        uids[after.name] = after.uid
    elif before is not None:
        stored.pop(before.uid, None)
        if uids.get(before.name) == before.uid:
            del uids[before.name]


class UsageSums:
    """The sums of all namespaces. The caller holds `lock`, except for `demand` and for what takes it. `clock`: ms since 1970."""

    def __init__(
        self, catalogue: Catalogue, history: ClaimHistory, clock: Callable[[], int] | None = None
    ) -> None:
        self.reader = RecordReader(catalogue, history)
        self.lock: AbstractContextManager[bool] = threading.RLock()
        """Shared with the three informers: the demand of an object in one depends on the others."""
        self._history = history
        self.clock = clock or anchored_clock()
        self._namespaces: defaultdict[str, _Namespace] = defaultdict(_Namespace)
        self._nodes = NodeIndex(catalogue.classes.label_keys)
        self._gone: dict[str, NamedNode] = {}
        """Deleted nodes by name. A pod keeps its demand as long as it is on a deleted node."""
        self._by_node: dict[NodeReference, dict[str, str]] = {}
        """Uid and namespace of the pods whose demand depends on the nodes of the reference."""

    def pod_changed(self, before: PodRecord | None, after: PodRecord | None) -> frozenset[str]:
        """Return the namespaces whose sums may differ. The last pod of a deleted node affects pods that select the node."""
        record = after or before
        if record is None:
            return frozenset()
        space = self._namespaces[record.namespace]
        _replace(space.pods, space.uids["pods"], before, after)
        space.note_unbound(before, after)
        (space.waiting.add if after is not None and after.waits else space.waiting.discard)(record.uid)
        self._refer(before, after)
        self._count(space, record)
        namespaces = frozenset({record.namespace})
        if before is not None and (after is None or after.node_name != before.node_name):
            namespaces |= self._leave(before.node_name)
        if after is None:
            self._history.forget(record.uid)
            self._drop_empty(record.namespace)
        return namespaces

    def claim_changed(self, before: ClaimRecord | None, after: ClaimRecord | None) -> frozenset[str]:
        record = after or before
        if record is None:
            return frozenset()
        space = self._namespaces[record.namespace]
        space.replace_claim(before, after)
        self._count(space, record)
        if after is None:
            # A change of the claim may have come after its pod was forgotten.
            if record.made_for and record.made_for not in space.pods:
                self._history.forget(record.made_for)
            self._drop_empty(record.namespace)
        return frozenset({record.namespace})

    def node_changed(self, before: NamedNode | None, after: NamedNode | None) -> frozenset[str]:
        if after is None and before is not None and self._has_pods(before.name):
            self._gone[before.name] = before
            return frozenset()
        gone = self._gone.pop(after.name, None) if after is not None else None
        self._nodes.replace(gone, None)
        self._nodes.replace(before, after)
        return self._count_again(each for each in (gone, before, after) if each is not None)

    def pod(self, namespace: str, uid: str) -> PodRecord | None:
        space = self._namespaces.get(namespace)
        return space.pods.get(uid) if space else None

    def sum(
        self,
        namespace: str,
        unclassified_pods: UnclassifiedPods,
        ledger: QuotaLedger,
        gone: Mapping[str, ClaimRecord] | None = None,
        idle: Mapping[str, str] | None = None,
    ) -> tuple[Vector, dict[str, tuple[Holder, ...]], dict[str, StoredObject]]:
        """Return usage and largest holders by dimension, and the objects with the uid or the name of a reservation.

        `idle` has since when holders are idle.
        """
        space = self._namespaces[namespace]
        self._count_gone(space, gone or {})
        namespace_sum = self._sum(space, unclassified_pods, ledger)
        wanted = ((reservation.object_uid, reservation.name) for reservation in ledger.reservations)
        records = (record for each in wanted for record in space.find(*each))
        objects = {
            record.uid: _stored_object(record, namespace_sum.counted(record.uid)) for record in records
        }
        return dict(namespace_sum.used), _largest(namespace_sum, ledger.hard, idle or {}), objects

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
            for each in space.sums.values():
                each.history = None

    def _sum(self, space: _Namespace, unclassified_pods: UnclassifiedPods, ledger: QuotaLedger) -> _Sum:
        """Return the sum in the dimensions of the ledger, with a history if it has a budget."""
        namespace_sum = space.sums.get(unclassified_pods)
        if namespace_sum is None or namespace_sum.dimensions != ledger.dimensions:
            demands = self._demands(space, unclassified_pods)
            namespace_sum = space.sums[unclassified_pods] = _Sum(ledger.dimensions, demands, self.clock)
        if ledger.budget is None:
            namespace_sum.history = None
        elif namespace_sum.history is None or namespace_sum.history.keys != ledger.budget.granted.keys():
            lives = self._lives(space, unclassified_pods)
            namespace_sum.history = UsageHistory(ledger.budget.granted, Gap.of(ledger, lives, self.clock()))
        return namespace_sum

    def _lives(self, space: _Namespace, unclassified_pods: UnclassifiedPods) -> Iterator[Life]:
        """Yield all stored objects, with the demand that they have or had."""
        for record in (*space.pods.values(), *{**space.gone, **space.claims}.values()):
            if isinstance(record, PodRecord) and record.is_terminal and record.waiting is None:
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

    def pods(self, namespace: str) -> list[PodRecord]:
        """Return the pods of a namespace, also those that have ended. Takes the lock."""
        with self.lock:
            space = self._namespaces.get(namespace)
            return list(space.pods.values()) if space else []

    def waiting(self, namespace: str) -> list[PodRecord]:
        """Return the pods of a namespace that wait under our scheduling gate. Takes the lock."""
        with self.lock:
            space = self._namespaces.get(namespace)
            return [space.pods[uid] for uid in space.waiting] if space else []

    def unbound_gpus(self, namespace: str, unclassified_pods: UnclassifiedPods, before: str) -> Fraction:
        """Return the GPUs of the pods that have held quota without a node since `before` (RFC 3339). Takes the lock."""
        with self.lock:
            space = self._namespaces.get(namespace, _Namespace())
            pods = (space.pods[uid] for uid, since in space.unbound.items() if since <= before)
            gpus = Counter(self._demand(space, pod, unclassified_pods).get(GPUS, NOTHING) for pod in pods)
            return sum((amount * number for amount, number in gpus.items()), NOTHING)

    def waiting_namespaces(self) -> set[str]:
        """Return the namespaces in which pods wait. Takes the lock."""
        with self.lock:
            return {name for name, space in self._namespaces.items() if space.waiting}

    def demand_if_started(self, record: PodRecord, unclassified_pods: UnclassifiedPods) -> Vector:
        """Return the demand that a pod will have without our scheduling gate. Takes the lock."""
        with self.lock:
            return self.reader.demand_of_pod(record, unclassified_pods, self._nodes)

    def keep(self, wanted: Collection[tuple[str, UnclassifiedPods]]) -> None:
        for namespace, space in list(self._namespaces.items()):
            space.sums = {key: each for key, each in space.sums.items() if (namespace, key) in wanted}
            self._drop_empty(namespace)

    def demand(self, record: CountedRecord) -> Vector:
        """Return the demand of one object under TOTAL_ONLY, of a claim without regard to its pod."""
        return self._demand(_Namespace(), record, UnclassifiedPods.TOTAL_ONLY)

    def _demands(
        self, space: _Namespace, unclassified_pods: UnclassifiedPods
    ) -> dict[str, tuple[str, Vector]]:
        return {
            each.uid: (each.holder, self._demand(space, each, unclassified_pods))
            for each in (*space.pods.values(), *{**space.gone, **space.claims}.values())
        }

    def _demand(
        self, space: _Namespace, record: CountedRecord | None, unclassified_pods: UnclassifiedPods
    ) -> Vector:
        if isinstance(record, ClaimRecord):
            pod = space.pods.get(record.made_for)
            pods = {(pod.uid, pod.extended_claim): self._demand(space, pod, unclassified_pods)} if pod else {}
            return self.reader.demand_of_claim(record, unclassified_pods, pods)
        if isinstance(record, PodRecord) and record.holds_quota:
            return self.reader.demand_of_pod(record, unclassified_pods, self._nodes)
        return {}

    def _count(self, space: _Namespace, record: CountedRecord) -> None:
        """Count the present demand of an object, and of the claims that were made for it if it is a pod."""
        uid = record.uid
        stored = space.pods.get(uid) or space.claims.get(uid) or space.gone.get(uid)
        for unclassified_pods, each in space.sums.items():
            each.replace(uid, record.holder, self._demand(space, stored, unclassified_pods))
        for made in space.made_for.get(uid, ()):
            self._count(space, space.claims[made])
        for claim in space.gone.values():
            if claim.made_for == uid:
                self._count(space, claim)

    def _count_gone(self, space: _Namespace, gone: Mapping[str, ClaimRecord]) -> None:
        for uid in space.gone.keys() - gone.keys():
            self._count(space, space.gone.pop(uid))
        for uid in gone.keys() - space.gone.keys():
            space.gone[uid] = self.reader.adopted(gone[uid])
            self._count(space, space.gone[uid])

    def _refer(self, before: PodRecord | None, after: PodRecord | None) -> None:
        if before is not None:
            for reference in before.nodes:
                pods = self._by_node.get(reference, {})
                pods.pop(before.uid, None)
                if not pods:
                    self._by_node.pop(reference, None)
        if after is not None:
            for reference in after.nodes:
                self._by_node.setdefault(reference, {})[after.uid] = after.namespace

    def _has_pods(self, node: str) -> bool:
        pods = self._by_node.get((NODE_NAME, node), {})
        return any(self._namespaces[each].pods[uid].node_name for uid, each in pods.items())

    def _leave(self, node: str) -> frozenset[str]:
        """Forget a deleted node if no pod is on it any more."""
        if node not in self._gone or self._has_pods(node):
            return frozenset()
        gone = self._gone.pop(node)
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


def _largest(
    namespace_sum: _Sum, keys: Iterable[str], idle: Mapping[str, str]
) -> dict[str, tuple[Holder, ...]]:
    """Return the largest holders by dimension, `gpus` first, of as many dimensions as fit into HOLDERS_LIMIT."""
    largest, bytes_left = {}, HOLDERS_LIMIT
    for key in sorted(keys, key=key_order):
        if holders := namespace_sum.largest(key, idle):
            bytes_left -= len(msgspec.json.encode({key: holders}))
            if bytes_left < 0:
                break
            largest[key] = holders
    return largest


def _stored_object(record: CountedRecord, demand: Vector) -> StoredObject:
    name = f"{'pods' if isinstance(record, PodRecord) else 'resourceclaims'}/{record.name}"
    stored = StoredObject(demand, version=record.version, name=name)
    if not isinstance(record, PodRecord):
        return stored
    return replace(stored, terminal=record.is_terminal, waits=record.waits)

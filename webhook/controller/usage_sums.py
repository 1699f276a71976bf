"""What stored pods and claims are charged by one catalogue, summed as they come, change and go.

A namespace has sums from when it is first counted, one for each `unclassifiedPods`. From then on neither a change nor a
count takes longer where there are more objects.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction
from typing import Generic, TypeVar

import msgspec

from policies.placement.named_nodes import NODE_NAME, NamedNode, NodeIndex, NodeReference
from policies.quota.amounts import GPUS, NOTHING, Vector
from policies.quota.demand import Catalogues, UnclassifiedPods
from policies.quota.ledger.quota_ledger import HOLDERS_LIMIT, HOLDERS_SHOWN, Holder, QuotaLedger
from policies.quota.ledger.reconcile import StoredObject
from webhook.controller.records import (
    ClaimReader,
    ClaimRecord,
    CountedPod,
    CountedRecord,
    ExtendedClaims,
    PodReader,
    PodRecord,
)

R = TypeVar("R", bound=CountedRecord)

SPARE_ENTRIES = 64
"""Of a ranking, beyond one for each holder: below that it is not worth sorting again."""


class Summed(msgspec.Struct, frozen=True):
    """A namespace's sums, and those of its objects for which a ledger has reservations, or whose names these have."""

    used: Vector
    holders: Mapping[str, tuple[Holder, ...]]
    objects: Mapping[str, StoredObject]


class HolderRanking:
    """How much of one dimension each holder has; the largest are at hand however many there are."""

    def __init__(self) -> None:
        self._amounts: dict[str, Fraction] = {}
        self._heap: list[tuple[int | Fraction, str]] = []
        """The largest first, equal ones by name. Entries of former amounts stay until they come up, or are too many."""

    def add(self, holder: str, amount: Fraction) -> None:
        """Add to what the holder has; `amount` may be negative."""
        held = self._amounts.get(holder, NOTHING) + amount
        if held:
            self._amounts[holder] = held
            heapq.heappush(self._heap, (_negative(held), holder))
        else:
            self._amounts.pop(holder, None)
        if len(self._heap) > 2 * len(self._amounts) + SPARE_ENTRIES:
            self._heap = [(_negative(each), name) for name, each in self._amounts.items()]
            heapq.heapify(self._heap)

    def largest(self, number: int) -> tuple[Holder, ...]:
        found: dict[str, Fraction] = {}
        while self._heap and len(found) < number:
            negative, holder = heapq.heappop(self._heap)
            held = self._amounts.get(holder, NOTHING)
            if held == -negative:
                found[holder] = held
        for holder, amount in found.items():
            heapq.heappush(self._heap, (_negative(amount), holder))
        return tuple(Holder(holder, str(amount)) for holder, amount in found.items())


def _negative(amount: Fraction) -> int | Fraction:
    """Return the amount for a heap whose least comes first: most are whole, and whole numbers compare ten times as fast."""
    return -amount.numerator if amount.denominator == 1 else -amount


class _Sum:
    """What the objects of one namespace are charged under one `unclassifiedPods`, in some dimensions.

    `demands` are the holder and the vector of each that there is already.
    """

    def __init__(self, dimensions: Collection[str], demands: Mapping[str, tuple[str, Vector]]) -> None:
        self.dimensions = dimensions
        self.used: Vector = dict.fromkeys(dimensions, NOTHING)
        self.rankings = {key: HolderRanking() for key in dimensions}
        self._counted = {uid: demand for uid, demand in demands.items() if demand[1]}
        vectors = {id(vector): vector for _, vector in self._counted.values()}
        alike = Counter((holder, id(vector)) for holder, vector in self._counted.values())
        for (holder, identity), times in alike.items():
            self._add(holder, vectors[identity], times=times)

    def demand(self, uid: str, holder: str, vector: Vector) -> None:
        """Have an object charged this, and nothing that it was charged before."""
        before, after = self._counted.get(uid, ("", {})), (holder, vector)
        if before == after:
            return
        if vector:
            self._counted[uid] = after
        else:
            self._counted.pop(uid, None)
        self._add(*before, times=-1)
        self._add(*after)

    def is_of(self, demands: Mapping[str, tuple[str, Vector]]) -> bool:
        """Whether these are the charges, and `used` is what they come to."""
        alone = _Sum(self.dimensions, {uid: ("", vector) for uid, (_, vector) in demands.items()})
        counted = {uid: demand for uid, demand in demands.items() if demand[1]}
        return alone.used == self.used and counted == self._counted

    def counted(self, uid: str) -> Vector:
        return self._counted.get(uid, ("", {}))[1]

    def _add(self, holder: str, vector: Vector, *, times: int = 1) -> None:
        for key, amount in vector.items():
            if key in self.used and amount:
                added = amount if times == 1 else amount * times
                self.used[key] += added
                self.rankings[key].add(holder, added)


class _Stored(Generic[R]):
    """The records of one kind in one namespace, by uid and by name."""

    def __init__(self) -> None:
        self.by_uid: dict[str, R] = {}
        self._uids: dict[str, str] = {}

    def replace(self, before: R | None, after: R | None) -> None:
        if after is not None:
            self.by_uid[after.uid] = after
            self._uids[after.name] = after.uid
        elif before is not None:
            self.by_uid.pop(before.uid, None)
            if self._uids.get(before.name) == before.uid:
                del self._uids[before.name]

    def named(self, name: str) -> R | None:
        return self.by_uid.get(self._uids.get(name, ""))


class _Namespace:
    """What is stored in one namespace, the claims also by the pod for which the scheduler made them, and its sums.

    `gone` are claims that are not stored any more, by uid, of which pods have the devices.
    """

    def __init__(self) -> None:
        self.pods: _Stored[PodRecord] = _Stored()
        self.claims: _Stored[ClaimRecord] = _Stored()
        self.gone: dict[str, ClaimRecord] = {}
        self.made_for: dict[str, set[str]] = {}
        self.sums: dict[UnclassifiedPods, _Sum] = {}

    @property
    def is_empty(self) -> bool:
        return not (self.pods.by_uid or self.claims.by_uid or self.sums)

    def replace_claim(self, before: ClaimRecord | None, after: ClaimRecord | None) -> None:
        self.claims.replace(before, after)
        if before is not None and before.made_for:
            made = self.made_for.get(before.made_for, set())
            made.discard(before.uid)
            if not made:
                self.made_for.pop(before.made_for, None)
        if after is not None and after.made_for:
            self.made_for.setdefault(after.made_for, set()).add(after.uid)

    def find(self, uid: str, name: str) -> Iterable[CountedRecord]:
        """Yield what has this uid, and what has this name: `pods/train-0`."""
        kind, _, of_kind = name.partition("/")
        named = (self.pods if kind == "pods" else self.claims).named(of_kind)
        found = (self.pods.by_uid.get(uid), self.claims.by_uid.get(uid), named)
        return (each for each in found if each is not None)


class UsageSums:
    """The sums of all namespaces. Its calls must come one after the other, but for `demand`."""

    def __init__(self, catalogues: Catalogues, given: ExtendedClaims) -> None:
        self.pod_reader = PodReader(catalogues)
        self.claim_reader = ClaimReader(catalogues, given)
        self._given = given
        self._namespaces: defaultdict[str, _Namespace] = defaultdict(_Namespace)
        self._nodes = NodeIndex(catalogues.classes.label_keys)
        self._gone: dict[str, NamedNode] = {}
        """Deleted nodes that pods are still on: until those are deleted, too, they cost what they did."""
        self._by_node: dict[NodeReference, dict[str, str]] = {}
        """Uids and namespaces of the pods that are charged by the nodes of that reference."""

    def pod_changed(self, before: PodRecord | None, after: PodRecord | None) -> frozenset[str]:
        """Return the namespaces whose sums may differ: with its last pod a deleted node is forgotten, which others may select."""
        record = after or before
        if record is None:
            return frozenset()
        space = self._namespaces[record.namespace]
        space.pods.replace(before, after)
        self._refer(before, after)
        self._pod_demand(space, record)
        namespaces = frozenset({record.namespace})
        if before is not None and (after is None or after.node_name != before.node_name):
            namespaces |= self._leave(before.node_name)
        if after is None:
            self._given.forget(record.uid)
            self._drop_empty(record.namespace)
        return namespaces

    def claim_changed(self, before: ClaimRecord | None, after: ClaimRecord | None) -> frozenset[str]:
        """Return the namespaces whose sums may differ."""
        record = after or before
        if record is None:
            return frozenset()
        space = self._namespaces[record.namespace]
        space.replace_claim(before, after)
        self._claim_demand(space, record)
        if after is None:
            # Its claims may have changed, and been seen again, after their pod was forgotten.
            if record.made_for and record.made_for not in space.pods.by_uid:
                self._given.forget(record.made_for)
            self._drop_empty(record.namespace)
        return frozenset({record.namespace})

    def node_changed(self, before: NamedNode | None, after: NamedNode | None) -> frozenset[str]:
        """Return the namespaces whose sums may differ."""
        if after is None and before is not None and self._has_pods(before.name):
            self._gone[before.name] = before
            return frozenset()
        gone = self._gone.pop(after.name, None) if after is not None else None
        self._nodes.replace(gone, None)
        self._nodes.replace(before, after)
        return self._count_again(each for each in (gone, before, after) if each is not None)

    def pod(self, namespace: str, uid: str) -> PodRecord | None:
        space = self._namespaces.get(namespace)
        return space.pods.by_uid.get(uid) if space else None

    def sum(
        self,
        namespace: str,
        unclassified_pods: UnclassifiedPods,
        ledger: QuotaLedger,
        gone: Mapping[str, ClaimRecord] | None = None,
    ) -> Summed:
        """Return the sums in the dimensions of the ledger, with the claims that are `gone` while pods have their devices."""
        space = self._namespaces[namespace]
        self._count_gone(space, gone or {})
        found = space.sums.get(unclassified_pods)
        if found is None or found.dimensions != ledger.dimensions:
            found = space.sums[unclassified_pods] = _Sum(
                ledger.dimensions, self._demands(space, unclassified_pods)
            )
        wanted = ((each.object_uid, each.name) for each in ledger.reservations)
        records = (record for each in wanted for record in space.find(*each))
        return Summed(
            dict(found.used),
            _largest(found, ledger.hard),
            {record.uid: _stored_object(record, found.counted(record.uid)) for record in records},
        )

    def recount(self, namespace: str) -> bool:
        """Compare the sums of a namespace with all that it has, and put right what differs; return whether nothing did."""
        space = self._namespaces.get(namespace, _Namespace())
        wrong = [key for key, each in space.sums.items() if not each.is_of(self._demands(space, key))]
        for unclassified_pods in wrong:
            del space.sums[unclassified_pods]
        return not wrong

    def keep(self, wanted: Collection[tuple[str, UnclassifiedPods]]) -> None:
        """Forget all sums but these."""
        for namespace, space in list(self._namespaces.items()):
            space.sums = {key: each for key, each in space.sums.items() if (namespace, key) in wanted}
            self._drop_empty(namespace)

    def demand(self, record: CountedRecord) -> Vector:
        """Return what an object is charged under TOTAL_ONLY, by itself: a claim as one that no pod was charged for."""
        if isinstance(record, ClaimRecord):
            return self.claim_reader.demand(record, UnclassifiedPods.TOTAL_ONLY, {})
        if isinstance(record, PodRecord):
            return self.pod_reader.demand(record, UnclassifiedPods.TOTAL_ONLY, self._nodes).vector
        raise TypeError(record)

    def _demands(
        self, space: _Namespace, unclassified_pods: UnclassifiedPods
    ) -> dict[str, tuple[str, Vector]]:
        """Return the holder of everything in a namespace, and what it costs."""
        pods = {
            uid: (pod.holder, self._pod_cost(pod, unclassified_pods))
            for uid, pod in space.pods.by_uid.items()
        }
        claims = {
            uid: (claim.holder, self._claim_cost(space, claim, unclassified_pods))
            for uid, claim in {**space.gone, **space.claims.by_uid}.items()
        }
        return {**pods, **claims}

    def _pod_cost(self, pod: PodRecord | None, unclassified_pods: UnclassifiedPods) -> Vector:
        if pod is None or pod.is_terminal:
            return {}
        return self.pod_reader.demand(pod, unclassified_pods, self._nodes).vector

    def _claim_cost(
        self, space: _Namespace, claim: ClaimRecord, unclassified_pods: UnclassifiedPods
    ) -> Vector:
        pod = space.pods.by_uid.get(claim.made_for)
        counted = (
            {pod.uid: CountedPod(pod.extended_claim, self._pod_cost(pod, unclassified_pods))} if pod else {}
        )
        return self.claim_reader.demand(claim, unclassified_pods, counted)

    def _pod_demand(self, space: _Namespace, pod: PodRecord) -> None:
        """Charge a pod what it costs now, nothing if it is gone, and the claims that were made for it."""
        stored = space.pods.by_uid.get(pod.uid)
        for unclassified_pods, each in space.sums.items():
            each.demand(pod.uid, pod.holder, self._pod_cost(stored, unclassified_pods))
        for uid in space.made_for.get(pod.uid, ()):
            self._claim_demand(space, space.claims.by_uid[uid])
        for claim in space.gone.values():
            if claim.made_for == pod.uid:
                self._claim_demand(space, claim)

    def _count_gone(self, space: _Namespace, gone: Mapping[str, ClaimRecord]) -> None:
        """Have these claims charged beside those that are stored, and no others any more."""
        for uid in space.gone.keys() - gone.keys():
            self._claim_demand(space, space.gone.pop(uid))
        for uid in gone.keys() - space.gone.keys():
            space.gone[uid] = self.claim_reader.adopted(gone[uid])
            self._claim_demand(space, space.gone[uid])

    def _claim_demand(self, space: _Namespace, claim: ClaimRecord) -> None:
        stored = space.claims.by_uid.get(claim.uid) or space.gone.get(claim.uid)
        for unclassified_pods, each in space.sums.items():
            cost = {} if stored is None else self._claim_cost(space, stored, unclassified_pods)
            each.demand(claim.uid, claim.holder, cost)

    def _refer(self, before: PodRecord | None, after: PodRecord | None) -> None:
        if before is not None and after is not None and before.nodes == after.nodes:
            return
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
        return any(self._namespaces[each].pods.by_uid[uid].node_name for uid, each in pods.items())

    def _leave(self, node: str) -> frozenset[str]:
        """Forget a deleted node once no pod is on it."""
        if node not in self._gone or self._has_pods(node):
            return frozenset()
        gone = self._gone.pop(node)
        self._nodes.replace(gone, None)
        return self._count_again([gone])

    def _count_again(self, nodes: Iterable[NamedNode]) -> frozenset[str]:
        references = frozenset[NodeReference]().union(*(each.references for each in nodes))
        pods = {
            uid: each for reference in references for uid, each in self._by_node.get(reference, {}).items()
        }
        for uid, namespace in pods.items():
            space = self._namespaces[namespace]
            self._pod_demand(space, space.pods.by_uid[uid])
        return frozenset(pods.values())

    def _drop_empty(self, namespace: str) -> None:
        if self._namespaces[namespace].is_empty:
            del self._namespaces[namespace]


def _largest(found: _Sum, keys: Iterable[str]) -> dict[str, tuple[Holder, ...]]:
    """Return the largest holders by dimension, `gpus` first, of as many dimensions as there is room for."""
    largest, room = {}, HOLDERS_LIMIT
    for key in sorted(keys, key=lambda each: (each != GPUS, each)):
        if holders := found.rankings[key].largest(HOLDERS_SHOWN):
            room -= len(msgspec.json.encode({key: holders}))
            if room < 0:
                break
            largest[key] = holders
    return largest


def _stored_object(record: CountedRecord, demand: Vector) -> StoredObject:
    kind, terminal = (
        ("pods", record.is_terminal) if isinstance(record, PodRecord) else ("resourceclaims", False)
    )
    return StoredObject(demand, terminal=terminal, version=record.version, name=f"{kind}/{record.name}")

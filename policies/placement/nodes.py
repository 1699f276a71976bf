"""Nodes of a cluster, those that exist and those that an autoscaler can make, by the labels that GPU classes go by.

One immutable value, made outside and handed in with each pod. Only the labels under `keys` are known; what a pod demands of any
other label is taken as met.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain

import msgspec

from policies.placement.named_nodes import Labels
from policies.placement.pinning import is_empty_term, required_terms
from policies.pods.label_selector import ABSENT, meets
from policies.pods.pod import Pod

Demand = tuple[str, str, frozenset[str]]
"""Key, operator and values, as a node selector requirement has them."""

MOST_COMPARISONS = 10_000
"""Demands of one pod's affinity times the label sets that they are compared with: some 5 ms."""
FEW_DEMANDS = 16
"""So many are read in any case: more than real pods have."""


class NodePool(msgspec.Struct, frozen=True):
    """Nodes that an autoscaler makes on demand; values of None are any that a pod demands.

    So are those of the other labels that begin with one of `open_prefixes`.
    """

    name: str
    labels: tuple[tuple[str, tuple[str, ...] | None], ...]
    open_prefixes: tuple[str, ...] = ()


class NodeOffer(msgspec.Struct, frozen=True):
    """The labels of a node, or of those that a pool makes; `pool` is empty for nodes that are there."""

    labels: Mapping[str, frozenset[str] | None]
    open_prefixes: tuple[str, ...] = ()
    pool: str = ""

    def values(self, key: str) -> frozenset[str] | None:
        """Return the values of which the label has one, ABSENT where it is not there; None is any value."""
        return self.labels.get(key, None if key.startswith(self.open_prefixes) else ABSENT)


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The distinct label sets of all nodes, cut down to `keys`, and the node pools."""

    keys: Container[str]
    label_sets: frozenset[Labels] = frozenset()
    pools: tuple[NodePool, ...] = ()

    def values_of(self, key: str) -> frozenset[str]:
        """Return the values of a label on the nodes that are there."""
        return frozenset(value for labels in self.label_sets for each, value in labels if each == key)

    def could_take(self, pod: Pod, key: str, values: Sequence[str]) -> bool:
        """Whether any node, there or to come, meets what the pod demands; and has one of `values` of `key`, where given."""
        return self._has_too_many_demands(pod) or any(True for _ in self.taking(pod, key, values))

    def taking(self, pod: Pod, key: str = "", values: Sequence[str] = ()) -> Iterator[NodeOffer]:
        """Yield what meets the pod's demands; and has one of `values` of `key`, where given. Too many terms are not read."""
        terms = () if self._has_too_many_demands(pod) else required_terms(pod)
        demands = self._known([(key, "In", values)] if values else ())
        demands += self._known(
            (each, "In", (value,)) for each, value in (pod.body.node_selector or {}).items()
        )
        alternatives = [
            self._known((each.key, each.operator, each.values or ()) for each in term.match_expressions or ())
            for term in terms
            if not is_empty_term(term)
        ]
        for offer in self._near(demands):
            is_selected = _meets_all(offer, demands)
            if is_selected and (not terms or any(_meets_all(offer, term) for term in alternatives)):
                yield offer

    def _has_too_many_demands(self, pod: Pod) -> bool:
        count = sum(1 + len(term.match_expressions or ()) for term in required_terms(pod))
        offers = len(self.label_sets) + len(self.pools)
        return count > FEW_DEMANDS and count * offers > MOST_COMPARISONS

    def _known(self, demands: Iterable[tuple[str, str, Sequence[str]]]) -> list[Demand]:
        return [(key, operator, frozenset(values)) for key, operator, values in demands if key in self.keys]

    def _near(self, demands: Sequence[Demand]) -> Iterable[NodeOffer]:
        """Return the offers that meet the first demand for values, and the pools; all of them where there is none."""
        if not demands:
            return chain(self._there, self._to_come)
        key, _, values = demands[0]
        return chain(*(self._having.get((key, value), ()) for value in values), self._to_come)

    @cached_property
    def _there(self) -> tuple[NodeOffer, ...]:
        return tuple(
            NodeOffer({key: frozenset((value,)) for key, value in labels}) for labels in self.label_sets
        )

    @cached_property
    def _having(self) -> Mapping[tuple[str, str], Sequence[NodeOffer]]:
        """The nodes that are there by each of their labels: most pods demand one that few have."""
        found: dict[tuple[str, str], list[NodeOffer]] = defaultdict(list)
        for labels, offer in zip(self.label_sets, self._there, strict=True):
            for label in labels:
                found[label].append(offer)
        return found

    @cached_property
    def _to_come(self) -> tuple[NodeOffer, ...]:
        return tuple(
            NodeOffer(
                {key: v if v is None else frozenset(v) for key, v in pool.labels},
                pool.open_prefixes,
                pool.name,
            )
            for pool in self.pools
        )


def _meets_all(offer: NodeOffer, demands: Iterable[Demand]) -> bool:
    return all(meets(offer.values(key), operator, values) for key, operator, values in demands)

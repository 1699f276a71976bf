"""What is known of a cluster's nodes, as far as GPU classes go by their labels: those that are there, and those to come.

One immutable value, made outside and handed in with each pod. Only the labels under `keys` are known; what a pod demands of any
other label is taken as met.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from policies.placement import required_terms
from policies.pod import NodeSelectorRequirement, NodeSelectorTerm, Pod

Labels = tuple[tuple[str, str], ...]
"""Key and value pairs, sorted."""

Offer = Mapping[str, frozenset[str] | None]
"""The values that a node has or may get of each label; None is any value."""

NONE: frozenset[str] = frozenset()

MOST_DEMANDS = 500
"""Of one pod's affinity that are looked at: more than any real pod has, and a pod decides how many there are."""


class NodePool(msgspec.Struct, frozen=True):
    """Nodes that an autoscaler makes on demand; `values` of None are any that a pod demands."""

    name: str
    labels: tuple[tuple[str, tuple[str, ...] | None], ...]


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The distinct label sets of all nodes, cut down to `keys`, and the node pools."""

    keys: frozenset[str]
    label_sets: frozenset[Labels] = frozenset()
    pools: tuple[NodePool, ...] = ()

    def values_of(self, key: str) -> frozenset[str]:
        """Return the values of a label on the nodes that are there."""
        return frozenset(value for labels in self.label_sets for each, value in labels if each == key)

    def could_take(self, pod: Pod, key: str, values: Sequence[str]) -> bool:
        """Whether any node, there or to come, meets what the pod demands; and has one of `values` of `key`, where given."""
        pinned = NodeSelectorRequirement(key=key, operator="In", values=tuple(values))
        demands = [*_selected(pod), *([pinned] if values else ())]
        terms = required_terms(pod)
        if sum(1 + len(term.match_expressions or ()) for term in terms) > MOST_DEMANDS:
            return True
        return any(
            all(self._meets(offer, demand) for demand in demands)
            and (not terms or any(self._fits(offer, term) for term in terms))
            for offer in self._offers()
        )

    def _offers(self) -> Iterator[Offer]:
        for labels in self.label_sets:
            yield {key: frozenset((value,)) for key, value in labels}
        for pool in self.pools:
            yield {key: None if values is None else frozenset(values) for key, values in pool.labels}

    def _fits(self, offer: Offer, term: NodeSelectorTerm) -> bool:
        # An empty term matches no object (k8s.io/api core/v1 NodeSelectorTerm); fields are not known here.
        demands = term.match_expressions or ()
        return bool(demands or term.match_fields) and all(self._meets(offer, each) for each in demands)

    def _meets(self, offer: Offer, demand: NodeSelectorRequirement) -> bool:
        offered = offer.get(demand.key, NONE)
        if demand.key not in self.keys or offered is None:
            return True
        wanted = frozenset(demand.values or ())
        if demand.operator == "In":
            return bool(offered & wanted)
        if demand.operator == "NotIn":
            return not offered or bool(offered - wanted)
        if demand.operator == "DoesNotExist":
            return not offered
        return bool(offered)  # Exists; Gt and Lt are for numbers, which no class has as a label


def _selected(pod: Pod) -> Iterator[NodeSelectorRequirement]:
    for key, value in (pod.body.node_selector or {}).items():
        yield NodeSelectorRequirement(key=key, operator="In", values=(value,))

"""What is known of a cluster's nodes, as far as GPU classes go by their labels: those that are there, and those to come.

One immutable value, made outside and handed in with each pod. Only the labels under `keys` are known; what a pod demands of any
other label is taken as met.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec

from policies.placement.pinning import required_terms
from policies.pods.pod import NodeSelectorTerm, Pod

Labels = tuple[tuple[str, str], ...]
"""Key and value pairs, sorted."""

Offer = Mapping[str, frozenset[str] | None]
"""The values that a node has or may get of each label; None is any value."""

Demand = tuple[str, str, frozenset[str]]
"""Key, operator and values, as a node selector requirement has them."""

NONE: frozenset[str] = frozenset()

MOST_DEMANDS = 500
"""Of one pod's affinity that are looked at: more than any real pod has, and a pod decides how many there are."""


class NodePool(msgspec.Struct, frozen=True):
    """Nodes that an autoscaler makes on demand; `values` of None are any that a pod demands."""

    name: str
    labels: tuple[tuple[str, tuple[str, ...] | None], ...]


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The distinct label sets of all nodes, cut down to `keys`, and the node pools."""

    keys: frozenset[str]
    label_sets: frozenset[Labels] = frozenset()
    pools: tuple[NodePool, ...] = ()

    def values_of(self, key: str) -> frozenset[str]:
        """Return the values of a label on the nodes that are there."""
        return frozenset(value for labels in self.label_sets for each, value in labels if each == key)

    def could_take(self, pod: Pod, key: str, values: Sequence[str]) -> bool:
        """Whether any node, there or to come, meets what the pod demands; and has one of `values` of `key`, where given."""
        terms = required_terms(pod)
        if sum(1 + len(term.match_expressions or ()) for term in terms) > MOST_DEMANDS:
            return True
        selected = [
            (each, "In", frozenset((value,))) for each, value in (pod.body.node_selector or {}).items()
        ]
        demands = self._known([*selected, *([(key, "In", frozenset(values))] if values else ())])
        alternatives = [self._known(_demands(term)) for term in terms if not _is_empty(term)]
        return any(
            all(_meets(offer, demand) for demand in demands)
            and (not terms or any(all(_meets(offer, each) for each in term) for term in alternatives))
            for offer in self._offers
        )

    def _known(self, demands: Iterable[Demand]) -> list[Demand]:
        return [demand for demand in demands if demand[0] in self.keys]

    @cached_property
    def _offers(self) -> tuple[Offer, ...]:
        return (
            *({key: frozenset((value,)) for key, value in labels} for labels in self.label_sets),
            *(
                {key: None if values is None else frozenset(values) for key, values in pool.labels}
                for pool in self.pools
            ),
        )


def _demands(term: NodeSelectorTerm) -> Iterator[Demand]:
    for each in term.match_expressions or ():
        yield each.key, each.operator, frozenset(each.values or ())


def _is_empty(term: NodeSelectorTerm) -> bool:
    # "A null or empty node selector term matches no objects" (k8s.io/api core/v1 NodeSelectorTerm). Fields are not known here.
    return not term.match_expressions and not term.match_fields


def _meets(offer: Offer, demand: Demand) -> bool:
    key, operator, wanted = demand
    offered = offer.get(key, NONE)
    if offered is None:
        return True
    if operator == "In":
        return not offered.isdisjoint(wanted)
    if operator == "NotIn":
        return not offered or not offered <= wanted
    if operator == "DoesNotExist":
        return not offered
    return bool(offered)  # Exists; Gt and Lt are for numbers, which no class has as a label

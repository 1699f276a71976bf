"""Nodes of a cluster: those that exist, and those that an autoscaler can create.

NodeFacts is immutable. The caller builds it and passes it with each pod. It holds only the labels in `keys`; a pod's
requirement on any other label counts as met.
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

LabelRequirement = tuple[str, str, frozenset[str]]
"""A node selector requirement: key, operator and values."""

MOST_COMPARISONS = 10_000
"""Comparisons of one pod's affinity requirements with label sets at most: they take some 5 ms."""
FEW_REQUIREMENTS = 16
"""Up to this many requirements are always read. Real pods have fewer."""


class NodePool(msgspec.Struct, frozen=True):
    """Nodes that an autoscaler creates on demand. A label with values None can get any value.

    So can each other label that begins with one of `open_prefixes`.
    """

    name: str
    labels: tuple[tuple[str, tuple[str, ...] | None], ...]
    open_prefixes: tuple[str, ...] = ()


class NodeOffer(msgspec.Struct, frozen=True):
    """The labels of an existing node, or of the nodes of a pool. `pool` is empty for an existing node."""

    labels: Mapping[str, frozenset[str] | None]
    open_prefixes: tuple[str, ...] = ()
    pool: str = ""

    def values(self, key: str) -> frozenset[str] | None:
        """Return the possible values of the label: ABSENT if the node lacks it, None for any value."""
        return self.labels.get(key, None if key.startswith(self.open_prefixes) else ABSENT)


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The distinct label sets of all nodes, reduced to `keys`, and the node pools."""

    keys: Container[str]
    label_sets: frozenset[Labels] = frozenset()
    pools: tuple[NodePool, ...] = ()

    def values_of(self, key: str) -> frozenset[str]:
        """Return the values of a label on existing nodes."""
        return frozenset(value for labels in self.label_sets for each, value in labels if each == key)

    def could_take(self, pod: Pod, key: str, values: Sequence[str]) -> bool:
        """Whether any node, existing or of a pool, meets the pod's requirements, and label `key` has one of `values` if given."""
        return self._has_too_many_requirements(pod) or any(True for _ in self.taking(pod, key, values))

    def taking(self, pod: Pod, key: str = "", values: Sequence[str] = ()) -> Iterator[NodeOffer]:
        """Yield the offers that meet the pod's requirements, and whose label `key` has one of `values` if given.

        Ignore the pod's affinity terms if they are too many.
        """
        terms = () if self._has_too_many_requirements(pod) else required_terms(pod)
        requirements = self._known([(key, "In", values)] if values else ())
        requirements += self._known(
            (each, "In", (value,)) for each, value in (pod.spec.node_selector or {}).items()
        )
        alternatives = [
            self._known((each.key, each.operator, each.values or ()) for each in term.match_expressions or ())
            for term in terms
            if not is_empty_term(term)
        ]
        for offer in self._near(requirements):
            is_selected = _meets_all(offer, requirements)
            if is_selected and (not terms or any(_meets_all(offer, term) for term in alternatives)):
                yield offer

    def _has_too_many_requirements(self, pod: Pod) -> bool:
        count = sum(1 + len(term.match_expressions or ()) for term in required_terms(pod))
        offers = len(self.label_sets) + len(self.pools)
        return count > FEW_REQUIREMENTS and count * offers > MOST_COMPARISONS

    def _known(self, requirements: Iterable[tuple[str, str, Sequence[str]]]) -> list[LabelRequirement]:
        return [
            (key, operator, frozenset(values)) for key, operator, values in requirements if key in self.keys
        ]

    def _near(self, requirements: Sequence[LabelRequirement]) -> Iterable[NodeOffer]:
        """Return the nodes that meet the first requirement, and all pools. Without a requirement, return all nodes and pools."""
        if not requirements:
            return chain(self._there, self._to_come)
        key, _, values = requirements[0]
        return chain(*(self._having.get((key, value), ()) for value in values), self._to_come)

    @cached_property
    def _there(self) -> tuple[NodeOffer, ...]:
        return tuple(
            NodeOffer({key: frozenset((value,)) for key, value in labels}) for labels in self.label_sets
        )

    @cached_property
    def _having(self) -> Mapping[tuple[str, str], Sequence[NodeOffer]]:
        """Index of existing nodes by label: most pods require a label that few nodes have."""
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


def _meets_all(offer: NodeOffer, requirements: Iterable[LabelRequirement]) -> bool:
    return all(meets(offer.values(key), operator, values) for key, operator, values in requirements)

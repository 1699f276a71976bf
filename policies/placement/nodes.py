"""Nodes of a cluster: their states, nodes by name and by labels, and nodes that an autoscaler can create.

The caller builds NodeFacts and passes it with each pod. It has only the labels in `keys`. A pod's requirement on any other label
counts as met.
"""

from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Final

import msgspec
from msgspec.structs import replace

from policies.pods.label_selector import ABSENT, meets
from policies.pods.pod import NodeSelectorTerm, Pod, Toleration
from policies.pods.tolerations import tolerated


class NodeState(msgspec.Struct, frozen=True):
    """Whether a node takes new pods, and which."""

    is_schedulable: bool = True
    """False: the node is cordoned."""
    taints: tuple[Toleration, ...] = ()
    """Taints that stay as long as the node exists; a taint has the fields of a toleration."""
    resources: frozenset[str] = frozenset()
    """Names of the extended resources that it has."""
    amounts: tuple[tuple[str, int], ...] = ()
    """How much it has of them. An amount that is left out is not known."""
    is_usable: bool = True
    """False: it takes pods only later, because it is not Ready, or has a taint that goes by itself."""
    mounts_images: bool = False
    """It is known to mount images as volumes (`policies.placement.image_volumes`)."""

    def has_amounts(self, requested: Mapping[str, int]) -> bool:
        """Whether its capacity is enough for these amounts."""
        known = dict(self.amounts)
        return all(
            name in self.resources and known.get(name, amount) >= amount for name, amount in requested.items()
        )

    def untolerated_by(self, pod: Pod) -> list[Toleration]:
        """Return its taints that the pod does not tolerate."""
        return [taint for taint in self.taints if not tolerated(taint, pod.spec.tolerations)]


Labels = tuple[tuple[str, str], ...]
"""Key and value pairs, sorted."""

NODE_NAME_FIELD: Final = "metadata.name"
"""The only field that `matchFields` allows for nodes (`pkg/apis/core/validation`, v1.37)."""
HOSTNAME: Final = "kubernetes.io/hostname"

NodeReference = tuple[str, str]
"""NODE_NAME and a node's name, or HOSTNAME and the value of that label."""


def largest_amount(states: Iterable[NodeState], name: str) -> int:
    """Return the largest amount of the resource on one node; 0 if that is not known."""
    return max((dict(state.amounts).get(name, 0) for state in states), default=0)


class NamedNode(msgspec.Struct, frozen=True):
    """A node with the labels of classes. `hostname` is empty if the node does not have that label."""

    uid: str
    name: str
    hostname: str
    labels: Labels
    namespace: str = ""
    state: NodeState | None = None
    """None if only the metadata was read."""
    other_labels: tuple[str, ...] = ()
    """Labels not in `labels`, as `key=value`; only of nodes with extended resources whose state was read."""

    @property
    def references(self) -> frozenset[NodeReference]:
        return frozenset(
            {(NODE_NAME_FIELD, self.name), *(((HOSTNAME, self.hostname),) if self.hostname else ())}
        )


class NodeIndex:
    """The known nodes, with their labels reduced to `keys`. One thread may write while others read."""

    def __init__(self, keys: frozenset[str], nodes: Iterable[NamedNode] = ()) -> None:
        self.keys = keys
        # Several nodes can have the same hostname label. Each change makes a new tuple, so readers need no lock.
        self._nodes: dict[NodeReference, tuple[NamedNode, ...]] = {}
        for node in nodes:
            self.replace(None, node)

    def find(self, reference: NodeReference) -> frozenset[Labels]:
        """Return the label sets of the nodes with this name."""
        return frozenset(node.labels for node in self._nodes.get(reference, ()))

    def replace(self, before: NamedNode | None, after: NamedNode | None) -> None:
        """Replace `before` (None: a new node) by `after` (None: the node is deleted)."""
        old, new = (node.references if node else frozenset() for node in (before, after))
        for reference in old | new:
            known = self._nodes.get(reference, ())
            nodes = tuple(node for node in known if before is None or node.uid != before.uid)
            if after is not None and reference in new:
                nodes = (*nodes, after)
            if nodes:
                self._nodes[reference] = nodes
            else:
                self._nodes.pop(reference, None)


NO_NODES = NodeIndex(frozenset())
"""For commands without a cluster, and before the first list of nodes."""


def takes_new_node(pod: Pod) -> bool:
    """Whether a node that does not exist yet can take the pod: it does not select nodes by their names alone."""
    terms = pod.required_terms
    return HOSTNAME not in pod.node_selector and not (terms and all(map(_names_nodes, terms)))


def _names_nodes(term: NodeSelectorTerm) -> bool:
    by_label = (each.operator == "In" for each in term.match_expressions or () if each.key == HOSTNAME)
    return any(by_label) or any(field.operator == "In" for field in term.match_fields or ())


UNCONSTRAINED_POD = Pod()
"""A pod that any node can take."""
LabelRequirement = tuple[str, str, frozenset[str]]
"""Key, operator and values of a node selector requirement."""

MAX_COMPARISONS = 10_000
"""Comparisons of one pod's affinity requirements with label sets. So many take some 5 ms."""
CHEAP_REQUIREMENTS = 16
"""Requirements up to which a pod is compared in any case. Real pods have fewer."""


class NodeGroup(msgspec.Struct, frozen=True):
    """A distinct label set of existing nodes, or a pool: the nodes that an autoscaler creates."""

    labels: Mapping[str, frozenset[str] | None]
    """The possible values of each label. None: any value."""
    open_prefixes: tuple[str, ...] = ()
    """Other labels with one of these prefixes can also have any value."""
    pool: str = ""
    """The name of the autoscaler's node pool; "" for an existing node."""
    startup_taints: tuple[Toleration, ...] = ()
    """Taints that nodes of the pool have only while they start."""
    states: frozenset[NodeState] | None = None
    """The states of the schedulable nodes with these labels. None if they are not known."""
    cordoned: frozenset[NodeState] = frozenset()
    """The states of the cordoned nodes with these labels, as in `NodeFacts.cordoned`."""
    taints: tuple[Toleration, ...] = ()
    """Of all nodes that the pool creates."""

    def creates_node_for(self, pod: Pod) -> bool:
        """Whether it is a pool whose taints the pod tolerates, and the pod names no existing nodes."""
        tolerates = not NodeState(taints=self.taints).untolerated_by(pod)
        return bool(self.pool) and tolerates and takes_new_node(pod)

    def values(self, key: str) -> frozenset[str] | None:
        """Return the possible values of the label: ABSENT if there is no such label, None for any value."""
        return self.labels.get(key, None if key.startswith(self.open_prefixes) else ABSENT)


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The distinct label sets of all nodes, reduced to `keys`, and the node pools of autoscalers."""

    keys: Container[str]
    label_sets: frozenset[Labels] = frozenset()
    pools: tuple[NodeGroup, ...] = ()
    states: Mapping[Labels, frozenset[NodeState]] = {}
    """The distinct states of the schedulable nodes with these labels. Empty if only metadata was read."""
    with_other_labels: frozenset[tuple[Labels, tuple[str, ...]]] = frozenset()
    """Of nodes with extended resources: label set, and labels outside `keys` as `key=value`."""
    cordoned: Mapping[Labels, frozenset[NodeState]] = {}
    """The distinct states of the cordoned nodes with these labels whose resources no schedulable one of them has."""

    @property
    def resources(self) -> frozenset[str]:
        """Names of the extended resources of all schedulable nodes. Empty if they are not known, or a pool may add others."""
        return frozenset() if self.pools else self.existing_resources

    @cached_property
    def existing_resources(self) -> frozenset[str]:
        """Names of the extended resources of all schedulable nodes. Empty if they are not known."""
        return _resources(self.states)

    @cached_property
    def cordoned_resources(self) -> frozenset[str]:
        """Names of the extended resources in `cordoned`."""
        return _resources(self.cordoned)

    def states_for(
        self, pod: Pod, names: Iterable[str], key: str = "", values: Sequence[str] = ()
    ) -> list[NodeState] | None:
        """Return the states of schedulable nodes among `matching_groups`; for each pool, one that has the resources `names`.

        None if they are not known, or a pool can create a node that takes the pod.
        """
        if (self.label_sets and not self.states) or self._has_too_many_requirements(pod):
            return None
        states: list[NodeState] = []
        for group in self.matching_groups(pod, key, values):
            if group.creates_node_for(pod):
                return None
            created = NodeState(taints=group.taints, resources=frozenset(names))
            states += (created,) if group.pool else group.states or ()
        return states

    def pool_for(self, pod: Pod) -> str:
        """Return the name of a pool that can create a node for the pod; "" without one."""
        return next((group.pool for group in self.matching_groups(pod) if group.creates_node_for(pod)), "")

    def takes(self, pod: Pod, requested: Mapping[str, int], key: str, values: Sequence[str]) -> bool:
        """Whether a node takes the pod now, were its GPUs free, or a pool can create one; True if unknown."""
        states = self.states_for(pod, requested, key, values)
        if states is None:
            return self.labels_match(pod, key, values)
        return any(
            each.is_usable and each.has_amounts(requested) and not each.untolerated_by(pod) for each in states
        )

    def relabelled(self, labels: Labels, key: str, value: str) -> "NodeFacts":
        """Return the nodes with these labels alone, after they got another one."""
        with_label = tuple(sorted((*labels, (key, value))))
        states = {with_label: self.states[labels]} if labels in self.states else {}
        return NodeFacts(keys=self.keys, label_sets=frozenset({with_label}), states=states)

    def values_of(self, key: str) -> frozenset[str]:
        """Return the values of a label on existing nodes."""
        return frozenset(value for labels in self.label_sets for label, value in labels if label == key)

    def has_label(self, key: str, values: Sequence[str]) -> bool:
        """Whether a node, or a node that a pool can create, has one of the values. Without values: whether there is any node."""
        return self.labels_match(UNCONSTRAINED_POD, key, values)

    def labels_match(self, pod: Pod, key: str, values: Sequence[str]) -> bool:
        """Whether a node or a pool matches the pod, and its label `key` has one of `values` (empty: any value)."""
        return self._has_too_many_requirements(pod) or any(
            True for _ in self.matching_groups(pod, key, values)
        )

    def matching_groups(self, pod: Pod, key: str = "", values: Sequence[str] = ()) -> Iterator[NodeGroup]:
        """Yield the nodes and pools that match the pod, and whose label `key` has one of `values` (empty: any value).

        Ignore the pod's affinity if it has too many requirements.
        """
        terms = () if self._has_too_many_requirements(pod) else pod.required_terms
        selector = ((label, "In", (value,)) for label, value in pod.node_selector.items())
        requirements = self._by_known_labels(chain([(key, "In", values)] if values else (), selector))
        alternatives = [
            self._by_known_labels(
                (each.key, each.operator, each.values or ()) for each in term.match_expressions or ()
            )
            for term in terms
            if not term.is_empty
        ]
        for group in self._candidates(requirements):
            is_selected = _meets_all(group, requirements)
            if is_selected and (not terms or any(_meets_all(group, term) for term in alternatives)):
                yield group

    def excluding_label(self, pod: Pod, key: str, values: Sequence[str]) -> str:
        """Return the label outside `keys`, in words, by which the pod excludes all nodes whose label `key` has one of `values`.

        "" without one. A label that no node and no pool has excludes nothing: nodes may get it.
        """
        terms = [term for term in pod.required_terms if not term.is_empty]
        if not values or self._has_too_many_requirements(pod):
            return ""
        for label, value in pod.node_selector.items():
            if self._excludes(label, (value,), key, values):
                return f"nodeSelector {label}={value}"
        excluding = [
            [
                each.key
                for each in term.match_expressions or ()
                if each.operator == "In" and self._excludes(each.key, each.values or (), key, values)
            ]
            for term in terms
        ]
        return f"node affinity on {excluding[0][0]}" if excluding and all(excluding) else ""

    def _excludes(self, label: str, wanted: Sequence[str], key: str, values: Sequence[str]) -> bool:
        """Whether nodes or pools have the label, but none with a wanted value of it has one of `values` of label `key`."""
        if label in self.keys:
            return False
        having = [labels for each in wanted for labels in self._by_other_label.get(f"{label}={each}", ())]
        pools = [pool for pool in self.pools if meets(pool.values(label), "In", frozenset(wanted))]
        return (label in self._other_keys or any(label in pool.labels for pool in self.pools)) and not (
            any((key, value) in labels for labels in having for value in values)
            or any(meets(pool.values(key), "In", frozenset(values)) for pool in pools)
        )

    def _has_too_many_requirements(self, pod: Pod) -> bool:
        count = sum(1 + len(term.match_expressions or ()) for term in pod.required_terms)
        groups = len(self.label_sets) + len(self.pools)
        return count > CHEAP_REQUIREMENTS and count * groups > MAX_COMPARISONS

    def _by_known_labels(
        self, requirements: Iterable[tuple[str, str, Sequence[str]]]
    ) -> list[LabelRequirement]:
        return [
            (key, operator, frozenset(values)) for key, operator, values in requirements if key in self.keys
        ]

    def _candidates(self, requirements: Sequence[LabelRequirement]) -> Iterable[NodeGroup]:
        """Return all pools, and the nodes that meet the first requirement, which has operator In."""
        if not requirements:
            return chain(self._nodes, self.pools)
        key, _, values = requirements[0]
        return chain(*(self._by_label.get((key, value), ()) for value in values), self.pools)

    @cached_property
    def _by_other_label(self) -> Mapping[str, frozenset[Labels]]:
        """By labels outside `keys`, as `key=value`: the label sets of the nodes that have it."""
        having = defaultdict[str, set[Labels]](set)
        for labels, others in self.with_other_labels:
            for label in others:
                having[label].add(labels)
        return {label: frozenset(sets) for label, sets in having.items()}

    @cached_property
    def _other_keys(self) -> frozenset[str]:
        return frozenset(label.partition("=")[0] for label in self._by_other_label)

    @cached_property
    def _nodes(self) -> tuple[NodeGroup, ...]:
        return tuple(
            NodeGroup(
                {key: frozenset((value,)) for key, value in labels},
                states=self.states.get(labels),
                cordoned=self.cordoned.get(labels, frozenset()),
            )
            for labels in self.label_sets
        )

    @cached_property
    def _by_label(self) -> Mapping[tuple[str, str], Sequence[NodeGroup]]:
        """Existing nodes by label, because most pods require a label that only some nodes have."""
        groups: dict[tuple[str, str], list[NodeGroup]] = defaultdict(list)
        for labels, group in zip(self.label_sets, self._nodes, strict=True):
            for label in labels:
                groups[label].append(group)
        return groups


def nodes_with_other_labels(nodes: Iterable[NamedNode]) -> frozenset[tuple[Labels, tuple[str, ...]]]:
    """Return the label set and the other labels of each node that has any."""
    return frozenset((node.labels, node.other_labels) for node in nodes if node.other_labels)


def node_facts(
    keys: Container[str],
    nodes: Iterable[tuple[Labels, NodeState | None]],
    pools: tuple[NodeGroup, ...] = (),
    with_other_labels: frozenset[tuple[Labels, tuple[str, ...]]] = frozenset(),
) -> NodeFacts:
    """Return the facts about nodes with these labels and states. If one state is not known, `states` is empty."""
    states, is_known = defaultdict[Labels, set[NodeState]](set), True
    cordoned = defaultdict[Labels, set[NodeState]](set)
    startup_taints = {(taint.key, taint.effect) for pool in pools for taint in pool.startup_taints}
    for labels, state in nodes:
        of_labels = states[labels]  # creates the key, for `label_sets` below
        is_known = is_known and state is not None
        if state is not None and state.is_schedulable:
            of_labels.add(_once_started(state, startup_taints))
        elif state is not None:
            cordoned[labels].add(state)
    known = {labels: frozenset(distinct) for labels, distinct in states.items()} if is_known else {}
    return NodeFacts(
        keys=keys,
        label_sets=frozenset(states),
        pools=pools,
        states=known,
        with_other_labels=with_other_labels,
        cordoned={
            labels: frozenset(only_cordoned)
            for labels, distinct in cordoned.items()
            if (only_cordoned := [each for each in distinct if not _has_resources_of(states[labels], each)])
        },
    )


def _has_resources_of(states: Iterable[NodeState], cordoned: NodeState) -> bool:
    return any(cordoned.resources <= state.resources for state in states)


def _resources(states: Mapping[Labels, frozenset[NodeState]]) -> frozenset[str]:
    return frozenset(name for distinct in states.values() for state in distinct for name in state.resources)


def _once_started(state: NodeState, startup: Collection[tuple[str | None, str | None]]) -> NodeState:
    """Return the state without the taints, by key and effect, that go once the node has started."""
    lasting = tuple(taint for taint in state.taints if (taint.key, taint.effect) not in startup)
    return state if lasting == state.taints else replace(state, taints=lasting, is_usable=False)


def _meets_all(group: NodeGroup, requirements: Iterable[LabelRequirement]) -> bool:
    return all(meets(group.values(key), operator, values) for key, operator, values in requirements)

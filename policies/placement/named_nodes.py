"""Nodes by name and hostname label. If a pod names its node, the labels of that node determine the class of the pod."""

from collections.abc import Iterable
from typing import Final

import msgspec

from policies.placement.node_state import NodeState
from policies.pods.pod import NodeSelectorTerm, Pod

Labels = tuple[tuple[str, str], ...]
"""Key and value pairs, sorted."""

NODE_NAME: Final = "metadata.name"
"""The only field that `matchFields` allows for nodes (`pkg/apis/core/validation`, v1.37)."""
HOSTNAME: Final = "kubernetes.io/hostname"

NodeReference = tuple[str, str]
"""NODE_NAME and a node's name, or HOSTNAME and the value of that label."""


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
        return frozenset({(NODE_NAME, self.name), *(((HOSTNAME, self.hostname),) if self.hostname else ())})


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
    return any(by_label) or any(each.operator == "In" for each in term.match_fields or ())

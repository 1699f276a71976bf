"""Nodes by name and hostname label. If a pod names its node, the labels of that node give the class."""

from collections.abc import Iterable
from typing import Final

import msgspec

Labels = tuple[tuple[str, str], ...]
"""Key and value pairs, sorted."""

NODE_NAME: Final = "metadata.name"
"""The only field that `matchFields` allows for nodes (`pkg/apis/core/validation`, v1.36)."""
HOSTNAME: Final = "kubernetes.io/hostname"

NodeReference = tuple[str, str]
"""A reference to a node: NODE_NAME and its name, or HOSTNAME and a value of that label."""


class NamedNode(msgspec.Struct, frozen=True):
    """A node with the labels by which classes select it. `hostname` is empty if it lacks that label."""

    uid: str
    name: str
    hostname: str
    labels: Labels
    namespace: str = ""

    @property
    def references(self) -> frozenset[NodeReference]:
        return frozenset({(NODE_NAME, self.name), *(((HOSTNAME, self.hostname),) if self.hostname else ())})


class NodeIndex:
    """The known nodes, with their labels reduced to `keys`.

    The time of a look-up does not depend on the number of nodes. One thread may write while others read.
    """

    def __init__(self, keys: frozenset[str], nodes: Iterable[NamedNode] = ()) -> None:
        self.keys = keys
        # Several nodes can have the same hostname label. Tuples are replaced as a whole, so readers need no lock.
        self._nodes: dict[NodeReference, tuple[NamedNode, ...]] = {}
        for node in nodes:
            self.replace(None, node)

    def find(self, reference: NodeReference) -> frozenset[Labels]:
        """Return the label sets of the nodes with this name. Empty if no such node is known."""
        return frozenset(node.labels for node in self._nodes.get(reference, ()))

    def replace(self, before: NamedNode | None, after: NamedNode | None) -> None:
        """Replace `before` by `after`. None: there was no such node, or it is deleted."""
        gone, come = (each.references if each else frozenset() for each in (before, after))
        for reference in gone | come:
            found = tuple(
                each for each in self._nodes.get(reference, ()) if before is None or each.uid != before.uid
            )
            if after is not None and reference in come:
                found = (*found, after)
            if found:
                self._nodes[reference] = found
            else:
                self._nodes.pop(reference, None)


NO_NODES = NodeIndex(frozenset())
"""No nodes are known: without a cluster, and before the first list."""

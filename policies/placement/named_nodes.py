"""Nodes by their names and hostname labels: where a pod names its node, that node's labels say of which class it is."""

from collections.abc import Iterable
from typing import Final

import msgspec

Labels = tuple[tuple[str, str], ...]
"""Key and value pairs, sorted."""

NODE_NAME: Final = "metadata.name"
"""The one field by which `matchFields` selects nodes (`pkg/apis/core/validation`, v1.36)."""
HOSTNAME: Final = "kubernetes.io/hostname"

NodeReference = tuple[str, str]
"""What names a node: NODE_NAME and its name, or HOSTNAME and a value of that label."""


class NamedNode(msgspec.Struct, frozen=True):
    """A node with the labels by which classes select it. `hostname` is empty where it lacks that label."""

    uid: str
    name: str
    hostname: str
    labels: Labels
    namespace: str = ""

    @property
    def references(self) -> frozenset[NodeReference]:
        return frozenset({(NODE_NAME, self.name), *(((HOSTNAME, self.hostname),) if self.hostname else ())})


class NodeIndex:
    """The nodes that are known, with those of their labels that are under `keys`.

    A look-up takes the same time however many nodes there are; one thread may write while others read.
    """

    def __init__(self, keys: frozenset[str], nodes: Iterable[NamedNode] = ()) -> None:
        self.keys = keys
        # Tuples, replaced as a whole: nothing keeps a hostname label from being on several nodes.
        self._nodes: dict[NodeReference, tuple[NamedNode, ...]] = {}
        for node in nodes:
            self.replace(None, node)

    def find(self, reference: NodeReference) -> frozenset[Labels]:
        """Return the labels of the nodes that are named so; empty: no such node is known."""
        return frozenset(node.labels for node in self._nodes.get(reference, ()))

    def replace(self, before: NamedNode | None, after: NamedNode | None) -> None:
        """Put `after` where `before` was; None where there is none."""
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
"""Where nobody knows the nodes: without a cluster, and before they have been listed."""

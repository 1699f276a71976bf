"""Nodes in informers: names, and the labels by which pods and GPU classes select them."""

from collections.abc import Callable, Container

import msgspec

from policies.placement.named_nodes import HOSTNAME, Labels, NamedNode
from webhook.cluster.informer import Resource
from webhook.cluster.objects import decode_metadata

NODES = Resource("/api/v1", "nodes", metadata_only=True)


def node_reader(keys: Container[str]) -> Callable[[msgspec.Raw], NamedNode]:
    """Return a function that reads a node in JSON, with its labels of these keys. Nodes with equal labels share them."""
    interned: dict[Labels, Labels] = {}

    def read(raw: msgspec.Raw) -> NamedNode:
        metadata = decode_metadata(raw)
        labels = tuple((key, value) for key, value in metadata.sorted_labels if key in keys)
        hostname = (metadata.labels or {}).get(HOSTNAME, "")
        return NamedNode(
            metadata.uid,
            metadata.name,
            metadata.name if hostname == metadata.name else hostname,
            interned.setdefault(labels, labels),
        )

    return read

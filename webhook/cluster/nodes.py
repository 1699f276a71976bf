"""Nodes in informers: names, and the labels by which pods and GPU classes select them."""

from collections.abc import Callable, Container
from typing import Any

import msgspec

from policies.placement.named_nodes import HOSTNAME, Labels, NamedNode
from policies.pods.pod import ResourceList, Toleration
from webhook.cluster.informer import Resource
from webhook.cluster.objects import PartialObject, decode_metadata

NODES = Resource("/api/v1", "nodes", metadata_only=True)


class _NodeSpec(msgspec.Struct):
    taints: tuple[Toleration, ...] = ()
    unschedulable: bool = False


class _NodeStatus(msgspec.Struct):
    allocatable: ResourceList = {}
    capacity: dict[str, Any] = {}
    conditions: tuple[dict[str, Any], ...] = ()


class StoredNode(PartialObject, frozen=True):
    """A node as the API server stores it, as far as tools read it."""

    spec: _NodeSpec = msgspec.field(default_factory=_NodeSpec)
    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.labels or {}

    @property
    def resources(self) -> dict[str, str]:
        """Its amounts of extended resources."""
        amounts = self.status.allocatable or self.status.capacity or {}
        return {name: str(amount) for name, amount in amounts.items() if "/" in name}

    @property
    def is_ready(self) -> bool:
        return all(each["status"] == "True" for each in self.status.conditions if each["type"] == "Ready")


decode_node = msgspec.json.Decoder(StoredNode).decode


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

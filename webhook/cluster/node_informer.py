"""Nodes in informers: names, the labels by which pods and GPU classes select them, and which pods they take."""

from collections.abc import Callable, Container
from sys import intern
from typing import Any

import msgspec

from policies.placement.image_volumes import mounts_images
from policies.placement.nodes import HOSTNAME, Labels, NamedNode, NodeIndex, NodeState
from policies.pods.pod import ResourceList, Toleration
from policies.pods.quantity import readable
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.informer import Resource
from webhook.cluster.objects import ObjectMeta, PartialObject, decode_metadata
from webhook.cluster.taints import hard_taints, is_lasting

NODES = Resource("/api/v1", "nodes", metadata_only=True)
WHOLE_NODES = Resource("/api/v1", "nodes")


class _NodeSpec(msgspec.Struct):
    taints: tuple[Toleration, ...] = ()
    unschedulable: bool = False


class _NodeInfo(msgspec.Struct, rename="camel"):
    kubelet_version: str = ""
    container_runtime_version: str = ""
    operating_system: str = ""


class _NodeStatus(msgspec.Struct):
    allocatable: ResourceList = {}
    capacity: dict[str, Any] = {}
    conditions: tuple[dict[str, Any], ...] = ()
    node_info: _NodeInfo = msgspec.field(default_factory=_NodeInfo, name="nodeInfo")


class StoredNode(PartialObject, frozen=True):
    """The fields that are read of a stored node."""

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
        amounts = self.status.allocatable or self.status.capacity or {}
        return {name: str(amount) for name, amount in amounts.items() if "/" in name}

    @property
    def is_ready(self) -> bool:
        return all(each.get("status") == "True" for each in self.status.conditions if each["type"] == "Ready")

    @property
    def state(self) -> NodeState:
        # `capacity`, because `allocatable` is zero whenever the device plugin restarts.
        extended = {name: str(amount) for name, amount in self.status.capacity.items() if "/" in name}
        has = {name: readable(amount) for name, amount in extended.items() if amount != "0"}
        amounts = tuple(sorted((name, amount.value) for name, amount in has.items() if amount))
        hard = hard_taints(self.spec.taints)
        lasting = tuple(filter(is_lasting, hard))
        is_usable = self.is_ready and len(lasting) == len(hard)
        return NodeState(
            not self.spec.unschedulable,
            lasting,
            frozenset(has),
            amounts,
            is_usable=is_usable,
            mounts_images=self.mounts_images,
        )

    @property
    def mounts_images(self) -> bool:
        info = self.status.node_info
        return mounts_images(info.kubelet_version, info.container_runtime_version, info.operating_system)


decode_node = msgspec.json.Decoder(StoredNode).decode


def node_reader(keys: Container[str]) -> Callable[[msgspec.Raw], NamedNode]:
    """Return a function that reads a node in JSON, with its labels of these keys. Nodes with equal labels share them."""
    interned: dict[Labels, Labels] = {}
    return lambda raw: _named_node(decode_metadata(raw), keys, interned)


def readable_node_index(api: ApiClient, keys: frozenset[str]) -> NodeIndex | None:
    """Return the nodes with their labels of these keys; None if the caller may not list them."""
    try:
        return NodeIndex(keys, api.list(NODES.path(), node_reader(keys)).items)
    except errors.Forbidden:
        return None


def state_reader(keys: Container[str]) -> Callable[[msgspec.Raw], NamedNode]:
    """Return a function that also reads the state of a node. Nodes with equal states share them."""
    interned: dict[Labels, Labels] = {}
    states: dict[NodeState, NodeState] = {}

    def read(raw: msgspec.Raw) -> NamedNode:
        node = decode_node(raw)
        state = node.state
        return _named_node(node.metadata, keys, interned, states.setdefault(state, state))

    return read


def _named_node(
    metadata: ObjectMeta, keys: Container[str], interned: dict[Labels, Labels], state: NodeState | None = None
) -> NamedNode:
    labels = tuple((key, value) for key, value in metadata.sorted_labels if key in keys)
    hostname = (metadata.labels or {}).get(HOSTNAME, "")
    return NamedNode(
        uid=metadata.uid,
        name=metadata.name,
        hostname=metadata.name if hostname == metadata.name else hostname,
        labels=interned.setdefault(labels, labels),
        state=state,
        other_labels=_other_labels(metadata, keys) if state is not None and state.resources else (),
    )


def _other_labels(metadata: ObjectMeta, keys: Container[str]) -> tuple[str, ...]:
    """Return the labels outside `keys`. The texts are interned, because most nodes have most of them in common."""
    of_many = ((key, value) for key, value in metadata.sorted_labels if key != HOSTNAME and key not in keys)
    return tuple(intern(f"{key}={value}") for key, value in of_many)

"""Nodes: names, the labels by which pods and GPU classes select them, their taints, and which pods they take.

Taints come and go by themselves: a pod waits for their end, and needs no toleration. A node that starts, is repaired, drained or
deleted has them. A startup taint of a node pool is one, too, whatever its key.

Karpenter's node pools say which nodes it can make.
"""

from collections.abc import Callable, Collection, Container, Iterable, Iterator
from sys import intern
from typing import Any

import msgspec

from policies.placement.image_volumes import mounts_images
from policies.placement.nodes import HOSTNAME, Labels, NamedNode, NodeGroup, NodeIndex, NodeState
from policies.pods.pod import ResourceList, Toleration
from policies.pods.quantity import parse_or_none
from policies.pods.tolerations import toleration_text
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.informer import Resource
from webhook.cluster.objects import ObjectMeta, PartialObject, decode_metadata, fields_of

NODES = Resource("/api/v1", "nodes", metadata_only=True)
NODES_IN_FULL = Resource("/api/v1", "nodes")

_HARD_EFFECTS = frozenset({"NoSchedule", "NoExecute"})
CONDITION_PREFIX = "node.kubernetes.io/"
"""How the keys of taints begin that repeat a condition or the cordon of a node (k8s.io/api core/v1 well_known_taints.go)."""
_REMOVAL_PREFIXES = (
    # cluster-autoscaler (utils/taints) and Karpenter (karpenter.sh/disruption before v1)
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    "karpenter.sh/disrupt",
    # Interruptions by clouds: AWS Node Termination Handler, GKE
    "aws-node-termination-handler/",
    "cloud.google.com/impending-node-termination",
)
"""How the keys of taints begin that announce the removal of a node."""
_TRANSIENT_PREFIXES = (
    *_REMOVAL_PREFIXES,
    CONDITION_PREFIX,
    "node.cloudprovider.kubernetes.io/",
    # Conditions that must hold before pods run (kubernetes-sigs/node-readiness-controller)
    "readiness.k8s.io/",
    # cluster-autoscaler: nodes that are starting, or suspended (utils/taints)
    "startup-taint.cluster-autoscaler.kubernetes.io/",
    "ignore-taint.cluster-autoscaler.kubernetes.io/",
    "status-taint.cluster-autoscaler.kubernetes.io/",
    "karpenter.sh/",
    # Cluster API: uninitialized, outdated-revision (api/core common_types.go)
    "node.cluster.x-k8s.io/",
    # Repairs by AKS (node auto-repair and auto-drain)
    "remediator.kubernetes.azure.com/",
    # AMD GPU operator: an upgrade of the driver, a partitioning, a GPU that is out of order (internal/controllers)
    "amd-gpu-driver-upgrade",
    "amd-dcm",
    "amd-gpu-unhealthy",
)
_TRANSIENT_SUFFIXES = (
    # Agents of networks and storage: node.cilium.io, ebs.csi.aws.com and efs.csi.aws.com write agent-not-ready, Istio
    # cni.istio.io/not-ready, Gardener node.gardener.cloud/critical-components-not-ready
    "not-ready",
    "uninitialized",
    "driver-upgrade",
)

KARPENTER_GROUP = "karpenter.sh"
KARPENTER_VERSIONS = ("v1", "v1beta1")

OPEN_LABELS = (
    "karpenter.",
    "eks.amazonaws.com/",
    "kubernetes.azure.com/",
    "topology.kubernetes.io/",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "beta.kubernetes.io/",
)
"""Prefixes of the labels that Karpenter and its providers set by the kind of machine: they may have any value in a pool that does
not mention them. Any other label is only on nodes of a pool that names it (Karpenter, concepts/scheduling: well-known and
user-defined labels; `WellKnownLabels` of its providers).
"""
POOL_LABEL = "karpenter.sh/nodepool"
"""The name of its pool, on every node that Karpenter makes."""


def is_hard_taint(taint: Toleration) -> bool:
    """Whether a taint keeps pods away that do not tolerate it."""
    return taint.effect in _HARD_EFFECTS


def is_removal_taint(taint: Toleration) -> bool:
    """Whether a taint says that the node will be removed."""
    return (taint.key or "").startswith(_REMOVAL_PREFIXES)


def is_permanent_taint(taint: Toleration, startup_taints: Collection[Toleration] = ()) -> bool:
    """Whether a taint keeps pods away for as long as the node exists.

    startup_taints: of all node pools. As Karpenter does, they are compared by key and effect.
    """
    key = taint.key or ""
    is_of_pool = any((each.key, each.effect) == (taint.key, taint.effect) for each in startup_taints)
    return is_hard_taint(taint) and not (
        is_of_pool or key.startswith(_TRANSIENT_PREFIXES) or key.endswith(_TRANSIENT_SUFFIXES)
    )


def hard_taints(taints: Iterable[Toleration]) -> tuple[Toleration, ...]:
    """Return the taints that keep pods away, without the time at which they came."""
    hard = (
        Toleration(key=taint.key, value=taint.value, effect=taint.effect)
        for taint in taints
        if is_hard_taint(taint)
    )
    return tuple(sorted(hard, key=toleration_text))


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
        has = {name: parse_or_none(amount) for name, amount in extended.items() if amount != "0"}
        amounts = tuple(sorted((name, amount.value) for name, amount in has.items() if amount))
        hard = hard_taints(self.spec.taints)
        lasting = tuple(filter(is_permanent_taint, hard))
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


class _Requirement(msgspec.Struct, frozen=True):
    key: str
    operator: str = "In"
    values: tuple[str, ...] | None = None


_REQUIREMENTS = msgspec.json.Decoder(tuple[_Requirement, ...] | None)
_LABELS = msgspec.json.Decoder(dict[str, str] | None)
_TAINTS = msgspec.json.Decoder(tuple[Toleration, ...] | None)


def node_pools(api: ApiClient) -> Iterator[NodeGroup]:
    """Yield Karpenter's pools; none where it is not installed. Raises `errors.ApiError`."""
    version = api.served_version(KARPENTER_GROUP, KARPENTER_VERSIONS)
    if version is not None:
        resource = Resource(f"/apis/{KARPENTER_GROUP}/{version}", "nodepools")
        yield from api.list(resource.path(), _node_pool).items


def _node_pool(document: msgspec.Raw) -> NodeGroup:
    name = decode_metadata(document).name
    metadata, spec = (fields_of(document, "spec", "template", part) for part in ("metadata", "spec"))
    labels: dict[str, frozenset[str] | None] = {POOL_LABEL: frozenset((name,))}
    for requirement in _REQUIREMENTS.decode(spec.get("requirements", b"null")) or ():
        # The other operators leave the values open: the pool makes nodes for the value that a pod selects.
        values = requirement.values if requirement.operator == "In" else None
        labels[requirement.key] = None if values is None else frozenset(values)
    template_labels = _LABELS.decode(metadata.get("labels", b"null")) or {}
    labels.update({key: frozenset((value,)) for key, value in template_labels.items()})
    taints, startup = (
        _TAINTS.decode(spec.get(field, b"null")) or () for field in ("taints", "startupTaints")
    )
    return NodeGroup(labels, OPEN_LABELS, name, startup, taints=taints)

"""The GPU nodes of a cluster with what is used on them, from one list of nodes and one of pods."""

import operator
from collections.abc import Callable, Container, Iterable, Mapping
from fractions import Fraction
from functools import partial

import msgspec

from policies.gpus.cards import amounts, container_amounts
from policies.gpus.resource_mapping import GPUResource, ResourceMapping
from policies.gpus.stored_devices import StoredDevices
from policies.placement.nodes import HOSTNAME, NamedNode, NodeIndex
from policies.pods.limit_ranger import amounts_of_pod
from policies.pods.pod import Pod, decode_pod
from policies.pods.quantity import NANO, QuantityError, parse_quantity
from policies.pods.requests import at_one_time, combined
from policies.quota.demand import Catalogue
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.capacity import GPUNode, any_node, with_cards
from webhook.cluster.collection import CLUSTER
from webhook.cluster.node_informer import NODES
from webhook.quota.counted_records import PODS

ON_NODES = {"fieldSelector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"}
"""The pods that hold resources of a node, as `kubectl describe node` selects them."""


def read_gpu_nodes(
    api: ApiClient,
    catalogue: Catalogue,
    read_devices: Callable[[], StoredDevices | None] = lambda: None,
    *,
    reads_pods: bool = True,
) -> tuple[GPUNode, ...]:
    """Return the GPU nodes by name. Raises `errors.ApiError`: errors.Forbidden where the caller may not list nodes.

    read_devices: returns those of ResourceSlices. reads_pods: false if nobody asks what is used.
    """
    nodes = api.list(NODES.path(), partial(any_node, catalogue=catalogue)).items
    devices = read_devices() if nodes else None
    cards = devices.cards_by_node() if devices else {}
    nodes = [node for node in nodes if node.has_gpus or node.name in cards]
    names = {node.name for node in nodes}
    used = _used(api, names) if nodes and reads_pods else None
    if used is not None:
        nodes = [msgspec.structs.replace(node, used=used.get(node.name, {})) for node in nodes]
    nodes = [with_cards(node, cards.get(node.name, ()), catalogue) for node in nodes]
    return tuple(sorted((node for node in nodes if node.has_gpus), key=lambda node: node.name))


def node_index(nodes: Iterable[GPUNode], catalogue: Catalogue) -> NodeIndex:
    """Return the GPU nodes as demands look them up."""
    keys, nodes_by_name = catalogue.classes.label_keys, []
    for each in (node for node in nodes if node.name):
        labels = tuple(sorted((key, value) for key, value in each.labels.items() if key in keys))
        nodes_by_name.append(NamedNode(each.name, each.name, each.labels.get(HOSTNAME, ""), labels))
    return NodeIndex(keys, nodes_by_name)


def gpu_amounts(pod: Pod, mapping: ResourceMapping) -> dict[GPUResource, Fraction]:
    """Return what the pod requests of GPU resources, as the scheduler adds it up."""
    overhead = amounts(pod.spec.overhead, mapping)
    return at_one_time(pod, lambda each: container_amounts(each, mapping), overhead)


def pod_amounts(pod: Pod) -> dict[str, Fraction]:
    """Return all that the pod requests, as the scheduler adds it up; empty if an amount cannot be read."""
    try:
        requested = amounts_of_pod(pod, "requests")
        overhead = {name: parse_quantity(raw) for name, raw in (pod.spec.overhead or {}).items()}
    except QuantityError:
        return {}
    parts = ({name: Fraction(each.nano, NANO) for name, each in of.items()} for of in (requested, overhead))
    return combined(parts, operator.add)


def _used(api: ApiClient, names: Container[str]) -> Mapping[str, dict[str, Fraction]] | None:
    """Return what pods use of the nodes with these names; None where the caller may not list the pods of the cluster."""

    def read(raw: msgspec.Raw) -> tuple[str, dict[str, Fraction]] | None:
        pod = decode_pod(raw)
        return (pod.spec.node_name or "", pod_amounts(pod)) if pod.spec.node_name in names else None

    try:
        holding = api.list(PODS.path(CLUSTER), read, query=ON_NODES).items
    except errors.Forbidden:
        return None
    used: dict[str, dict[str, Fraction]] = {}
    for node, held in holding:
        used[node] = combined((used.get(node, {}), held), operator.add)
    return used

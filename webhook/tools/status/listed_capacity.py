"""GPU nodes and devices of ResourceSlices (DRA), and what pods and claims have of them, by one list of each."""

import operator
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import chain
from typing import TypeVar

import msgspec

from policies.gpus.cards import container_amounts, positive_amounts
from policies.gpus.claimed_devices import DeviceResult, decode_claim
from policies.gpus.device_pools import DevicePools
from policies.gpus.device_slices import PoolSlice, SliceReader, type_key
from policies.gpus.device_types import DeviceTypes
from policies.gpus.resource_mapping import GPUResource, ResourceMapping
from policies.gpus.stored_devices import DeviceTaintRule, StoredDevices, decode_taint_rule
from policies.placement.nodes import HOSTNAME, NamedNode, NodeIndex
from policies.pods.limit_ranges import amounts_of_pod
from policies.pods.pod import Pod, decode_pod
from policies.pods.quantity import NANO, QuantityError, parse_quantity
from policies.pods.requests import at_one_time, combined
from policies.quota.amounts import Amounts
from policies.quota.demand import Catalogue, UnclassifiedPods
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.capacity import GPUNode, any_node, with_cards
from webhook.cluster.collection import CLUSTER
from webhook.cluster.nodes import NODES
from webhook.configuration.dynamic_resources import DRA_VERSIONS, SLICE_VERSIONS, served_resource
from webhook.quota.counted_records import PODS, CountedClaim, CountedPod, KindIndexes, RecordReader

T = TypeVar("T")

BOUND_PODS = {"fieldSelector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"}
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
    used = _used_by_node(api, names) if nodes and reads_pods else None
    if used is not None:
        nodes = [msgspec.structs.replace(node, used=used.get(node.name, {})) for node in nodes]
    nodes = [with_cards(node, cards.get(node.name, ()), catalogue) for node in nodes]
    return tuple(sorted((node for node in nodes if node.has_gpus), key=lambda node: node.name))


def node_index(nodes: Iterable[GPUNode], catalogue: Catalogue) -> NodeIndex:
    """Return the GPU nodes as demands look them up."""
    keys, nodes_by_name = catalogue.classes.label_keys, []
    for gpu_node in (node for node in nodes if node.name):
        labels = tuple(sorted((key, value) for key, value in gpu_node.labels.items() if key in keys))
        nodes_by_name.append(
            NamedNode(gpu_node.name, gpu_node.name, gpu_node.labels.get(HOSTNAME, ""), labels)
        )
    return NodeIndex(keys, nodes_by_name)


def gpu_amounts(pod: Pod, mapping: ResourceMapping) -> dict[GPUResource, Fraction]:
    """Return what the pod requests of GPU resources, as the scheduler adds it up."""
    overhead = positive_amounts(pod.spec.overhead, mapping)
    return at_one_time(pod, lambda container: container_amounts(container, mapping), overhead)


def pod_amounts(pod: Pod) -> dict[str, Fraction]:
    """Return all that the pod requests, as the scheduler adds it up; empty if an amount cannot be read."""
    try:
        requested = amounts_of_pod(pod, "requests")
        overhead = {name: parse_quantity(raw) for name, raw in (pod.spec.overhead or {}).items()}
    except QuantityError:
        return {}
    parts = ({name: Fraction(each.nano, NANO) for name, each in of.items()} for of in (requested, overhead))
    return combined(parts, operator.add)


def _used_by_node(api: ApiClient, names: Container[str]) -> Mapping[str, dict[str, Fraction]] | None:
    """Return what pods use of the nodes with these names; None where the caller may not list the pods of the cluster."""

    def read(raw: msgspec.Raw) -> tuple[str, dict[str, Fraction]] | None:
        pod = decode_pod(raw)
        return (pod.spec.node_name or "", pod_amounts(pod)) if pod.spec.node_name in names else None

    try:
        holding = api.list(PODS.path(CLUSTER), read, query=BOUND_PODS).items
    except errors.Forbidden:
        return None
    used: dict[str, dict[str, Fraction]] = {}
    for node, held in holding:
        used[node] = combined((used.get(node, {}), held), operator.add)
    return used


# ---- devices of ResourceSlices


class ListedSlices(msgspec.Struct, frozen=True):
    """The slices of a cluster, and the reader that has read them."""

    slices: Sequence[PoolSlice]
    reader: SliceReader


def read_slices(api: ApiClient) -> ListedSlices:
    """Return the slices. Raises `errors.ApiError`: errors.Forbidden where the caller may not list them."""
    reader = SliceReader()
    slices = _listed(api, "resourceslices", reader.read, SLICE_VERSIONS)
    return ListedSlices(slices, reader)


def read_allocated(api: ApiClient) -> list[DeviceResult]:
    """Return the devices that claims of all namespaces have. Raises `errors.ApiError`."""
    return list(chain.from_iterable(_listed(api, "resourceclaims", _results)))


def read_taint_rules(api: ApiClient) -> Sequence[DeviceTaintRule]:
    """Return the DeviceTaintRules. Raises `errors.ApiError`."""
    return _listed(api, "devicetaintrules", decode_taint_rule)


def _results(raw: msgspec.Raw) -> Sequence[DeviceResult]:
    status = decode_claim(raw).status
    allocation = status and status.allocation and status.allocation.devices
    return (allocation and allocation.results) or ()


def _listed(
    api: ApiClient, plural: str, decode: Callable[[msgspec.Raw], T], versions: tuple[str, ...] = DRA_VERSIONS
) -> Sequence[T]:
    """List a kind of DRA; nothing where it is not served."""
    try:
        resource = served_resource(api, plural, versions)
        return api.list(resource.path(), decode).items if resource else ()
    except errors.NotFound:
        return ()


PodsWithClaims = Mapping[str, tuple[CountedPod, Amounts]]
"""By uid, pods and their demand."""


class AllocatedDeviceTypes:
    """The kinds of allocated devices, by the ResourceSlices of a cluster in which nothing may be installed yet.

    mapping: says which drivers have GPUs, and what their partitions weigh by.
    """

    def __init__(self, listed: ListedSlices, mapping: ResourceMapping) -> None:
        self._pools = pools = DevicePools()
        pools.reader = listed.reader
        for number, pool_slice in enumerate(listed.slices):
            pools.put(str(number), None, pool_slice)
        pools.refresh(mapping)

    @property
    def device_types(self) -> DeviceTypes:
        return self._pools.inventory.device_types

    def of_claim(self, claim: CountedClaim, kinds: DeviceTypes) -> KindIndexes:
        """Return the indexes of the kinds of its devices in the kinds of a catalogue; None for an unknown device."""
        indexes = {type_key(kind): index for index, kind in enumerate(kinds.types)}
        published = self._pools.inventory.published
        keys = (self._pools.type_key_of(device.driver, device.pool, device.name) for device in claim.devices)
        return tuple(indexes.get(type_key(published[key])) if key else None for key in keys)


def listed_demand(
    reader: RecordReader,
    claim: CountedClaim,
    unclassified_pods: UnclassifiedPods,
    pods: PodsWithClaims,
    allocated: AllocatedDeviceTypes | None,
) -> Amounts:
    """Return the demand of a claim. pods: those with claims of their own. allocated: None if it is not known."""
    pod, demand = pods.get(claim.pod, (None, {}))
    kinds: KindIndexes = ()
    if allocated is not None and pod is not None and pod.has_final_devices(claim):
        kinds = allocated.of_claim(claim, reader.catalogue.resource_mapping.device_types)
    own = {(pod.uid, pod.extended_claim): demand} if pod else {}
    return reader.demand_of_claim(claim, unclassified_pods, own, kinds)

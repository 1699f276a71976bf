"""The devices of ResourceSlices (DRA) with what claims have of them, from a list each of slices, claims, DeviceTaintRules."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TypeVar

import msgspec

from policies.gpus.claimed_devices import DeviceResult, decode_claim
from policies.gpus.device_kinds import DeviceKinds
from policies.gpus.device_pools import DevicePools
from policies.gpus.device_slices import PoolSlice, SliceReader, kind_key
from policies.gpus.resource_mapping import ResourceMapping
from policies.gpus.stored_devices import DeviceTaintRule, StoredDevices, decode_taint_rule
from policies.quota.amounts import Vector
from policies.quota.demand import Catalogue, UnclassifiedPods
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.configuration.dynamic_resources import DRA_VERSIONS, SLICE_VERSIONS, served_resource
from webhook.quota.counted_records import ClaimRecord, Kinds, PodRecord, RecordReader

T = TypeVar("T")


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


def stored_devices(
    listed: ListedSlices,
    catalogue: Catalogue,
    allocated: Sequence[DeviceResult],
    rules: Sequence[DeviceTaintRule],
) -> StoredDevices:
    return StoredDevices(
        listed.slices,
        catalogue.resource_mapping,
        catalogue.classes,
        allocated,
        left_out=listed.reader.left_out,
        rules=rules,
    )


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


Holders = Mapping[str, tuple[PodRecord, Vector]]
"""By uid, pods and their demand."""


class AllocatedKinds:
    """The kinds of allocated devices, by the ResourceSlices of a cluster in which nothing may be installed yet.

    mapping: says which drivers have GPUs, and what their partitions weigh by.
    """

    def __init__(self, listed: ListedSlices, mapping: ResourceMapping) -> None:
        self._pools = pools = DevicePools()
        pools.reader = listed.reader
        for number, each in enumerate(listed.slices):
            pools.put(str(number), None, each)
        pools.count(mapping)

    @property
    def device_kinds(self) -> DeviceKinds:
        return self._pools.inventory.device_kinds

    def of_claim(self, claim: ClaimRecord, kinds: DeviceKinds) -> Kinds:
        """Return the indexes of the kinds of its devices in the kinds of a catalogue; None for an unknown device."""
        indexes = {kind_key(kind): index for index, kind in enumerate(kinds.kinds)}
        published = self._pools.inventory.published
        keys = (self._pools.key_of(each.driver, each.pool, each.name) for each in claim.devices)
        return tuple(indexes.get(kind_key(published[key])) if key else None for key in keys)


def listed_demand(
    reader: RecordReader,
    claim: ClaimRecord,
    unclassified_pods: UnclassifiedPods,
    pods: Holders,
    allocated: AllocatedKinds | None,
) -> Vector:
    """Return the demand of a claim. pods: those with claims of their own. allocated: None if it is not known."""
    pod, demand = pods.get(claim.pod, (None, {}))
    kinds: Kinds = ()
    if allocated is not None and pod is not None and pod.has_for_good(claim):
        kinds = allocated.of_claim(claim, reader.catalogue.resource_mapping.device_kinds)
    own = {(pod.uid, pod.extended_claim): demand} if pod else {}
    return reader.demand_of_claim(claim, unclassified_pods, own, kinds)

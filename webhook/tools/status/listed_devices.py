"""The devices of ResourceSlices (DRA) with what claims have of them, from a list each of slices, claims, DeviceTaintRules."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TypeVar

import msgspec

from policies.gpus.claimed_devices import DeviceResult, decode_claim
from policies.gpus.device_slices import PoolSlice, SliceReader
from policies.gpus.stored_devices import DeviceTaintRule, StoredDevices, decode_taint_rule
from policies.quota.demand import Catalogue
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.configuration.dynamic_resources import DRA_VERSIONS, SLICE_VERSIONS, served_resource

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

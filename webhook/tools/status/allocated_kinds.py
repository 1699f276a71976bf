"""What listed ResourceClaims (DRA) count, as the controller counts: the devices that they have, or what they may get."""

from collections.abc import Mapping

from policies.gpus.device_kinds import DeviceKinds
from policies.gpus.device_pools import DevicePools
from policies.gpus.device_slices import kind_key
from policies.gpus.resource_mapping import ResourceMapping
from policies.quota.amounts import Vector
from policies.quota.demand import UnclassifiedPods
from webhook.quota.counted_records import ClaimRecord, Kinds, PodRecord, RecordReader
from webhook.tools.status.listed_devices import ListedSlices

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

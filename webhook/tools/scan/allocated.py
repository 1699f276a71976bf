"""The kinds of the devices (DRA) that claims have, by the ResourceSlices of a cluster in which nothing may be installed yet."""

from policies.gpus.device_kinds import DeviceKinds
from policies.gpus.device_pools import DevicePools
from policies.gpus.device_slices import kind_key
from policies.gpus.resource_mapping import ResourceMapping
from webhook.quota.counted_records import ClaimRecord, Kinds
from webhook.tools.status.listed_devices import ListedSlices


class AllocatedKinds:
    """mapping: says which drivers have GPUs, and what their partitions weigh by."""

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
        """Return the indexes of the kinds of its devices in the kinds of a catalogue. Empty if one is unknown."""
        indexes = {kind_key(kind): index for index, kind in enumerate(kinds.kinds)}
        published = self._pools.inventory.published
        keys = [self._pools.key_of(each.driver, each.pool, each.name) for each in claim.devices]
        found = [indexes.get(kind_key(published[key])) if key else None for key in keys]
        known = tuple(index for index in found if index is not None)
        return known if len(known) == len(found) else ()

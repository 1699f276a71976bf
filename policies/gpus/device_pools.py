"""The devices of a cluster by pools of ResourceSlices (DRA): all types of them, and which type a device is.

Pools with equal slices share one object, so 5,000 nodes take little more memory than their names.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import NamedTuple
from weakref import WeakValueDictionary

import msgspec

from policies.gpus.device_slices import (
    Combination,
    PoolSlice,
    SliceReader,
    build_device_types,
    coarsened,
    newest_complete_generation,
    type_key,
    types_of_devices,
)
from policies.gpus.device_types import NO_TAINTS, DeviceType, DeviceTypes, DeviceTypeTaints
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.pod import Toleration
from policies.pods.tolerations import toleration_text

PoolName = tuple[str, str]
"""A driver, and the name of a pool of it."""


class Inventory(msgspec.Struct, frozen=True):
    """The types of all devices at one moment.

    published: by the key of a type, the type to publish. dropped_attributes: removed from all, so that the types are few
    enough. per_node_counts: the distinct numbers of devices of one node, by the key of the published type. taints: by this
    key, the taints that all devices of a type have.
    """

    published: Mapping[bytes, DeviceType] = {}
    dropped_attributes: tuple[str, ...] = ()
    per_node_counts: tuple[Combination, ...] = ()
    taints: DeviceTypeTaints = NO_TAINTS

    @property
    def device_types(self) -> DeviceTypes:
        return build_device_types(self.published.values(), self.per_node_counts)


class _Devices:
    """The devices of a pool: the key of each one's type by its name, and how many there are by type and node."""

    def __init__(self) -> None:
        self.types: dict[str, bytes] = {}
        self.counts: defaultdict[str, Counter[bytes]] = defaultdict(Counter)


class _Pool(NamedTuple):
    """taints: those of devices, each with the name of the device."""

    node: str
    devices: _Devices
    taints: frozenset[tuple[str, Toleration]]


class DevicePools:
    """The pools of a cluster. `put` what was read, then `refresh`. One thread at a time."""

    def __init__(self) -> None:
        self.reader = SliceReader()
        self.inventory = Inventory()
        self._slices: defaultdict[PoolName, dict[str, PoolSlice]] = defaultdict(dict)
        self._due: set[PoolName] = set()
        self._inputs: object = None
        self._pools: dict[PoolName, _Pool] = {}
        self._shared: WeakValueDictionary[object, _Devices] = WeakValueDictionary()
        self._types: dict[bytes, DeviceType] = {}

    def put(self, uid: str, before: PoolSlice | None, after: PoolSlice | None) -> None:
        """Replace a slice by its new content. before=None: it was created. after=None: it was deleted."""
        if before is not None:
            of_pool = self._slices[before.pool]
            of_pool.pop(uid, None)
            if not of_pool:
                del self._slices[before.pool]
            self._due.add(before.pool)
        if after is not None:
            self._slices[after.pool][uid] = after
            self._due.add(after.pool)

    def refresh(self, mapping: ResourceMapping) -> bool:
        """Rebuild the inventory under a mapping if something was put, or the mapping changed. Return whether it did."""
        drivers = {driver for driver, _ in self._slices}
        facts = {
            driver: (mapping.device_class_pattern(driver) is None, mapping.weighed_counters(driver))
            for driver in drivers
        }
        inputs = facts, self.reader.dropped_attributes
        due = self._due | self._slices.keys() if inputs != self._inputs else self._due
        self._due, self._inputs = set(), inputs
        for name in due:
            slices = tuple(self._slices.get(name, {}).values())
            # The devices stay as they are until all slices of a newer generation are there.
            if newest := newest_complete_generation(slices):
                devices = self._devices(newest, mapping, facts[name[0]])
                taints = ((device, taint.without_time) for each in newest for device, taint in each.taints)
                self._pools[name] = _Pool(newest[0].node_name, devices, frozenset(taints))
            elif not slices:
                self._pools.pop(name, None)
        if due:
            self.inventory = self._build_inventory()
        return bool(due)

    def slices(self) -> list[PoolSlice]:
        return [pool_slice for of_pool in self._slices.values() for pool_slice in of_pool.values()]

    def type_key_of(self, driver: str, pool: str, device: str) -> bytes | None:
        """Return the key of the device's type. None if there is no such device, or its driver has no GPUs."""
        found = self._pools.get((driver, pool))
        return found.devices.types.get(device) if found else None

    def _devices(self, slices: tuple[PoolSlice, ...], mapping: ResourceMapping, facts: object) -> _Devices:
        layouts = frozenset(pool_slice.layout for pool_slice in slices)
        key = layouts, facts, self.reader.dropped_attributes
        devices = self._shared.get(key)
        if devices is None:
            devices = self._shared[key] = _Devices()
            types = types_of_devices(layouts, mapping, self.reader.dropped_attributes)
            keys = {shape: type_key(device_type) for shape, device_type in types.items()}
            self._types |= {keys[shape]: device_type for shape, device_type in types.items()}
            for layout in layouts:
                for name, shape, node in layout.devices:
                    if id(shape) in keys:
                        devices.types[name] = keys[id(shape)]
                        devices.counts[node][keys[id(shape)]] += 1
        return devices

    def _build_inventory(self) -> Inventory:
        by_node = defaultdict[str, list[Counter[bytes]]](list)
        pools = {id(devices): devices for _, devices, _ in self._pools.values()}
        for node, devices, _ in self._pools.values():
            for of_device, numbers in devices.counts.items():
                by_node[of_device or node].append(numbers)
        everywhere = by_node.pop("", [])
        present = {
            key for devices in pools.values() for numbers in devices.counts.values() for key in numbers
        }
        self._types = {key: self._types[key] for key in present}
        published, dropped = coarsened(self._types)
        keys = {key: type_key(device_type) for key, device_type in published.items()}
        distinct = {tuple(sorted(map(id, on_node))): on_node for on_node in by_node.values()}
        nodes = []
        for node_numbers in distinct.values() or ([],):
            total: Counter[bytes] = Counter()
            for numbers in (*node_numbers, *everywhere):
                for key, number in numbers.items():
                    total[keys[key]] += number
            nodes.append(total)
        return Inventory(published, dropped, tuple(filter(None, nodes)), self._common_taints(keys))

    def _common_taints(self, keys: Mapping[bytes, bytes]) -> DeviceTypeTaints:
        """Return the taints that all devices of a type have. keys: what is published of a type."""
        if not any(tainted for _, _, tainted in self._pools.values()):
            return NO_TAINTS
        common: dict[bytes, frozenset[Toleration]] = {}
        distinct = {(id(devices), tainted): devices for _, devices, tainted in self._pools.values()}
        for (_, tainted), devices in distinct.items():
            of_device = defaultdict[str, set[Toleration]](set)
            for name, taint in tainted:
                of_device[name].add(taint)
            for name, key in devices.types.items():
                taints = frozenset(of_device.get(name, ()))
                common[keys[key]] = common.get(keys[key], taints) & taints
        return {key: tuple(sorted(taints, key=toleration_text)) for key, taints in common.items() if taints}

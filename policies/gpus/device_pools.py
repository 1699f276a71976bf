"""The devices of a cluster by pools of ResourceSlices (DRA): all kinds of them, and which kind a device is.

Pools with equal slices share one object, so 5,000 nodes take little more memory than their names.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from weakref import WeakValueDictionary

import msgspec

from policies.gpus.device_kinds import NO_TAINTS, DeviceKind, DeviceKinds, KindTaints
from policies.gpus.device_slices import (
    Combination,
    PoolSlice,
    SliceReader,
    coarsened,
    device_kinds,
    kind_key,
    kinds_of_devices,
    newest_complete,
)
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.pod import Toleration
from policies.pods.tolerations import describe_toleration

PoolName = tuple[str, str]
"""A driver, and the name of a pool of it."""


class Inventory(msgspec.Struct, frozen=True):
    """The kinds of all devices at one moment.

    published: what to publish for each kind, by its key. left_out: names without which the kinds are few enough.
    nodes: the different numbers of devices that nodes reach, by the key of what is published. taints: by this key, what keeps
    claims away from all devices of a kind.
    """

    published: Mapping[bytes, DeviceKind] = {}
    left_out: tuple[str, ...] = ()
    nodes: tuple[Combination, ...] = ()
    taints: KindTaints = NO_TAINTS

    @property
    def device_kinds(self) -> DeviceKinds:
        return device_kinds(self.published.values(), self.nodes)


class _Devices:
    """The devices of a pool: the key of each one's kind by its name, and how many there are by kind and node."""

    def __init__(self) -> None:
        self.kinds: dict[str, bytes] = {}
        self.numbers: defaultdict[str, Counter[bytes]] = defaultdict(Counter)


_NO_DEVICES = _Devices()


class DevicePools:
    """The pools of a cluster. `put` what was read, then `count`. One thread at a time."""

    def __init__(self) -> None:
        self.reader = SliceReader()
        self.inventory = Inventory()
        self._slices: defaultdict[PoolName, dict[str, PoolSlice]] = defaultdict(dict)
        self._due: set[PoolName] = set()
        self._depends_on: object = None
        self._pools: dict[PoolName, tuple[str, _Devices, frozenset[tuple[str, Toleration]]]] = {}
        """The node and the devices of each pool, and taints with the name of the device."""
        self._shared: WeakValueDictionary[object, _Devices] = WeakValueDictionary()
        self._kinds: dict[bytes, DeviceKind] = {}

    def put(self, uid: str, before: PoolSlice | None, after: PoolSlice | None) -> None:
        """Replace a slice by its new content. None: it does not exist before, or any more."""
        if before is not None:
            of_pool = self._slices[before.pool]
            of_pool.pop(uid, None)
            if not of_pool:
                del self._slices[before.pool]
            self._due.add(before.pool)
        if after is not None:
            self._slices[after.pool][uid] = after
            self._due.add(after.pool)

    def count(self, mapping: ResourceMapping) -> bool:
        """Take over what was put, under a mapping. Return whether the kind of a device may differ."""
        drivers = {driver for driver, _ in self._slices}
        facts = {
            each: (mapping.device_class(each) is None, mapping.weighed_counters(each)) for each in drivers
        }
        depends_on = facts, self.reader.left_out
        due = self._due | self._slices.keys() if depends_on != self._depends_on else self._due
        self._due, self._depends_on = set(), depends_on
        for name in due:
            slices = tuple(self._slices.get(name, {}).values())
            # The devices stay as they are until all slices of a newer generation are there.
            if newest := newest_complete(slices):
                devices = self._devices(newest, mapping, facts[name[0]])
                taints = ((device, taint.timeless) for each in newest for device, taint in each.taints)
                self._pools[name] = newest[0].node_name, devices, frozenset(taints)
            elif not slices:
                self._pools.pop(name, None)
        if due:
            self.inventory = self._counted()
        return bool(due)

    def slices(self) -> list[PoolSlice]:
        return [each for of_pool in self._slices.values() for each in of_pool.values()]

    def key_of(self, driver: str, pool: str, device: str) -> bytes | None:
        """Return the key of the device's kind. None if there is no such device, or its driver has no GPUs."""
        return self._pools.get((driver, pool), ("", _NO_DEVICES, frozenset()))[1].kinds.get(device)

    def _devices(self, slices: tuple[PoolSlice, ...], mapping: ResourceMapping, facts: object) -> _Devices:
        layouts = frozenset(each.layout for each in slices)
        key = layouts, facts, self.reader.left_out
        devices = self._shared.get(key)
        if devices is None:
            devices = self._shared[key] = _Devices()
            kinds = kinds_of_devices(layouts, mapping, self.reader.left_out)
            keys = {shape: kind_key(kind) for shape, kind in kinds.items()}
            self._kinds |= {keys[shape]: kind for shape, kind in kinds.items()}
            for layout in layouts:
                for name, shape, node in layout.devices:
                    if id(shape) in keys:
                        devices.kinds[name] = keys[id(shape)]
                        devices.numbers[node][keys[id(shape)]] += 1
        return devices

    def _counted(self) -> Inventory:
        by_node = defaultdict[str, list[Counter[bytes]]](list)
        pools = {id(devices): devices for _, devices, _ in self._pools.values()}
        for node, devices, _ in self._pools.values():
            for of_device, numbers in devices.numbers.items():
                by_node[of_device or node].append(numbers)
        everywhere = by_node.pop("", [])
        present = {
            key for devices in pools.values() for numbers in devices.numbers.values() for key in numbers
        }
        self._kinds = {key: self._kinds[key] for key in present}
        published, left_out = coarsened(self._kinds)
        keys = {key: kind_key(kind) for key, kind in published.items()}
        different = {tuple(sorted(map(id, each))): each for each in by_node.values()}
        nodes = []
        for node_numbers in different.values() or ([],):
            total: Counter[bytes] = Counter()
            for numbers in (*node_numbers, *everywhere):
                for key, number in numbers.items():
                    total[keys[key]] += number
            nodes.append(total)
        return Inventory(published, left_out, tuple(filter(None, nodes)), self._common_taints(keys))

    def _common_taints(self, keys: Mapping[bytes, bytes]) -> KindTaints:
        """Return the taints that all devices of a kind have. keys: what is published of a kind."""
        if not any(tainted for _, _, tainted in self._pools.values()):
            return NO_TAINTS
        common: dict[bytes, frozenset[Toleration]] = {}
        different = {(id(devices), tainted): devices for _, devices, tainted in self._pools.values()}
        for (_, tainted), devices in different.items():
            of_device = defaultdict[str, set[Toleration]](set)
            for name, taint in tainted:
                of_device[name].add(taint)
            for name, key in devices.kinds.items():
                taints = frozenset(of_device.get(name, ()))
                common[keys[key]] = common.get(keys[key], taints) & taints
        return {key: tuple(sorted(each, key=describe_toleration)) for key, each in common.items() if each}

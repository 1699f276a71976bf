"""ResourceSlices (DRA): which of them count, and of which types their devices are.

A driver publishes the devices of a pool in one or more slices. A pool counts by its newest generation, once all slices of that
exist (`GatherPools` in `k8s.io/dynamic-resource-allocation/structured` of Kubernetes 1.37). Devices that are parts of one card
consume its counters; a whole card consumes all of them.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import partial
from math import ceil
from sys import intern
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from policies.gpus.device_types import CARD_PARTS, DeviceAttribute, DeviceCapacity, DeviceType, DeviceTypes
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.pod import Toleration, View
from policies.pods.quantity import QuantityError, QuantityText, parse_quantity

_IDENTITY_NAMES = re.compile(
    r"(parent)?(uuid|index|minor|serial)|(gpu)?moduleid|pci(bus)?(id|addr|address|e?root)|numa(node)?|(card|render)index"
    r"|partition\d+|memoryslice\d+",
    re.IGNORECASE,
)
"""Names, without their domain, of what tells a device from others of its type, or where it is: of drivers of NVIDIA, AMD, Intel
and Google (their sources), and the standard ones (`deviceattribute` in `k8s.io/dynamic-resource-allocation`)."""

MAX_VALUES = 100
"""An attribute or capacity that has more values in a cluster tells devices apart, and not their types."""
MAX_TYPES, MAX_BYTES = 250, 200 * 1024
"""Types that are published, and bytes of their JSON. Each catalogue has them, and a ConfigMap of 1 MiB has several catalogues."""
MAX_COMBINATIONS, MAX_COUNTS = 250, 10_000
"""Distinct combinations of devices on nodes, which are compared in pairs, and the numbers in all of them, some 9 bytes each."""
MAX_SHAPES = 50_000
"""Shapes of devices that are cached, some 1 KB each. A node with 8 cards of 20 placements has 168 shapes."""


class CounterValue(View, frozen=True):
    value: QuantityText = None


class CounterSet(View, frozen=True):
    """The counters of a card (`name`), or what a device consumes of them (`counter_set`)."""

    name: str = ""
    counter_set: str = ""
    counters: dict[str, CounterValue] = msgspec.field(default_factory=dict)


class DeviceTaint(Toleration, frozen=True):
    """A taint of a device. Effects besides NoSchedule and NoExecute keep no claim away."""

    time_added: datetime | None = None

    @property
    def blocks_allocation(self) -> bool:
        return self.effect in {"NoSchedule", "NoExecute"}

    @property
    def without_time(self) -> Toleration:
        return Toleration(key=self.key, value=self.value, effect=self.effect)


class SliceDevice(View, frozen=True):
    name: str = ""
    attributes: dict[str, DeviceAttribute] | None = None
    capacity: msgspec.Raw = msgspec.Raw(b"null")
    consumes_counters: msgspec.Raw = msgspec.Raw(b"null")
    """Equal capacities, or counters, of several devices are decoded once."""
    node_name: str = ""
    allow_multiple_allocations: bool | None = None
    taints: tuple[DeviceTaint, ...] | None = None


class SlicePool(View, frozen=True):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 1


class SliceSpec(View, frozen=True):
    driver: str = ""
    pool: SlicePool = SlicePool()
    node_name: str = ""
    devices: tuple[SliceDevice, ...] | None = None
    shared_counters: tuple[CounterSet, ...] | None = None


class ResourceSlice(View, frozen=True):
    """The fields that are read of a ResourceSlice of resource.k8s.io v1 or v1beta2."""

    spec: SliceSpec = SliceSpec()


_SLICE = msgspec.json.Decoder(ResourceSlice).decode
_CAPACITY = msgspec.json.Decoder(dict[str, DeviceCapacity] | None).decode
_CONSUMES = msgspec.json.Decoder(tuple[CounterSet, ...] | None).decode

Counters = tuple[tuple[str, CounterValue], ...]


class DeviceShape(msgspec.Struct, frozen=True, cache_hash=True):
    """The fields that are read of a device. Devices of one shape share it. `unknown` are the names that are left out."""

    attributes: tuple[tuple[str, DeviceAttribute], ...]
    capacity: tuple[tuple[str, DeviceCapacity], ...]
    unknown: tuple[str, ...]
    consumes: tuple[tuple[str, Counters], ...]
    """By name of a card's counters."""
    is_shared: bool


class LayoutDevice(NamedTuple):
    """node: where the device says so, else ""."""

    name: str
    shape: DeviceShape
    node: str


class SliceLayout(msgspec.Struct, frozen=True, cache_hash=True):
    """The devices of a slice. Equal slices of nodes share it."""

    driver: str
    devices: tuple[LayoutDevice, ...] = ()
    counters: tuple[tuple[str, Counters], ...] = ()


class PoolSlice(msgspec.Struct, frozen=True):
    """What is read of a ResourceSlice. `pool`: the driver, and the name of the pool."""

    pool: tuple[str, str]
    generation: int
    slice_count: int
    """The number of slices of this generation."""
    node_name: str
    layout: SliceLayout
    taints: tuple[tuple[str, DeviceTaint], ...] = ()
    """Those that keep claims from a device, with its name. No type depends on them, because they come and go."""


class SliceReader:
    """Reads slices into shared layouts, and drops the qualified names with more than MAX_VALUES values."""

    def __init__(self) -> None:
        self.dropped_attributes: frozenset[str] = frozenset()
        self._values: defaultdict[str, set[DeviceAttribute | DeviceCapacity]] = defaultdict(set)
        self._shapes: dict[object, DeviceShape] = {}
        self._layouts: dict[SliceLayout, SliceLayout] = {}
        self._read_names: defaultdict[str, _ReadNames] = defaultdict(_ReadNames)
        """By driver."""

    def read(self, document: bytes | msgspec.Raw) -> PoolSlice:
        """Return what is read of a ResourceSlice in JSON. Raises msgspec.ValidationError for a field of the wrong type."""
        spec = _SLICE(document).spec
        layout = SliceLayout(
            spec.driver,
            tuple(
                LayoutDevice(device.name, self._shape(spec.driver, device), device.node_name)
                for device in spec.devices or ()
            ),
            tuple((counter.name, _items(counter)) for counter in spec.shared_counters or ()),
        )
        if len(self._layouts) > MAX_SHAPES:
            self._layouts.clear()
        return PoolSlice(
            (spec.driver, intern(spec.pool.name)),
            spec.pool.generation,
            spec.pool.resource_slice_count,
            intern(spec.node_name),
            self._layouts.setdefault(layout, layout),
            tuple(
                (device.name, taint)
                for device in spec.devices or ()
                for taint in device.taints or ()
                if taint.blocks_allocation
            ),
        )

    def _shape(self, driver: str, device: SliceDevice) -> DeviceShape:
        attributes, is_read = device.attributes or {}, self._read_names[driver]
        key = (
            driver,
            tuple(attributes),
            tuple([attribute for attribute in attributes.items() if is_read[attribute[0]]]),
            bytes(device.capacity),
            bytes(device.consumes_counters),
            device.allow_multiple_allocations,
        )
        shape = self._shapes.get(key)
        return self._new_shape(key, driver, device) if shape is None else shape

    def _new_shape(self, key: object, driver: str, device: SliceDevice) -> DeviceShape:
        attributes, capacity = device.attributes or {}, _CAPACITY(device.capacity) or {}
        is_read = self._read_names[driver]
        is_shared = device.allow_multiple_allocations is True
        drops_capacity = is_shared and not all(is_read[name] for name in capacity)  # as `without_values`
        dropped = {
            name
            for name in (*attributes, *capacity)
            if not is_read[name] or (drops_capacity and name in capacity)
        }
        shape = DeviceShape(
            tuple(attribute for attribute in attributes.items() if attribute[0] not in dropped),
            tuple(measured for measured in capacity.items() if measured[0] not in dropped),
            tuple(sorted(dropped)),
            tuple((each.counter_set, _items(each)) for each in _CONSUMES(device.consumes_counters) or ()),
            is_shared,
        )
        values_by_name: Iterable[tuple[str, DeviceAttribute | DeviceCapacity]] = (
            *shape.attributes,
            *shape.capacity,
        )
        for name, value in values_by_name:
            values = self._values[qualified_name(driver, name)]
            values.add(value)
            if len(values) > MAX_VALUES:
                is_read[name] = False
                self.dropped_attributes |= {qualified_name(driver, name)}
                values.clear()
        if len(self._shapes) > MAX_SHAPES:
            self._shapes.clear()
        self._shapes[key] = shape
        return shape


class _ReadNames(dict[str, bool]):
    """Whether the values of a name are read."""

    def __missing__(self, name: str) -> bool:
        is_read = self[name] = not _IDENTITY_NAMES.fullmatch(name.rpartition("/")[2])
        return is_read


def _items(counters: CounterSet) -> Counters:
    return tuple(counters.counters.items())


def qualified_name(driver: str, name: str) -> str:
    """Return the name as selectors see it: a name without a domain is in the domain of the driver."""
    return name if "/" in name else f"{driver}/{name}"


def newest_complete_generation(slices: Iterable[PoolSlice]) -> tuple[PoolSlice, ...]:
    """Return the slices of the newest generation of a pool, none while some of them are missing."""
    slices = tuple(slices)
    newest = max((pool_slice.generation for pool_slice in slices), default=0)
    complete = tuple(pool_slice for pool_slice in slices if pool_slice.generation == newest)
    return complete if complete and len(complete) == complete[0].slice_count else ()


def types_of_devices(
    layouts: Iterable[SliceLayout], mapping: ResourceMapping, dropped: Collection[str] = ()
) -> dict[int, DeviceType]:
    """Return the types of the shapes in the slices of a pool by their `id`. Devices of drivers without GPUs have none."""
    layouts = tuple(layouts)
    counter_sets = {name: dict(counters) for layout in layouts for name, counters in layout.counters}
    shapes = {id(shape): (layout.driver, shape) for layout in layouts for _, shape, _ in layout.devices}
    return {
        key: _device_type(driver, shape, counter_sets, mapping.weighed_counters(driver), dropped)
        for key, (driver, shape) in shapes.items()
        if mapping.device_class_pattern(driver) is not None
    }


def _device_type(
    driver: str,
    shape: DeviceShape,
    counter_sets: Mapping[str, Mapping[str, CounterValue]],
    weighed: Collection[str],
    dropped: Collection[str],
) -> DeviceType:
    attributes = {qualified_name(driver, name): value for name, value in sorted(shape.attributes)}
    capacity = {qualified_name(driver, name): value for name, value in sorted(shape.capacity)}
    device_type = DeviceType(
        driver=driver,
        attributes=attributes,
        capacity=capacity,
        unknown_names=tuple(sorted(qualified_name(driver, name) for name in shape.unknown)),
        card_parts=ceil(_cards_taken(shape, counter_sets, weighed) * CARD_PARTS),
        is_shared=shape.is_shared,
        weighed_capacities=tuple(filter(partial(_is_weighed, weighed), capacity)) if shape.is_shared else (),
    )
    # Lists of values (alpha in 1.37), and types of later versions.
    unread = (name for name, value in attributes.items() if value == DeviceAttribute())
    return without_values(device_type, {*dropped, *unread})


def _cards_taken(
    shape: DeviceShape, counter_sets: Mapping[str, Mapping[str, CounterValue]], weighed: Collection[str]
) -> Fraction:
    """Return the cards that the device takes: the largest share of the weighed counters, summed over the cards.

    A device that consumes no weighed counter takes a whole card, and so does one of a card whose counters are missing.
    """
    shares = [_share_of_card(consumed, counter_sets.get(name), weighed) for name, consumed in shape.consumes]
    return sum(shares, Fraction(0)) or Fraction(1)


def _share_of_card(
    consumed: Counters, counters: Mapping[str, CounterValue] | None, weighed: Collection[str]
) -> Fraction:
    if counters is None:
        return Fraction(1)
    try:
        amounts, of_card = _sums_by_pattern(consumed, weighed), _sums_by_pattern(counters.items(), weighed)
    except QuantityError:  # only in manifests: the API server stores none
        return Fraction(1)
    shares = (min(amounts[key] / of_card[key], Fraction(1)) for key in amounts if of_card.get(key))
    return max(shares, default=Fraction(0))


def _is_weighed(weighed: Collection[str], name: str) -> bool:
    """Whether shares weigh by the capacity of this qualified name: by all without patterns."""
    return not weighed or any(fnmatchcase(name.rpartition("/")[2], pattern) for pattern in weighed)


def _sums_by_pattern(
    counters: Iterable[tuple[str, CounterValue]], weighed: Collection[str]
) -> Mapping[str, Fraction]:
    """Add up the amounts of the counters that match a pattern. Without patterns, each counter is weighed alone."""
    amounts = defaultdict[str, Fraction](Fraction)
    for name, counter in counters:
        for pattern in weighed or (name,):
            if fnmatchcase(name, pattern):
                amounts[pattern] += Fraction(parse_quantity(counter.value).nano)
    return amounts


def type_key(device_type: DeviceType) -> bytes:
    """Return a text that equal types have in common."""
    return msgspec.json.encode(device_type, order="deterministic")


Combination = Mapping[bytes, int]
"""Numbers of devices by the key of their type."""


def build_device_types(types: Iterable[DeviceType], nodes: Iterable[Combination]) -> DeviceTypes:
    """Return the types in the order of their keys, with the combinations of nodes that no other one exceeds."""
    by_key = {type_key(device_type): device_type for device_type in types}
    indexes = {key: index for index, key in enumerate(sorted(by_key))}
    distinct = {tuple(sorted(node.items())): node for node in nodes}
    if len(distinct) > MAX_COMBINATIONS:
        distinct = {}
    largest = [
        one
        for one in distinct.values()
        if not any(one is not other and _exceeds(other, one) for other in distinct.values())
    ]
    if sum(map(len, largest)) > MAX_COUNTS:
        largest = []
    numbered = [dict(sorted((indexes[key], number) for key, number in counts.items())) for counts in largest]
    return DeviceTypes(
        tuple(by_key[key] for key in indexes), tuple(sorted(numbered, key=lambda counts: [*counts.items()]))
    )


def _exceeds(one: Combination, other: Combination) -> bool:
    return all(one.get(key, 0) >= number for key, number in other.items())


def merge_device_types(*catalogues: DeviceTypes) -> DeviceTypes:
    """Return all types of several catalogues, and the largest combinations of their nodes."""
    types = [device_type for catalogue in catalogues for device_type in catalogue.types]
    return build_device_types(types, [node for catalogue in catalogues for node in combinations(catalogue)])


def combinations(types: DeviceTypes) -> list[Combination]:
    """Return the combinations of nodes by keys of types."""
    keys = [type_key(device_type) for device_type in types.types]
    return [{keys[index]: number for index, number in node.items()} for node in types.per_node_counts]


def coarsened(types: Mapping[bytes, DeviceType]) -> tuple[dict[bytes, DeviceType], tuple[str, ...]]:
    """Return the types to publish by the keys of those given, and the names that were left out so that they are not too many.

    First all versions are left out, which change with every upgrade, then one by one the name with the most values. If the
    parts of cards alone are too many, a driver has one type, as large as its largest device, and one of shared devices.
    """
    dropped: list[str] = []
    coarse = dict(types)
    while are_too_many(coarse.values()):
        values = defaultdict[str, set[object]](set)
        versions = set[str]()
        for device_type in coarse.values():
            for name, value in (*device_type.attributes.items(), *device_type.capacity.items()):
                values[name].add(value)
                if isinstance(value, DeviceAttribute) and value.version is not None:
                    versions.add(name)
        names = versions or ({max(values, key=lambda name: (len(values[name]), name))} if values else set())
        dropped += sorted(names)
        if not names:
            return _by_driver(coarse), tuple(dropped)
        coarse = {key: without_values(device_type, names) for key, device_type in coarse.items()}
    return coarse, tuple(dropped)


def are_too_many(types: Iterable[DeviceType]) -> bool:
    """Whether they are more than can be published."""
    distinct = {type_key(device_type) for device_type in types}
    return len(distinct) > MAX_TYPES or sum(map(len, distinct)) > MAX_BYTES


def without_values(device_type: DeviceType, names: Collection[str]) -> DeviceType:
    """Return the type without the values of these attributes and capacities.

    A share of a device weighs by all its capacities, so a shared device has either all of them or none.
    """
    dropped = {*names} & {*device_type.attributes, *device_type.capacity}
    if device_type.is_shared and dropped & device_type.capacity.keys():
        dropped |= device_type.capacity.keys()
    return replace(
        device_type,
        attributes={name: value for name, value in device_type.attributes.items() if name not in dropped},
        capacity={name: value for name, value in device_type.capacity.items() if name not in dropped},
        unknown_names=tuple(sorted({*device_type.unknown_names, *dropped})),
    )


def _by_driver(types: Mapping[bytes, DeviceType]) -> dict[bytes, DeviceType]:
    members = defaultdict[tuple[str, bool], list[DeviceType]](list)
    for device_type in types.values():
        members[device_type.driver, device_type.is_shared].append(device_type)
    merged = {
        (driver, is_shared): DeviceType(
            driver=driver,
            unknown_names=tuple(
                sorted({name for device_type in alike for name in device_type.unknown_names})
            ),
            card_parts=max(device_type.card_parts for device_type in alike),
            is_shared=is_shared,
        )
        for (driver, is_shared), alike in members.items()
    }
    return {key: merged[device_type.driver, device_type.is_shared] for key, device_type in types.items()}

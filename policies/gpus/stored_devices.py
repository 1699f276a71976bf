"""The devices of a cluster (DRA): what is allocated or free, what keeps claims away, and why no device satisfies a request.

Partitions of a card overlap, so they are not added up: a card has what its allocated partitions leave, if one of its other
partitions still fits into its counters.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from typing import NamedTuple

import msgspec

from policies.gpus.cards import ONE_CARD, device_weight
from policies.gpus.claimed_devices import DeviceRequest, DeviceResult
from policies.gpus.classes import GPUClasses
from policies.gpus.device_pools import PoolName
from policies.gpus.device_selectors import possible_types
from policies.gpus.device_slices import (
    CounterValue,
    DeviceShape,
    DeviceTaint,
    LayoutDevice,
    PoolSlice,
    SliceLayout,
    newest_complete_generation,
    types_of_devices,
)
from policies.gpus.device_types import DeviceType, DeviceTypes
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.pod import View
from policies.pods.quantity import QuantityError, parse_quantity
from policies.pods.tolerations import tolerated

CounterAmounts = Mapping[str, Mapping[str, int]]
"""By the name of a card's counter set, its counters: amounts in nano units by name."""


class CardUse(NamedTuple):
    """A card of a node, in parts of it. Nothing can be allocated of what is neither allocated nor free: it is blocked.

    device_type: of its largest device. node: where the device says so, "" for the node of its pool.
    """

    node: str
    device_type: DeviceType
    allocated: Fraction
    free: Fraction

    @property
    def blocked(self) -> Fraction:
        return ONE_CARD - self.allocated - self.free


def cards_of_pool(
    layouts: Collection[SliceLayout],
    types: Mapping[int, DeviceType],
    held: Mapping[str, Fraction],
    tainted: Collection[str] = (),
) -> Iterator[CardUse]:
    """Yield the cards of a pool. layouts: those of the slices of its newest complete generation.

    types: by `id` of a shape (`types_of_devices`); devices without a type do not count as GPUs. held: what is allocated of a
    device, in cards. tainted: devices with a taint that keeps claims away.
    """
    by_card = defaultdict[str, list[LayoutDevice]](list)
    for device in (device for layout in layouts for device in layout.devices):
        if id(device.shape) in types:
            for card in [each for each, _ in device.shape.consumes] or [f"device {device.name}"]:
                by_card[card].append(device)
    remaining = counters_left(layouts, held)
    for devices in by_card.values():
        largest = max(devices, key=lambda device: types[id(device.shape)].card_parts)
        # A device of several cards takes the same part of each.
        parts = (held.get(device.name, Fraction(0)) / (len(device.shape.consumes) or 1) for device in devices)
        taken = min(sum(parts, Fraction(0)), ONE_CARD)
        has_free = taken < ONE_CARD and any(
            device.name not in tainted
            and can_be_allocated(device.shape, remaining, is_allocated=device.name in held)
            for device in devices
        )
        free = ONE_CARD - taken if has_free else Fraction(0)
        yield CardUse(largest.node, types[id(largest.shape)], taken, free)


def counters_left(layouts: Collection[SliceLayout], held: Collection[str]) -> CounterAmounts:
    """Return what the devices in `held` leave of the counters of a pool."""
    left = defaultdict(
        Counter, {name: _counter_amounts(values) for layout in layouts for name, values in layout.counters}
    )
    for device in (device for layout in layouts for device in layout.devices):
        for card, values in device.shape.consumes if device.name in held else ():
            left[card].subtract(_counter_amounts(values))
    return left


def can_be_allocated(shape: DeviceShape, remaining: CounterAmounts, *, is_allocated: bool) -> bool:
    """Whether a device, or another share of it, can still be allocated."""
    # All shares of a device consume its counters once.
    if is_allocated:
        return shape.is_shared
    needed = ((remaining.get(card, {}), _counter_amounts(values)) for card, values in shape.consumes)
    return all(
        of_card.get(name, 0) >= amount for of_card, amounts in needed for name, amount in amounts.items()
    )


def _counter_amounts(values: Iterable[tuple[str, CounterValue]]) -> Counter[str]:
    """Return counters in nano units. One that cannot be read, which only a driver can write, is left out."""
    amounts = Counter[str]()
    for name, value in values:
        with suppress(QuantityError):
            amounts[name] = parse_quantity(value.value).nano
    return amounts


class DeviceTaintSelector(View, frozen=True):
    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(View, frozen=True):
    device_selector: DeviceTaintSelector | None = None
    taint: DeviceTaint = DeviceTaint()


class DeviceTaintRule(View, frozen=True):
    """The fields of a DeviceTaintRule that are read. A rule without a selector taints no device."""

    spec: DeviceTaintRuleSpec = DeviceTaintRuleSpec()

    def matches(self, pool: PoolName, device: str) -> bool:
        selector = self.spec.device_selector
        if selector is None:
            return False
        wanted = selector.driver, selector.pool, selector.device
        return all(value in {None, has} for value, has in zip(wanted, (*pool, device), strict=True))


# Return the view of an object in JSON. Its `msgspec.ValidationError` names the path of a field of the wrong type.
decode_taint_rule = msgspec.json.Decoder(DeviceTaintRule).decode


class StoredPool(NamedTuple):
    """slices: those of its newest complete generation. types: by `id` of a shape; other shapes are of drivers without GPUs."""

    slices: tuple[PoolSlice, ...]
    types: Mapping[int, DeviceType]

    @property
    def devices(self) -> list[LayoutDevice]:
        return [device for pool_slice in self.slices for device in pool_slice.layout.devices]


class DeviceCounts(msgspec.Struct, frozen=True):
    """Numbers of devices for a request: of its DeviceClass, and of those the ones that its selectors select.

    unavailable: of the selected, those that are allocated, or on a card without enough room. tainted: of the others, those whose
    taints the claim does not tolerate. taints: of these, without duplicates, newest first.
    """

    of_class: int = 0
    selected: int = 0
    unavailable: int = 0
    tainted: int = 0
    taints: tuple[DeviceTaint, ...] = ()

    @property
    def free(self) -> int:
        return self.selected - self.unavailable - self.tainted


class StoredDevices:
    """What ResourceSlices, the allocations of claims and DeviceTaintRules say together.

    allocated: the results of all claims. dropped_attributes: names of attributes that the reader dropped for their many values.
    """

    def __init__(
        self,
        slices: Iterable[PoolSlice],
        mapping: ResourceMapping,
        gpu_classes: GPUClasses,
        allocated: Iterable[DeviceResult],
        *,
        dropped_attributes: Collection[str] = (),
        rules: Sequence[DeviceTaintRule] = (),
    ) -> None:
        self._rules = [rule for rule in rules if rule.spec.taint.blocks_allocation]
        by_pool = defaultdict[PoolName, list[PoolSlice]](list)
        for pool_slice in slices:
            by_pool[pool_slice.pool].append(pool_slice)
        shared: dict[object, Mapping[int, DeviceType]] = {}
        self._pools: dict[PoolName, StoredPool] = {}
        for name, of_pool in by_pool.items():
            newest = newest_complete_generation(of_pool)
            layouts = tuple(pool_slice.layout for pool_slice in newest)
            if layouts not in shared:
                shared[layouts] = types_of_devices(layouts, mapping, dropped_attributes)
            self._pools[name] = StoredPool(newest, shared[layouts])
        self._allocated = self._allocated_shares(allocated, gpu_classes)

    def _allocated_shares(
        self, allocated: Iterable[DeviceResult], gpu_classes: GPUClasses
    ) -> dict[PoolName, dict[str, Fraction]]:
        """Return how much of each device is allocated, in cards, by pool and device."""
        results = defaultdict[PoolName, list[DeviceResult]](list)
        for result in allocated:
            if not result.admin_access:
                results[result.driver, result.pool].append(result)
        shares: dict[PoolName, dict[str, Fraction]] = {}
        for name in results.keys() & self._pools.keys():
            pool, of_pool = self._pools[name], shares.setdefault(name, {})
            shapes = {device.name: device.shape for device in pool.devices}
            for device_result in results[name]:
                device_type = pool.types.get(id(shapes.get(device_result.device)))
                if device_type is not None:
                    weight = device_weight(device_type, gpu_classes, device_result.consumed_capacity or {})
                    of_pool[device_result.device] = of_pool.get(device_result.device, Fraction(0)) + weight
        return shares

    def cards_by_node(self) -> dict[str, list[CardUse]]:
        """Return the cards by node. Cards that several nodes reach have the key ""."""
        by_node = defaultdict[str, list[CardUse]](list)
        # Most of 5,000 nodes have the same cards, with the same ones allocated.
        cached: dict[object, tuple[CardUse, ...]] = {}
        for name, (slices, types) in self._pools.items():
            shares, tainted = self._allocated.get(name, {}), frozenset(self._taints(name))
            key = id(types), frozenset(shares.items()), tainted
            if key not in cached:
                layouts = [pool_slice.layout for pool_slice in slices]
                cached[key] = tuple(cards_of_pool(layouts, types, shares, tainted))
            for card in cached[key]:
                by_node[card.node or slices[0].node_name].append(card)
        return dict(by_node)

    def _taints(self, pool: PoolName) -> dict[str, list[DeviceTaint]]:
        """Return the taints that keep claims from devices of a pool, by device."""
        taints = defaultdict[str, list[DeviceTaint]](list)
        for name, taint in (tainted for each in self._pools[pool].slices for tainted in each.taints):
            taints[name].append(taint)
        for rule in self._rules:
            for device in self._pools[pool].devices:
                if rule.matches(pool, device.name):
                    taints[device.name].append(rule.spec.taint)
        return taints

    def counts_for(self, request: DeviceRequest, class_selectors: Iterable[str]) -> DeviceCounts:
        """Count the devices for a request without alternatives. class_selectors: the selectors of its DeviceClass."""
        types = tuple(
            {
                id(device_type): device_type
                for pool in self._pools.values()
                for device_type in pool.types.values()
            }.values()
        )
        in_class, selected = (
            {id(types[index]) for index in possible_types(each, DeviceTypes(types))}
            for each in (class_selectors, request.expressions)
        )
        numbers, taints = Counter[str](), dict[DeviceTaint, None]()
        for name, pool in self._pools.items():
            held = self._allocated.get(name, {})
            remaining, taints_of = (
                counters_left([pool_slice.layout for pool_slice in pool.slices], held),
                self._taints(name),
            )
            for device in pool.devices:
                device_type = pool.types.get(id(device.shape))
                numbers["of_class"] += id(device_type) in in_class
                if id(device_type) not in in_class & selected:
                    continue
                of_device = taints_of.get(device.name, ())
                untolerated = [taint for taint in of_device if not tolerated(taint, request.tolerations)]
                numbers["selected"] += 1
                if not can_be_allocated(device.shape, remaining, is_allocated=device.name in held):
                    numbers["unavailable"] += 1
                elif untolerated:
                    numbers["tainted"] += 1
                    taints |= dict.fromkeys(untolerated)
        newest = sorted(taints, key=lambda taint: taint.time_added.timestamp() if taint.time_added else 0.0)
        return DeviceCounts(**numbers, taints=tuple(reversed(newest)))

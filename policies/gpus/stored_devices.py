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

from policies.gpus.cards import WHOLE, device_weight
from policies.gpus.claimed_devices import DeviceRequest, DeviceResult
from policies.gpus.classes import GPUClasses
from policies.gpus.device_kinds import DeviceKind, DeviceKinds
from policies.gpus.device_pools import PoolName
from policies.gpus.device_selectors import possible_kinds
from policies.gpus.device_slices import (
    CounterValue,
    DeviceShape,
    DeviceTaint,
    LayoutDevice,
    PoolSlice,
    SliceLayout,
    kinds_of_devices,
    newest_complete,
)
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.pod import View
from policies.pods.quantity import QuantityError, parse_quantity
from policies.pods.tolerations import tolerated

CounterAmounts = Mapping[str, Mapping[str, int]]
"""By the name of a card's counter set, its counters: amounts in nano units by name."""


class CardUse(NamedTuple):
    """A card of a node, in parts of it. Nothing can be allocated of what is neither allocated nor free: it is blocked.

    kind: of its largest device. node: where the device says so, "" for the node of its pool.
    """

    node: str
    kind: DeviceKind
    allocated: Fraction
    free: Fraction

    @property
    def blocked(self) -> Fraction:
        return WHOLE - self.allocated - self.free


def cards_of_pool(
    layouts: Collection[SliceLayout],
    kinds: Mapping[int, DeviceKind],
    held: Mapping[str, Fraction],
    unusable: Collection[str] = (),
) -> Iterator[CardUse]:
    """Yield the cards of a pool. layouts: those of the slices of its newest complete generation.

    kinds: by `id` of a shape (`kinds_of_devices`); devices without a kind do not count as GPUs. held: what is allocated of a
    device, in cards. unusable: devices with a taint that keeps claims away.
    """
    by_card = defaultdict[str, list[LayoutDevice]](list)
    for device in (device for layout in layouts for device in layout.devices):
        if id(device.shape) in kinds:
            for card in [each for each, _ in device.shape.consumes] or [f"device {device.name}"]:
                by_card[card].append(device)
    left = counters_left(layouts, held)
    for devices in by_card.values():
        largest = max(devices, key=lambda each: kinds[id(each.shape)].parts)
        # A device of several cards takes the same part of each.
        parts = (held.get(each.name, Fraction(0)) / (len(each.shape.consumes) or 1) for each in devices)
        allocated = min(sum(parts, Fraction(0)), WHOLE)
        has_free = allocated < WHOLE and any(
            each.name not in unusable and fits(each.shape, left, is_held=each.name in held)
            for each in devices
        )
        free = WHOLE - allocated if has_free else Fraction(0)
        yield CardUse(largest.node, kinds[id(largest.shape)], allocated, free)


def counters_left(layouts: Collection[SliceLayout], held: Collection[str]) -> CounterAmounts:
    """Return what the devices in `held` leave of the counters of a pool."""
    left = defaultdict(
        Counter, {name: _amounts(values) for each in layouts for name, values in each.counters}
    )
    for device in (device for layout in layouts for device in layout.devices):
        for card, values in device.shape.consumes if device.name in held else ():
            left[card].subtract(_amounts(values))
    return left


def fits(shape: DeviceShape, left: CounterAmounts, *, is_held: bool) -> bool:
    """Whether a device, or another share of it, can still be allocated."""
    # All shares of a device consume its counters once.
    if is_held:
        return shape.is_shared
    needed = ((left.get(card, {}), _amounts(values)) for card, values in shape.consumes)
    return all(
        of_card.get(name, 0) >= amount for of_card, amounts in needed for name, amount in amounts.items()
    )


def _amounts(values: Iterable[tuple[str, CounterValue]]) -> Counter[str]:
    """Return counters in nano units. One that cannot be read, which only a driver can write, is left out."""
    amounts = Counter[str]()
    for name, each in values:
        with suppress(QuantityError):
            amounts[name] = parse_quantity(each.value).nano
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
        return all(each in {None, has} for each, has in zip(wanted, (*pool, device), strict=True))


# Return the view of an object in JSON. Its `msgspec.ValidationError` names the path of a field of the wrong type.
decode_taint_rule = msgspec.json.Decoder(DeviceTaintRule).decode


class StoredPool(NamedTuple):
    """slices: those of its newest complete generation. kinds: by `id` of a shape; other shapes are of drivers without GPUs."""

    slices: tuple[PoolSlice, ...]
    kinds: Mapping[int, DeviceKind]

    @property
    def devices(self) -> list[LayoutDevice]:
        return [device for each in self.slices for device in each.layout.devices]


class DeviceCounts(msgspec.Struct, frozen=True):
    """Numbers of devices for a request: of its DeviceClass, and of those the ones that its selectors select.

    allocated: of the selected, those that are allocated, or on a card without enough room. tainted: of the others, those whose
    taints the claim does not tolerate. taints: of these, without duplicates, newest first.
    """

    of_class: int = 0
    selected: int = 0
    allocated: int = 0
    tainted: int = 0
    taints: tuple[DeviceTaint, ...] = ()

    @property
    def free(self) -> int:
        return self.selected - self.allocated - self.tainted


class StoredDevices:
    """What ResourceSlices, the allocations of claims and DeviceTaintRules say together.

    allocated: the results of all claims. left_out: names of attributes that the reader dropped for their many values.
    """

    def __init__(
        self,
        slices: Iterable[PoolSlice],
        mapping: ResourceMapping,
        gpu_classes: GPUClasses,
        allocated: Iterable[DeviceResult],
        *,
        left_out: Collection[str] = (),
        rules: Sequence[DeviceTaintRule] = (),
    ) -> None:
        self._rules = [each for each in rules if each.spec.taint.keeps_away]
        by_pool = defaultdict[PoolName, list[PoolSlice]](list)
        for each in slices:
            by_pool[each.pool].append(each)
        shared: dict[object, Mapping[int, DeviceKind]] = {}
        self._pools: dict[PoolName, StoredPool] = {}
        for name, of_pool in by_pool.items():
            newest = newest_complete(of_pool)
            layouts = tuple(each.layout for each in newest)
            if layouts not in shared:
                shared[layouts] = kinds_of_devices(layouts, mapping, left_out)
            self._pools[name] = StoredPool(newest, shared[layouts])
        self._held = self._held_devices(allocated, gpu_classes)

    def _held_devices(
        self, allocated: Iterable[DeviceResult], gpu_classes: GPUClasses
    ) -> dict[PoolName, dict[str, Fraction]]:
        """Return by pool the cards that are held of each device."""
        results = defaultdict[PoolName, list[DeviceResult]](list)
        for each in allocated:
            if not each.admin_access:
                results[each.driver, each.pool].append(each)
        held: dict[PoolName, dict[str, Fraction]] = {}
        for name in results.keys() & self._pools.keys():
            pool, of_pool = self._pools[name], held.setdefault(name, {})
            shapes = {device.name: device.shape for device in pool.devices}
            for each in results[name]:
                kind = pool.kinds.get(id(shapes.get(each.device)))
                if kind is not None:
                    weight = device_weight(kind, gpu_classes, each.consumed_capacity or {})
                    of_pool[each.device] = of_pool.get(each.device, Fraction(0)) + weight
        return held

    def cards_by_node(self) -> dict[str, list[CardUse]]:
        """Return the cards by node. Cards that several nodes reach have the key ""."""
        by_node = defaultdict[str, list[CardUse]](list)
        # Most of 5,000 nodes have the same cards, with the same ones allocated.
        known: dict[object, tuple[CardUse, ...]] = {}
        for name, (slices, kinds) in self._pools.items():
            held, tainted = self._held.get(name, {}), frozenset(self._taints(name))
            key = id(kinds), frozenset(held.items()), tainted
            if key not in known:
                layouts = [each.layout for each in slices]
                known[key] = tuple(cards_of_pool(layouts, kinds, held, tainted))
            for card in known[key]:
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

    def counts_for(self, request: DeviceRequest, of_class: Iterable[str]) -> DeviceCounts:
        """Count the devices for a request without alternatives. of_class: the selectors of its DeviceClass."""
        kinds = tuple(
            {id(kind): kind for pool in self._pools.values() for kind in pool.kinds.values()}.values()
        )
        in_class, selected = (
            {id(kinds[index]) for index in possible_kinds(each, DeviceKinds(kinds))}
            for each in (of_class, request.expressions)
        )
        numbers, taints = Counter[str](), dict[DeviceTaint, None]()
        for name, pool in self._pools.items():
            held = self._held.get(name, {})
            left, taints_of = counters_left([each.layout for each in pool.slices], held), self._taints(name)
            for device in pool.devices:
                kind = pool.kinds.get(id(device.shape))
                numbers["of_class"] += id(kind) in in_class
                if id(kind) not in in_class & selected:
                    continue
                of_device = taints_of.get(device.name, ())
                against = [each for each in of_device if not tolerated(each, request.tolerations)]
                numbers["selected"] += 1
                if not fits(device.shape, left, is_held=device.name in held):
                    numbers["allocated"] += 1
                elif against:
                    numbers["tainted"] += 1
                    taints |= dict.fromkeys(against)
        newest = sorted(taints, key=lambda each: each.time_added.timestamp() if each.time_added else 0.0)
        return DeviceCounts(**numbers, taints=tuple(reversed(newest)))

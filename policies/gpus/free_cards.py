"""What is free of the cards in ResourceSlices (DRA).

Partitions of a card overlap, so they are not added up: a card has what its allocated partitions leave, if one of its other
partitions still fits into its counters.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from fractions import Fraction
from typing import NamedTuple

from policies.gpus.device_kinds import DeviceKind
from policies.gpus.device_slices import CounterValue, DeviceShape, SliceLayout
from policies.gpus.device_weight import WHOLE
from policies.pods.quantity import QuantityError, parse_quantity

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


class _Device(NamedTuple):
    name: str
    shape: DeviceShape
    node: str


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
    by_card = defaultdict[str, list[_Device]](list)
    for layout in layouts:
        for name, shape, node in layout.devices:
            if id(shape) in kinds:
                device = _Device(name, shape, node)
                for card in [each for each, _ in shape.consumes] or [f"device {name}"]:
                    by_card[card].append(device)
    left = counters_left(layouts, held)
    for devices in by_card.values():
        yield _card(devices, kinds, left, held, unusable)


def counters_left(layouts: Collection[SliceLayout], held: Collection[str]) -> CounterAmounts:
    """Return what the devices in `held` leave of the counters of a pool."""
    left = defaultdict(
        Counter, {name: _amounts(values) for each in layouts for name, values in each.counters}
    )
    for name, shape, _ in (device for layout in layouts for device in layout.devices):
        if name in held:
            for card, values in shape.consumes:
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


def _card(
    devices: Iterable[_Device],
    kinds: Mapping[int, DeviceKind],
    left: CounterAmounts,
    held: Mapping[str, Fraction],
    unusable: Collection[str],
) -> CardUse:
    devices = tuple(devices)
    largest = max(devices, key=lambda each: kinds[id(each.shape)].parts)
    # A device of several cards takes the same part of each.
    taken = sum(
        (held.get(each.name, Fraction(0)) / (len(each.shape.consumes) or 1) for each in devices), Fraction(0)
    )
    allocated = min(taken, WHOLE)
    has_free = allocated < WHOLE and any(
        each.name not in unusable and fits(each.shape, left, is_held=each.name in held) for each in devices
    )
    return CardUse(
        largest.node, kinds[id(largest.shape)], allocated, WHOLE - allocated if has_free else Fraction(0)
    )


def _amounts(values: Iterable[tuple[str, CounterValue]]) -> Counter[str]:
    """Return counters in nano units. One that cannot be read, which only a driver can write, is left out."""
    amounts = Counter[str]()
    for name, each in values:
        with suppress(QuantityError):
            amounts[name] = parse_quantity(each.value).nano
    return amounts

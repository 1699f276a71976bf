"""Weight of DRA devices in whole cards, and of shares of a device that several claims may have.

A share takes from every capacity of its device what the scheduler subtracts (`GetConsumedCapacityFromRequest` in
k8s.io/dynamic-resource-allocation v0.37.2): the requested amount, rounded up as `requestPolicy` says, or else the default of the
policy, or else all of it. It weighs by the largest part of a capacity that `DeviceKind.weighed` names. A driver that lets any
number of claims share a card has a default of 0: nothing bounds what they use, so each weighs the card.
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import ceil

from policies.gpus.classes import GPUClass, GPUClasses
from policies.gpus.device_kinds import CARD_PARTS, CapacityRange, DeviceCapacity, DeviceKind, DeviceKinds
from policies.gpus.device_slices import qualified
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.quantity import NANO, Quantity, QuantityError, QuantityText, parse_quantity

WHOLE = Fraction(1)
NO_AMOUNTS: Mapping[str, QuantityText] = {}


def device_weight(
    kind: DeviceKind, classes: GPUClasses, consumed: Mapping[str, QuantityText] = NO_AMOUNTS
) -> Fraction:
    """Return the demand of a device of the kind, or of a share of it, in whole cards.

    A MIG slice weighs what the class says (`mig_weight`), so it costs the same by DRA and by the device plugin. Of several
    classes, the largest counts.

    consumed: amounts by name of a capacity, as a request states them (`capacity.requests`) or an allocation
      (`consumedCapacity`). Only of a shared device they matter.
    """
    weight = max((classes.mig_weight(*each) for each in mig_profiles(kind, classes)), default=kind.share)
    if not kind.is_shared:
        return weight
    return Fraction(ceil(weight * _share(kind, consumed) * CARD_PARTS), CARD_PARTS)


def classified_weights(
    kinds: DeviceKinds, classes: GPUClasses
) -> tuple[tuple[Fraction, tuple[GPUClass, ...]], ...]:
    """Return the weight of a device of each kind, and the classes that it may be of."""
    cached = kinds.__dict__.get("classified")
    if cached is None or cached[0] is not classes:
        weights = tuple((device_weight(kind, classes), classes.of_device(kind)) for kind in kinds.kinds)
        cached = kinds.__dict__["classified"] = (classes, weights)
    result: tuple[tuple[Fraction, tuple[GPUClass, ...]], ...] = cached[1]
    return result


def weight_by_name(name: str, mapping: ResourceMapping, classes: GPUClasses) -> Fraction:
    """Return the weight of the largest device that a pod may get by a resource name of DeviceClasses.

    A card if there is no such device, or if `equivalents` of a GPUClass say what the name weighs.
    """
    if not mapping.kinds_by_class or name in classes.equivalents:
        return WHOLE
    known = classified_weights(mapping.device_kinds, classes)
    kinds = (mapping.kinds_by_class.get(each, ()) for each in mapping.device_classes_of(name))
    return max((known[index][0] for indexes in kinds for index in indexes), default=WHOLE)


def can_serve(kind: DeviceKind, requested: Mapping[str, QuantityText]) -> bool:
    """Whether a free device of the kind has the requested amounts of its capacities. True for an amount that cannot be read."""
    for name, raw in requested.items():
        known_as = qualified(kind.driver, name)
        capacity = kind.capacity.get(known_as)
        if capacity is None:
            if known_as not in kind.unknown:
                return False
            continue
        try:
            amount = _consumed(raw, capacity) if kind.is_shared else parse_quantity(raw).nano
            if amount > _largest(capacity):
                return False
        except QuantityError:
            continue
    return True


def mig_profiles(kind: DeviceKind, classes: GPUClasses) -> Iterator[tuple[GPUClass, str]]:
    """Yield the classes of a MIG slice, with the profile that each of them knows."""
    attribute = kind.attributes.get(f"{kind.driver}/profile")
    profile = attribute and attribute.string
    for each in classes.of_device(kind) if profile else ():
        if profile and classes.mig_profile(each, profile):
            yield each, profile


def _share(kind: DeviceKind, consumed: Mapping[str, QuantityText]) -> Fraction:
    """Return the largest share of a weighed capacity.

    It is the whole device if none is taken, if an amount cannot be read, or if devices have differing capacities.
    """
    amounts = {qualified(kind.driver, name): raw for name, raw in consumed.items()}
    weighed = [(name, kind.capacity.get(name)) for name in kind.weighed]
    if any(capacity is None for _, capacity in weighed) or any(name in kind.unknown for name in amounts):
        return WHOLE
    try:
        shares = [_capacity_share(amounts.get(name), each) for name, each in weighed if each is not None]
    except QuantityError:
        return WHOLE
    largest = max(shares, default=WHOLE)
    return min(WHOLE, largest) if largest > 0 else WHOLE


def _capacity_share(raw: QuantityText, capacity: DeviceCapacity) -> Fraction:
    total = parse_quantity(capacity.value).nano
    return Fraction(_consumed(raw, capacity), total) if total > 0 else WHOLE


def _consumed(raw: QuantityText, capacity: DeviceCapacity) -> int:
    """Return what a request takes of the capacity of a shared device, in nano units. Raises QuantityError."""
    policy = capacity.request_policy
    if raw is None:
        default = policy and policy.default
        return parse_quantity(capacity.value if default is None else default).nano
    amount = parse_quantity(raw).nano
    if policy is not None and policy.valid_range is not None:
        return _in_range(amount, policy.valid_range)
    valid = [parse_quantity(each).nano for each in policy.valid_values] if policy else []
    return min((each for each in valid if each >= amount), default=amount)


def _in_range(amount: int, valid: CapacityRange) -> int:
    """Return the larger of what schedulers round to: before Kubernetes 1.37 by whole units, since then by thousandths of them."""
    least, step = parse_quantity(valid.min), parse_quantity(valid.step or "0")
    if amount <= least.nano or step.nano <= 0:
        return max(amount, least.nano)
    units = _rounded(Quantity(amount).value, least.value, step.value) * NANO
    return max(units, _rounded(amount, least.nano, step.nano))


def _rounded(amount: int, least: int, step: int) -> int:
    return least - (least - amount) // step * step


def _largest(capacity: DeviceCapacity) -> int:
    """Return the most that one request can take, in nano units. Raises QuantityError."""
    policy, total = capacity.request_policy, parse_quantity(capacity.value).nano
    stated = [policy.valid_range.max] if policy and policy.valid_range and policy.valid_range.max else []
    limits: list[QuantityText] = [*stated, *(policy.valid_values[-1:] if policy else ())]
    return min([total, *(parse_quantity(each).nano for each in limits)])

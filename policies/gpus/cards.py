"""The demand of a pod's containers, and of DRA devices, in whole cards: also of slices, shares and parts of a card.

The weight of one unit comes from the class's `equivalents`, or else from its MIG profile, or else is one card. If the container
also requests memory or compute from the same vendor (HAMi, Volcano, Intel), this request limits a unit to a part of a card.

A share of a DRA device takes from every capacity of it what the scheduler subtracts (`GetConsumedCapacityFromRequest` in
k8s.io/dynamic-resource-allocation v0.37.2): the requested amount, rounded up as `requestPolicy` says, or else the default of the
policy, or else all of it. It weighs by the largest of its shares of `DeviceType.weighed_capacities`. A driver that lets any
number of claims share a card has a default of 0: nothing bounds what they use, so each weighs the card.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from fractions import Fraction
from math import ceil

import msgspec

from policies.finding import TOO_LARGE, Finding
from policies.gpus.classes import GPUClass, GPUClasses, parse_share
from policies.gpus.device_slices import qualified_name
from policies.gpus.device_types import CARD_PARTS, CapacityRange, DeviceCapacity, DeviceType, DeviceTypes
from policies.gpus.fraction_annotations import MIN_FRACTION, fraction_problems
from policies.gpus.mapping_spec import DEVICE_CLASS_PREFIX, Measure
from policies.gpus.resource_mapping import GPUResource, ResourceMapping
from policies.pods.limits import ID as LIMITS
from policies.pods.pod import Container, Pod, ResourceList
from policies.pods.quantity import NANO, Quantity, QuantityError, QuantityText, parse_or_none, parse_quantity
from policies.pods.requests import at_one_time

ONE_CARD = Fraction(1)
NO_AMOUNTS: Mapping[str, QuantityText] = {}

MAX_RESOURCES = 16
"""GPU resources of one pod. Demand is computed for each resource on every class. Real pods name one or two."""

ResourceAmounts = dict[GPUResource, Fraction]

_MEMORY_SHARES: dict[Measure, Callable[[Fraction, int | None], Fraction]] = {
    Measure.MEMORY_GIB: lambda amount, gib: amount / gib if gib else ONE_CARD,
    Measure.MEMORY_MIB: lambda amount, gib: amount / (gib * 2**10) if gib else ONE_CARD,
    Measure.MEMORY_BYTES: lambda amount, gib: amount / (gib * 2**30) if gib else ONE_CARD,
    Measure.MEMORY_PERCENT: lambda amount, _: amount / 100,
    Measure.FRACTION: lambda amount, _: amount,
}
"""Functions from a card's memory in GiB (None: unknown) to the share of that memory."""

_MEMORY_AMOUNTS = frozenset({Measure.MEMORY_GIB, Measure.MEMORY_MIB, Measure.MEMORY_BYTES})
_COMPUTE_PER_CARD = {Measure.CORE_PERCENT: 100, Measure.CORE_MILLIS: 1000}
_UNITS_PER_CARD = {**_COMPUTE_PER_CARD, Measure.MEMORY_PERCENT: 100}
"""Measures by which a container may request several cards, with the amount of one card. 200 percent are two cards (Koordinator,
Tencent's GPU manager)."""
_DIVISIBLE = frozenset({Measure.DEVICES, Measure.SHARES})
"""Measures that a limit of memory or compute can divide."""


class Card(msgspec.Struct, frozen=True, cache_hash=True):
    """The properties of a card that demand depends on."""

    weights: tuple[tuple[str, Fraction], ...] = ()
    """The weight of one unit, for each resource name whose unit is not one card."""
    memory_gib: int | None = None
    """None if no amount of memory is requested, or if the pod may get another card."""

    def weight(self, resource: GPUResource) -> Fraction:
        return next((share for name, share in self.weights if name == resource.name), ONE_CARD)


UNKNOWN_CARD = Card()


def card_of(
    gpu_class: GPUClass, requested: Collection[GPUResource], gpu_classes: GPUClasses, *, is_certain: bool
) -> Card:
    """Return the card of the class, reduced to what the demand for `requested` depends on.

    If it is not `is_certain`, the pod may get a card of another class.
    """
    weights = [
        (r.name, share)
        for r in requested
        if r.profile is not None or r.name in gpu_classes.equivalents
        if (share := weight(r, gpu_class, gpu_classes)) is not ONE_CARD and share != ONE_CARD
    ]
    by_memory = is_certain and any(r.measure in _MEMORY_AMOUNTS for r in requested)
    return Card(tuple(weights), gpu_class.memory_gib if by_memory else None)


def positive_amounts(
    resources: ResourceList | None,
    resource_mapping: ResourceMapping,
    parse: Callable[[QuantityText], Quantity | None] = parse_or_none,
) -> ResourceAmounts:
    """Return the positive amounts of GPU resources, rounded as the API server does.

    parse: `parse_or_none` omits invalid amounts (`demand.amount_denials` finds them), `parse_quantity` raises QuantityError.
    """
    positive: ResourceAmounts = {}
    for name, raw in (resources or {}).items():
        resource = resource_mapping.resource(name)
        quantity = parse(raw) if resource else None
        if resource is None or quantity is None or quantity.nano <= 0:
            continue
        # The API server accepts parts of an implicit resource. The scheduler requests `Value()` devices.
        is_implicit = name.startswith(DEVICE_CLASS_PREFIX)
        amount = Fraction(quantity.value) if is_implicit else Fraction(quantity.milli_value, 1000)
        positive[resource] = amount
    return positive


def container_amounts(container: Container, resource_mapping: ResourceMapping) -> ResourceAmounts:
    """Return the requested amounts of the container: requests, or else limits, as in defaulting."""
    return positive_amounts({**container.limits, **container.requests}, resource_mapping)


def gpu_requests(pod: Pod, resource_mapping: ResourceMapping) -> ResourceAmounts:
    """Return how much of every GPU resource the pod needs at one time. Raises QuantityError."""

    def needs(container: Container) -> ResourceAmounts:
        return positive_amounts({**container.limits, **container.requests}, resource_mapping, parse_quantity)

    return at_one_time(pod, needs, positive_amounts(pod.spec.overhead, resource_mapping, parse_quantity))


def needed_on_node(pod: Pod, resource_mapping: ResourceMapping) -> dict[str, int]:
    """Return how many GPUs, slices or shares a node must have for the pod, by resource; none if an amount is invalid.

    Nodes have no resource that a DeviceClass offers, and of a misspelt name nobody knows which have it.
    """
    try:
        totals = gpu_requests(pod, resource_mapping)
    except QuantityError:
        return {}
    by_device_class = resource_mapping.extended_names.values()
    return {
        resource.name: ceil(amount)
        for resource, amount in totals.items()
        if resource.measure.is_count
        and not resource.name.startswith(DEVICE_CLASS_PREFIX)
        and resource.name not in by_device_class
        and not resource_mapping.suggested_name(resource.name)
    }


def is_limit(resource: GPUResource) -> bool:
    """Whether the resource limits the memory or compute of the container's other resources."""
    return resource.measure in _MEMORY_SHARES or resource.measure in _COMPUTE_PER_CARD


def is_shared(requested: ResourceAmounts) -> bool:
    """Whether a limit reduces the container's devices to parts of cards."""
    limited = {vendor_domain(resource.name) for resource in requested if resource.measure in _MEMORY_SHARES}
    return any(each.measure in _DIVISIBLE and vendor_domain(each.name) in limited for each in requested)


def too_many_resources(pod: Pod, resource_mapping: ResourceMapping) -> list[Finding]:
    """Deny a pod that names more than MAX_RESOURCES. The finding is at the container that exceeds the limit."""
    names: set[str] = set()
    message = f"must name at most {MAX_RESOURCES} GPU resources in all containers"
    for place in pod.places:
        container = place.container
        names.update(resource.name for resource in resource_mapping.named_resources(container))
        if len(names) > MAX_RESOURCES:
            path, reason = f"{place.path}.resources", TOO_LARGE
            return [Finding(rule=LIMITS, reason=reason, path=path, container=container.name, message=message)]
    return []


def amounts_in_cards(requested: ResourceAmounts, card: Card) -> dict[GPUResource, Fraction]:
    """Return one container's amounts in whole cards, by resource. A limit counts with the resource that it limits.

    Without limits, the result is amounts times weights, so the results of several containers add up.
    """
    limits: dict[str, ResourceAmounts] = defaultdict(dict)
    for resource, amount in requested.items():
        if is_limit(resource):
            limits[vendor_domain(resource.name)][resource] = amount
    shares = {name: _usable_share(limit, card) for name, limit in limits.items()}
    in_cards: dict[GPUResource, Fraction] = {}
    # HAMi's own webhook adds one GPU if a container requests only memory.
    without_devices = dict(limits)
    for resource, amount in requested.items():
        name = vendor_domain(resource.name) if limits else ""
        if name in limits and resource.measure in _DIVISIBLE:
            in_cards[resource] = amount * shares[name]
            without_devices.pop(name, None)
        elif not is_limit(resource):
            in_cards[resource] = amount * card.weight(resource)
    for name, limit in without_devices.items():
        # Only these measures can request more than one card.
        multiples = (
            amount / _UNITS_PER_CARD[r.measure] for r, amount in limit.items() if r.measure in _UNITS_PER_CARD
        )
        first_of_vendor = next(iter(limit))
        in_cards[first_of_vendor] = max([shares[name], *multiples])
    return in_cards


def weight(resource: GPUResource, gpu_class: GPUClass, gpu_classes: GPUClasses) -> Fraction:
    equivalent = gpu_class.equivalents.get(resource.name)
    if equivalent is not None:
        return parse_share(equivalent)
    if resource.profile is not None and gpu_classes.mig_profile(gpu_class, resource.profile):
        return gpu_classes.mig_weight(gpu_class, resource.profile)
    return ONE_CARD


def _usable_share(limit: ResourceAmounts, card: Card) -> Fraction:
    """Return the part of each card that the container may use: the larger one of memory and compute, at most 1.

    Without a limit of memory, the container may use all of it (HAMi's default), so no other pod fits on the card.
    """
    memory = [
        _MEMORY_SHARES[r.measure](a, card.memory_gib) for r, a in limit.items() if r.measure in _MEMORY_SHARES
    ]
    compute = [a / _COMPUTE_PER_CARD[r.measure] for r, a in limit.items() if r.measure in _COMPUTE_PER_CARD]
    return min(ONE_CARD, max(memory + compute)) if memory else ONE_CARD


def vendor_domain(resource_name: str) -> str:
    """Return the domain of a resource name, which is its vendor's: nvidia.com, amd.com."""
    return resource_name.partition("/")[0]


# ---- parts of a card by annotation (KAI, Run:ai)


def fractions_in_cards(
    pod: Pod, card: Card, resource_mapping: ResourceMapping
) -> dict[GPUResource, Fraction]:
    """Return the demand of the pod's fraction annotations in cards: the part of a card times the number of devices.

    A part is at least LEAST_PART. An unreadable part is a whole card.
    """
    keys = resource_mapping.fraction_annotations_of(pod)
    first = next((key for key in keys if not key.measure.is_count), None)
    if first is None:
        return {}
    invalid_keys = {problem.key for problem in fraction_problems(pod, resource_mapping)}
    values = {key: Fraction(pod.annotations[key.key].strip()) for key in keys if key.key not in invalid_keys}
    devices = [value for key, value in values.items() if key.measure.is_count]
    memory = [(key.measure, value) for key, value in values.items() if not key.measure.is_count]
    shares = [_MEMORY_SHARES[measure](amount, card.memory_gib) for measure, amount in memory]
    share = min(ONE_CARD, max(MIN_FRACTION, *shares)) if shares else ONE_CARD
    return {GPUResource(first.key, first.measure): share * max(devices, default=ONE_CARD)}


# ---- devices of ResourceSlices (DRA)


def device_weight(
    device_type: DeviceType, classes: GPUClasses, requested: Mapping[str, QuantityText] = NO_AMOUNTS
) -> Fraction:
    """Return the demand of a device of the type, or of a share of it, in whole cards.

    A MIG slice weighs what the class says (`mig_weight`), so it costs the same by DRA and by the device plugin. Of several
    classes, the largest counts.

    requested: amounts by name of a capacity, of a request (`capacity.requests`) or an allocation (`consumedCapacity`); they
      matter only for a shared device.
    """
    weight = max(
        (classes.mig_weight(*each) for each in mig_profiles(device_type, classes)), default=device_type.share
    )
    if not device_type.is_shared:
        return weight
    return Fraction(ceil(weight * _used_share(device_type, requested) * CARD_PARTS), CARD_PARTS)


def weights_and_classes(
    types: DeviceTypes, classes: GPUClasses
) -> tuple[tuple[Fraction, tuple[GPUClass, ...]], ...]:
    """Return the weight of a device of each type, and the classes that it may be of."""
    cached = types.__dict__.get("classified")
    if cached is None or cached[0] is not classes:
        weights = tuple(
            (device_weight(device_type, classes), classes.of_device(device_type))
            for device_type in types.types
        )
        cached = types.__dict__["classified"] = (classes, weights)
    result: tuple[tuple[Fraction, tuple[GPUClass, ...]], ...] = cached[1]
    return result


def weight_by_name(name: str, mapping: ResourceMapping, classes: GPUClasses) -> Fraction:
    """Return the weight of the largest device that a pod may get by a resource name of DeviceClasses.

    1 if there is no such device, or if a GPUClass has the name in `equivalents`: then the caller applies these.
    """
    if not mapping.types_by_class or name in classes.equivalents:
        return ONE_CARD
    known = weights_and_classes(mapping.device_types, classes)
    types = (mapping.types_by_class.get(device_class, ()) for device_class in mapping.device_classes_of(name))
    return max((known[index][0] for indexes in types for index in indexes), default=ONE_CARD)


def satisfies(device_type: DeviceType, requested: Mapping[str, QuantityText]) -> bool:
    """Whether a free device of the type has the requested amounts of its capacities. True for an amount that cannot be read."""
    for name, raw in requested.items():
        full_name = qualified_name(device_type.driver, name)
        capacity = device_type.capacity.get(full_name)
        if capacity is None:
            if full_name not in device_type.unknown_names:
                return False
            continue
        try:
            amount = _consumed_amount(raw, capacity) if device_type.is_shared else parse_quantity(raw).nano
            if amount > _largest_request(capacity):
                return False
        except QuantityError:
            continue
    return True


def mig_profiles(device_type: DeviceType, classes: GPUClasses) -> Iterator[tuple[GPUClass, str]]:
    """Yield the classes of a MIG slice, with the profile that each of them knows."""
    attribute = device_type.attributes.get(f"{device_type.driver}/profile")
    profile = attribute and attribute.string
    for gpu_class in classes.of_device(device_type) if profile else ():
        if profile and classes.mig_profile(gpu_class, profile):
            yield gpu_class, profile


def _used_share(device_type: DeviceType, requested: Mapping[str, QuantityText]) -> Fraction:
    """Return the largest share of a weighed capacity.

    It is the whole device if none is taken, if an amount cannot be read, or if devices have differing capacities.
    """
    amounts = {qualified_name(device_type.driver, name): raw for name, raw in requested.items()}
    counted = [(name, device_type.capacity.get(name)) for name in device_type.weighed_capacities]
    if any(capacity is None for _, capacity in counted) or any(
        name in device_type.unknown_names for name in amounts
    ):
        return ONE_CARD
    try:
        shares = [_share_of_total(amounts.get(name), each) for name, each in counted if each is not None]
    except QuantityError:
        return ONE_CARD
    largest = max(shares, default=ONE_CARD)
    return min(ONE_CARD, largest) if largest > 0 else ONE_CARD


def _share_of_total(raw: QuantityText, capacity: DeviceCapacity) -> Fraction:
    total = parse_quantity(capacity.value).nano
    return Fraction(_consumed_amount(raw, capacity), total) if total > 0 else ONE_CARD


def _consumed_amount(raw: QuantityText, capacity: DeviceCapacity) -> int:
    """Return what a request takes of the capacity of a shared device, in nano units. Raises QuantityError."""
    policy = capacity.request_policy
    if raw is None:
        default = policy and policy.default
        return parse_quantity(capacity.value if default is None else default).nano
    amount = parse_quantity(raw).nano
    if policy is not None and policy.valid_range is not None:
        return _rounded_into_range(amount, policy.valid_range)
    valid = [parse_quantity(value).nano for value in policy.valid_values] if policy else []
    return min((each for each in valid if each >= amount), default=amount)


def _rounded_into_range(amount: int, valid: CapacityRange) -> int:
    """Return the larger of two roundings: to whole units, as before Kubernetes 1.37, and exact to nano units."""
    least, step = parse_quantity(valid.min), parse_quantity(valid.step or "0")
    if amount <= least.nano or step.nano <= 0:
        return max(amount, least.nano)
    units = _round_up(Quantity(amount).value, least.value, step.value) * NANO
    return max(units, _round_up(amount, least.nano, step.nano))


def _round_up(amount: int, least: int, step: int) -> int:
    return least - (least - amount) // step * step


def _largest_request(capacity: DeviceCapacity) -> int:
    """Return the most that one request can take, in nano units. Raises QuantityError."""
    policy, total = capacity.request_policy, parse_quantity(capacity.value).nano
    stated = [policy.valid_range.max] if policy and policy.valid_range and policy.valid_range.max else []
    limits: list[QuantityText] = [*stated, *(policy.valid_values[-1:] if policy else ())]
    return min([total, *(parse_quantity(limit).nano for limit in limits)])

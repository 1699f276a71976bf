"""The demand of a pod's containers, and of DRA devices, in whole cards: also of slices, shares and parts of a card.

The weight of one unit comes from the class's `equivalents`, or else from its MIG profile, or else is one card. If the container
also requests memory or compute from the same vendor (HAMi, Volcano, Intel), this request limits a unit to a part of a card.

A share of a DRA device takes from every capacity of it what the scheduler subtracts (`GetConsumedCapacityFromRequest` in
k8s.io/dynamic-resource-allocation v0.37.2): the requested amount, rounded up as `requestPolicy` says, or else the default of the
policy, or else all of it. It weighs by the largest part of a capacity that `DeviceKind.weighed` names. A driver that lets any
number of claims share a card has a default of 0: nothing bounds what they use, so each weighs the card.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from fractions import Fraction
from math import ceil

import msgspec

from policies.finding import TOO_LARGE, Finding
from policies.gpus.classes import GPUClass, GPUClasses, parse_share
from policies.gpus.device_kinds import CARD_PARTS, CapacityRange, DeviceCapacity, DeviceKind, DeviceKinds
from policies.gpus.device_slices import qualified
from policies.gpus.fraction_annotations import LEAST_PART, fraction_problems
from policies.gpus.mapping_spec import IMPLICIT_DEVICE_CLASS, Measure
from policies.gpus.resource_mapping import GPUResource, ResourceMapping
from policies.pods.limits import ID as LIMITS
from policies.pods.pod import Container, Pod, ResourceList
from policies.pods.quantity import NANO, Quantity, QuantityError, QuantityText, parse_quantity, readable
from policies.pods.requests import at_one_time

WHOLE = Fraction(1)
NO_AMOUNTS: Mapping[str, QuantityText] = {}

MAX_RESOURCES = 16
"""GPU resources of one pod. Demand is computed for each resource on every class. Real pods name one or two."""

Amounts = dict[GPUResource, Fraction]

_MEMORY: dict[Measure, Callable[[Fraction, int | None], Fraction]] = {
    Measure.MEMORY_GIB: lambda amount, gib: amount / gib if gib else WHOLE,
    Measure.MEMORY_MIB: lambda amount, gib: amount / (gib * 2**10) if gib else WHOLE,
    Measure.MEMORY_BYTES: lambda amount, gib: amount / (gib * 2**30) if gib else WHOLE,
    Measure.MEMORY_PERCENT: lambda amount, _: amount / 100,
    Measure.FRACTION: lambda amount, _: amount,
}
"""Functions from a card's memory in GiB (None: unknown) to the share of that memory."""

_SIZED = frozenset({Measure.MEMORY_GIB, Measure.MEMORY_MIB, Measure.MEMORY_BYTES})
_COMPUTE = {Measure.CORE_PERCENT: 100, Measure.CORE_MILLIS: 1000}
_UNITS_PER_CARD = {**_COMPUTE, Measure.MEMORY_PERCENT: 100}
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
        return next((share for name, share in self.weights if name == resource.name), WHOLE)


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
        if (share := weight(r, gpu_class, gpu_classes)) is not WHOLE and share != WHOLE
    ]
    by_memory = is_certain and any(r.measure in _SIZED for r in requested)
    return Card(tuple(weights), gpu_class.memory_gib if by_memory else None)


def amounts(
    resources: ResourceList | None,
    resource_mapping: ResourceMapping,
    read: Callable[[QuantityText], Quantity | None] = readable,
) -> Amounts:
    """Return the positive amounts of GPU resources, rounded as the API server does.

    `readable` omits unreadable amounts (`demand.unreadable` finds them), `parse_quantity` raises QuantityError.
    """
    positive: Amounts = {}
    for name, raw in (resources or {}).items():
        resource = resource_mapping.resource(name)
        quantity = read(raw) if resource else None
        if resource is None or quantity is None or quantity.nano <= 0:
            continue
        # The API server accepts parts of an implicit resource. The scheduler requests `Value()` devices.
        is_implicit = name.startswith(IMPLICIT_DEVICE_CLASS)
        amount = Fraction(quantity.value) if is_implicit else Fraction(quantity.milli_value, 1000)
        positive[resource] = amount
    return positive


def container_amounts(container: Container, resource_mapping: ResourceMapping) -> Amounts:
    """Return the requested amounts of the container: requests, or else limits, as in defaulting."""
    return amounts({**container.limits, **container.requests}, resource_mapping)


def gpu_requests(pod: Pod, resource_mapping: ResourceMapping) -> Amounts:
    """Return how much of every GPU resource the pod needs at one time. Raises QuantityError."""

    def needs(container: Container) -> Amounts:
        return amounts({**container.limits, **container.requests}, resource_mapping, parse_quantity)

    return at_one_time(pod, needs, amounts(pod.spec.overhead, resource_mapping, parse_quantity))


def requested_of_nodes(pod: Pod, resource_mapping: ResourceMapping) -> dict[str, int]:
    """Return how many GPUs, slices or shares a node must have for the pod, by resource; none if an amount is invalid.

    Nodes have no resource that a DeviceClass offers, and of a misspelt name nobody knows which have it.
    """
    try:
        totals = gpu_requests(pod, resource_mapping)
    except QuantityError:
        return {}
    by_device_class = resource_mapping.extended_names.values()
    return {
        each.name: ceil(amount)
        for each, amount in totals.items()
        if each.measure.is_count
        and not each.name.startswith(IMPLICIT_DEVICE_CLASS)
        and each.name not in by_device_class
        and not resource_mapping.misspelt(each.name)
    }


def is_limit(resource: GPUResource) -> bool:
    """Whether the resource limits the memory or compute of the container's other resources."""
    return resource.measure in _MEMORY or resource.measure in _COMPUTE


def is_shared(requested: Amounts) -> bool:
    """Whether a limit reduces the container's devices to parts of cards."""
    limited = {domain(each.name) for each in requested if each.measure in _MEMORY}
    return any(each.measure in _DIVISIBLE and domain(each.name) in limited for each in requested)


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


def cards(requested: Amounts, card: Card) -> dict[GPUResource, Fraction]:
    """Return one container's amounts in whole cards, by resource. A limit counts with the resource that it limits.

    Without limits, the result is amounts times weights, so the results of several containers add up.
    """
    limits: dict[str, Amounts] = defaultdict(dict)
    for resource, amount in requested.items():
        if is_limit(resource):
            limits[domain(resource.name)][resource] = amount
    shares = {name: _share(limit, card) for name, limit in limits.items()}
    in_cards: dict[GPUResource, Fraction] = {}
    # HAMi's own webhook adds one GPU if a container requests only memory.
    without_devices = dict(limits)
    for resource, amount in requested.items():
        name = domain(resource.name) if limits else ""
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
    return WHOLE


def _share(limit: Amounts, card: Card) -> Fraction:
    """Return the part of each card that the container may use: the larger one of memory and compute, at most 1.

    Without a limit of memory, the container may use all of it (HAMi's default), so no other pod fits on the card.
    """
    memory = [_MEMORY[r.measure](a, card.memory_gib) for r, a in limit.items() if r.measure in _MEMORY]
    compute = [a / _COMPUTE[r.measure] for r, a in limit.items() if r.measure in _COMPUTE]
    return min(WHOLE, max(memory + compute)) if memory else WHOLE


def domain(resource_name: str) -> str:
    """Return the domain of a resource name, which is its vendor's: nvidia.com, amd.com."""
    return resource_name.partition("/")[0]


# ---- parts of a card by annotation (KAI, Run:ai)


def annotated_cards(pod: Pod, card: Card, resource_mapping: ResourceMapping) -> dict[GPUResource, Fraction]:
    """Return the demand of the pod's fraction annotations in cards: the part of a card times the number of devices.

    A part is at least LEAST_PART. An unreadable part is a whole card.
    """
    keys = resource_mapping.fractions_of(pod)
    first = next((key for key in keys if not key.measure.is_count), None)
    if first is None:
        return {}
    bad = {problem.key for problem in fraction_problems(pod, resource_mapping)}
    values = {key: Fraction(pod.annotations[key.key].strip()) for key in keys if key.key not in bad}
    devices = [value for key, value in values.items() if key.measure.is_count]
    memory = [(key.measure, value) for key, value in values.items() if not key.measure.is_count]
    parts = [_MEMORY[measure](amount, card.memory_gib) for measure, amount in memory]
    part = min(WHOLE, max(LEAST_PART, *parts)) if parts else WHOLE
    return {GPUResource(first.key, first.measure): part * max(devices, default=WHOLE)}


# ---- devices of ResourceSlices (DRA)


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
    return Fraction(ceil(weight * _taken(kind, consumed) * CARD_PARTS), CARD_PARTS)


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


def _taken(kind: DeviceKind, consumed: Mapping[str, QuantityText]) -> Fraction:
    """Return the largest share of a weighed capacity.

    It is the whole device if none is taken, if an amount cannot be read, or if devices have differing capacities.
    """
    amounts = {qualified(kind.driver, name): raw for name, raw in consumed.items()}
    weighed = [(name, kind.capacity.get(name)) for name in kind.weighed]
    if any(capacity is None for _, capacity in weighed) or any(name in kind.unknown for name in amounts):
        return WHOLE
    try:
        shares = [_part_taken(amounts.get(name), each) for name, each in weighed if each is not None]
    except QuantityError:
        return WHOLE
    largest = max(shares, default=WHOLE)
    return min(WHOLE, largest) if largest > 0 else WHOLE


def _part_taken(raw: QuantityText, capacity: DeviceCapacity) -> Fraction:
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

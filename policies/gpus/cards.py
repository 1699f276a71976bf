"""The demand of a pod's containers in whole cards of a GPU class, including slices, shares and parts of a card.

The weight of one unit comes from the class's `equivalents`, or else from its MIG profile, or else is one card. If the container
also requests memory or compute from the same vendor (HAMi, Volcano, Intel), this request limits a unit to a part of a card.
"""

from collections import defaultdict
from collections.abc import Callable, Collection
from fractions import Fraction
from math import ceil

import msgspec

from policies.finding import TOO_LARGE, Finding
from policies.gpus.classes import GPUClass, GPUClasses, parse_share
from policies.gpus.fraction_annotations import LEAST_PART, fraction_problems
from policies.gpus.mapping_spec import IMPLICIT_DEVICE_CLASS, Measure
from policies.gpus.resource_mapping import GPUResource, ResourceMapping
from policies.pods.limits import ID as LIMITS
from policies.pods.pod import Container, Pod, ResourceList
from policies.pods.quantity import Quantity, QuantityError, QuantityText, parse_quantity, readable
from policies.pods.requests import at_one_time

WHOLE = Fraction(1)

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

"""Demand of a pod: one pure function for reviews, counts and checks.

The vector always has all keys, for any quota: `resources/` has every GPU resource by the API server's own arithmetic,
`gpus` the sum in whole cards, and `classes/` the same by class. The pod counts for

- the class of the node in `nodeName`, which the scheduler or the author wrote;
- else the classes to which it is pinned. One class counts with its family. Several classes of one family count as the family,
  and each of them unless `UnclassifiedPods` is TOTAL_ONLY. Several families all count;
- else as `UnclassifiedPods` says. If the pod names an unknown node, every class counts.

If several classes are possible, each key gets the amount of its most expensive class, resource by resource.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from fractions import Fraction
from functools import cache, lru_cache, partial
from typing import Protocol

import msgspec

from policies.finding import Edit, Finding, Reason, one_choice
from policies.gpus.amount import INVALID_QUANTITY
from policies.gpus.cards import (
    MAX_RESOURCES,
    UNKNOWN_CARD,
    Card,
    amounts_in_cards,
    card_of,
    container_amounts,
    fractions_in_cards,
    is_limit,
    positive_amounts,
    weight_by_name,
)
from policies.gpus.classes import GPUClass, GPUClasses
from policies.gpus.fraction_annotations import fraction_problems
from policies.gpus.resource_mapping import GPUResource, ResourceMapping
from policies.placement.nodes import NO_NODES, NodeIndex
from policies.placement.pinning import CandidateClasses, candidate_classes, candidates_for_resource
from policies.pods.pod import Pod, ResourceList
from policies.pods.quantity import QuantityError, parse_quantity
from policies.pods.requests import at_one_time
from policies.quota.amounts import CLASSES, GPUS, RESOURCES, ZERO, Amounts, total
from policies.quota.waiting import has_quota_gate

UNCOUNTABLE_DEVICES = Reason("UncountableDevices", "the devices of a pod or claim cannot be counted")
UNCLASSIFIED_POD = Reason("UnclassifiedPod", "the quota counts by class, and the pod or claim names none")

MAX_BY_MEMORY = 256
"""A pod with more amounts of GPU resources is not computed by memory of each class. Each amount and class takes some 5 µs."""


class UnclassifiedPods(Enum):
    """The demand by class of a pod that pins no class, until it is bound to a node of a known class.

    DENY and MOST_EXPENSIVE keep limits by class: binding never adds demand for another class.
    """

    TOTAL_ONLY = "TotalOnly"
    """No demand by class. A pod that pins a family counts only for the family."""
    DENY = "Deny"
    """The pod must be denied."""
    MOST_EXPENSIVE = "MostExpensive"
    """Demand for every class and family on which the pod could run."""


class Demand(msgspec.Struct, frozen=True):
    """The demand of a pod or claim. `denials` deny a new one; a stored one counts as `vector` all the same.

    `classes`: the classes and families that it counts for. `because`: why, in words.
    """

    vector: Amounts
    classes: tuple[str, ...] = ()
    because: str = ""
    denials: tuple[Finding, ...] = ()
    will_need: Amounts = {}
    """The demand of a pod under our scheduling gate once it starts."""


CardsOn = Callable[[Card], Mapping[GPUResource, Fraction]]


class Catalogue(Protocol):
    """What demand depends on besides the pod, the node and the quota. A rule's Context and a Configuration have these fields."""

    @property
    def classes(self) -> GPUClasses: ...
    @property
    def resource_mapping(self) -> ResourceMapping: ...


def pod_demand(
    pod: Pod, catalogue: Catalogue, unclassified_pods: UnclassifiedPods, nodes: NodeIndex = NO_NODES
) -> Demand:
    """Return the demand of the pod. `nodes` has the nodes that it may name.

    A pod that has ended, or waits under our scheduling gate, has no demand. DRA claims have a demand of their own. An unreadable
    amount is a denial; if the pod is already stored, its other amounts count, and an unreadable fraction annotation counts as a
    whole card.
    """
    if pod.is_terminal or has_quota_gate(pod):
        return Demand({})
    classes, resource_mapping = catalogue.classes, catalogue.resource_mapping
    denials = tuple(amount_denials(pod, resource_mapping))
    overhead = positive_amounts(pod.spec.overhead, resource_mapping)
    # Keyed by identity, because containers may be equal. Each is read once, and converted for every kind of card.
    read = {id(place.container): container_amounts(place.container, resource_mapping) for place in pod.places}
    plain = at_one_time(pod, lambda container: read[id(container)], overhead)
    requested = (*plain, *fractions_in_cards(pod, UNKNOWN_CARD, resource_mapping))
    if not requested:
        return Demand({}, denials=denials)
    candidates = candidate_classes(pod, classes, nodes)

    has_limits = any(map(is_limit, plain))
    weights = {resource: weight_by_name(resource.name, resource_mapping, classes) for resource in plain}

    def cards_on(card: Card) -> Mapping[GPUResource, Fraction]:
        in_containers = (
            at_one_time(
                pod, lambda each: amounts_in_cards(read[id(each)], card), amounts_in_cards(overhead, card)
            )
            if has_limits
            else amounts_in_cards(plain, card)
        )
        weighed = {resource: amount * weights.get(resource, 1) for resource, amount in in_containers.items()}
        return {**weighed, **fractions_in_cards(pod, card, resource_mapping)}

    if len(requested) > MAX_RESOURCES:  # only a pod that was not reviewed
        demand = _upper_bound_demand(cards_on, candidates, unclassified_pods)
    else:
        by_memory = sum(map(len, read.values())) <= MAX_BY_MEMORY
        demand = resources_demand(
            requested, cards_on, candidates, catalogue, unclassified_pods, by_memory=by_memory
        )
    counted = {RESOURCES + resource.name: amount for resource, amount in plain.items()}
    vector, denials = total((demand.vector, counted)), (*denials, *demand.denials)
    return msgspec.structs.replace(demand, vector=vector, denials=denials)


def resources_demand(
    requested: Collection[GPUResource],
    cards_on: CardsOn,
    candidates: CandidateClasses,
    catalogue: Catalogue,
    unclassified_pods: UnclassifiedPods,
    *,
    by_memory: bool = True,
) -> Demand:
    """Return the demand, without plain counts, of resources that are `cards_on(card)` cards on each kind of card.

    Unless `by_memory`, an amount of memory counts as a whole card.
    """
    cards_on = lru_cache(maxsize=None)(cards_on)  # most classes have the same kind of card
    kinds = {
        gpu_class.name: card_of(gpu_class, requested, catalogue.classes, is_certain=by_memory)
        for gpu_class in candidates.classes
    }

    @cache
    def largest_sum(resources: tuple[GPUResource, ...], on: frozenset[Card]) -> Fraction:
        """Return the cards of all resources, each on the kind of card that it needs most of.

        A memory limit counts with the resource that it limits, not as cards of its own.
        """
        amounts_on = [cards_on(card) for card in on or (UNKNOWN_CARD,)]
        return sum((max(amount.get(resource, ZERO) for amount in amounts_on) for resource in resources), ZERO)

    by_candidates: dict[CandidateClasses, list[GPUResource]] = defaultdict(list)
    for resource in requested:
        narrowed = candidates_for_resource(
            resource, candidates, catalogue.classes, catalogue.resource_mapping
        )
        by_candidates[narrowed].append(resource)
    parts: list[Amounts] = []
    for narrowed, resources in by_candidates.items():
        most_on = partial(largest_sum, tuple(resources))
        possible = frozenset(kinds[gpu_class.name] for gpu_class in narrowed.classes)
        in_total = most_on(
            possible if narrowed.is_narrowed else frozenset(Card(card.weights) for card in possible)
        )
        parts.append({GPUS: in_total})
        parts.append(
            {
                key: most_on(frozenset(kinds[gpu_class.name] for gpu_class in classes))
                for key, classes in counted_classes(narrowed, unclassified_pods).items()
            }
        )
    return classified_demand(total(parts), by_candidates, unclassified_pods)


def _upper_bound_demand(
    cards_on: CardsOn, candidates: CandidateClasses, unclassified_pods: UnclassifiedPods
) -> Demand:
    """Return an upper bound of `resources_demand`, cheaply: every unit is a whole card of each possible class."""
    amount = sum(cards_on(UNKNOWN_CARD).values(), ZERO)
    keys = (GPUS, *counted_classes(candidates, unclassified_pods))
    return classified_demand(total([dict.fromkeys(keys, amount)]), [candidates], unclassified_pods)


def classified_demand(
    vector: Amounts, narrowed: Collection[CandidateClasses], unclassified_pods: UnclassifiedPods
) -> Demand:
    """Return the demand with the classes that its vector counts, and with a denial where a class has to be named."""
    return Demand(
        vector,
        classes=tuple(sorted(key.removeprefix(CLASSES) for key in vector if key.startswith(CLASSES))),
        because=" and ".join(dict.fromkeys(classes.because for classes in narrowed)),
        denials=tuple(_class_denials(narrowed, unclassified_pods)),
    )


def counted_classes(
    candidates: CandidateClasses, unclassified_pods: UnclassifiedPods
) -> Mapping[str, Sequence[GPUClass]]:
    """Return each key that counts the candidates, with those of its class or family."""
    is_unclassified = not candidates.is_narrowed and not candidates.names_unknown_node
    if is_unclassified and unclassified_pods is not UnclassifiedPods.MOST_EXPENSIVE:
        return {}
    may_be_any = not candidates.is_narrowed or unclassified_pods is not UnclassifiedPods.TOTAL_ONLY
    members = Counter(gpu_class.family for gpu_class in candidates.classes)
    counted: dict[str, list[GPUClass]] = defaultdict(list)
    for gpu_class in candidates.classes:
        counted[CLASSES + gpu_class.family].append(gpu_class)
        if may_be_any or members[gpu_class.family] == 1:
            counted[CLASSES + gpu_class.name].append(gpu_class)
    return counted


def _class_denials(
    narrowed: Iterable[CandidateClasses], unclassified_pods: UnclassifiedPods
) -> Iterator[Finding]:
    if unclassified_pods is not UnclassifiedPods.DENY:
        return
    for because in dict.fromkeys(classes.because for classes in narrowed if not classes.is_narrowed):
        yield Finding(
            reason=UNCLASSIFIED_POD,
            path="spec",
            message="must name a GPU class, by the nodeSelector of a pod or the DeviceClass or selectors of a claim, because the "
            f"quota of this namespace counts GPUs by class: {because}",
        )


def amount_denials(pod: Pod, resource_mapping: ResourceMapping) -> Iterator[Finding]:
    """Yield a denial for every unreadable or negative amount of a GPU resource, and for every invalid fraction annotation."""
    lists: list[tuple[str, ResourceList, str | None]] = []
    for place in pod.places:
        lists.append((f"{place.path}.resources.limits", place.container.limits, place.container.name))
        lists.append((f"{place.path}.resources.requests", place.container.requests, place.container.name))
    lists.append(("spec.overhead", pod.spec.overhead or {}, None))
    for path, requested, container in lists:
        for name, raw in requested.items():
            if resource_mapping.resource(name) is not None and not is_countable(raw):
                yield Finding(
                    reason=INVALID_QUANTITY,
                    path=f"{path}[{name}]",
                    container=container,
                    value=str(raw),
                    message="must be a quantity that a quota can count",
                    choices=one_choice(Edit(f"{path}[{name}]", 1)),
                    remedy="set a whole number such as 1",
                )
            for unknown in unknown_device_class(name, resource_mapping):
                yield msgspec.structs.replace(unknown, path=f"{path}[{name}]", container=container)
    for bad in fraction_problems(pod, resource_mapping):
        yield bad.finding()


def unknown_device_class(name: str, resource_mapping: ResourceMapping) -> Iterator[Finding]:
    """Yield a denial if the resource name means a DeviceClass that `unknownDeviceClasses: deny` denies."""
    device_class = resource_mapping.denied_device_class(name)
    if device_class is not None:
        yield Finding(
            reason=UNCOUNTABLE_DEVICES,
            message=f"must not ask for devices of DeviceClass {device_class}: nothing says whether they are GPUs",
            remedy="use another DeviceClass",
            ask_contact="to name this one in deviceClasses of a GPUResourceMapping",
        )


def is_countable(raw: str | float | None) -> bool:
    """Whether it is a quantity, and not negative."""
    try:
        return parse_quantity(raw).nano >= 0
    except QuantityError:
        return False

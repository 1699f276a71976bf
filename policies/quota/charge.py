"""Charge of a pod, one pure function, used wherever anything is counted.

The vector is always full, whatever a quota constrains: under `resources/` every GPU resource by the API server's own
arithmetic, under `gpus` what that comes to in whole cards, and the same by class. By class is charged

- the class of the node that `nodeName` names, which the scheduler or the pod's author wrote;
- else the classes that it pins itself to: one is charged with its family; of several in one family, the family, and each of
  them unless `UnclassifiedPods` says TOTAL_ONLY; of several families, every one of them;
- else what `UnclassifiedPods` says; every class, whatever it says, where the pod names a node that is not known.

Where several classes are possible, each key gets the amount of the most expensive of its classes, resource by resource.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum
from fractions import Fraction
from functools import cache, lru_cache, partial
from typing import Protocol

import msgspec

from policies.finding import Finding
from policies.gpus.cards import (
    MOST_BY_MEMORY,
    MOST_RESOURCES,
    NOTHING,
    UNKNOWN_CARD,
    Card,
    amounts,
    annotated_cards,
    card_of,
    cards,
    container_amounts,
    is_limit,
)
from policies.gpus.classes import ClassCatalogue, GPUClass
from policies.gpus.fraction_annotations import fraction_problems
from policies.gpus.resource_mapping import GPUResource, ResourceMapping
from policies.placement.candidates import CandidateClasses, candidate_classes, for_resource
from policies.placement.named_nodes import NO_NODES, NodeIndex
from policies.pods.pod import Pod, ResourceList, Resources
from policies.pods.quantity import QuantityError, parse_quantity
from policies.pods.requests import at_one_time
from policies.quota.amounts import CLASSES, GPUS, RESOURCES, Vector, add, total

RULE_ID = "gpu-quota"


class UnclassifiedPods(Enum):
    """What is charged by class to a pod that pins none, until it is bound to a node of a known class.

    Limits by class hold under the last two: nothing that is bound is charged a class that it was not charged before.
    """

    TOTAL_ONLY = "TotalOnly"
    """Nothing by class; and of a pod that pins a family, only the family."""
    DENY = "Deny"
    """Nothing, and it must not be admitted."""
    MOST_EXPENSIVE = "MostExpensive"
    """Every class and family that it could land on."""


class Charge(msgspec.Struct, frozen=True):
    """What something costs. With `denials` it must not be admitted; stored already, it costs `vector` all the same.

    `classes` are the names (classes, families) that it is charged to, `because` the words for what decided that.
    """

    vector: Vector
    classes: tuple[str, ...] = ()
    because: str = ""
    denials: tuple[Finding, ...] = ()


CardsOn = Callable[[Card], Mapping[GPUResource, Fraction]]


class Catalogues(Protocol):
    """What a charge depends on besides the pod, the node and the quota; a rule's Context and a Configuration have it."""

    @property
    def classes(self) -> ClassCatalogue: ...
    @property
    def resource_mapping(self) -> ResourceMapping: ...


class DemandCatalogue(msgspec.Struct, frozen=True, kw_only=True):
    """What amounts are weighed by."""

    classes: ClassCatalogue
    resource_mapping: ResourceMapping
    unclassified_pods: UnclassifiedPods


def charge_pod(
    pod: Pod,
    *,
    classes: ClassCatalogue,
    resource_mapping: ResourceMapping,
    unclassified_pods: UnclassifiedPods,
    nodes: NodeIndex = NO_NODES,
) -> Charge:
    """Return what the pod costs; `nodes` are those that it may name.

    A pod that has ended costs nothing. DRA claims cost nothing here: they are charged by themselves. An amount that cannot be
    read is a denial; a stored pod with one has the other amounts, or a whole card where it is a fraction annotation.
    """
    if pod.is_terminal:
        return Charge({})
    demand_catalogue = DemandCatalogue(
        classes=classes, resource_mapping=resource_mapping, unclassified_pods=unclassified_pods
    )
    denials = tuple(unreadable(pod, resource_mapping))
    overhead = amounts(pod.body.overhead, resource_mapping)
    # By identity: two of them may be alike. They are read once, and weighed on every kind of card.
    read = {id(place.container): container_amounts(place.container, resource_mapping) for place in pod.places}
    plain = at_one_time(pod, lambda each: read[id(each)], overhead, NOTHING)
    requested = (*plain, *annotated_cards(pod, UNKNOWN_CARD, resource_mapping))
    if not requested:
        return Charge({}, denials=denials)
    candidates = candidate_classes(pod, classes, nodes)

    has_limits = any(map(is_limit, plain))

    def cards_on(card: Card) -> Mapping[GPUResource, Fraction]:
        in_containers = (
            at_one_time(pod, lambda each: cards(read[id(each)], card), cards(overhead, card), NOTHING)
            if has_limits
            else cards(plain, card)
        )
        return {**in_containers, **annotated_cards(pod, card, resource_mapping)}

    if (
        len(requested) > MOST_RESOURCES
    ):  # admission refuses so many: only what it never saw is stored with them
        charge = _weighed_as_one(cards_on, candidates, demand_catalogue)
    else:
        by_memory = sum(map(len, read.values())) <= MOST_BY_MEMORY
        charge = weighed(requested, cards_on, candidates, demand_catalogue, by_memory=by_memory)
    counted = {RESOURCES + resource.name: amount for resource, amount in plain.items()}
    vector, denials = add(charge.vector, counted), (*denials, *charge.denials)
    return msgspec.structs.replace(charge, vector=vector, denials=denials)


def weighed(
    requested: Collection[GPUResource],
    cards_on: CardsOn,
    candidates: CandidateClasses,
    demand_catalogue: DemandCatalogue,
    *,
    by_memory: bool = True,
) -> Charge:
    """Return the charge, but for plain counts, of what is asked and comes to `cards_on(card)` cards on a kind of card.

    Unless `by_memory`, what a class has of it does not matter: an amount of memory is a whole card.
    """
    cards_on = lru_cache(maxsize=None)(cards_on)  # most classes weigh most things alike

    @cache
    def on_class(gpu_class: GPUClass, is_certain: bool) -> Mapping[GPUResource, Fraction]:
        return cards_on(
            card_of(gpu_class, requested, demand_catalogue.classes, is_certain=is_certain and by_memory)
        )

    def weigh(resource: GPUResource, gpu_class: GPUClass, *, is_certain: bool) -> Fraction:
        """Return how many cards it comes to on a class. Limits of memory come to none: they count with what they limit."""
        return on_class(gpu_class, is_certain).get(resource, NOTHING)

    narrowed = [
        for_resource(each, candidates, demand_catalogue.classes, demand_catalogue.resource_mapping)
        for each in requested
    ]
    parts: list[Vector] = []
    for resource, left in zip(requested, narrowed, strict=True):
        on_classes = [weigh(resource, each, is_certain=left.is_known) for each in left.classes]
        # Most are one and the same object, and to compare two takes longer than to find that out.
        distinct = {id(each): each for each in on_classes}.values()
        in_total = max(distinct, default=cards_on(UNKNOWN_CARD).get(resource, NOTHING))
        weigh_it = partial(weigh, resource, is_certain=True)
        parts += [{GPUS: in_total}, _by_class(left, demand_catalogue.unclassified_pods, weigh_it)]
    return _charge(total(parts), narrowed, demand_catalogue)


def _weighed_as_one(
    cards_on: CardsOn, candidates: CandidateClasses, demand_catalogue: DemandCatalogue
) -> Charge:
    """Return at least what `weighed` does, with little work: every unit is a whole card of whatever class is possible."""
    amount = sum(cards_on(UNKNOWN_CARD).values(), NOTHING)
    by_class = _by_class(candidates, demand_catalogue.unclassified_pods, lambda _: amount)
    return _charge(total([{GPUS: amount}, by_class]), [candidates], demand_catalogue)


def _charge(
    vector: Vector, narrowed: Collection[CandidateClasses], demand_catalogue: DemandCatalogue
) -> Charge:
    return Charge(
        vector,
        classes=tuple(sorted(key.removeprefix(CLASSES) for key in vector if key.startswith(CLASSES))),
        because=" and ".join(dict.fromkeys(each.because for each in narrowed)),
        denials=tuple(_refusals(narrowed, demand_catalogue)),
    )


def _by_class(
    candidates: CandidateClasses, unclassified_pods: UnclassifiedPods, weigh: Callable[[GPUClass], Fraction]
) -> Vector:
    """Return what each class and family is charged."""
    is_open = not candidates.is_known and not candidates.names_unknown_node
    if is_open and unclassified_pods is not UnclassifiedPods.MOST_EXPENSIVE:
        return {}
    may_be_any = not candidates.is_known or unclassified_pods is not UnclassifiedPods.TOTAL_ONLY
    members = Counter(gpu_class.family for gpu_class in candidates.classes)
    charged: Vector = {}
    for gpu_class in candidates.classes:
        names = {gpu_class.family}
        if may_be_any or members[gpu_class.family] == 1:
            names.add(gpu_class.name)
        amount = weigh(gpu_class)
        for key in (CLASSES + name for name in names):
            charged[key] = max(charged[key], amount) if key in charged else amount
    return charged


def _refusals(narrowed: Iterable[CandidateClasses], demand_catalogue: DemandCatalogue) -> Iterator[Finding]:
    if demand_catalogue.unclassified_pods is not UnclassifiedPods.DENY:
        return
    for because in dict.fromkeys(each.because for each in narrowed if not each.is_known):
        yield Finding(
            rule=RULE_ID,
            path="spec",
            message=f"must name a GPU class, because the quota of this namespace counts GPUs by class: {because}",
            remedy="set the nodeSelector of the pod or the deviceClassName of the claim",
        )


def unreadable(pod: Pod, resource_mapping: ResourceMapping) -> Iterator[Finding]:
    """Yield a denial for every amount of a GPU resource that cannot be read or is negative, and for bad fraction annotations."""
    lists: list[tuple[str, ResourceList | None, str | None]] = []
    for place in pod.places:
        resources, path, name = place.container.resources or Resources(), place.path, place.container.name
        lists.append((f"{path}.resources.limits", resources.limits, name))
        lists.append((f"{path}.resources.requests", resources.requests, name))
    for path, requested, container in (*lists, ("spec.overhead", pod.body.overhead, None)):
        for name, raw in (requested or {}).items():
            if resource_mapping.resource(name) is not None and not _is_countable(raw):
                yield Finding(
                    rule=RULE_ID,
                    path=f"{path}[{name}]",
                    container=container,
                    value=str(raw),
                    message="must be a quantity that a quota can count",
                    remedy="set a whole number such as 1",
                )
            for unknown in unknown_device_class(name, resource_mapping):
                yield msgspec.structs.replace(unknown, path=f"{path}[{name}]", container=container)
    for bad in fraction_problems(pod, resource_mapping):
        yield bad.finding(RULE_ID)


def unknown_device_class(name: str, resource_mapping: ResourceMapping) -> Iterator[Finding]:
    """Yield a denial if the resource name stands for a DeviceClass that `unknownDeviceClasses: deny` refuses."""
    device_class = resource_mapping.refused_device_class(name)
    if device_class is not None:
        yield Finding(
            rule=RULE_ID,
            message=f"must not ask for devices of DeviceClass {device_class}: nothing says whether they are GPUs",
            remedy="use another DeviceClass",
            ask="to name this one in deviceClasses of a GPUResourceMapping",
        )


def _is_countable(raw: str | float | None) -> bool:
    try:
        return parse_quantity(raw).nano >= 0
    except QuantityError:
        return False

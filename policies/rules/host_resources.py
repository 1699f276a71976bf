"""Give a pod the share of its node's CPU and memory that belongs to its GPUs, and keep it from taking the share of others.

Reads:   `perGPU` of the classes to which the pod is pinned, the GPUs of its containers as the quota counts them (a MIG slice is a
         part of a card), requests and limits of CPU and memory, the LimitRanges of the namespace, and the annotation in which the
         API server lists what it took from them.
Adds:    requests of CPU and memory that are missing in a container with GPUs: the share times its GPUs, less what the pod's other
         containers leave of it. Never more than a limit, a LimitRange or the pod's own resources allow.
Denies:  a pod that requests more than `max` times the share of its GPUs: other GPUs of the node cannot be used. Of several
         classes the largest share counts, so that one more class without a share allows no more.

The share takes the place of what a LimitRange set by default, as a limit, too: the author did not ask for it. Where LimitRanges
cannot be read, defaults stay, with a warning if they exceed `max`, and nothing is added beside a limit of another container,
since a LimitRange may bound the pod. No pod gets a lower QoS class. Nothing is added where nodeName or a DaemonSet
places the pod. `mode` is disabled by default.
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from fractions import Fraction
from functools import partial
from math import ceil
from types import MappingProxyType
from typing import Self

import msgspec

from policies.finding import Edit, Finding, Reason, Severity, one_choice
from policies.gpus.cards import amounts_in_cards, card_of, container_amounts, fractions_in_cards
from policies.gpus.classes import GPUClass
from policies.gpus.fraction_annotations import FRACTION_CONTAINER, fraction_container
from policies.placement.pinning import pinning
from policies.pods.defaults_annotation import DEFAULTS_ANNOTATION, annotated_defaults, default_text
from policies.pods.limit_ranges import ResourceBounds
from policies.pods.patch import PodPatch
from policies.pods.pod import Container, ContainerPlace, Pod, ResourceList
from policies.pods.quantity import NANO, Quantity, in_mebibytes, parse_or_none
from policies.pods.requests import at_one_time
from policies.rule import Context, Mode, Need, Rule, RuleOptions

EXCEEDS_SHARE = Reason("ExceedsShare", "a pod requests more CPU or memory than the share of its GPUs")

ID = "host-resources"
NAMES = ("cpu", "memory")
LARGEST_FACTOR = 100
_UNITS = {"cpu": NANO // 1000, "memory": NANO * 2**20}
"""Amounts are rounded to these, in nano units: a thousandth of a core, one MiB."""
_NOUNS = {"cpu": " CPUs", "memory": " of memory"}
_OWN_NOUNS = {"cpu": "CPUs", "memory": "memory"}


class HostResourcesOptions(RuleOptions, frozen=True):
    mode: Mode = Mode.DISABLED
    max: float | None = 1.0
    """Maximum that a pod may request, as a multiple of the share of its GPUs. None: no maximum."""

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.max is not None and not 1 <= self.max <= LARGEST_FACTOR:
            yield (
                "max",
                f"must be from 1 to {LARGEST_FACTOR}, not {self.max}: the share itself must be allowed",
            )


class GPUUse(msgspec.Struct, frozen=True):
    """The GPUs of a pod on nodes of one class, in cards: for each of `Pod.places`, and the total at one time."""

    gpu_class: GPUClass
    places: tuple[Fraction, ...]
    total: Fraction


class Share(msgspec.Struct, frozen=True):
    """The CPU or memory that belongs to one card of a class, and to the pod there, in nano units."""

    class_options: GPUUse
    of_card: int
    of_pod: int

    @classmethod
    def of(cls, use: GPUUse, name: str) -> Self | None:
        stated = use.gpu_class.per_gpu and use.gpu_class.per_gpu.of(name)
        return cls(use, stated, int(stated * use.total)) if stated and use.total else None


def mutate(patch: PodPatch, options: HostResourcesOptions, context: Context) -> Iterator[Finding]:
    uses = gpu_uses(patch.pod, context)
    for name in NAMES:
        shares = [share for use in uses if (share := Share.of(use, name))]
        bounds = context.limit_ranges.of(name) if context.limit_ranges else None
        is_placed_by_others = context.made_by_daemonset or patch.pod.spec.node_name
        if shares and len(shares) == len(uses) and not is_placed_by_others:
            add_requests(patch, name, shares, bounds)
        if shares and options.max is not None:
            yield from excess_findings(patch.pod, name, shares, options.max, bounds)


def gpu_uses(pod: Pod, context: Context) -> list[GPUUse]:
    """Return the use of each class to which the pod is pinned. Empty if none of them states a share, or nothing pins the pod."""
    pinned = (
        pinning(pod, context.classes) if context.resource_mapping.requests_gpus_without_claims(pod) else None
    )
    classes = context.classes.named(pinned.classes) if pinned else ()
    if not any(gpu_class.per_gpu for gpu_class in classes):
        return []
    return [_gpu_use(pod, gpu_class, context, is_certain=len(classes) == 1) for gpu_class in classes]


def _gpu_use(pod: Pod, gpu_class: GPUClass, context: Context, *, is_certain: bool) -> GPUUse:
    mapping, gpu_classes = context.resource_mapping, context.classes
    requested = {id(place.container): container_amounts(place.container, mapping) for place in pod.places}
    resources = {resource for amounts in requested.values() for resource in amounts}
    card = card_of(gpu_class, resources, gpu_classes, is_certain=is_certain)
    gpus = {
        key: sum(amounts_in_cards(amounts, card).values(), Fraction(0)) for key, amounts in requested.items()
    }
    shared = fraction_container(pod, mapping)
    for place in pod.apps:
        if place.container.name == shared:
            gpus[id(place.container)] += sum(fractions_in_cards(pod, card, mapping).values(), Fraction(0))
    of_places = tuple(gpus[id(place.container)] for place in pod.places)
    return GPUUse(
        gpu_class, of_places, at_one_time(pod, lambda each: {ID: gpus[id(each)]}, {}).get(ID, Fraction(0))
    )


# ---- what is missing


def add_requests(patch: PodPatch, name: str, shares: Sequence[Share], bounds: ResourceBounds | None) -> None:
    """Set the requests that are missing, or that a LimitRange set by default, in containers with GPUs."""
    pod = patch.pod
    if _pod_level_paths(pod, name):
        return
    if _keeps_defaults(bounds) and any(name in place.container.limits for place in pod.places):
        return
    bounds, listed, places = bounds or ResourceBounds(), annotated_defaults(pod), pod.places
    wanted = {
        index: min(int(share.of_card * share.class_options.places[index]) for share in shares)
        for index, place in enumerate(places)
        if shares[0].class_options.places[index] and author_set_nothing(place, name, bounds, listed)
    }
    if not wanted:
        return
    left = min(share.of_pod for share in shares) - _nano(pod.spec.overhead, name)
    amounts_of = [_request_and_limit(place.container, name) for place in places]
    for index, share in wanted.items():
        if amounts_of[index][0] == amounts_of[index][1]:  # more than the share will be lowered
            amounts_of[index] = min(amounts_of[index][0], share), min(amounts_of[index][1], share)
    # What a later container gets may reach the minimum of a LimitRange that an earlier one did not reach.
    unset, tried = list(wanted), list[int]()
    while unset != tried:
        tried, unset = unset, []
        for index in tried:
            groups = list(_concurrent_groups(places, index))
            requests, limits = (
                max(sum(amounts_of[index][kind] for index in group) for group in groups) for kind in (0, 1)
            )
            current = _request_and_limit(places[index].container, name)
            amount = _rounded_down(name, bounds.capped(min(wanted[index], left - requests), limits))
            if current[0] != current[1]:
                amount = max(amount, current[0])
            if amount > 0 and bounds.meets_minimum(amount, requests):
                limit = amount if current[0] == current[1] else max(amount, current[1])
                _set_amounts(patch, places[index], name, (amount, limit), current)
                current = amount, limit
            else:
                unset.append(index)
            amounts_of[index] = current


def author_set_nothing(
    place: ContainerPlace, name: str, bounds: ResourceBounds | None, listed: AbstractSet[str]
) -> bool:
    """Whether the author set neither limit nor request: they are missing, or defaults of a LimitRange.

    A default must be in the annotation of the API server (`listed`) and, if `bounds` are known, a default there.
    """
    written = (("request", place.container.requests), ("limit", place.container.limits))
    return all(
        default_text(place, kind, name) in listed
        and (bounds is None or parse_or_none(amounts[name]) in bounds.defaults)
        for kind, amounts in written
        if name in amounts
    )


def _keeps_defaults(bounds: ResourceBounds | None) -> bool:
    """Whether defaults stay, because other bounds of LimitRanges are not known, or are ratios, which are not computed."""
    return bounds is None or bounds.has_ratio


def _concurrent_groups(places: Sequence[ContainerPlace], index: int) -> Iterator[list[int]]:
    """Yield the groups of containers that run at the same time as a container, one group after the other."""
    apps = [index for index, place in enumerate(places) if place.list_name == "containers"]
    sidecars = [each for each, place in enumerate(places) if place.is_sidecar and each != index]
    if index in apps or places[index].is_sidecar:
        yield [each for each in (*apps, *sidecars) if each != index]
    # An init container runs beside the sidecars before it.
    for init in range(index, len(places)) if index not in apps else ():
        if not places[init].is_sidecar:
            yield [*(sidecar for sidecar in sidecars if sidecar < init), *(() if init == index else (init,))]
            if init == index:
                return


def _set_amounts(
    patch: PodPatch, place: ContainerPlace, name: str, amounts: tuple[int, int], now: tuple[int, int]
) -> None:
    """Set the request, and the limit if there is one, where they change."""
    if amounts[0] != now[0]:
        patch.set_resource(place, "requests", name, _amount_text(name, amounts[0]))
    if amounts[1] != now[1] and name in place.container.limits:
        patch.set_resource(place, "limits", name, _amount_text(name, amounts[1]))


# ---- what is too much


def excess_findings(
    pod: Pod, name: str, shares: Sequence[Share], factor: float, bounds: ResourceBounds | None
) -> Iterator[Finding]:
    """Deny a pod that requests more than its share, unless it has all GPUs of its node."""
    share = max(shares, key=lambda share: share.of_pod)
    total, on_node = share.class_options.total, share.class_options.gpu_class.gpus_per_node
    requested = _requested(pod, name)
    allowed = -_rounded_down(name, -share.of_pod * round(factor * 1000) // 1000)
    if requested <= allowed or (on_node is not None and total >= on_node):
        return
    stranded = ceil(Fraction(requested, share.of_card) - total)
    stranded = stranded if on_node is None else min(stranded, ceil(on_node - total))
    times = "" if factor == 1 else f", and max allows {factor:g} times that"
    why = (
        f"a GPU's share on {share.class_options.gpu_class.name} is {_amount_text(name, share.of_card)}{_NOUNS[name]}{times}; "
        f"{_amount_text(name, requested)} leave {'1 GPU' if stranded == 1 else f'{stranded} GPUs'} without {_OWN_NOUNS[name]} of "
        f"{'its' if stranded == 1 else 'their'} own"
    )
    is_default = _is_by_default(share, pod, name, allowed, bounds)
    severity = Severity.WARNING if is_default else Severity.DENIAL
    finding = partial(Finding, reason=EXCEEDS_SHARE, severity=severity)
    place = max(pod.places, key=lambda place: _request_and_limit(place.container, name)[0])
    largest = _request_and_limit(place.container, name)
    reduced = _rounded_down(name, largest[0] - (requested - allowed))
    is_pod_level = _pod_level_request(pod, name) is not None
    if is_pod_level or reduced <= 0 or _requested(pod, name, {id(place.container): reduced}) > allowed:
        choices = one_choice(*_reducing_edits(pod, name, allowed, is_pod_level=is_pod_level))
        yield finding(
            path=_pod_level_paths(pod, name)[-1] if is_pod_level else "spec",
            message=f"{'should' if is_default else 'must'} request at most {_amount_text(name, allowed)} of {name} in all: {why}",
            choices=choices,
            remedy=f"request less {name}, or more GPUs" if choices else "request more GPUs",
        )
        return
    in_all = (
        ""
        if largest[0] == requested
        else f" beside the other containers, {_amount_text(name, allowed)} in all"
    )
    paths = place.amount_paths(name)
    reduced_paths = paths if largest[0] == largest[1] else paths[-1:]
    yield finding(
        path=paths[-1],
        container=place.container.name,
        value=str({**place.container.limits, **place.container.requests}[name]),
        message=f"{'should' if is_default else 'must'} be at most {_amount_text(name, reduced)}{in_all}: {why}",
        choices=one_choice(*(Edit(path, _amount_text(name, reduced)) for path in reduced_paths)),
    )


def _reducing_edits(pod: Pod, name: str, allowed: int, *, is_pod_level: bool) -> Iterator[Edit]:
    """Yield the edits by which the containers, or the pod as a whole, share in equal parts what the overhead leaves."""
    remaining = allowed - _nano(pod.spec.overhead, name)
    places = [place for place in pod.places if _request_and_limit(place.container, name)[0]]
    if remaining <= 0 or not (is_pod_level or places):
        return  # the RuntimeClass alone requests too much
    if is_pod_level:
        yield from (Edit(path, _amount_text(name, remaining)) for path in _pod_level_paths(pod, name))
        return
    equal_part = _amount_text(name, _rounded_down(name, remaining // len(places)))
    yield from (Edit(path, equal_part) for place in places for path in place.amount_paths(name))


def _is_by_default(share: Share, pod: Pod, name: str, allowed: int, bounds: ResourceBounds | None) -> bool:
    """Whether the pod exceeds its share only because of defaults that stay, which its author did not write."""
    listed = annotated_defaults(pod)
    without = {
        id(place.container): 0
        for place, gpus in zip(pod.places, share.class_options.places, strict=True)
        if gpus and author_set_nothing(place, name, bounds, listed)
    }
    return _keeps_defaults(bounds) and _requested(pod, name, without) <= allowed


def _requested(pod: Pod, name: str, instead: Mapping[int, int] = MappingProxyType({})) -> int:
    """Return what the pod requests at one time. `instead`: other requests of some containers, by `id()`."""

    def needs(container: Container) -> dict[str, Fraction]:
        return {name: Fraction(instead.get(id(container), _request_and_limit(container, name)[0]))}

    of_pod, overhead = _pod_level_request(pod, name), _nano(pod.spec.overhead, name)
    return overhead + (int(at_one_time(pod, needs, {})[name]) if of_pod is None else of_pod)


def _pod_level_paths(pod: Pod, name: str) -> list[str]:
    """Return the paths in `spec.resources` that have an amount: limit, then request."""
    own = Container(resources=pod.spec.resources)
    return [f"spec.resources.{kind}[{name}]" for kind in ("limits", "requests") if name in getattr(own, kind)]


def _pod_level_request(pod: Pod, name: str) -> int | None:
    """Return what replaces the requests of the containers: the request in `spec.resources`, or if none has any, its limit.

    Kubernetes 1.37 completes `spec.resources` after webhooks (`DefaultPodLevelResources` in pkg/api/pod).
    """
    own = Container(resources=pod.spec.resources)
    if name in own.requests:
        return _nano(own.requests, name)
    has_requests = any(name in {**place.container.limits, **place.container.requests} for place in pod.places)
    return _nano(own.limits, name) if name in own.limits and not has_requests else None


def _request_and_limit(container: Container, name: str) -> tuple[int, int]:
    """Return request and limit; a missing one is equal to the other."""
    request, limit = _nano(container.requests, name), _nano(container.limits, name)
    return (request if name in container.requests else limit, limit if name in container.limits else request)


def _nano(amounts: ResourceList | None, name: str) -> int:
    quantity = parse_or_none((amounts or {}).get(name))
    return max(quantity.nano, 0) if quantity else 0


def _rounded_down(name: str, nano: int) -> int:
    """Return the amount in whole thousandths of a core or whole MiB, rounded down."""
    return nano // _UNITS[name] * _UNITS[name]


def _amount_text(name: str, nano: int) -> str:
    return str(Quantity(_rounded_down(name, nano))) if name == "cpu" else in_mebibytes(nano // NANO)


RULE = Rule(
    id=ID,
    needs=frozenset({Need.LIMIT_RANGES}),
    reasons=(EXCEEDS_SHARE,),
    summary="GPU pods request the CPU and memory that belong to their GPUs, and no more",
    options=HostResourcesOptions,
    mutate=mutate,
    metadata_keys=(DEFAULTS_ANNOTATION, FRACTION_CONTAINER),
    not_exported="it computes shares from the class, and reads LimitRanges, which CEL cannot",
)

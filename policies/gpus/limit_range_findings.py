"""Findings about LimitRanges and GPUs: GPUs that a LimitRange gives by default, and pods that a LimitRange refuses."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, product

from msgspec.structs import replace

from policies.finding import (
    LIMIT_RANGE_REJECTS,
    ContactEdit,
    Edit,
    Edits,
    Finding,
    Reason,
    choices_text,
    one_choice,
    warning,
)
from policies.gpus.near_names import UNKNOWN_RESOURCE_NAME
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.defaults_annotation import annotated_defaults
from policies.pods.field_paths import path_parts
from policies.pods.limit_ranges import (
    CONTAINER_TYPE,
    POD_LEVEL,
    RATIO,
    REQUESTS_AND_LIMITS,
    Default,
    LimitRange,
    LimitRangeItem,
    NamespaceLimits,
    Refusal,
    effective_amounts,
    given_amounts,
    refusals,
    requested_amounts,
)
from policies.pods.patch import PodPatch, ResourceMap
from policies.pods.pod import ContainerPlace, Pod
from policies.pods.quantity import NANO, QuantityError, QuantityText, parse_or_none, parse_quantity
from policies.pods.requests import ways_to_request

GPUS_BY_DEFAULT = Reason("GPUsByDefault", "a LimitRange gives GPUs to containers that request none")
ID = "limit-range"
"""Rule id of what a LimitRange itself refuses, whatever our policy is."""
LIMIT_RANGE = "LimitRange"
_ZERO = "0"
_IN_LIMITS = " in resources.limits"
"""Where to write it: the API server copies a limit to the request, and no request to the limit."""
_warning = partial(warning, reason=GPUS_BY_DEFAULT, is_example=True)


# ---- a pod


def gpus_by_default(pod: Pod, limits: NamespaceLimits, mapping: ResourceMapping) -> list[Default]:
    """Return the GPUs that a LimitRange gave a pod. LimitRanger has already changed the pod."""
    return [each for each in given_amounts(pod, limits) if _has_gpus(each.resource, each.amount, mapping)]


def _has_gpus(resource: str, amount: QuantityText, mapping: ResourceMapping) -> bool:
    quantity = parse_or_none(amount)
    return mapping.resource(resource) is not None and quantity is not None and quantity.nano > 0


def has_no_other_gpus(pod: Pod, defaults: Sequence[Default], mapping: ResourceMapping) -> bool:
    """Whether the pod has no GPUs but these defaults."""
    known = {(default.place.path, default.resource) for default in defaults}
    others = pod.spec.resource_claims or mapping.fraction_annotations_of(pod)
    return not others and all(
        (request.place.path, request.resource.name) in known for request in mapping.requests(pod)
    )


def can_be_zero(pod: Pod, defaults: Sequence[Default], limits: NamespaceLimits) -> bool:
    """Whether LimitRanges accept 0 in place of what they gave."""
    for default in defaults:
        pod = with_amounts(pod, default.place, REQUESTS_AND_LIMITS, default.resource, _ZERO)
    names = {default.resource for default in defaults}
    try:
        return not any(refusal.resource in names for refusal in refusals(pod, limits))
    except QuantityError:
        return False  # reported where it is written


def with_amounts(
    pod: Pod, place: ContainerPlace, kinds: Sequence[ResourceMap], resource: str, amount: QuantityText
) -> Pod:
    patch = PodPatch(pod)
    for kind in kinds:
        patch.set_resource(place, kind, resource, amount)
    return patch.pod


def default_gpu_warnings(pod: Pod, limits: NamespaceLimits, mapping: ResourceMapping) -> Iterator[Finding]:
    """Warn of each container that a LimitRange gave GPUs."""
    by_amount: dict[tuple[str, str], list[Default]] = {}
    for default in gpus_by_default(pod, limits, mapping):
        by_amount.setdefault((default.place.path, default.resource), []).append(default)
    for defaults in by_amount.values():
        last = defaults[-1]
        path, container, value = last.path, last.place.container.name, str(last.amount)
        finding = _warning(path=path, container=container, value=value, message=_origin_text(defaults))
        if can_be_zero(pod, defaults, limits):
            edits = edits_to_zero(defaults)
            yield replace(
                finding, choices=(edits,), remedy=f"{choices_text([edits])}{_IN_LIMITS} if it needs none"
            )
        else:
            yield _with_contact_edits(finding, [last], limits)


def with_limit_range_named(
    finding: Finding,
    defaults: Sequence[Default],
    limits: NamespaceLimits,
    *,
    all_of_pod: bool,
    admitted_without: bool | None,
) -> Finding:
    """Return a denial of given GPUs with the LimitRange that gives them, and what the author of the pod can write.

    all_of_pod: the pod has no other GPUs. admitted_without: whether the pod is admitted without them; None if LimitRanges refuse
    it then.
    """
    own_defaults = [default for default in defaults if default.path == finding.path]
    is_of_pod = all_of_pod and ".resources." not in finding.path
    if not (own_defaults or is_of_pod or finding.path in {"", "spec"}):
        return finding
    finding = replace(finding, message=f"{finding.message}; {_origin_text(defaults)}")
    if not admitted_without:
        is_for_contact = admitted_without is None and all_of_pod and not finding.ask_contact
        return _with_contact_edits(finding, own_defaults or defaults, limits) if is_for_contact else finding
    edits = edits_to_zero(defaults)
    text, advice = f"{choices_text([edits])}{_IN_LIMITS} if it needs no GPU", finding.advice
    return replace(
        finding,
        choices=(edits, *finding.choices),
        is_example=True,
        remedy=f"{text}, or {advice[:1].lower()}{advice[1:]}" if advice else text,
    )


def edits_to_zero(defaults: Sequence[Default]) -> Edits:
    amounts = dict.fromkeys((default.place.path, default.resource) for default in defaults)
    return tuple(
        Edit(f"{path}.resources.{kind}[{name}]", _ZERO)
        for path, name in amounts
        for kind in REQUESTS_AND_LIMITS
    )


def _origin_text(defaults: Sequence[Default]) -> str:
    origins = dict.fromkeys((each.limit_range, each.resource, str(each.amount)) for each in defaults)
    differ = {(default.resource, str(default.amount), default.kind) for default in defaults}
    kinds = {(name, amount): f"{kind} " for name, amount, kind in differ} if len(origins) > 1 else {}
    return "; ".join(
        f"LimitRange {name} gives {kinds.get((resource, amount), '')}{resource}: {amount} to each container that requests none"
        for name, resource, amount in origins
    )


def _with_contact_edits(finding: Finding, defaults: Sequence[Default], limits: NamespaceLimits) -> Finding:
    """Return the finding with the request to the contact to remove these resources from all LimitRanges.

    If only one was changed, another would still give them, or refuse a pod without them.
    """
    resources = sorted({default.resource for default in defaults})
    edits = {
        limit_range.name: [
            ContactEdit(LIMIT_RANGE, f"spec.limits[{index}].{field}[{resource}]")
            for index, item in enumerate(limit_range.items)
            for field, amounts in item.fields.items()
            for resource in resources
            if resource in amounts
        ]
        for limit_range in limits.limit_ranges
    }
    names = " and ".join(f"{LIMIT_RANGE} {name}" for name, changes in edits.items() if changes)
    request = f"to take {' and '.join(resources)} out of {names}"
    return replace(
        finding, ask_contact=request, contact_choices=(tuple(chain.from_iterable(edits.values())),)
    )


def resources_to_remove(finding: Finding) -> frozenset[str]:
    """Return the resources that the finding asks to take out of LimitRanges."""
    asked = (edit for change in finding.contact_choices for edit in change if isinstance(edit, ContactEdit))
    return frozenset(str(path_parts(edit.path)[-1]) for edit in asked if edit.kind == LIMIT_RANGE)


# ---- what refuses it


def refusal_findings(
    pod: Pod, limits: NamespaceLimits, mapping: ResourceMapping, *, is_partial: bool
) -> Iterator[Finding]:
    """Say why a LimitRange would refuse a new GPU pod. is_partial: a part of it is not known, so only maxima are certain."""
    if not limits.limit_ranges or not mapping.pod_requests_gpus(pod):
        return
    try:
        refused = refusals(pod, limits)
    except QuantityError:
        return  # reported where it is written
    for refusal in refused:
        if not is_partial or (refusal.bound == "max" and refusal.actual is not None):
            yield _refusal_finding(pod, refusal, limits)
    yield from () if is_partial else _limits_below_requests(pod, limits, mapping)


def _limits_below_requests(pod: Pod, limits: NamespaceLimits, mapping: ResourceMapping) -> Iterator[Finding]:
    """Say which request is larger than the limit that a LimitRange gives: the API server rejects such a pod."""
    listed = annotated_defaults(pod)
    for place, (resource, given) in product(pod.places, limits.defaults_for("limits").items()):
        default = Default(place, "limits", resource, *given)
        request, limit = (
            amounts.get(resource) for amounts in (place.container.requests, place.container.limits)
        )
        is_given = default.annotation_text in listed and mapping.resource(resource) is None
        # Anybody can write the annotation, also of a limit that the pod lacks.
        if not is_given or None in (request, limit) or parse_quantity(request) <= parse_quantity(limit):
            continue
        yield Finding(
            rule=ID,
            reason=LIMIT_RANGE_REJECTS,
            path=f"{place.path}.resources.requests[{resource}]",
            container=place.container.name,
            value=str(request),
            message=f"must be at most the limit, and LimitRange {default.limit_range} gives {limit}",
            choices=one_choice(Edit(default.path, request)),
            remedy=f"add {resource}: {request} to resources.limits",
        )


def _refusal_finding(pod: Pod, refusal: Refusal, limits: NamespaceLimits) -> Finding:
    field = f"spec.limits[{refusal.item}].{refusal.bound}[{refusal.resource}]"
    edits, place = _accepted_edits(pod, refusal, limits), _refused_place(pod, refusal)
    missing = f"{refusal.path}.resources.requests[{refusal.resource}]" if refusal.place else refusal.path
    is_about_place = refusal.place or refusal.actual is not None
    fewer = _ways_to_request_fewer(pod, refusal) if place is None and refusal.bound == "max" else ()
    written = place.amount_paths(refusal.resource) if place and is_about_place else []
    return Finding(
        rule=ID,
        reason=LIMIT_RANGE_REJECTS,
        path=next(iter(written), missing),
        container=refusal.place.container.name if refusal.place else None,
        message=f"must satisfy LimitRange {refusal.limit_range}: {refusal.message}",
        choices=fewer or one_choice(*edits),
        is_example=bool(fewer),
        remedy=f"request {refusal.resource}: {refusal.allowed} or less in all containers together"
        if fewer
        else "",
        ask_contact=f"to remove {field} from LimitRange {refusal.limit_range}",
        contact_choices=((ContactEdit(LIMIT_RANGE, field),),),
    )


def _accepted_edits(pod: Pod, refusal: Refusal, limits: NamespaceLimits) -> Edits:
    """Return the edits of one container by which the LimitRange accepts the pod; empty if there are none.

    They write the bound, or for a ratio of limit to request the limit as the request.
    """
    name, is_ratio, place = refusal.resource, refusal.bound == RATIO, _refused_place(pod, refusal)
    if place is None or (pod.spec.resources is not None and name in POD_LEVEL):
        return ()  # amounts of the pod as a whole bound those of its containers
    amount = effective_amounts(place.container, "limits").get(name) if is_ratio else refusal.allowed
    written = [kind for kind in REQUESTS_AND_LIMITS if name in getattr(place.container, kind)]
    kinds = written if refusal.actual and not is_ratio else REQUESTS_AND_LIMITS
    if amount is None or any(
        (other.path, other.resource) == (refusal.path, name)
        for other in refusals(with_amounts(pod, place, kinds, name, amount), limits)
    ):
        return ()
    return tuple(Edit(f"{place.path}.resources.{kind}[{name}]", amount) for kind in kinds)


def _ways_to_request_fewer(pod: Pod, refusal: Refusal) -> tuple[Edits, ...]:
    """Return the ways in which several containers request no more GPUs than the LimitRange allows a pod."""
    name, seen, allowed = refusal.resource, refusal.actual, parse_quantity(refusal.allowed)
    if seen is None or "/" not in name:
        return ()
    requesting = requested_amounts(pod, name)
    return tuple(
        tuple(
            Edit(path, amount)
            for index, amount in way.items()
            for path in requesting[index][0].amount_paths(name)
        )
        for way in ways_to_request(pod, seen.value - allowed.nano // NANO, requesting)
    )


def _refused_place(pod: Pod, refusal: Refusal) -> ContainerPlace | None:
    """Return the refused container; of a pod that is refused as a whole, the only container that requests the resource."""
    requesting = [
        place for place in pod.places if refusal.resource in effective_amounts(place.container, "requests")
    ]
    return refusal.place or (requesting[0] if len(requesting) == 1 else None)


# ---- a LimitRange


def limit_range_warnings(limit_range: LimitRange, mapping: ResourceMapping) -> Iterator[Finding]:
    """Warn of the GPUs that a LimitRange gives to containers that request none."""
    items = (limit_range.spec and limit_range.spec.limits) or ()
    for index, (written, defaulted) in enumerate(zip(items, limit_range.items, strict=True)):
        defaults = {**(defaulted.default_request or {}), **(defaulted.default or {})}
        for resource, amount in defaults.items() if defaulted.type == CONTAINER_TYPE else ():
            if _has_gpus(resource, amount, mapping) and not mapping.suggested_name(resource):
                yield _gpus_by_default_finding(f"spec.limits[{index}]", written, resource, str(amount))
        yield from _misspelt_findings(f"spec.limits[{index}]", written, mapping)


def _misspelt_findings(path: str, item: LimitRangeItem, mapping: ResourceMapping) -> Iterator[Finding]:
    """Warn of amounts of resources whose names nearly equal those of GPU resources."""
    for field, amounts in item.fields.items():
        for resource, amount in amounts.items():
            meant, amount_path = mapping.suggested_name(resource), f"{path}.{field}[{resource}]"
            if meant is not None:
                yield warning(
                    rule=ID,
                    reason=UNKNOWN_RESOURCE_NAME,
                    path=amount_path,
                    message="no device plugin that is known has this resource: the LimitRange bounds nothing",
                    choices=one_choice(Edit(amount_path), Edit(f"{path}.{field}[{meant}]", amount)),
                    remedy=f"did you mean {meant}?",
                )


def limit_ranges_giving_gpus(
    limits: Mapping[str, NamespaceLimits], mapping: ResourceMapping
) -> Iterator[tuple[str, Finding]]:
    """Yield the title of each LimitRange that gives GPUs, and the warning. `limits`: by namespace."""
    for namespace, namespace_limits in sorted(limits.items()):
        for limit_range in namespace_limits.limit_ranges:
            for finding in limit_range_warnings(limit_range, mapping):
                yield f"LimitRange/{limit_range.name} in {namespace}", finding


def _gpus_by_default_finding(path: str, item: LimitRangeItem, resource: str, amount: str) -> Finding:
    fields_to_zero = [f"{field}[{resource}]" for field in ("default", "defaultRequest")]
    bounds = (("min", item.min), (RATIO, item.max_limit_request_ratio))
    removed = [f"{field}[{resource}]" for field, amounts in bounds if resource in (amounts or {})]
    stating = (("default", item.default), ("defaultRequest", item.default_request), ("max", item.max))
    field = next((field for field, amounts in stating if resource in (amounts or {})), "min")
    why = "" if field.startswith("default") else f": {field} is the default where nobody writes one"
    edits = (
        *(Edit(f"{path}.{field}", _ZERO) for field in fields_to_zero),
        *(Edit(f"{path}.{field}") for field in removed),
    )
    return _warning(
        rule=ID,
        path=f"{path}.{field}[{resource}]",
        value=amount,
        message=f"each container that requests none gets it, also sidecars and init containers{why}",
        choices=one_choice(*edits),
        remedy=", and ".join(
            f"{verb} {' and '.join(fields)}{to}"
            for verb, fields, to in (("set", fields_to_zero, " to 0"), ("remove", removed, ""))
            if fields
        ),
    )

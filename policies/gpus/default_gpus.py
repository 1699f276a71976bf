"""GPUs that a LimitRange gives to containers whose authors requested none: who gives them, and how a pod is rid of them."""

from collections.abc import Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from policies.finding import Asked, Edit, Edits, Finding, Reason, Severity, in_words, together
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.limit_ranger import KINDS, Default, Refusal, effective, refusals, text, was_given
from policies.pods.limit_ranges import CONTAINER, LimitRange, LimitRangeItem, NamespaceLimits
from policies.pods.patch import PodPatch, ResourceMap
from policies.pods.pod import Pod
from policies.pods.quantity import QuantityError, QuantityText, readable

GPUS_BY_DEFAULT = Reason("GPUsByDefault", "a LimitRange gives GPUs to containers that request none")
LIMIT_RANGE_REFUSES = Reason("LimitRangeRefuses", "a LimitRange refuses the pod")
REASONS = (GPUS_BY_DEFAULT, LIMIT_RANGE_REFUSES)

LIMIT_RANGE, RULE = "LimitRange", "gpu-requests"
_NONE = "0"
_warning = partial(Finding, reason=GPUS_BY_DEFAULT, severity=Severity.WARNING, is_example=True)


# ---- a pod


def gpus_by_default(pod: Pod, limits: NamespaceLimits, mapping: ResourceMapping) -> list[Default]:
    """Return the GPUs of a pod that LimitRanger has seen which a LimitRange gave it."""
    return [
        each
        for each in was_given(pod, limits)
        if mapping.resource(each.resource) is not None and is_positive(each.amount)
    ]


def is_positive(amount: QuantityText) -> bool:
    quantity = readable(amount)
    return quantity is not None and quantity.nano > 0


def are_all(pod: Pod, defaults: Sequence[Default], mapping: ResourceMapping) -> bool:
    """Whether the pod has no GPUs but these."""
    known = {(each.place.path, each.resource) for each in defaults}
    others = pod.spec.resource_claims or mapping.fractions_of(pod)
    return not others and all(
        (each.place.path, each.resource.name) in known for each in mapping.requests(pod)
    )


def without_gpus(pod: Pod, defaults: Sequence[Default], limits: NamespaceLimits) -> Pod | None:
    """Return the pod that requests 0 in place of what it was given; None where a LimitRange refuses that."""
    patch = PodPatch(pod)
    for each in defaults:
        patch.set_resource(each.place, each.kind, each.resource, _NONE)
    names = {each.resource for each in defaults}
    try:
        is_refused = any(each.resource in names for each in refusals(patch.pod, limits))
    except QuantityError:
        return None  # reported where it is written
    return None if is_refused else patch.pod


def warnings(pod: Pod, defaults: Sequence[Default], limits: NamespaceLimits) -> Iterator[Finding]:
    """Warn of each container that was given GPUs."""
    by_place: dict[tuple[str, str], list[Default]] = {}
    for each in defaults:
        by_place.setdefault((each.place.path, each.resource), []).append(each)
    for found in by_place.values():
        shown, is_optional = found[-1], without_gpus(pod, found, limits) is not None
        finding = _warning(
            path=shown.path,
            container=shown.place.container.name,
            value=str(shown.amount),
            message=_origin(found),
            choices=together(*_edits(found)) if is_optional else (),
            remedy=f"{in_words([_edits(found)])} if it needs none" if is_optional else "",
        )
        yield finding if is_optional else _asking(finding, found, limits)


def explained(
    finding: Finding, defaults: Sequence[Default], limits: NamespaceLimits, *, all_of_pod: bool, removes: bool
) -> Finding:
    """Return a denial with the LimitRange that gave the GPUs it is about, and what its author can write.

    all_of_pod: the pod has no other GPUs. removes: without them, it would not be denied.
    """
    if not (all_of_pod or finding.path in {"", "spec", *(each.path for each in defaults)}):
        return finding
    finding = replace(finding, message=f"{finding.message}; {_origin(defaults)}")
    if not removes:
        return finding if finding.ask or not all_of_pod else _asking(finding, defaults, limits)
    edits = _edits(defaults)
    words, advice = f"{in_words([edits])} if it needs no GPU", finding.advice
    return replace(
        finding,
        choices=(edits, *finding.choices),
        is_example=True,
        remedy=f"{words}, or {advice[:1].lower()}{advice[1:]}" if advice else words,
    )


def _edits(defaults: Sequence[Default]) -> Edits:
    return tuple(Edit(each.path, _NONE) for each in defaults)


def _origin(defaults: Sequence[Default]) -> str:
    given = dict.fromkeys((each.limit_range, each.resource, str(each.amount)) for each in defaults)
    return "; ".join(
        f"LimitRange {name} gives {resource}: {amount} to each container that requests none"
        for name, resource, amount in given
    )


def _asking(finding: Finding, defaults: Sequence[Default], limits: NamespaceLimits) -> Finding:
    named = defaults[0]
    item = next(
        at
        for each in limits.limit_ranges
        if each.name == named.limit_range
        for at, item in enumerate(each.items)
        if item.type == CONTAINER
    )
    asked = Asked(LIMIT_RANGE, f"spec.limits[{item}]")
    ask = f"to take {named.resource} out of LimitRange {named.limit_range}"
    return replace(finding, ask=ask, asks=(asked,))


# ---- what refuses it


def refusal_findings(
    pod: Pod, limits: NamespaceLimits, mapping: ResourceMapping, *, is_partial: bool
) -> Iterator[Finding]:
    """Say why a LimitRange would refuse a new GPU pod. is_partial: only a part of the pod is known, so only maxima of it are."""
    if not limits.limit_ranges or not mapping.pod_requests_gpus(pod):
        return
    try:
        found = refusals(pod, limits)
    except QuantityError:
        return  # reported where it is written
    for each in found:
        if not is_partial or (each.bound == "max" and each.seen is not None):
            yield _refused(pod, each, limits)


def _refused(pod: Pod, refusal: Refusal, limits: NamespaceLimits) -> Finding:
    has_amount = refusal.seen is not None and refusal.bound != "maxLimitRequestRatio"
    needed = text(refusal.resource, refusal.seen) if has_amount and refusal.seen else None
    field = f"spec.limits[{refusal.item}].{refusal.bound}[{refusal.resource}]"
    choices = _accepted(pod, refusal, limits)
    return Finding(
        reason=LIMIT_RANGE_REFUSES,
        path=choices[0][-1].path if choices else refusal.place.path if refusal.place else "spec",
        container=refusal.place.container.name if refusal.place else None,
        message=f"must satisfy LimitRange {refusal.limit_range}: {refusal.message}",
        choices=choices,
        ask=f"to change {field} of LimitRange {refusal.limit_range}",
        asks=(Asked(LIMIT_RANGE, field, needed),),
    )


def _accepted(pod: Pod, refusal: Refusal, limits: NamespaceLimits) -> tuple[Edits, ...]:
    """Return the edits of one container that its LimitRange accepts: the bound in place of the amount, or equal amounts."""
    name = refusal.resource
    has = [each for each in pod.places if name in effective(each.container, "requests")]
    place = refusal.place or (has[0] if len(has) == 1 else None)
    if place is None:
        return ()
    is_ratio = refusal.bound == "maxLimitRequestRatio"
    amount = effective(place.container, "limits").get(name) if is_ratio else refusal.allowed
    kind: ResourceMap = "requests" if is_ratio or " request" in refusal.message else "limits"
    written = tuple(each for each in KINDS if name in getattr(place.container, each)) or ("limits",)
    for kinds in dict.fromkeys(((kind,), written) if "/" not in name else (written,)):
        patch = PodPatch(pod)
        for each in kinds:
            patch.set_resource(place, each, name, amount)
        still = {(each.place and each.place.path, each.resource) for each in refusals(patch.pod, limits)}
        if amount is not None and (refusal.place and place.path, name) not in still:
            return together(*(Edit(f"{place.path}.resources.{each}[{name}]", amount) for each in kinds))
    return ()


# ---- a LimitRange


def limit_range_findings(limit_range: LimitRange, mapping: ResourceMapping) -> Iterator[Finding]:
    """Warn of the GPUs that a LimitRange gives to containers that request none."""
    written = (limit_range.spec and limit_range.spec.limits) or ()
    for at, (own, item) in enumerate(zip(written, limit_range.items, strict=True)):
        given = {**(item.default_request or {}), **(item.default or {})}
        for resource, amount in given.items() if item.type == CONTAINER else ():
            if mapping.resource(resource) is not None and is_positive(amount):
                yield _gives(f"spec.limits[{at}]", own, resource, str(amount))


def _gives(path: str, item: LimitRangeItem, resource: str, amount: str) -> Finding:
    fields = ("min", item.min), ("maxLimitRequestRatio", item.max_limit_request_ratio)
    zero = (Edit(f"{path}.{field}[{resource}]", _NONE) for field in ("default", "defaultRequest"))
    dropped = (
        Edit(f"{path}.{field}[{resource}]") for field, amounts in fields if resource in (amounts or {})
    )
    edits = (*zero, *dropped)
    own = (("default", item.default), ("defaultRequest", item.default_request), ("max", item.max))
    field = next((field for field, amounts in own if resource in (amounts or {})), "min")
    why = "" if field.startswith("default") else f": {field} is the default where nobody writes one"
    shown = f"default[{resource}] and defaultRequest[{resource}] to 0"
    removed = [f"{field}[{resource}]" for field, amounts in fields if resource in (amounts or {})]
    return _warning(
        rule=RULE,
        path=f"{path}.{field}[{resource}]",
        value=amount,
        message=f"each container that requests none gets it, also sidecars and init containers{why}",
        choices=together(*edits),
        remedy=f"set {shown}" + (f", and remove {' and '.join(removed)}" if removed else ""),
    )

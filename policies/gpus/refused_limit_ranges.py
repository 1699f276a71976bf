"""Names and amounts of GPU resources in a LimitRange that the API server rejects.

The same checks as `ValidateLimitRange` in pkg/apis/core/validation/validation.go of k8s.io/kubernetes v1.37.2,
on the items with defaults.
"""

from collections.abc import Iterator, Mapping
from functools import partial

from policies.finding import LIMIT_RANGE_REJECTS, Edit, Finding, either, together
from policies.gpus.limit_range_findings import ID
from policies.gpus.mapping_spec import IMPLICIT_DEVICE_CLASS
from policies.gpus.near_names import REFUSED
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.limit_ranges import RATIO, LimitRange, LimitRangeItem
from policies.pods.names import is_resource_name
from policies.pods.pod import ResourceList
from policies.pods.quantity import NANO, Quantity, readable

POD = "Pod"
DEFAULTS = ("default", "defaultRequest")
_AT_MOST = (
    ("min", "max"),
    ("min", "default"),
    ("default", "max"),
    ("min", "defaultRequest"),
    ("defaultRequest", "max"),
)
"""Of two fields, the first must not be larger than the second."""
_refused = partial(Finding, rule=ID, reason=LIMIT_RANGE_REJECTS)


def refused_amounts(limit_range: LimitRange, mapping: ResourceMapping) -> Iterator[Finding]:
    """Yield one denial for each GPU resource of an item that the API server rejects."""
    written = (limit_range.spec and limit_range.spec.limits) or ()
    for at, (own, item) in enumerate(zip(written, limit_range.items, strict=True)):
        yield from _defaults_of_pod(f"spec.limits[{at}]", own, mapping)
        names = dict.fromkeys(name for amounts in _fields(own).values() for name in amounts)
        for name in names:
            if mapping.resource(name) is not None or mapping.misspelt(name) is not None:
                yield from _of_resource(f"spec.limits[{at}]", own, item, name, mapping)


def _defaults_of_pod(path: str, item: LimitRangeItem, mapping: ResourceMapping) -> Iterator[Finding]:
    for field in DEFAULTS if item.type == POD else ():
        if any(mapping.resource(name) is not None for name in item.fields[field]):
            yield _refused(
                path=f"{path}.{field}",
                message="must not be set where type is Pod: only containers get defaults",
                choices=together(Edit(f"{path}.{field}")),
            )


def _fields(item: LimitRangeItem) -> dict[str, ResourceList]:
    ignored = DEFAULTS if item.type == POD else ()
    return {field: amounts for field, amounts in item.fields.items() if field not in ignored}


def _of_resource(
    path: str, own: LimitRangeItem, item: LimitRangeItem, name: str, mapping: ResourceMapping
) -> Iterator[Finding]:
    written = {field: amounts[name] for field, amounts in _fields(own).items() if name in amounts}
    amounts = {field: amounts[name] for field, amounts in _fields(item).items() if name in amounts}
    values = {field: quantity for field, amount in amounts.items() if (quantity := readable(amount))}
    at = {field: f"{path}.{field}[{name}]" for field in {**amounts, **written}}
    if not is_resource_name(name):
        meant = mapping.misspelt(name)
        renamed = [Edit(f"{path}.{field}[{meant}]", amount) for field, amount in written.items() if meant]
        yield _refused(
            path=at[next(iter(written))],
            message=REFUSED,
            choices=together(*(Edit(at[field]) for field in written), *renamed),
            remedy=f"did you mean {meant}?" if meant else "",
        )
        return
    pair, words = _too_large(values), "must be at most"
    # deviceclass.resource.kubernetes.io/… counts as native, and so may be overcommitted (`IsOvercommitAllowed`).
    is_extended = not name.startswith(IMPLICIT_DEVICE_CLASS)
    differ = {"default", "defaultRequest"} <= values.keys() and values["default"] != values["defaultRequest"]
    if is_extended and differ:
        pair, words = ("defaultRequest", "default"), "must equal"
        pair = pair if "defaultRequest" in written else pair[::-1]
    if pair is not None:
        field, other = pair
        why = ": GPUs cannot be overcommitted" if words == "must equal" else ""
        yield _refused(
            path=at[field],
            value=str(amounts[field]),
            message=f"{words} {other} ({amounts[other]}){why}",
            choices=either(Edit(at[field], amounts[other]), Edit(at[other], amounts[field])),
            remedy=f"set {field}: {amounts[other]}, or {other}: {amounts[field]}",
        )
    elif RATIO in values and values[RATIO].nano < NANO:
        value, edits = str(amounts[RATIO]), either(Edit(at[RATIO], 1))
        yield _refused(path=at[RATIO], value=value, message="must be 1 or more", choices=edits)
    elif (largest := _largest_ratio(values)) is not None and values[RATIO].milli_value > largest:
        allowed = largest // 1000 if largest % 1000 == 0 else f"{largest}m"
        yield _refused(
            path=at[RATIO],
            value=str(amounts[RATIO]),
            message=f"must be at most max / min ({allowed})",
            choices=either(Edit(at[RATIO], allowed)),
        )


def _largest_ratio(values: Mapping[str, Quantity]) -> int | None:
    """Return max / min in thousandths, rounded down; None where nothing bounds the ratio."""
    if not {RATIO, "min", "max"} <= values.keys() or not values["min"].nano:
        return None
    return values["max"].nano * 1000 // values["min"].nano


def _too_large(values: Mapping[str, Quantity]) -> tuple[str, str] | None:
    """Return the first two fields that contradict each other: one is too large."""
    pairs = (pair for pair in _AT_MOST if {*pair} <= values.keys())
    return next((pair for pair in pairs if values[pair[0]] > values[pair[1]]), None)

"""Names and amounts of GPU resources in a LimitRange that the API server rejects.

The same checks as `ValidateLimitRange` in pkg/apis/core/validation/validation.go of k8s.io/kubernetes v1.37.2,
on the items with defaults.
"""

from collections.abc import Iterator, Mapping
from functools import partial

from policies.finding import INVALID_LIMIT_RANGE, Edit, Finding, one_choice, separate_choices
from policies.gpus.limit_range_findings import ID
from policies.gpus.mapping_spec import DEVICE_CLASS_PREFIX
from policies.gpus.near_names import INVALID_NAME_MESSAGE
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.limit_ranges import RATIO, LimitRange, LimitRangeItem
from policies.pods.names import is_resource_name
from policies.pods.pod import ResourceList
from policies.pods.quantity import NANO, Quantity, parse_or_none

POD_TYPE = "Pod"
DEFAULTS = ("default", "defaultRequest")
_ORDERED_FIELDS = (
    ("min", "max"),
    ("min", "default"),
    ("default", "max"),
    ("min", "defaultRequest"),
    ("defaultRequest", "max"),
)
"""Of two fields, the first must not be larger than the second."""
_invalid = partial(Finding, rule=ID, reason=INVALID_LIMIT_RANGE)


def invalid_amounts(limit_range: LimitRange, mapping: ResourceMapping) -> Iterator[Finding]:
    """Yield one denial for each GPU resource of an item that the API server rejects."""
    items = (limit_range.spec and limit_range.spec.limits) or ()
    for index, (written, defaulted) in enumerate(zip(items, limit_range.items, strict=True)):
        yield from _defaults_of_pod(f"spec.limits[{index}]", written, mapping)
        names = dict.fromkeys(name for amounts in _read_fields(written).values() for name in amounts)
        for name in names:
            if mapping.resource(name) is not None or mapping.suggested_name(name) is not None:
                yield from _resource_findings(f"spec.limits[{index}]", written, defaulted, name, mapping)


def _defaults_of_pod(path: str, item: LimitRangeItem, mapping: ResourceMapping) -> Iterator[Finding]:
    for field in DEFAULTS if item.type == POD_TYPE else ():
        if any(mapping.resource(name) is not None for name in item.fields[field]):
            yield _invalid(
                path=f"{path}.{field}",
                message="must not be set where type is Pod: only containers get defaults",
                choices=one_choice(Edit(f"{path}.{field}")),
            )


def _read_fields(item: LimitRangeItem) -> dict[str, ResourceList]:
    ignored = DEFAULTS if item.type == POD_TYPE else ()
    return {field: amounts for field, amounts in item.fields.items() if field not in ignored}


def _resource_findings(
    path: str, written: LimitRangeItem, defaulted: LimitRangeItem, name: str, mapping: ResourceMapping
) -> Iterator[Finding]:
    written_amounts = {
        field: amounts[name] for field, amounts in _read_fields(written).items() if name in amounts
    }
    amounts = {field: amounts[name] for field, amounts in _read_fields(defaulted).items() if name in amounts}
    values = {field: quantity for field, amount in amounts.items() if (quantity := parse_or_none(amount))}
    path_of = {field: f"{path}.{field}[{name}]" for field in {**amounts, **written_amounts}}
    if not is_resource_name(name):
        meant = mapping.suggested_name(name)
        renamed = [
            Edit(f"{path}.{field}[{meant}]", amount) for field, amount in written_amounts.items() if meant
        ]
        yield _invalid(
            path=path_of[next(iter(written_amounts))],
            message=INVALID_NAME_MESSAGE,
            choices=one_choice(*(Edit(path_of[field]) for field in written_amounts), *renamed),
            remedy=f"did you mean {meant}?" if meant else "",
        )
        return
    pair, must_be_equal = _too_large(values), False
    # deviceclass.resource.kubernetes.io/… counts as native, and so may be overcommitted (`IsOvercommitAllowed`).
    is_extended = not name.startswith(DEVICE_CLASS_PREFIX)
    differ = {"default", "defaultRequest"} <= values.keys() and values["default"] != values["defaultRequest"]
    if is_extended and differ:
        pair, must_be_equal = ("defaultRequest", "default"), True
        pair = pair if "defaultRequest" in written_amounts else pair[::-1]
    if pair is not None:
        field, other = pair
        must, why = (
            ("must equal", ": GPUs cannot be overcommitted") if must_be_equal else ("must be at most", "")
        )
        yield _invalid(
            path=path_of[field],
            value=str(amounts[field]),
            message=f"{must} {other} ({amounts[other]}){why}",
            choices=separate_choices(
                Edit(path_of[field], amounts[other]), Edit(path_of[other], amounts[field])
            ),
            remedy=f"set {field}: {amounts[other]}, or {other}: {amounts[field]}",
        )
    elif RATIO in values and values[RATIO].nano < NANO:
        value, edits = str(amounts[RATIO]), separate_choices(Edit(path_of[RATIO], 1))
        yield _invalid(path=path_of[RATIO], value=value, message="must be 1 or more", choices=edits)
    elif (max_ratio := _max_ratio(values)) is not None and values[RATIO].milli_value > max_ratio:
        allowed = max_ratio // 1000 if max_ratio % 1000 == 0 else f"{max_ratio}m"
        yield _invalid(
            path=path_of[RATIO],
            value=str(amounts[RATIO]),
            message=f"must be at most max / min ({allowed})",
            choices=separate_choices(Edit(path_of[RATIO], allowed)),
        )


def _max_ratio(values: Mapping[str, Quantity]) -> int | None:
    """Return max / min in thousandths, rounded down; None where nothing bounds the ratio."""
    if not {RATIO, "min", "max"} <= values.keys() or not values["min"].nano:
        return None
    return values["max"].nano * 1000 // values["min"].nano


def _too_large(values: Mapping[str, Quantity]) -> tuple[str, str] | None:
    """Return the first two fields that contradict each other: one is too large."""
    pairs = (pair for pair in _ORDERED_FIELDS if {*pair} <= values.keys())
    return next((pair for pair in pairs if values[pair[0]] > values[pair[1]]), None)

"""What of a LimitRange the API server rejects, as far as it is about GPUs, and what its author can write."""

import msgspec

from policies.finding import Edit, Severity
from policies.gpus.invalid_limit_ranges import invalid_amounts
from policies.gpus.limit_range_findings import limit_range_warnings
from policies.pods.limit_ranges import LimitRange, decode_limit_range
from tests.builders import JSON
from tests.cases import cases
from webhook.configuration.loader import load_objects

MAPPING = load_objects([]).resource_mapping
GPU = "nvidia.com/gpu"
AT = f"spec.limits[0].{{}}[{GPU}]"


def limit_range(amounts: JSON, kind: str = "Container", resource: str = GPU) -> LimitRange:
    item = {"type": kind, **{field: {resource: amount} for field, amount in amounts.items()}}
    return decode_limit_range(msgspec.json.encode({"spec": {"limits": [item]}}))


@cases(
    ("amounts", "field", "said", "choices"),
    another_request_by_default=(
        {"default": 2, "defaultRequest": 1},
        "defaultRequest",
        '= "1": set defaultRequest: 2, or default: 1; must equal default (2): GPUs cannot be overcommitted',
        (("defaultRequest", 2), ("default", 1)),
    ),
    another_request_than_the_most=(
        {"max": 4, "defaultRequest": 1},
        "defaultRequest",
        '= "1": set defaultRequest: 4, or default: 1; must equal default (4): GPUs cannot be overcommitted',
        (("defaultRequest", 4), ("default", 1)),
    ),
    more_at_least_than_at_most=(
        {"max": "0.5", "min": 2},
        "min",
        '= "2": set min: 0.5, or max: 2; must be at most max (0.5)',
        (("min", "0.5"), ("max", 2)),
    ),
    more_by_default_than_at_most=(
        {"max": 2, "default": 4},
        "default",
        '= "4": set default: 2, or max: 4; must be at most max (2)',
        (("default", 2), ("max", 4)),
    ),
    less_by_default_than_at_least=(
        {"min": 2, "default": 1},
        "min",
        '= "2": set min: 1, or default: 2; must be at most default (1)',
        (("min", 1), ("default", 2)),
    ),
    a_ratio_below_one=(
        {"maxLimitRequestRatio": "0.5"},
        "maxLimitRequestRatio",
        f'= "0.5": set {GPU}: 1; must be 1 or more',
        (("maxLimitRequestRatio", 1),),
    ),
    a_ratio_that_the_bounds_cannot_have=(
        {"min": 2, "max": 4, "default": 2, "maxLimitRequestRatio": 3},
        "maxLimitRequestRatio",
        f'= "3": set {GPU}: 2; must be at most max / min (2)',
        (("maxLimitRequestRatio", 2),),
    ),
    a_ratio_of_thousandths=(
        {"min": 3, "max": 8, "default": 3, "maxLimitRequestRatio": "2.6664"},
        "maxLimitRequestRatio",
        f'= "2.6664": set {GPU}: 2666m; must be at most max / min (2666m)',
        (("maxLimitRequestRatio", "2666m"),),
    ),
)
def test_amounts_that_the_api_server_refuses(
    amounts: JSON, field: str, said: str, choices: tuple[tuple[str, object], ...]
) -> None:
    (found,) = invalid_amounts(limit_range(amounts), MAPPING)

    assert found.sentence() == f"{AT.format(field)} {said} [limit-range]"
    assert found.severity is Severity.DENIAL
    assert found.choices == tuple((Edit(AT.format(of), value),) for of, value in choices)


@cases(
    ("amounts", "kind", "resource"),
    equal=({"default": 2, "defaultRequest": "2"}, "Container", GPU),
    only_the_most=({"max": 2}, "Container", GPU),
    of_the_pod=({"min": 1, "max": 2}, "Pod", GPU),
    a_ratio_that_the_bounds_have=(
        {"min": 3, "max": 8, "default": 3, "maxLimitRequestRatio": "2.666"},
        "Container",
        GPU,
    ),
    a_ratio_with_a_least_of_0=(
        {"min": 0, "max": 8, "default": 0, "maxLimitRequestRatio": 3},
        "Container",
        GPU,
    ),
    in_order=({"min": 1, "default": 1, "max": 8, "maxLimitRequestRatio": 1}, "Container", GPU),
    none_by_default=({"max": 8, "default": 0}, "Container", GPU),
    of_cpu=({"default": 2, "defaultRequest": 1}, "Container", "cpu"),
    unreadable=({"default": "x", "defaultRequest": 1}, "Container", GPU),
    of_claims_which_it_lets_be_overcommitted=(
        {"default": 4, "defaultRequest": 1},
        "Container",
        "deviceclass.resource.kubernetes.io/gpu.nvidia.com",
    ),
)
def test_amounts_that_it_takes_or_others_report(amounts: JSON, kind: str, resource: str) -> None:
    assert list(invalid_amounts(limit_range(amounts, kind, resource), MAPPING)) == []


@cases("field", default="default", default_request="defaultRequest")
def test_defaults_of_a_pod(field: str) -> None:
    (found,) = invalid_amounts(limit_range({field: 2, "max": 1}, "Pod"), MAPPING)

    said = f"remove {field}; must not be set where type is Pod: only containers get defaults"
    assert found.sentence() == f"spec.limits[0].{field}: {said} [limit-range]"
    assert (found.severity, found.fix) == (Severity.DENIAL, (Edit(f"spec.limits[0].{field}"),))


def test_a_name_that_it_refuses() -> None:
    (found,) = invalid_amounts(limit_range({"max": 2, "default": 1}, resource="gpu"), MAPPING)

    refused = "The API server rejects this name: those of extended resources are domain/name in lowercase"
    assert found.sentence() == f"spec.limits[0].max[gpu]: did you mean {GPU}? {refused} [limit-range]"
    at = "spec.limits[0].{}[{}]".format
    removed = Edit(at("max", "gpu")), Edit(at("default", "gpu"))
    assert found.fix == (*removed, Edit(at("max", GPU), 2), Edit(at("default", GPU), 1))


def test_a_name_after_more_than_are_read() -> None:
    default = {**{f"example.com/r{number}": 1 for number in range(200)}, "gpu": 1}
    item = {"type": "Container", "default": default}
    document = decode_limit_range(msgspec.json.encode({"spec": {"limits": [item]}}))

    assert [each.path for each in invalid_amounts(document, MAPPING)] == ["spec.limits[0].default[gpu]"]


def test_a_misspelt_name_that_it_takes() -> None:
    (found,) = limit_range_warnings(limit_range({"max": 2}, resource="nvidia/gpu"), MAPPING)

    unknown = "No device plugin that is known has this resource: the LimitRange bounds nothing"
    assert found.sentence() == f"spec.limits[0].max[nvidia/gpu]: did you mean {GPU}? {unknown} [limit-range]"
    assert found.fix == (Edit("spec.limits[0].max[nvidia/gpu]"), Edit(f"spec.limits[0].max[{GPU}]", 2))

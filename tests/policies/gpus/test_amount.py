"""One amount of a GPU resource in limits or requests."""

from policies.gpus.amount import FRACTIONAL_GPU, Amount, is_extended, larger_amount, limit_and_request
from policies.placement.availability import UNKNOWN_SLICE
from tests.builders import RESOURCE_MAPPING, container, pod, view
from tests.cases import cases

GPU = "nvidia.com/gpu"


def written(limit: object, request: object = None) -> tuple[Amount, Amount]:
    resources = {"limits": {GPU: limit}, "requests": {GPU: request}}
    [place], gpu = view(pod(container(resources=resources))).places, RESOURCE_MAPPING.resource(GPU)
    assert gpu
    found = limit_and_request(place, gpu)
    assert found[0]
    assert found[1]
    return found[0], found[1]


@cases(
    ("raw", "value", "decimal"),
    plain=("2", 2, ""),
    suffix=("500m", 1, "0.5"),
    zero=("0m", 0, "0"),
    negative=("-2500m", 0, ""),
    no_quantity=("half", 0, ""),
    null=(None, 0, ""),
)
def test_value_and_decimal_form(raw: object, value: int, decimal: str) -> None:
    amount, _ = written(raw)

    assert (amount.value, amount.decimal) == (value, decimal)


@cases("fix", none=None, whole=2)
def test_a_fix_is_written_wherever_the_amount_is(fix: int | None) -> None:
    amount, _ = written("1.5")

    found = amount.finding(FRACTIONAL_GPU, "must be whole", amount=fix)
    assert [each.value for each in found.fix] == ([fix, fix] if fix else [])


def test_a_fix_by_another_resource_moves_limit_and_request() -> None:
    amount, _ = written("1500m")

    found = amount.finding(UNKNOWN_SLICE, "must be another", names=("amd.com/gpu",))
    assert [(each.path.partition("[0].")[2], each.value) for each in found.fix] == [
        (f"resources.limits[{GPU}]", None),
        (f"resources.requests[{GPU}]", None),
        ("resources.limits[amd.com/gpu]", "1500m"),
        ("resources.requests[amd.com/gpu]", "1500m"),
    ]


@cases(
    ("resource", "other", "want"),
    as_many_cards=(GPU, "amd.com/gpu", "4"),
    as_many_slices=("nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.10gb", "4"),
    one_card_for_shares=("nvidia.com/gpu.shared", GPU, 1),
    one_card_for_slices=("nvidia.com/mig-1g.5gb", GPU, 1),
    one_card_for_memory=("nvidia.com/gpumem", GPU, 1),
    as_many_shares_as_cards=(GPU, "nvidia.com/gpu.shared", "4"),
)
def test_how_many_of_another_resource(resource: str, other: str, want: object) -> None:
    [place] = view(pod(container(resources={"limits": {resource: "4"}}))).places
    known = RESOURCE_MAPPING.resource(resource)
    assert known
    [limit] = filter(None, limit_and_request(place, known))

    assert limit.edits_to_replace(other)[-1].value == want


@cases(
    ("limit", "requested", "want"),
    equal=("1", "1000m", "limits"),
    limit=("2", "1", "limits"),
    request=("1", "2", "requests"),
)
def test_the_larger_amount(limit: str, requested: str, want: str) -> None:
    assert larger_amount(*written(limit, requested)).kind == want


@cases(
    ("limit", "requested", "want"),
    rewritten=("1", "1000m", True),
    rounded_up_to_thousandths=("0.0001", "1m", True),
    another=("1", "2", False),
    the_same_nonsense=("half", "half", True),
    nonsense_in_one=("half", "1", False),
)
def test_a_limit_and_its_copy(limit: str, requested: str, want: bool) -> None:
    first, second = written(limit, requested)

    assert [first.same_as(second), second.same_as(first)] == [want, want]


@cases(
    ("name", "want"),
    device_plugin=(GPU, True),
    native=("cpu", False),
    of_kubernetes=("deviceclass.resource.kubernetes.io/big", False),
    of_a_resource_quota=("requests.nvidia.com/gpu", False),
)
def test_extended_resources(name: str, want: bool) -> None:
    assert is_extended(name) is want

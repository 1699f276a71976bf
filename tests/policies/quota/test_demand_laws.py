"""What holds for the charge of every pod."""

from fractions import Fraction
from typing import Any

from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from policies.gpus.cards import gpu_requests
from policies.pods.quantity import QuantityError
from policies.quota import amounts as vector
from policies.quota.amounts import CLASSES as BY_CLASS
from policies.quota.amounts import GPUS, RESOURCES, Amounts
from policies.quota.demand import Demand, UnclassifiedPods
from tests.builders import JSON, container, pod, view
from tests.policies.quota.charging import CLASSES, RESOURCE_MAPPING, counted
from tests.strategies import PODS

UNCLASSIFIED = st.sampled_from(list(UnclassifiedPods))
NAMES = [gpu_class.name for gpu_class in CLASSES]
FAMILIES = {gpu_class.name: gpu_class.family for gpu_class in CLASSES}
LABELS = st.none() | st.dictionaries(
    st.sampled_from(["accelerator", "zone"]), st.sampled_from([*NAMES, "nvidia-a100"]), max_size=2
)
RESOURCE_NAMES = "nvidia.com/gpu nvidia.com/gpu.shared nvidia.com/mig-1g.20gb amd.com/gpu example.com/dongle"
COUNTED = st.dictionaries(st.sampled_from(RESOURCE_NAMES.split()), st.integers(0, 9).map(str), max_size=3)
"""Amounts without limits of memory: what these come to depends on nothing else in the container."""

LIMITED = st.fixed_dictionaries(
    {"nvidia.com/gpu": st.integers(1, 8).map(str)},
    optional={
        "nvidia.com/gpumem": st.integers(1, 200_000).map(str),
        "nvidia.com/gpucores": st.integers(1, 100).map(str),
    },
)
NVIDIA = st.sampled_from([gpu_class.name for gpu_class in CLASSES if gpu_class.resource == "nvidia.com/gpu"])
generated = settings(max_examples=settings().max_examples * 6 // 10)


def of(*amounts: dict[str, str], **spec: Any) -> JSON:
    return pod(*(container(f"a-{at}", resources={"limits": each}) for at, each in enumerate(amounts)), **spec)


def on(name: str, *amounts: dict[str, str]) -> JSON:
    return of(*amounts, nodeSelector={"accelerator": name})


def is_within(one: Amounts, other: Amounts) -> bool:
    return all(amount <= other.get(key, 0) for key, amount in one.items())


@given(document=PODS, mode=UNCLASSIFIED, labels=LABELS)
@generated
def test_amounts_are_exact(document: JSON, mode: UnclassifiedPods, labels: dict[str, str] | None) -> None:
    demand = counted(document, mode, labels)

    assert all(type(amount) is Fraction and amount > 0 for amount in demand.vector.values())
    assert vector.parse_amounts(vector.amount_texts(demand.vector)) == demand.vector


@given(document=PODS, mode=UNCLASSIFIED, labels=LABELS)
@generated
def test_a_class_is_part_of_its_family_and_a_family_of_the_total(
    document: JSON, mode: UnclassifiedPods, labels: dict[str, str] | None
) -> None:
    demand = counted(document, mode, labels)

    for name in demand.classes:
        amount = demand.vector[BY_CLASS + name]
        assert amount <= demand.vector[BY_CLASS + FAMILIES.get(name, name)] <= demand.vector[GPUS]


@given(document=PODS, mode=UNCLASSIFIED, labels=LABELS)
@generated
def test_the_vector_is_full(document: JSON, mode: UnclassifiedPods, labels: dict[str, str] | None) -> None:
    """There is no quota in sight: nothing can depend on what one constrains."""
    try:
        requests = gpu_requests(view(document), RESOURCE_MAPPING)
    except QuantityError:
        reject()
    demand = counted(document, mode, labels)

    counts = {key: amount for key, amount in demand.vector.items() if key.startswith(RESOURCES)}
    requested = {RESOURCES + resource.name: amount for resource, amount in requests.items()}
    if not demand.denials:
        assert counts == requested
        assert (GPUS in demand.vector) == (
            bool(requested) or RESOURCE_MAPPING.pod_fraction(view(document)) is not None
        )


@given(document=PODS, labels=LABELS)
@generated
def test_how_unclassified_pods_are_counted_changes_neither_total_nor_counts(
    document: JSON, labels: dict[str, str] | None
) -> None:
    each = [counted(document, mode, labels).vector for mode in UnclassifiedPods]
    others = [{key: one[key] for key in one if not key.startswith(BY_CLASS)} for one in each]

    assert others[0] == others[1] == others[2]


@given(
    one=COUNTED, other=COUNTED, name=st.sampled_from([*NAMES, "nvidia-a100"]) | st.none(), mode=UNCLASSIFIED
)
@generated
def test_two_containers_count_as_two_pods_do(
    one: dict[str, str], other: dict[str, str], name: str | None, mode: UnclassifiedPods
) -> None:
    def cost(*amounts: dict[str, str]) -> Amounts:
        return counted(on(name, *amounts) if name else of(*amounts), mode).vector

    assert cost(one, other) == vector.total([cost(one), cost(other)])


@given(amounts=COUNTED, times=st.integers(2, 7), name=st.sampled_from(NAMES))
@generated
def test_so_many_of_it_count_so_many_times_as_much(amounts: dict[str, str], times: int, name: str) -> None:
    multiplied = {resource: str(times * int(amount)) for resource, amount in amounts.items()}

    assert counted(on(name, multiplied)).vector == vector.total([counted(on(name, amounts)).vector] * times)


@given(amounts=COUNTED | LIMITED, name=st.sampled_from(NAMES), mode=UNCLASSIFIED)
@generated
def test_bound_counts_as_pinned(amounts: dict[str, str], name: str, mode: UnclassifiedPods) -> None:
    node = {"accelerator": name}
    pinned = counted(on(name, amounts), mode)

    assert counted(on(name, amounts), mode, node).vector == pinned.vector
    assert counted(of(amounts), mode, node).vector == pinned.vector


@given(amounts=LIMITED, name=NVIDIA)
@generated
def test_the_most_expensive_covers_every_node(amounts: dict[str, str], name: str) -> None:
    bound: Demand = counted(of(amounts), UnclassifiedPods.MOST_EXPENSIVE, {"accelerator": name})

    assert is_within(bound.vector, counted(of(amounts), UnclassifiedPods.MOST_EXPENSIVE).vector)


@given(
    amounts=LIMITED,
    name=NVIDIA,
    pinned=st.sampled_from(["nvidia-a100", *NAMES]) | st.none(),
    mode=st.sampled_from([UnclassifiedPods.DENY, UnclassifiedPods.MOST_EXPENSIVE]),
)
@generated
def test_binding_counts_for_no_class_again_where_limits_by_class_hold(
    amounts: dict[str, str], name: str, pinned: str | None, mode: UnclassifiedPods
) -> None:
    before = counted(on(pinned, amounts) if pinned else of(amounts), mode)
    node = {"accelerator": name, "zone": "a"}
    # The label of a family; nvidia-t4 is the name of a class, too, and selects that one alone.
    of_family = pinned == FAMILIES[name] == "nvidia-a100"
    assume(not before.denials and (pinned in {None, name} or of_family))

    assert is_within(counted(of(amounts), mode, node).vector, before.vector)


@given(amounts=LIMITED, name=NVIDIA)
@generated
def test_part_of_a_gpu_never_counts_more_than_all_of_it(amounts: dict[str, str], name: str) -> None:
    limited, count = counted(on(name, amounts)), Fraction(amounts["nvidia.com/gpu"])

    assert 0 < limited.vector[GPUS] <= count

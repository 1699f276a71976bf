"""How many cards the amounts of one container come to."""

from fractions import Fraction

from policies.gpus.cards import (
    UNKNOWN_CARD,
    Card,
    amounts_in_cards,
    card_of,
    container_amounts,
    fractions_in_cards,
    is_shared,
    positive_amounts,
    too_many_resources,
    weight,
)
from policies.gpus.mapping_spec import Measure
from policies.gpus.resource_mapping import GPUResource
from tests.builders import JSON, container, pod, view
from tests.cases import cases
from tests.policies.gpus.slices import slices
from tests.policies.quota.charging import CLASSES, RESOURCE_MAPPING

GPU = GPUResource("nvidia.com/gpu", Measure.DEVICES)
SHARED = GPUResource("nvidia.com/gpu.shared", Measure.SHARES)
MEMORY = GPUResource("nvidia.com/gpumem", Measure.MEMORY_MIB)
CORES = GPUResource("nvidia.com/gpucores", Measure.CORE_PERCENT)
MEMORY_PERCENT = GPUResource("nvidia.com/gpumem-percentage", Measure.MEMORY_PERCENT)
BYTES = GPUResource("example.com/gpu-memory", Measure.MEMORY_BYTES)
SLICE = GPUResource("nvidia.com/mig-1g.20gb", Measure.SLICES, "1g.20gb")
QUARTER = Fraction(1, 4)
SHARED_CARD, OF_16 = Card(((GPU.name, QUARTER),)), Card((), 16)


@cases(
    ("requested", "want"),
    devices_with_memory=([GPU, MEMORY], True),
    shares_with_memory=([SHARED, MEMORY], True),
    memory_alone=([MEMORY], False),
    devices_with_cores=([GPU, CORES], False),
    devices_with_memory_of_another_vendor=(
        [GPUResource("amd.com/gpu", Measure.DEVICES), MEMORY],
        False,
    ),
    slices_with_memory=([SLICE, MEMORY], False),
)
def test_memory_divides_devices_of_its_vendor(requested: list[GPUResource], want: bool) -> None:
    assert is_shared({each: Fraction(1) for each in requested}) is want


@cases(
    ("resources", "want"),
    limit=({"limits": {"nvidia.com/gpu": "2"}}, {GPU: 2}),
    request=({"requests": {"nvidia.com/gpu": 1}}, {GPU: 1}),
    request_wins=({"limits": {GPU.name: "2"}, "requests": {GPU.name: "1"}}, {GPU: 1}),
    rounded_up_to_milli=({"limits": {GPU.name: "0.0001"}}, {GPU: Fraction(1, 1000)}),
    no_gpu=({"limits": {"cpu": "2", "example.com/dongle": "1"}}, {}),
    unreadable=({"limits": {GPU.name: "x", SHARED.name: "1"}}, {SHARED: 1}),
    null=({"limits": None, "requests": None}, {}),
)
def test_amounts(resources: JSON, want: dict[GPUResource, Fraction]) -> None:
    place, *_ = view(pod(container(resources=resources))).places

    assert container_amounts(place.container, RESOURCE_MAPPING) == want


def test_no_list_of_resources_has_no_amounts() -> None:
    assert positive_amounts(None, RESOURCE_MAPPING) == {}


@cases(
    ("name", "resource", "want"),
    a_card=("nvidia-t4", GPU, 1),
    stated_by_the_class=("t4-shared", GPU, QUARTER),
    slice_by_its_memory=("nvidia-a100-80gb", SLICE, QUARTER),
    slice_that_the_class_has_not=("nvidia-t4", SLICE, 1),
    share_that_nobody_weighs=("nvidia-t4", SHARED, 1),
)
def test_weight(name: str, resource: GPUResource, want: Fraction) -> None:
    gpu_class = CLASSES.get(name)
    assert gpu_class is not None

    assert weight(resource, gpu_class, CLASSES) == want


@cases(
    ("name", "requested", "is_certain", "want"),
    all_weigh_one=("nvidia-t4", [GPU], True, UNKNOWN_CARD),
    weights_are_those_of_the_class=("t4-shared", [GPU], False, SHARED_CARD),
    asked_by_memory=("nvidia-t4", [GPU, MEMORY], True, OF_16),
    card_that_may_be_another=("nvidia-t4", [GPU, MEMORY], False, UNKNOWN_CARD),
)
def test_what_matters(name: str, requested: list[GPUResource], is_certain: bool, want: Card) -> None:
    gpu_class = CLASSES.get(name)
    assert gpu_class is not None

    assert card_of(gpu_class, requested, CLASSES, is_certain=is_certain) == want


@cases(
    ("requested", "card", "want"),
    cards=({GPU: Fraction(2)}, UNKNOWN_CARD, {GPU: Fraction(2)}),
    weighed=({GPU: Fraction(2)}, SHARED_CARD, {GPU: Fraction(1, 2)}),
    limited_each=({GPU: Fraction(2), MEMORY: Fraction(4096)}, OF_16, {GPU: Fraction(1, 2)}),
    limit_alone=({MEMORY: Fraction(4096)}, OF_16, {MEMORY: QUARTER}),
    percents_of_memory=({MEMORY_PERCENT: Fraction(25)}, UNKNOWN_CARD, {MEMORY_PERCENT: QUARTER}),
    percents_of_cores_are_a_card=({CORES: Fraction(25)}, UNKNOWN_CARD, {CORES: Fraction(1)}),
    limit_in_bytes=({BYTES: Fraction(4 * 2**30)}, OF_16, {BYTES: QUARTER}),
    a_slice_is_not_limited_by_memory=(
        {SLICE: Fraction(1), MEMORY: Fraction(4096)},
        Card(((SLICE.name, QUARTER),), 16),
        {SLICE: QUARTER, MEMORY: QUARTER},
    ),
)
def test_cards(requested: dict[GPUResource, Fraction], card: Card, want: dict[GPUResource, Fraction]) -> None:
    assert amounts_in_cards(requested, card) == want


@cases(
    ("annotations", "card", "want"),
    none=({}, UNKNOWN_CARD, []),
    fraction=({"gpu-fraction": "0.25"}, UNKNOWN_CARD, [QUARTER]),
    memory=({"gpu-memory": "4096"}, OF_16, [QUARTER]),
    more_memory_than_the_card_has=({"gpu-memory": "99999"}, OF_16, [Fraction(1)]),
    less_than_schedulers_count=({"gpu-fraction": "0.001"}, UNKNOWN_CARD, [Fraction(1, 100)]),
    both_is_one_too_many=({"gpu-fraction": "0.25", "gpu-memory": "8192"}, OF_16, [QUARTER]),
    unreadable_is_a_card=({"gpu-fraction": "2"}, UNKNOWN_CARD, [Fraction(1)]),
)
def test_annotated_cards(annotations: dict[str, str], card: Card, want: list[Fraction]) -> None:
    found = fractions_in_cards(view(pod(annotations=annotations)), card, RESOURCE_MAPPING)

    assert list(found.values()) == want


@cases(
    ("containers", "want"),
    the_most=([slices(16)], []),
    one_more=(
        [slices(17)],
        [
            'spec.containers[0].resources (container "c0"): must name at most 16 GPU resources in all containers [limits]'
        ],
    ),
    over_several_containers=(
        [slices(10), slices(10, 10), slices(10, 20)],
        [
            'spec.containers[1].resources (container "c1"): must name at most 16 GPU resources in all containers [limits]'
        ],
    ),
    the_same_names_count_once=([slices(10), slices(10)], []),
    no_gpus=([{f"example.com/dongle-{n}": "1" for n in range(60)}], []),
)
def test_so_many_names_are_refused(containers: list[dict[str, str]], want: list[str]) -> None:
    made = (container(f"c{n}", resources={"limits": each}) for n, each in enumerate(containers))

    found = too_many_resources(view(pod(*made)), RESOURCE_MAPPING)

    assert [each.sentence() for each in found] == want

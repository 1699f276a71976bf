"""How many cards the amounts of one container come to."""

from fractions import Fraction

import pytest

from policies.gpus.cards import (
    UNKNOWN_CARD,
    Card,
    amounts,
    annotated_cards,
    card_of,
    cards,
    container_amounts,
    weight,
)
from policies.gpus.resource_mapping import GPUResource, Measure
from tests.builders import JSON, container, pod, view
from tests.policies.quota.charging import CLASSES, RESOURCE_MAPPING

GPU = GPUResource("nvidia.com/gpu", Measure.DEVICES)
SHARED = GPUResource("nvidia.com/gpu.shared", Measure.SHARES)
MEMORY = GPUResource("nvidia.com/gpumem", Measure.MEMORY_MIB)
SLICE = GPUResource("nvidia.com/mig-1g.20gb", Measure.SLICES, "1g.20gb")
QUARTER = Fraction(1, 4)
SHARED_CARD, OF_16 = Card(((GPU.name, QUARTER),)), Card((), 16)


@pytest.mark.parametrize(
    ("resources", "want"),
    [
        pytest.param({"limits": {"nvidia.com/gpu": "2"}}, {GPU: 2}, id="limit"),
        pytest.param({"requests": {"nvidia.com/gpu": 1}}, {GPU: 1}, id="request"),
        pytest.param({"limits": {GPU.name: "2"}, "requests": {GPU.name: "1"}}, {GPU: 1}, id="request-wins"),
        pytest.param({"limits": {GPU.name: "0.0001"}}, {GPU: Fraction(1, 1000)}, id="rounded-up-to-milli"),
        pytest.param({"limits": {"cpu": "2", "example.com/dongle": "1"}}, {}, id="no-gpu"),
        pytest.param({"limits": {GPU.name: "x", SHARED.name: "1"}}, {SHARED: 1}, id="unreadable"),
        pytest.param({"limits": None, "requests": None}, {}, id="null"),
    ],
)
def test_amounts(resources: JSON, want: dict[GPUResource, Fraction]) -> None:
    place, *_ = view(pod(container(resources=resources))).places

    assert container_amounts(place.container, RESOURCE_MAPPING) == want


def test_no_list_of_resources_has_no_amounts() -> None:
    assert amounts(None, RESOURCE_MAPPING) == {}


@pytest.mark.parametrize(
    ("name", "resource", "want"),
    [
        pytest.param("nvidia-t4", GPU, 1, id="a-card"),
        pytest.param("t4-shared", GPU, QUARTER, id="stated-by-the-class"),
        pytest.param("nvidia-a100-80gb", SLICE, QUARTER, id="slice-by-its-memory"),
        pytest.param("nvidia-t4", SLICE, 1, id="slice-that-the-class-has-not"),
        pytest.param("nvidia-t4", SHARED, 1, id="share-that-nobody-weighs"),
    ],
)
def test_weight(name: str, resource: GPUResource, want: Fraction) -> None:
    gpu_class = CLASSES.get(name)
    assert gpu_class is not None

    assert weight(resource, gpu_class, CLASSES) == want


@pytest.mark.parametrize(
    ("name", "requested", "is_certain", "want"),
    [
        pytest.param("nvidia-t4", [GPU], True, UNKNOWN_CARD, id="all-weigh-one"),
        pytest.param("t4-shared", [GPU], False, SHARED_CARD, id="weights-are-those-of-the-class"),
        pytest.param("nvidia-t4", [GPU, MEMORY], True, OF_16, id="asked-by-memory"),
        pytest.param("nvidia-t4", [GPU, MEMORY], False, UNKNOWN_CARD, id="card-that-may-be-another"),
    ],
)
def test_what_matters_of_a_card(
    name: str, requested: list[GPUResource], is_certain: bool, want: Card
) -> None:
    gpu_class = CLASSES.get(name)
    assert gpu_class is not None

    assert card_of(gpu_class, requested, CLASSES, is_certain=is_certain) == want


@pytest.mark.parametrize(
    ("requested", "card", "want"),
    [
        pytest.param({GPU: Fraction(2)}, UNKNOWN_CARD, {GPU: Fraction(2)}, id="cards"),
        pytest.param({GPU: Fraction(2)}, SHARED_CARD, {GPU: Fraction(1, 2)}, id="weighed"),
        pytest.param(
            {GPU: Fraction(2), MEMORY: Fraction(4096)}, OF_16, {GPU: Fraction(1, 2)}, id="limited-each"
        ),
        pytest.param({MEMORY: Fraction(4096)}, OF_16, {MEMORY: QUARTER}, id="limit-alone"),
        pytest.param(
            {SLICE: Fraction(1), MEMORY: Fraction(4096)},
            Card(((SLICE.name, QUARTER),), 16),
            {SLICE: QUARTER, MEMORY: QUARTER},
            id="a-slice-is-not-limited-by-memory",
        ),
    ],
)
def test_cards(requested: dict[GPUResource, Fraction], card: Card, want: dict[GPUResource, Fraction]) -> None:
    assert cards(requested, card) == want


@pytest.mark.parametrize(
    ("annotations", "card", "want"),
    [
        pytest.param({}, UNKNOWN_CARD, [], id="none"),
        pytest.param({"gpu-fraction": "0.25"}, UNKNOWN_CARD, [QUARTER], id="fraction"),
        pytest.param({"gpu-memory": "4096"}, OF_16, [QUARTER], id="memory"),
        pytest.param({"gpu-memory": "99999"}, OF_16, [Fraction(1)], id="more-memory-than-the-card-has"),
        pytest.param(
            {"gpu-fraction": "0.25", "gpu-memory": "8192"}, OF_16, [QUARTER], id="both-is-one-too-many"
        ),
        pytest.param({"gpu-fraction": "2"}, UNKNOWN_CARD, [Fraction(1)], id="unreadable-is-a-card"),
    ],
)
def test_annotated_cards(annotations: dict[str, str], card: Card, want: list[Fraction]) -> None:
    found = annotated_cards(view(pod(annotations=annotations)), card, RESOURCE_MAPPING)

    assert list(found.values()) == want

"""Nodes whose GPUs are in ResourceSlices (DRA): what they have, and of which class they are."""

from fractions import Fraction
from typing import Any

import msgspec
from msgspec.structs import replace

from policies.gpus.classes import DeviceAttributeValues, GPUClasses
from policies.gpus.device_types import DeviceAttribute, DeviceType, DeviceTypes
from policies.gpus.mapping_spec import DerivedMappingSpec
from policies.gpus.resource_mapping import ResourceMapping
from policies.gpus.stored_devices import CardUse
from policies.quota.demand import Catalogue
from tests.builders import JSON, gpu_class
from tests.cases import cases
from webhook.cluster.capacity import (
    ClassCapacity,
    any_node,
    capacity_by_class,
    counted_node_reader,
    gpu_node,
    with_cards,
)
from webhook.configuration.loader import load_directory

DRIVER, H100, A100 = "gpu.nvidia.com", "nvidia-h100-80gb", "nvidia-a100-80gb"
PRODUCT = f"{DRIVER}/productName"


class World:
    """A catalogue with two classes, whose devices are known."""

    def __init__(self, *kinds: DeviceType) -> None:
        self.classes = GPUClasses(
            gpu_class(
                name, name[:-5], 80, device_attributes=(DeviceAttributeValues(key=PRODUCT, values=(name,)),)
            )
            for name in (H100, A100)
        )
        specs = load_directory(None).resource_mapping.specs
        self.resource_mapping = ResourceMapping((DerivedMappingSpec(device_types=DeviceTypes(kinds)), *specs))


def kind(product: str, driver: str = DRIVER) -> DeviceType:
    return DeviceType(driver=driver, attributes={PRODUCT: DeviceAttribute(string=product)})


OF_H100, OF_A100, OF_NONE = kind(H100), kind(A100), kind("thing")
NONE, ONE = Fraction(0), Fraction(1)


def card(of: DeviceType = OF_H100, allocated: Fraction = NONE, free: Fraction = ONE) -> CardUse:
    return CardUse("", of, allocated, free)


def node(labels: JSON | None = None, **allocatable: str) -> JSON:
    conditions = [{"type": "Ready", "status": "True"}]
    resources = {
        name.replace("_", "/").replace("nvidia", "nvidia.com"): text for name, text in allocatable.items()
    }
    return {
        "metadata": {"name": "n1", "labels": labels or {}},
        "status": {"allocatable": resources, "conditions": conditions},
    }


CATALOGUE: Catalogue = World(OF_H100)
SEVENTH = Fraction(1, 7)


def amounts(of: ClassCapacity) -> tuple[Any, ...]:
    return of.gpus, of.free, of.blocked, of.resources


@cases(
    ("document", "cards", "kind_", "want"),
    without_labels=(node(), [card(), card(free=NONE, allocated=ONE)], H100, (2, 1, 0, {DRIVER: (2, 1)})),
    a_partition_is_allocated=(
        node(), [card(allocated=SEVENTH, free=1 - SEVENTH)], H100, (1, 1 - SEVENTH, 0, {DRIVER: (1, 1 - SEVENTH)}),
    ),
    some_is_blocked=(node(), [card(free=NONE, allocated=SEVENTH)], H100, (1, 0, 1 - SEVENTH, {DRIVER: (1, 0)})),
    its_labels_name_the_class=(node({"accelerator": A100}), [card()], A100, (1, 1, 0, {DRIVER: (1, 1)})),
    cards_of_two_classes=(node(), [card(), card(OF_A100)], "", (2, 2, 0, {DRIVER: (2, 2)})),
    cards_of_no_class=(node(), [card(OF_NONE)], "", (1, 1, 0, {DRIVER: (1, 1)})),
    a_device_plugin_offers_them_too=(
        node({"accelerator": H100}, nvidia_gpu="2"), [card(), card()], H100, (2, 2, 0, {"nvidia.com/gpu": (2, 2)}),
    ),
    beside_those_of_another_vendor=(
        node({"accelerator": H100}, nvidia_gpu="2"), [card(kind("mi300x", "gpu.amd.com"))], H100,
        (3, 3, 0, {"gpu.amd.com": (1, 1), "nvidia.com/gpu": (2, 2)}),
    ),
)  # fmt: skip
def test_what_a_node_has(document: JSON, cards: list[CardUse], kind_: str, want: tuple[Any, ...]) -> None:
    stored = replace(any_node(msgspec.json.encode(document), CATALOGUE), used={})

    assert {
        name: amounts(of) for name, of in capacity_by_class([with_cards(stored, cards, CATALOGUE)]).items()
    } == {kind_: want}


def test_what_is_free_is_unknown_without_the_pods() -> None:
    found = with_cards(any_node(msgspec.json.encode(node()), CATALOGUE), [card()], CATALOGUE)

    assert capacity_by_class([found])[H100].free is None


def test_a_node_without_gpus_is_kept_only_where_slices_may_have_some() -> None:
    raw = msgspec.Raw(msgspec.json.encode(node()))

    assert gpu_node(raw, CATALOGUE) is None
    assert counted_node_reader(World())(raw).gpus is None
    kept = counted_node_reader(CATALOGUE)(raw).gpus
    assert kept is not None
    assert not kept.has_gpus
    assert with_cards(kept, [card()], CATALOGUE).classes == (H100,)

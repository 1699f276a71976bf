"""Weight of DRA devices in cards: partitions, and shares of a device."""

from fractions import Fraction
from typing import Any

import msgspec
import pytest

from policies.gpus.cards import device_weight, satisfies
from policies.gpus.classes import GPUClass, GPUClasses, GPUClassSpec
from policies.gpus.device_types import DeviceAttribute, DeviceCapacity, DeviceType

PRODUCT, PROFILE = "gpu.nvidia.com/productName", "gpu.nvidia.com/profile"
A100 = "NVIDIA A100-SXM4-40GB"
SLICE = {"sevenths": 1, "memoryGiB": 10, "perGPU": 4}
CLASSES = GPUClasses(
    GPUClass.of(name, msgspec.convert(spec, GPUClassSpec))
    for name, spec in {
        "nvidia-a100-40gb": {
            "memoryGiB": 40,
            "deviceAttributes": [{"key": PRODUCT, "values": [A100]}],
            "migProfiles": {"1g.10gb": SLICE, "1g.10gb+me": SLICE, "1g.5gb": {**SLICE, "memoryGiB": 5}},
        },
        "nvidia-a100-80gb": {
            "memoryGiB": 80,
            "deviceAttributes": [{"key": PRODUCT, "values": ["NVIDIA A100"]}],
            "migProfiles": {"1g.10gb": SLICE},
        },
        "nvidia-a100-pcie": {
            "memoryGiB": 40,
            "deviceAttributes": [{"key": PRODUCT, "values": ["NVIDIA A100"]}],
        },
    }.items()
)
FREE = {"validRange": {"min": "0", "step": "1Mi"}, "default": "0"}
HALF_STEPS = {"validRange": {"min": "0", "step": "1500m"}, "default": "0"}
STEPS = {"validRange": {"min": "4Gi", "max": "40Gi", "step": "4Gi"}, "default": "8Gi"}


def kind(product: str = A100, profile: str | None = None, **fields: Any) -> DeviceType:
    named = {PRODUCT: product, PROFILE: profile}
    attributes = {name: DeviceAttribute(string=value) for name, value in named.items() if value}
    return DeviceType("gpu.nvidia.com", attributes, **fields)


def shared(
    card_parts: int = 5040, weighed_capacities: tuple[str, ...] | None = None, **capacity: Any
) -> DeviceType:
    names = capacity if weighed_capacities is None else weighed_capacities
    return kind(
        card_parts=card_parts,
        is_shared=True,
        weighed_capacities=tuple(f"gpu.nvidia.com/{name}" for name in names),
        capacity={
            f"gpu.nvidia.com/{name}": msgspec.convert(each, DeviceCapacity) for name, each in capacity.items()
        },
    )


@pytest.mark.parametrize(
    ("device", "want"),
    [
        pytest.param(kind(), 1, id="a-card-without-counters"),
        pytest.param(
            kind("Tesla T4", card_parts=720), Fraction(1, 7), id="a-partition-of-a-card-of-no-class"
        ),
        pytest.param(
            kind(profile="1g.10gb", card_parts=1248),
            Fraction(1, 4),
            id="what-the-class-says-and-not-the-counters",
        ),
        pytest.param(kind(profile="1g.10gb+me", card_parts=1248), Fraction(1, 4), id="with-media-engines"),
        pytest.param(
            kind(profile="1g.5gb", card_parts=630), Fraction(1, 7), id="the-larger-share-of-compute"
        ),
        pytest.param(
            kind(profile="2g.10gb", card_parts=1440), Fraction(2, 7), id="a-profile-that-the-class-lacks"
        ),
        pytest.param(
            kind("NVIDIA A100", profile="1g.10gb", card_parts=630),
            Fraction(1, 7),
            id="one-of-two-classes-lists-it",
        ),
    ],
)
def test_a_device_weighs_what_its_class_says_or_else_its_part_of_the_card(
    device: DeviceType, want: Fraction
) -> None:
    assert device_weight(device, CLASSES) == want


@pytest.mark.parametrize(
    ("device", "consumed", "want"),
    [
        pytest.param(shared(memory={"value": "40Gi"}), {"memory": "10Gi"}, Fraction(1, 4), id="any-amount"),
        pytest.param(
            shared(memory={"value": "40Gi"}),
            {"gpu.nvidia.com/memory": "10Gi"},
            Fraction(1, 4),
            id="by-qualified-name",
        ),
        pytest.param(shared(memory={"value": "40Gi"}), {}, 1, id="no-amount-takes-all"),
        pytest.param(
            shared(memory={"value": "40Gi", "requestPolicy": STEPS}), {}, Fraction(1, 5), id="the-default"
        ),
        pytest.param(
            shared(memory={"value": "40Gi", "requestPolicy": STEPS}),
            {"memory": "1Gi"},
            Fraction(1, 10),
            id="at-least-the-minimum",
        ),
        pytest.param(
            shared(memory={"value": "40Gi", "requestPolicy": STEPS}),
            {"memory": "9Gi"},
            Fraction(3, 10),
            id="whole-steps-above-the-minimum",
        ),
        pytest.param(
            shared(memory={"value": "10", "requestPolicy": HALF_STEPS}),
            {"memory": "2100m"},
            Fraction(4, 10),
            id="in-whole-units-before-1.37",
        ),
        pytest.param(
            shared(memory={"value": "10", "requestPolicy": HALF_STEPS}),
            {"memory": "1600m"},
            Fraction(3, 10),
            id="in-thousandths-since-1.37",
        ),
        pytest.param(
            shared(memory={"value": "40Gi", "requestPolicy": {"validValues": ["5Gi", "20Gi"]}}),
            {"memory": "6Gi"},
            Fraction(1, 2),
            id="the-next-valid-value",
        ),
        pytest.param(
            shared(memory={"value": "40Gi"}, compute={"value": "100"}),
            {"memory": "1Gi", "compute": "75"},
            Fraction(3, 4),
            id="the-largest-share",
        ),
        pytest.param(
            shared(memory={"value": "40Gi"}), {"memory": "80Gi"}, 1, id="never-more-than-the-device"
        ),
        pytest.param(
            shared(2520, memory={"value": "20Gi"}),
            {"memory": "5Gi"},
            Fraction(1, 8),
            id="a-share-of-a-partition",
        ),
        pytest.param(
            shared(memory={"value": "11"}), {"memory": "1"}, Fraction(459, 5040), id="rounded-up-to-parts"
        ),
        pytest.param(shared(), {}, 1, id="without-capacities"),
        pytest.param(
            shared(memory={"value": "40Gi", "requestPolicy": FREE}), {}, 1, id="nothing-of-what-weighs"
        ),
        pytest.param(
            shared(
                weighed_capacities=("memory",),
                memory={"value": "40Gi", "requestPolicy": FREE},
                shares={"value": "4"},
            ),
            {"memory": "10Gi", "shares": "2"},
            Fraction(1, 4),
            id="what-does-not-weigh",
        ),
        pytest.param(
            shared(
                weighed_capacities=("memory",),
                memory={"value": "40Gi", "requestPolicy": FREE},
                shares={"value": "4"},
            ),
            {"shares": "1"},
            1,
            id="only-of-what-does-not-weigh",
        ),
        pytest.param(shared(memory={"value": "0"}), {"memory": "0"}, 1, id="of-nothing"),
        pytest.param(shared(memory={"value": "40Gi"}), {"memory": "-800Gi"}, 1, id="less-than-nothing"),
        pytest.param(shared(memory={"value": "40Gi"}), {"memory": "much"}, 1, id="an-unreadable-amount"),
        pytest.param(
            kind(is_shared=True, capacity={}, unknown_names=("gpu.nvidia.com/memory",)),
            {"memory": "1Gi"},
            1,
            id="devices-with-differing-capacities",
        ),
        pytest.param(
            kind(capacity={"gpu.nvidia.com/memory": DeviceCapacity("40Gi")}),
            {"memory": "1Gi"},
            1,
            id="a-device-that-is-not-shared",
        ),
    ],
)
def test_a_share_weighs_the_largest_share_of_a_capacity(
    device: DeviceType, consumed: dict[str, str], want: Fraction
) -> None:
    assert device_weight(device, CLASSES, consumed) == want


@pytest.mark.parametrize(
    ("device", "requested", "want"),
    [
        pytest.param(kind(), {}, True, id="nothing-requested"),
        pytest.param(kind(), {"memory": "1Gi"}, False, id="a-capacity-that-it-lacks"),
        pytest.param(
            kind(unknown_names=("gpu.nvidia.com/memory",)),
            {"memory": "1Gi"},
            True,
            id="a-capacity-that-differs",
        ),
        pytest.param(shared(memory={"value": "40Gi"}), {"memory": "40Gi"}, True, id="all"),
        pytest.param(shared(memory={"value": "40Gi"}), {"memory": "41Gi"}, False, id="more-than-all"),
        pytest.param(shared(memory={"value": "40Gi"}), {"memory": "much"}, True, id="an-unreadable-amount"),
        pytest.param(
            shared(memory={"value": "80Gi", "requestPolicy": STEPS}),
            {"memory": "37Gi"},
            True,
            id="rounded-up-to-the-maximum",
        ),
        pytest.param(
            shared(memory={"value": "80Gi", "requestPolicy": STEPS}),
            {"memory": "41Gi"},
            False,
            id="more-than-the-maximum",
        ),
        pytest.param(
            shared(memory={"value": "80Gi", "requestPolicy": {"validValues": ["5Gi", "20Gi"]}}),
            {"memory": "21Gi"},
            False,
            id="more-than-any-valid-value",
        ),
        pytest.param(
            kind(capacity={"gpu.nvidia.com/memory": DeviceCapacity("40Gi")}),
            {"memory": "41Gi"},
            False,
            id="more-than-a-device-that-is-not-shared-has",
        ),
    ],
)
def test_a_device_serves_amounts_that_it_has(
    device: DeviceType, requested: dict[str, str], want: bool
) -> None:
    assert satisfies(device, requested) is want

"""Which DeviceClasses are GPUs, and what of a GPUResourceMapping makes no sense."""

import msgspec
import pytest

from policies.gpus.resource_mapping import (
    AnnotationKey,
    DeviceClassPattern,
    Measure,
    ResourceMapping,
    ResourceMappingSpec,
    gpu_requests,
    whole_gpus,
)
from tests.builders import JSON, container, pod, view
from tests.builders import RESOURCE_MAPPING as BUILT_IN

PATTERNS = (
    DeviceClassPattern(pattern="gpu.nvidia.com", resource="nvidia.com/gpu"),
    DeviceClassPattern(pattern="*.gpu.example.com"),
    DeviceClassPattern(pattern="a100-*"),
)
RESOURCE_MAPPING = ResourceMapping((ResourceMappingSpec(device_classes=PATTERNS),))


@pytest.mark.parametrize(
    ("name", "want"),
    [
        pytest.param("gpu.nvidia.com", PATTERNS[0], id="by-name"),
        pytest.param("team.gpu.example.com", PATTERNS[1], id="star-in-front"),
        pytest.param("a100-shared", PATTERNS[2], id="star-behind"),
        pytest.param("a100-", None, id="star-is-one-character-at-least"),
        pytest.param("xgpu.nvidia.com", None, id="longer"),
        pytest.param("rdma.example.com", None, id="no-gpu"),
    ],
)
def test_device_classes(name: str, want: DeviceClassPattern | None) -> None:
    assert RESOURCE_MAPPING.device_class(name) == want


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        pytest.param(
            {"deviceClasses": [{"pattern": "gpu.nvidia.com"}, {"pattern": "*.x.com"}]}, [], id="fine"
        ),
        pytest.param(
            {"fractionSchedulers": ["kai-scheduler", "default-scheduler", ""]},
            [
                ("fractionSchedulers[1]", "must be the schedulerName of a scheduler that shares GPUs"),
                ("fractionSchedulers[2]", "must be the schedulerName of a scheduler that shares GPUs"),
            ],
            id="schedulers-that-share-nothing",
        ),
        pytest.param(
            {"deviceClasses": [{"pattern": "GPU"}]},
            [
                (
                    "deviceClasses[0].pattern",
                    "must be the name of a DeviceClass such as gpu.example.com, with at most one *",
                )
            ],
            id="no-name",
        ),
        pytest.param(
            {"deviceClasses": [{"pattern": "a"}, {"pattern": "*.*.com"}]},
            [
                (
                    "deviceClasses[1].pattern",
                    "must be the name of a DeviceClass such as gpu.example.com, with at most one *",
                )
            ],
            id="two-stars",
        ),
        pytest.param(
            {"deviceClasses": [{"pattern": "a", "resource": "gpu"}]},
            [("deviceClasses[0].resource", "must be a resource name such as example.com/gpu")],
            id="resource-without-domain",
        ),
        pytest.param(
            {"fractionAnnotations": [{"key": "k", "measure": "slices"}]},
            [("fractionAnnotations[0].measure", "must be fraction, memoryMiB or devices")],
            id="annotation-of-slices",
        ),
    ],
)
def test_problems(spec: JSON, want: list[tuple[str, str]]) -> None:
    assert list(msgspec.convert(spec, ResourceMappingSpec).problems()) == want


def test_unknown_keys_of_a_device_class_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"unknown field `patern`.*deviceClasses\[0\]"):
        msgspec.convert({"deviceClasses": [{"pattern": "a", "patern": "b"}]}, ResourceMappingSpec)


def test_a_number_of_devices_alone_asks_for_no_gpu() -> None:
    keys = (
        AnnotationKey(key="num-devices", measure=Measure.DEVICES),
        AnnotationKey(key="fraction", measure=Measure.FRACTION),
    )
    resource_mapping = ResourceMapping((ResourceMappingSpec(fraction_annotations=keys),))
    both = view(pod(annotations={"num-devices": "2", "fraction": "0.5"}))

    assert not resource_mapping.pod_asks(view(pod(annotations={"num-devices": "2"})))
    assert resource_mapping.pod_fraction(both) == (keys[1], "0.5")


def test_the_digest_tells_vocabularies_apart() -> None:
    other = ResourceMapping((ResourceMappingSpec(device_classes=PATTERNS[::-1]),))

    assert RESOURCE_MAPPING.digest == ResourceMapping((ResourceMappingSpec(device_classes=PATTERNS),)).digest
    assert RESOURCE_MAPPING.digest != other.digest


def test_only_positive_amounts_of_gpu_resources_are_gpu_requests() -> None:
    document = pod(
        container(resources={"limits": {"nvidia.com/gpu": 0, "amd.com/gpu": 1, "example.com/dongle": 1}}),
    )

    requests = gpu_requests(view(document), BUILT_IN)

    assert {resource.name: str(quantity) for resource, quantity in requests.items()} == {"amd.com/gpu": "1"}


@pytest.mark.parametrize(
    ("limits", "want"),
    [
        pytest.param({"nvidia.com/gpu": "4"}, 4, id="whole-cards"),
        pytest.param({"nvidia.com/mig-1g.10gb": "4"}, 0, id="slices-are-no-cards"),
        pytest.param({"nvidia.com/gpu.shared": "1"}, 0, id="shares-are-no-cards"),
        pytest.param({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "4000"}, 2, id="memory-beside-cards"),
        pytest.param({"nvidia.com/gpu": "1", "amd.com/gpu": "1"}, 2, id="two-vendors"),
    ],
)
def test_whole_gpus(limits: dict[str, str], want: int) -> None:
    assert whole_gpus(view(pod(container(resources={"limits": limits}))), BUILT_IN) == want

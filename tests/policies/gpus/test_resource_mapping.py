"""Which DeviceClasses are GPUs, and what of a GPUResourceMapping makes no sense."""

import msgspec
import pytest

from policies.gpus.cards import gpu_requests
from policies.gpus.mapping_spec import (
    AnnotationKey,
    DeviceClassPattern,
    Measure,
    ResourceMappingSpec,
    ResourcePattern,
    UnknownDeviceClasses,
)
from policies.gpus.resource_mapping import GPUResource, ResourceMapping
from tests.builders import JSON, container, pod, view
from tests.builders import RESOURCE_MAPPING as BUILT_IN
from tests.cases import cases

PATTERNS = (
    DeviceClassPattern(pattern="gpu.nvidia.com", resource="nvidia.com/gpu"),
    DeviceClassPattern(pattern="*.gpu.example.com"),
    DeviceClassPattern(pattern="a100-*"),
)
RESOURCE_MAPPING = ResourceMapping((ResourceMappingSpec(device_classes=PATTERNS),))


@cases(
    ("name", "want"),
    by_name=("gpu.nvidia.com", PATTERNS[0]),
    star_in_front=("team.gpu.example.com", PATTERNS[1]),
    star_behind=("a100-shared", PATTERNS[2]),
    star_is_one_character_at_least=("a100-", None),
    longer=("xgpu.nvidia.com", None),
    unknown=("rdma.example.com", None),
)
def test_device_classes(name: str, want: DeviceClassPattern | None) -> None:
    assert RESOURCE_MAPPING.stated_class_pattern(name) == want


NIC = DeviceClassPattern(pattern="nic.example.com", measure=Measure.NOTHING)
SILENT = DeviceClassPattern(pattern="silent", measure=None, extended_resource_name="example.com/silent")
FAST = DeviceClassPattern(pattern="fast", extended_resource_name="example.com/fast")
PREFIX = "deviceclass.resource.kubernetes.io/"


def mapping(*unknown: UnknownDeviceClasses | None) -> ResourceMapping:
    classes = ResourceMappingSpec(device_classes=(*PATTERNS, NIC, SILENT, FAST))
    return ResourceMapping((*(ResourceMappingSpec(unknown_device_classes=each) for each in unknown), classes))


@cases(
    ("unknown", "counted", "denied"),
    counted_by_default=((), True, False),
    counted=((UnknownDeviceClasses.COUNT,), True, False),
    ignored=((UnknownDeviceClasses.IGNORE, None), False, False),
    denied_and_counted_if_it_is_stored=((UnknownDeviceClasses.DENY,), True, True),
    the_strictest_holds=((UnknownDeviceClasses.IGNORE, UnknownDeviceClasses.COUNT), True, False),
    in_any_document=((UnknownDeviceClasses.IGNORE, UnknownDeviceClasses.DENY), True, True),
)
@pytest.mark.parametrize("name", ["nobody-knows", "silent"])
def test_unknown_device_classes(
    name: str, unknown: tuple[UnknownDeviceClasses | None, ...], counted: bool, denied: bool
) -> None:
    found = mapping(*unknown)

    assert (found.device_class_pattern(name) is not None) is counted
    assert (found.resource(PREFIX + name) is not None) is counted
    assert found.denied_device_class(PREFIX + name) == (name if denied else None)
    assert (found.resource("example.com/silent") is not None) is counted
    assert found.denied_device_class("example.com/silent") == ("silent" if denied else None)
    assert found.resource("example.com/fast") == GPUResource("example.com/fast", Measure.DEVICES)
    assert found.denied_device_class("example.com/fast") is None
    assert found.device_class_pattern("nic.example.com") is None
    assert found.resource(PREFIX + "nic.example.com") is None


def test_a_resource_pattern_comes_before_the_extended_name_of_a_device_class() -> None:
    shares = ResourcePattern(pattern="example.com/*", measure=Measure.SHARES)
    found = ResourceMapping((ResourceMappingSpec(resources=(shares,), device_classes=(FAST,)),))

    assert found.resource("example.com/fast") == GPUResource("example.com/fast", Measure.SHARES)


NO_GPU = ResourcePattern(pattern="nvidia.com/gpus", measure=Measure.NOTHING)
NO_SCHEDULER = "must be the schedulerName of a scheduler that shares GPUs"
NO_NAME = "must be a resource name such as example.com/gpu or example.com/*"
NO_COUNTER = "must be the name of a counter such as memory, with at most one *"
NO_PATTERN = "must be the name of a DeviceClass such as gpu.example.com, with at most one *"


@cases(
    ("spec", "want"),
    fine=({"deviceClasses": [{"pattern": "gpu.nvidia.com"}, {"pattern": "*.x.com"}]}, []),
    schedulers_that_share_nothing=(
        {"fractionSchedulers": ["kai-scheduler", "default-scheduler", ""]},
        [f"fractionSchedulers[1]: {NO_SCHEDULER}", f"fractionSchedulers[2]: {NO_SCHEDULER}"],
    ),
    other_schedulers_that_are_none=(
        {"otherSchedulers": [{"schedulerName": "default-scheduler", "annotationPrefixes": [""]}]},
        [
            f"otherSchedulers[0].schedulerName: {NO_SCHEDULER}",
            "otherSchedulers[0].annotationPrefixes: must be beginnings such as example.com/gpu-",
        ],
    ),
    no_counter=(
        {"deviceClasses": [{"pattern": "x.com", "weigh": ["memory", "memory-slice-*", "a*b*", "Memory"]}]},
        [f"deviceClasses[0].weigh[2]: {NO_COUNTER}", f"deviceClasses[0].weigh[3]: {NO_COUNTER}"],
    ),
    no_name=({"deviceClasses": [{"pattern": "GPU"}]}, [f"deviceClasses[0].pattern: {NO_PATTERN}"]),
    two_stars=({"deviceClasses": [{"pattern": "*.*"}]}, [f"deviceClasses[0].pattern: {NO_PATTERN}"]),
    stars_of_a_resource=(
        {"resources": [{"pattern": each, "measure": "devices"} for each in ("x.com/*-*", "*.com/gpu")]},
        [f"resources[{index}].pattern: must have at most one *, after the /" for index in (0, 1)],
    ),
    names_without_a_domain_or_without_more=(
        {"resources": [{"pattern": each, "measure": "devices"} for each in ("/gpu", "x.com/", "x.com/gpu")]},
        [f"resources[{index}].pattern: {NO_NAME}" for index in (0, 1)],
    ),
    resource_in_fractions=(
        {"resources": [{"pattern": "example.com/gpu", "measure": "fraction"}]},
        ["resources[0].measure: must not be fraction: amounts of resources are whole numbers"],
    ),
    resource_without_domain=(
        {"deviceClasses": [{"pattern": "a", "resource": "gpu"}]},
        ["deviceClasses[0].resource: must be a resource name such as example.com/gpu"],
    ),
    device_class_of_shares=(
        {"deviceClasses": [{"pattern": "a", "measure": "shares"}]},
        ["deviceClasses[0].measure: must be devices or nothing"],
    ),
    annotation_of_slices=(
        {"fractionAnnotations": [{"key": "k", "measure": "slices"}]},
        ["fractionAnnotations[0].measure: must be fraction, memoryMiB or devices"],
    ),
)
def test_problems(spec: JSON, want: list[str]) -> None:
    found = msgspec.convert(spec, ResourceMappingSpec).problems()
    assert [f"{path}: {message}" for path, message in found] == want


def test_unknown_keys_of_a_device_class_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"unknown field `patern`.*deviceClasses\[0\]"):
        msgspec.convert({"deviceClasses": [{"pattern": "a", "patern": "b"}]}, ResourceMappingSpec)


@cases(("patterns", "want"), suggested_name=((), "nvidia.com/gpu"), known_as_no_gpu=((NO_GPU,), None))
def test_a_name_that_is_known_is_not_misspelt(
    patterns: tuple[ResourcePattern, ...], want: str | None
) -> None:
    found = ResourceMapping((ResourceMappingSpec(resources=patterns), *BUILT_IN.specs))

    assert found.suggested_name("nvidia.com/gpus") == want


def test_a_number_of_devices_alone_asks_for_no_gpu() -> None:
    keys = (
        AnnotationKey(key="num-devices", measure=Measure.DEVICES),
        AnnotationKey(key="fraction", measure=Measure.FRACTION),
    )
    resource_mapping = ResourceMapping((ResourceMappingSpec(fraction_annotations=keys),))
    both = view(pod(annotations={"num-devices": "2", "fraction": "0.5"}))

    assert not resource_mapping.pod_requests_gpus(view(pod(annotations={"num-devices": "2"})))
    assert resource_mapping.pod_fraction(both) == (keys[1], "0.5")
    assert resource_mapping.requests_gpus_without_claims(both)


def test_the_digest_tells_vocabularies_apart() -> None:
    other = ResourceMapping((ResourceMappingSpec(device_classes=PATTERNS[::-1]),))

    assert RESOURCE_MAPPING.digest == ResourceMapping((ResourceMappingSpec(device_classes=PATTERNS),)).digest
    assert RESOURCE_MAPPING.digest != other.digest


def test_only_positive_amounts_of_gpu_resources_are_gpu_requests() -> None:
    document = pod(
        container("plain"),
        container(resources={"limits": {"nvidia.com/gpu": 0, "amd.com/gpu": 1, "example.com/dongle": 1}}),
    )

    requests = gpu_requests(view(document), BUILT_IN)
    assert [each.path for each in BUILT_IN.places_with_gpus(view(document))] == ["spec.containers[1]"]
    assert [str(each.quantity) for each in BUILT_IN.requests(view(document))] == ["1"]

    assert {resource.name: amount for resource, amount in requests.items()} == {"amd.com/gpu": 1}

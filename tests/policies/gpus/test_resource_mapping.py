"""Which DeviceClasses are GPUs, and what of a GPUResourceMapping makes no sense."""

from fractions import Fraction

import msgspec
import pytest

from policies.gpus.cards import UNKNOWN_CARD, cards
from policies.gpus.resource_mapping import (
    AnnotationKey,
    DeviceClassPattern,
    GPUResource,
    Measure,
    ResourceMapping,
    ResourceMappingSpec,
    ResourcePattern,
    UnknownDeviceClasses,
    gpu_requests,
    whole_gpus,
)
from tests.builders import JSON, container, pod, view
from tests.builders import RESOURCE_MAPPING as BUILT_IN
from webhook.configuration.loader import load_directory

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
        pytest.param("rdma.example.com", None, id="unknown"),
    ],
)
def test_device_classes(name: str, want: DeviceClassPattern | None) -> None:
    assert RESOURCE_MAPPING.stated_device_class(name) == want


NIC = DeviceClassPattern(pattern="nic.example.com", measure=Measure.NOTHING)
SILENT = DeviceClassPattern(pattern="silent", measure=None, extended_resource_name="example.com/silent")
FAST = DeviceClassPattern(pattern="fast", extended_resource_name="example.com/fast")
PREFIX = "deviceclass.resource.kubernetes.io/"


def mapping(*unknown: UnknownDeviceClasses | None) -> ResourceMapping:
    classes = ResourceMappingSpec(device_classes=(*PATTERNS, NIC, SILENT, FAST))
    return ResourceMapping((*(ResourceMappingSpec(unknown_device_classes=each) for each in unknown), classes))


@pytest.mark.parametrize(
    ("unknown", "counted", "refused"),
    [
        pytest.param((), True, False, id="counted-by-default"),
        pytest.param((UnknownDeviceClasses.COUNT,), True, False, id="counted"),
        pytest.param((UnknownDeviceClasses.IGNORE, None), False, False, id="ignored"),
        pytest.param((UnknownDeviceClasses.DENY,), True, True, id="denied-and-counted-if-it-is-stored"),
        pytest.param(
            (UnknownDeviceClasses.IGNORE, UnknownDeviceClasses.COUNT), True, False, id="the-strictest-holds"
        ),
        pytest.param(
            (UnknownDeviceClasses.IGNORE, UnknownDeviceClasses.DENY), True, True, id="in-any-document"
        ),
    ],
)
@pytest.mark.parametrize("name", ["nobody-knows", "silent"])
def test_unknown_device_classes(
    name: str, unknown: tuple[UnknownDeviceClasses | None, ...], counted: bool, refused: bool
) -> None:
    found = mapping(*unknown)

    assert (found.device_class(name) is not None) is counted
    assert (found.resource(PREFIX + name) is not None) is counted
    assert found.refused_device_class(PREFIX + name) == (name if refused else None)
    assert (found.resource("example.com/silent") is not None) is counted
    assert found.refused_device_class("example.com/silent") == ("silent" if refused else None)
    assert found.resource("example.com/fast") == GPUResource("example.com/fast", Measure.DEVICES)
    assert found.refused_device_class("example.com/fast") is None
    assert found.device_class("nic.example.com") is None
    assert found.resource(PREFIX + "nic.example.com") is None


def test_a_resource_pattern_comes_before_the_extended_name_of_a_device_class() -> None:
    shares = ResourcePattern(pattern="example.com/*", measure=Measure.SHARES)
    found = ResourceMapping((ResourceMappingSpec(resources=(shares,), device_classes=(FAST,)),))

    assert found.resource("example.com/fast") == GPUResource("example.com/fast", Measure.SHARES)


@pytest.mark.parametrize(
    ("name", "measure", "whole_card"),
    [
        pytest.param(
            "nvidia.com/GRID_T4-1Q", Measure.DEVICES, "nvidia.com/gpu", id="vgpu-unknown-part-counts-as-one"
        ),
        pytest.param("nvidia.com/L40S-48Q", Measure.DEVICES, "nvidia.com/gpu", id="vgpu-q"),
        pytest.param("nvidia.com/GRID_A100-10C", Measure.DEVICES, "nvidia.com/gpu", id="vgpu-c"),
        pytest.param("nvidia.com/A40-2B", Measure.DEVICES, "nvidia.com/gpu", id="vgpu-b"),
        pytest.param("nvidia.com/A16-4A", Measure.DEVICES, "nvidia.com/gpu", id="vgpu-a"),
        pytest.param(
            "nvidia.com/GH100_H100_SXM5_80GB", Measure.DEVICES, "nvidia.com/gpu", id="kubevirt-passthrough"
        ),
        pytest.param(
            "amd.com/cpx_nps4", Measure.DEVICES, "amd.com/gpu", id="amd-partition-unknown-part-counts-as-one"
        ),
        pytest.param("intel.com/gpu", Measure.DEVICES, "intel.com/gpu", id="intel"),
        pytest.param("intel.com/gaudi", Measure.DEVICES, "habana.ai/gaudi", id="intel-gaudi"),
        pytest.param("npu.intel.com/accel", Measure.DEVICES, "npu.intel.com/accel", id="intel-npu"),
        pytest.param("aliyun.com/gpu-mem", Measure.MEMORY_GIB, None, id="aliyun-memory"),
        pytest.param("aliyun.com/gpu-count", Measure.DEVICES, "aliyun.com/gpu-count", id="aliyun-cards"),
        pytest.param("iluvatar.com/gpu", Measure.DEVICES, "iluvatar.com/gpu", id="iluvatar"),
        pytest.param(
            "iluvatar.ai/BI-V100-vgpu", Measure.SHARES, "iluvatar.ai/BI-V100-vgpu", id="iluvatar-share"
        ),
        pytest.param("enflame.com/gcu", Measure.DEVICES, "enflame.com/gcu", id="enflame"),
        pytest.param("mthreads.com/gpu", Measure.DEVICES, "mthreads.com/gpu", id="moore-threads"),
        pytest.param("kunlunxin.com/xpu", Measure.DEVICES, "kunlunxin.com/xpu", id="kunlunxin"),
        pytest.param(
            "koordinator.sh/gpu", Measure.MEMORY_PERCENT, None, id="koordinator-percent-of-any-card"
        ),
        pytest.param("tencent.com/vcuda-core", Measure.CORE_PERCENT, None, id="tencent-percent-of-any-card"),
        pytest.param("volcano.sh/gpu-number", Measure.DEVICES, "volcano.sh/gpu-number", id="volcano-cards"),
        pytest.param("volcano.sh/gpu-memory", Measure.MEMORY_MIB, None, id="volcano-memory"),
        pytest.param("nvshare.com/gpu", Measure.SHARES, "nvidia.com/gpu", id="nvshare-share-counts-as-one"),
    ],
)
def test_names_of_the_field(name: str, measure: Measure, whole_card: str | None) -> None:
    resource_mapping = load_directory(None).resource_mapping

    assert resource_mapping.resource(name) == GPUResource(name, measure)
    assert resource_mapping.whole_card(name) == whole_card
    if measure.is_count:
        assert cards({GPUResource(name, measure): Fraction(2)}, UNKNOWN_CARD) == {
            GPUResource(name, measure): 2
        }


@pytest.mark.parametrize(
    ("name", "measure"),
    [
        pytest.param("nvidia.com/a100", Measure.DEVICES, id="renamed-by-the-device-plugin"),
        pytest.param("nvidia.com/a100.shared", Measure.SHARES, id="renamed-and-time-sliced"),
        pytest.param("nvidia.com/GA102GL_A10", Measure.DEVICES, id="a-whole-card-of-kubevirt"),
        pytest.param("nvidia.com/GRID_T4-1Q", Measure.DEVICES, id="a-vgpu-of-kubevirt"),
        pytest.param("nvidia.com/mig-1g.5gb", Measure.SLICES, id="what-stands-before-holds"),
        pytest.param("nvidia.com/hostdev", None, id="network-operator-host-device"),
        pytest.param("nvidia.com/mlnxnics", None, id="network-operator-nics"),
        pytest.param("nvidia.com/sriov_resource_rail_0", None, id="network-operator-sriov"),
        pytest.param("nvidia.com/rail_0_plane_1", None, id="network-operator-spectrum-x-rail"),
        pytest.param("nvidia.com/resibp24s0", None, id="network-operator-infiniband-of-dgx"),
        pytest.param("nvidia.com/switchdev", None, id="network-operator-switchdev"),
        pytest.param("nvidia.com/rdma", None, id="network-operator-rdma"),
        pytest.param("nvidia.com/bf2_sf", None, id="network-operator-scalable-functions"),
        pytest.param("nvidia.com/priority", None, id="priority-of-hami"),
        pytest.param("amd.com/cpx_nps4", Measure.DEVICES, id="partition-of-amd"),
        pytest.param("amd.com/xilinx_u200_gen3x16_xdma_base_2-0", None, id="fpga-of-amd"),
        pytest.param("aliyun.com/gpu-mem", Measure.MEMORY_GIB, id="gpushare"),
        pytest.param("aliyun.com/gpu-count", Measure.DEVICES, id="gpushare-count"),
        pytest.param("aliyun.com/eni", None, id="network-interface-of-alibaba"),
        pytest.param("tencent.com/vcuda-core", Measure.CORE_PERCENT, id="gpu-manager-of-tencent"),
        pytest.param("koordinator.sh/gpu-memory-ratio", Measure.MEMORY_PERCENT, id="koordinator"),
        pytest.param("huawei.com/ascend-1980", Measure.DEVICES, id="ascend-of-huawei-cloud"),
        pytest.param("cambricon.com/mlu370", Measure.DEVICES, id="cambricon"),
        pytest.param("iluvatar.ai/BI-V100.vMem", Measure.MEMORY_GIB, id="iluvatar"),
        pytest.param("enflame.com/gcu-memory", Measure.MEMORY_GIB, id="enflame-memory"),
        pytest.param("enflame.com/gcu-core", Measure.CORE_PERCENT, id="enflame-compute"),
        pytest.param("mthreads.com/sgpu-memory", Measure.MEMORY_GIB, id="moore-threads-memory-in-512-mib"),
        pytest.param("mthreads.com/sgpu-core", Measure.CORE_PERCENT, id="moore-threads-compute"),
        pytest.param("cambricon.com/mlu.smlu.vmemory", Measure.MEMORY_GIB, id="cambricon-memory-in-256-mib"),
        pytest.param("cambricon.com/mlu370.smlu.vmemory", Measure.MEMORY_GIB, id="cambricon-memory-by-type"),
        pytest.param("cambricon.com/mlu370.smlu.vcore", Measure.CORE_PERCENT, id="cambricon-compute-by-type"),
        pytest.param("rebellions.ai/ATOM", Measure.DEVICES, id="rebellions"),
        pytest.param("rdma/hca_shared_devices_a", None, id="rdma"),
        pytest.param("vpc.amazonaws.com/efa", None, id="efa"),
        pytest.param("example.com/npu", None, id="of-a-domain-that-nobody-knows"),
    ],
)
def test_built_in_names(name: str, measure: Measure | None) -> None:
    found = load_directory(None).resource_mapping.resource(name)

    assert (found and found.measure) == measure


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
            {"deviceClasses": [{"pattern": "a", "measure": "shares"}]},
            [("deviceClasses[0].measure", "must be devices or nothing")],
            id="device-class-of-shares",
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

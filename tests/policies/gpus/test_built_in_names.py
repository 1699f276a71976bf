"""What the names that device plugins and schedulers give to resources mean, by the built-in mapping."""

from fractions import Fraction
from itertools import product

import pytest

from policies.gpus.cards import UNKNOWN_CARD, amounts_in_cards
from policies.gpus.mapping_spec import Measure
from policies.gpus.near_names import WRONG_NAMES
from policies.gpus.resource_mapping import ResourceMapping
from webhook.configuration.documents import Document
from webhook.configuration.loader import load_directory, load_objects

NAMES = {
    Measure.DEVICES: """
        nvidia.com/gpu amd.com/gpu amd.com/spx_nps1 gpu.intel.com/i915 gpu.intel.com/xe gpu.intel.com/dxg
        intel.com/gpu intel.com/gaudi habana.ai/gaudi npu.intel.com/accel aws.amazon.com/neuron google.com/tpu
        huawei.com/Ascend910 huawei.com/Ascend310P huawei.com/Ascend910B4-1 huawei.com/Ascend910C huawei.com/npu
        huawei.com/ascend-1980 cambricon.com/mlu cambricon.com/mlu370 cambricon.com/mlu270-x5k hygon.com/dcu hygon.com/hcu
        dcu.com/gpu iluvatar.com/gpu metax-tech.com/gpu mthreads.com/gpu enflame.com/gcu kunlunxin.com/xpu
        birentech.com/gpu vastaitech.com/va rebellions.ai/ATOM rebellions.ai/npu furiosa.ai/rngd furiosa.ai/warboy
        beta.furiosa.ai/npu tenstorrent.com/n150 tenstorrent.com/chip qualcomm.com/qaic alibabacloud.com/ppu aliyun.com/ppu
        ibm.com/spyre ibm.com/spyre_pf ibm.com/spyre_pf_0000_1a_00 mobilint.com/npu deepx.ai/dx-m1 hailo.ai/h8 hailo.ai/npu
        lynxi.com/HP280 microsoft.com/directx directx.microsoft.com/display directx.microsoft.com/compute
        volcano.sh/gpu-number aliyun.com/gpu thundercompute.com/gpu thundercompute.com/gpu-a100
        alibabacloud.com/gpu-count nvidia.com/a100 nvidia.com/GA102GL_A10 nvidia.com/GH100_H100_SXM5_80GB
        nvidia.com/A40-2B nvidia.com/A16-4A""",
    Measure.CORES: "aws.amazon.com/neuroncore cloud-tpus.google.com/v2 sambanova.ai/rdu-tile",
    Measure.SHARES: """
        nvidia.com/gpu.shared nvidia.com/a100.shared nvidia.com/mig-1g.5gb.shared nvidia.com/vgpu-number nvidia.com/gpu-10gb
        nvidia.com/gpu.sliced nvidia.com/GRID_T4-1Q nvidia.com/L40S-48Q nvidia.com/GRID_A100-10C amd.com/gpu.shared
        amd.com/cpx_nps1 amd.com/cpx_nps4 amd.com/dpx_nps1 hami.io/gpu huawei.com/Ascend910-2c huawei.com/Ascend310P-4c.3cpu
        huawei.com/Ascend910-5c.1cpu.8g huawei.com/Ascend310P-4c.4cpu.dvpp huawei.com/npu.sliced cambricon.com/vmlu
        cambricon.com/mlu.share cambricon.com/mlu370.share cambricon.com/mlu370.mim-2m.8gb hygon.com/dcunum hygon.com/hcunum
        hygon.com/hcu-share-8c-4g hygon.com/hcu-mig-1g-16gb iluvatar.ai/BI-V100-vgpu iluvatar.ai/vgpu iluvatar.com/gpu.shared
        metax-tech.com/sgpu mthreads.com/vgpu kunlunxin.com/vxpu enflame.com/vgcu enflame.com/shared-gcu
        birentech.com/1-2-gpu birentech.com/1-4-gpu furiosa.ai/rngd-2core.12gb alibabacloud.com/ppu-1 ibm.com/spyre_vf
        baidu.com/cgpu baidu.com/a100_80g_cgpu volcano.sh/vgpu-number koordinator.sh/gpu.shared k8s.amazonaws.com/vgpu
        deepomatic.com/shared-gpu nvshare.com/gpu woolyai.com/gpu""",
    Measure.SLICES: "nvidia.com/mig-1g.5gb nvidia.com/gpu.partitioned.mig-1g.10gb instaslice.redhat.com/mig-1g.5gb",
    Measure.MEMORY_GIB: """
        aliyun.com/gpu-mem alibabacloud.com/gpu-mem iluvatar.ai/BI-V100.vMem iluvatar.ai/vcuda-memory enflame.com/gcu-memory
        mthreads.com/sgpu-memory metax-tech.com/vmemory cambricon.com/mlu.smlu.vmemory cambricon.com/mlu370.smlu.vmemory
        baidu.com/cgpu_memory baidu.com/a100_80g_cgpu_memory tencent.com/vcuda-memory volcano.sh/gpu-mem.0""",
    Measure.MEMORY_MIB: """
        nvidia.com/gpumem nvidia.com/vgpu-memory nvidia.com/gpu.sliced.memory-mib amd.com/gpumem amd.com/gpu.sliced.memory-mib
        hami.io/gpumem huawei.com/Ascend910-memory huawei.com/npu.sliced.memory-mib cambricon.com/mlumem hygon.com/dcumem
        hygon.com/hcumem kunlunxin.com/vxpu-memory volcano.sh/gpu-memory run.ai/gpu.memory""",
    Measure.MEMORY_BYTES: "gpu.intel.com/memory.max koordinator.sh/gpu-memory",
    Measure.MEMORY_PERCENT: """
        koordinator.sh/gpu koordinator.sh/gpu-memory-ratio nvidia.com/gpumem-percentage alibabacloud.com/gpu-mem-ratio
        enflame.com/vgcu-percentage amd.com/gpu.sliced.memory-percentage hami.io/gpumem-percentage""",
    Measure.CORE_PERCENT: """
        nvidia.com/gpucores nvidia.com/vgpu-cores nvidia.com/gpu.sliced.cores-percentage amd.com/gpucores hami.io/gpucores
        huawei.com/Ascend910B3-core huawei.com/npu-core huawei.com/npu.sliced.cores-percentage hygon.com/dcucores
        hygon.com/hcucores tencent.com/vcuda-core enflame.com/gcu-core mthreads.com/sgpu-core metax-tech.com/vcore
        cambricon.com/mlu370.smlu.vcore iluvatar.ai/BI-V100.vCore baidu.com/cgpu_core baidu.com/a100_80g_cgpu_core""",
    Measure.CORE_MILLIS: "gpu.intel.com/millicores alibabacloud.com/gpu-milli",
    None: """
        nvidia.com/hostdev nvidia.com/mlnxnics nvidia.com/sriov_resource_rail_0 nvidia.com/rail_0_plane_1
        nvidia.com/resibp24s0 nvidia.com/switchdev nvidia.com/rdma nvidia.com/bf2_sf
        nvidia.com/priority amd.com/xilinx_u200_gen3x16_xdma_base_2-0 koordinator.sh/fpga
        aliyun.com/eni rdma/hca_shared_devices_a vpc.amazonaws.com/efa example.com/npu
        nvidia.com/gpu.partitioned nvidia.com/gpu.sliced.units nvidia.com/gpu.partitioned.units
        gpu.intel.com/monitoring gpu.intel.com/i915_monitoring gpu.intel.com/tiles device.gpustack.ai/nvidia.visibility
        huawei.com/npu-cpu huawei.com/npu-dvpp huawei.com/npu-vdec cambricon.com/real-mlu-counts
        enflame.com/gcu-count enflame.com/gcu-shared-capacity aliyun.com/gpu-count""",
}
CARDS = {
    "nvidia.com": "nvidia.com/gpu",
    "nvshare.com": "nvidia.com/gpu",
    "hami.io": "nvidia.com/gpu",
    "baidu.com": "nvidia.com/gpu",
    "woolyai.com": "nvidia.com/gpu",
    "volcano.sh/vgpu-number": "nvidia.com/gpu",
    "k8s.amazonaws.com": "nvidia.com/gpu",
    "deepomatic.com": "nvidia.com/gpu",
    "instaslice.redhat.com": "nvidia.com/gpu",
    "amd.com": "amd.com/gpu",
    "intel.com/gaudi": "habana.ai/gaudi",
    "aws.amazon.com": "aws.amazon.com/neuron",
    "cloud-tpus.google.com": "google.com/tpu",
    "thundercompute.com": "thundercompute.com/gpu",
    "aliyun.com/ppu": "alibabacloud.com/ppu",
    "alibabacloud.com/ppu-1": "alibabacloud.com/ppu",
    "dcu.com": "hygon.com/dcu",
    "hygon.com/hcu-share-8c-4g": "hygon.com/hcu",
    "hygon.com/hcu-mig-1g-16gb": "hygon.com/hcu",
    "huawei.com/npu.sliced": "huawei.com/npu",
    "iluvatar.com": "iluvatar.com/gpu",
    "birentech.com": "birentech.com/gpu",
    "furiosa.ai/rngd-2core.12gb": "furiosa.ai/rngd",
    "ibm.com": "ibm.com/spyre",
}
"""The whole card of a name or its domain; other names are those of whole cards themselves."""

ANY_NAME = """
nvidia.com/a100 nvidia.com/GA102GL_A10 nvidia.com/GH100_H100_SXM5_80GB nvidia.com/A40-2B nvidia.com/A16-4A amd.com/spx_nps1
gpu.intel.com/i915 gpu.intel.com/xe gpu.intel.com/dxg npu.intel.com/accel cloud-tpus.google.com/v2 cambricon.com/mlu
cambricon.com/mlu370 cambricon.com/mlu270-x5k hygon.com/dcu hygon.com/hcu mthreads.com/gpu enflame.com/gcu kunlunxin.com/xpu
birentech.com/gpu vastaitech.com/va rebellions.ai/ATOM rebellions.ai/npu furiosa.ai/rngd furiosa.ai/warboy
tenstorrent.com/n150 tenstorrent.com/chip deepx.ai/dx-m1 hailo.ai/h8 hailo.ai/npu lynxi.com/HP280
directx.microsoft.com/display directx.microsoft.com/compute
aliyun.com/eni rdma/hca_shared_devices_a vpc.amazonaws.com/efa device.gpustack.ai/nvidia.visibility
"""
"""Names that only `<domain>/*` fits: those of cards, which are as free as the models of cards, and of what is no GPU."""


@pytest.fixture(scope="module")
def built_in() -> ResourceMapping:
    return load_directory(None).resource_mapping


@pytest.mark.parametrize(
    ("measure", "name"), [(measure, name) for measure, names in NAMES.items() for name in names.split()]
)
def test_built_in_names(built_in: ResourceMapping, name: str, measure: Measure | None) -> None:
    found = built_in.resource(name)

    assert (found and found.measure) == measure
    assert found is None or built_in.knows(name)
    if found is not None and found.measure.is_count:
        card = CARDS.get(name) or CARDS.get(name.partition("/")[0], name)
        assert built_in.whole_card_resource(name) == card
        assert amounts_in_cards({found: Fraction(2)}, UNKNOWN_CARD) == {found: 2}


def test_only_free_names_are_decided_by_the_domain_alone(built_in: ResourceMapping) -> None:
    rest = {each.pattern for each in built_in.patterns if each.pattern.endswith("/*")}
    precise = ResourceMapping(
        [
            type(spec)(resources=tuple(each for each in spec.resources if each.pattern not in rest))
            for spec in built_in.specs
        ]
    )
    names = {name for names in NAMES.values() for name in names.split()} - {"example.com/npu"}

    assert {name for name in names if not precise.knows(name)} == set(ANY_NAME.split())


@pytest.mark.parametrize(
    "name", ["nvidia.com/gpu-highmem", "amd.com/mi300x-highmem", "nvidia.com/a100-tensorcore"]
)
def test_a_device_that_somebody_renamed(built_in: ResourceMapping, name: str) -> None:
    found = built_in.resource(name)

    assert found is not None
    assert found.measure is Measure.DEVICES


AMOUNTS = ("x-memory", "vmem", "x-cores", "vcore", "x-percentage", "memory-ratio")


def test_no_amount_of_memory_or_compute_is_a_number_of_cards(built_in: ResourceMapping) -> None:
    """A plugin of tomorrow has names that nobody knows today: `49152` of its MiB are not 49,152 cards."""
    of_cards = {
        each.pattern.removesuffix("/*")
        for each in built_in.patterns
        if each.pattern.endswith("/*") and each.measure is Measure.DEVICES
    } - {"deviceclass.resource.kubernetes.io", "directx.microsoft.com"}
    found = {
        name: built_in.resource(name)
        for name in (f"{domain}/{amount}" for domain, amount in product(of_cards, AMOUNTS))
    }

    assert {"nvidia.com", "amd.com", "hygon.com", "rebellions.ai"} <= of_cards
    assert {
        name for name, resource in found.items() if resource is None or resource.measure.is_count
    } == set()


def test_names_that_people_give_to_cards_of_intel() -> None:
    mapping = load_directory(None).resource_mapping

    assert mapping.suggested_name("intel.com/gpu") == "gpu.intel.com/i915"
    assert mapping.suggested_name("intel.com/gaudi") == "habana.ai/gaudi"
    assert mapping.suggested_name("gpu.intel.com/i915") is None


@pytest.mark.parametrize("name", WRONG_NAMES)
def test_a_former_name_that_a_document_maps_is_meant(name: str) -> None:
    document = Document("GPUResourceMapping", "own", {"resources": [{"pattern": name, "measure": "devices"}]})

    assert load_objects([document]).resource_mapping.suggested_name(name) is None

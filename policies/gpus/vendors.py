"""Vendors of accelerators, one table: the names of their devices in a pod and on a node, and how a container gets to them.

The built-in resource mapping, isolation, placement, `scan`, `doctor` and `export` read it. Names of software for cards of several
vendors, and names that are not GPUs, are in `webhook/configuration/builtin/resource-mapping.yaml`.
"""

from collections.abc import Callable
from typing import TypeVar

from policies.gpus.mapping_spec import (
    NVIDIA_GPU,
    DeviceClassPattern,
    Measure,
    ResourceMappingSpec,
    ResourcePattern,
)
from policies.gpus.vendor import NONE, Vendor

AMD_GPU, GAUDI, NEURON, TPU = "amd.com/gpu", "habana.ai/gaudi", "aws.amazon.com/neuron", "google.com/tpu"
NVIDIA_VISIBLE_DEVICES, MIG_SLICE = "NVIDIA_VISIBLE_DEVICES", "nvidia.com/mig-"

_DEVICES, _SHARES, _NOTHING = Measure.DEVICES, Measure.SHARES, Measure.NOTHING
_MIB, _CORE_PERCENT = Measure.MEMORY_MIB, Measure.CORE_PERCENT

T = TypeVar("T")


def _patterns(measure: Measure, *patterns: str, card: str | None = None) -> tuple[ResourcePattern, ...]:
    return tuple(ResourcePattern(pattern=pattern, measure=measure, resource=card) for pattern in patterns)


def _device_classes(card: str, *patterns: str, weigh: tuple[str, ...] = ()) -> tuple[DeviceClassPattern, ...]:
    return tuple(DeviceClassPattern(pattern=pattern, resource=card, weigh=weigh) for pattern in patterns)


def _other_names(domain: str, card: str | None = None) -> tuple[ResourcePattern, ...]:
    """Every other name of the domain is a device, unless its last word is memory, cores or percent of one."""

    def ending_with(*words: str) -> tuple[str, ...]:
        # As words of their own: `gpu-highmem` is a device that somebody renamed.
        return tuple(f"{domain}/{before}{word}" for word in words for before in ("*-", "*.", "*_", "v"))

    return (
        *_patterns(_MIB, f"{domain}/*memory", *ending_with("mem"), card=card),
        *_patterns(_CORE_PERCENT, *ending_with("cores", "core"), card=card),
        *_patterns(Measure.MEMORY_PERCENT, f"{domain}/*percentage", f"{domain}/*ratio", card=card),
        *_patterns(_DEVICES, f"{domain}/*", card=card),
    )


def _gpustack(*cards: str) -> tuple[ResourcePattern, ...]:
    """Return the names that GPUStack's operator makes of a vendor's (its documentation, Accelerator Requests).

    `.sliced` and `.partitioned` are always 1, beside amounts of their own. Its webhook writes `.units`.
    """
    return tuple(
        pattern
        for card in cards
        for pattern in (
            *_patterns(_NOTHING, f"{card}.partitioned", f"{card}.partitioned.units", f"{card}.sliced.units"),
            *_patterns(Measure.SLICES, f"{card}.partitioned.mig-*", card=card),
            *_patterns(_CORE_PERCENT, f"{card}.sliced.cores-percentage", card=card),
            *_patterns(Measure.MEMORY_PERCENT, f"{card}.sliced.memory-percentage", card=card),
            *_patterns(_MIB, f"{card}.sliced.memory-mib", card=card),
            *_patterns(_SHARES, f"{card}.shared", f"{card}.sliced", card=card),
        )
    )


VENDORS = (
    Vendor(  # NVIDIA
        resources=(
            # Its device plugin: whole cards, time-slicing with renameByDefault, MIG with the mixed strategy
            *_patterns(_DEVICES, NVIDIA_GPU),
            *_patterns(_SHARES, "nvidia.com/gpu.shared", "nvidia.com/mig-*.shared", card=NVIDIA_GPU),
            *_gpustack(NVIDIA_GPU),
            *_patterns(Measure.SLICES, f"{MIG_SLICE}*", card=NVIDIA_GPU),
            *_patterns(_SHARES, "nvidia.com/*.shared", card=NVIDIA_GPU),
            # HAMi: amounts beside nvidia.com/gpu
            *_patterns(_MIB, "nvidia.com/gpumem", card=NVIDIA_GPU),
            *_patterns(Measure.MEMORY_PERCENT, "nvidia.com/gpumem-percentage", card=NVIDIA_GPU),
            *_patterns(_CORE_PERCENT, "nvidia.com/gpucores", card=NVIDIA_GPU),
            *_patterns(_NOTHING, "nvidia.com/priority"),
            # vgpu-manager (pkg/util/consts.go), also with another domain
            *_patterns(_SHARES, "nvidia.com/vgpu-number", card=NVIDIA_GPU),
            *_patterns(_MIB, "nvidia.com/vgpu-memory", card=NVIDIA_GPU),
            *_patterns(_CORE_PERCENT, "nvidia.com/vgpu-cores", card=NVIDIA_GPU),
            # nos: a part of a card by MPS, with its GB in the name (gpu-10gb)
            *_patterns(_SHARES, "nvidia.com/gpu-*gb", card=NVIDIA_GPU),
            # Its Network Operator names network devices as its policies say (its documentation: hostdev, mlnxnics, sriov_rdma,
            # switchdev, bf2_sf, cx7_qsfp, and rail_0 or rail-1 of Spectrum-X; of DGX clusters: resibp24s0).
            *_patterns(_NOTHING, "nvidia.com/hostdev*", "nvidia.com/hostdev", "nvidia.com/mlnx*"),
            *_patterns(_NOTHING, "nvidia.com/rail*", "nvidia.com/resib*", "nvidia.com/switchdev*"),
            *_patterns(_NOTHING, "nvidia.com/switchdev", "nvidia.com/rdma*", "nvidia.com/rdma"),
            *_patterns(_NOTHING, "nvidia.com/*rdma", "nvidia.com/sriov*", "nvidia.com/roce*"),
            *_patterns(_NOTHING, "nvidia.com/*_sf", "nvidia.com/*_vf", "nvidia.com/cx*", "nvidia.com/bf*"),
            # KubeVirt's device plugin: vGPUs by profile (GRID_T4-1Q, L40S-48Q), cards by name (GA102GL_A10). Every other name
            # is of the device plugin's `resources` and `rename`.
            *_patterns(_SHARES, "nvidia.com/GRID_*", "nvidia.com/*Q", card=NVIDIA_GPU),
            *_other_names("nvidia.com", NVIDIA_GPU),
        ),
        device_classes=(
            # Counters of its DRA driver (cmd/gpu-kubelet-plugin/partitions.go). Never engines: the only decoder is not a card.
            *_device_classes(
                NVIDIA_GPU, "gpu.nvidia.com", weigh=("memory", "multiprocessors", "memory-slice-*")
            ),
            *_device_classes(NVIDIA_GPU, "mig.nvidia.com", "vfio.gpu.nvidia.com"),
            *_device_classes(NVIDIA_GPU, "vgpu-manager", "manager.nvidia.com"),
            # Channels of NVLink domains
            DeviceClassPattern(pattern="compute-domain*nvidia.com", measure=_NOTHING),
        ),
        one_device_each=(NVIDIA_GPU,),
        # nvidia-container-toolkit (`internal/config/image`)
        visible_devices=(NVIDIA_VISIBLE_DEVICES,),
        # Devices by number, with nvidia-uvm and nvidia-caps; the root of its driver container, with a /dev of its own.
        node_paths=("/dev/nvidia", "/run/nvidia/driver/"),
        hardware_labels=(
            # By these its GPU Operator marks nodes and places its parts (controllers/state_manager.go).
            "!nvidia.com/gpu.present",
            "!nvidia.com/gpu.deploy.*",
            # GPU Feature Discovery: product, family, memory, count, compute, mig.capable, …; CoreWeave's class, model, vram
            "nvidia.com/gpu.*",
            "nvidia.com/mig[-.]*",
            "nvidia.com/mps.*",
            "nvidia.com/vgpu.*",
            "gpu.nvidia.com/*",
        ),
        # GPU Feature Discovery: the versions of driver and CUDA
        other_labels=("nvidia.com/cuda.*",),
        # The same (its README): the suffix without renameByDefault, and a strategy other than none
        sharing_labels=(
            "nvidia.com/gpu.product=*-SHARED",
            "nvidia.com/gpu.sharing-strategy=mps",
            "nvidia.com/gpu.sharing-strategy=time-slicing",
        ),
        product_labels=("nvidia.com/gpu.product",),
        memory_mib_labels=("nvidia.com/gpu.memory",),
    ),
    Vendor(  # AMD
        resources=(
            *_patterns(_DEVICES, AMD_GPU),
            *_gpustack(AMD_GPU),
            # HAMi (pkg/device/amd/device.go): amounts beside amd.com/gpu
            *_patterns(_MIB, "amd.com/gpumem", card=AMD_GPU),
            *_patterns(_CORE_PERCENT, "amd.com/gpucores", card=AMD_GPU),
            # ROCm's device plugin, strategy `mixed` (its docs, user-guide/configuration): spx is the whole card, the others
            # are partitions (cpx_nps4)
            *_patterns(
                _SHARES, "amd.com/cpx_*", "amd.com/dpx_*", "amd.com/qpx_*", "amd.com/tpx_*", card=AMD_GPU
            ),
            # FPGAs (Xilinx's device plugin), media accelerators, and the NICs of its Network Operator
            *_patterns(
                _NOTHING, "amd.com/xilinx*", "amd.com/ama*", "amd.com/nic", "amd.com/vnic", "amd.com/sev*"
            ),
            *_other_names("amd.com", AMD_GPU),
        ),
        device_classes=_device_classes(AMD_GPU, "gpu.amd.com", "gpu.amd.com-spx"),
        one_device_each=(AMD_GPU,),
        # ROCm's container-toolkit (`internal/oci`)
        visible_devices=("AMD_VISIBLE_DEVICES",),
        node_paths=("/dev/dri/", "/dev/kfd/"),
        # The node labeller of ROCm's device plugin (its README): also with the value in the key, beta.amd.com/gpu.family.AI
        hardware_labels=(
            "!amd.com/gpu.driver-*",
            "!amd.com/gpu.firmware*",
            "amd.com/gpu.*",
            "beta.amd.com/gpu.*",
            "amd.com/compute-memory-partition",
            "amd.com/*-partitioning-supported",
        ),
        other_labels=("amd.com/gpu.driver-*", "amd.com/gpu.firmware*"),
        product_labels=("amd.com/gpu.product-name",),
        memory_gb_labels=("amd.com/gpu.vram",),
    ),
    Vendor(  # Intel
        resources=(
            # Its device plugin: i915, xe, dxg (WSL). Monitoring shows all GPUs. Tiles, thousandths and memory say what part of
            # the GPUs beside them (labels of its release 0.30).
            *_patterns(
                _NOTHING, "gpu.intel.com/*_monitoring", "gpu.intel.com/monitoring", "gpu.intel.com/tiles"
            ),
            *_patterns(Measure.CORE_MILLIS, "gpu.intel.com/millicores"),
            *_patterns(Measure.MEMORY_BYTES, "gpu.intel.com/memory.max"),
            # Its NPU plugin (npu.intel.com/accel), and the name that people give to GPUs under the company's domain
            *_other_names("gpu.intel.com"),
            *_other_names("npu.intel.com"),
            *_patterns(_DEVICES, "intel.com/gpu"),
        ),
        # Its DRA driver
        device_classes=_device_classes("gpu.intel.com/xe", "gpu.intel.com", "gpu-vfio.intel.com"),
        node_paths=("/dev/dri/",),
        # `-enable-monitoring` (cmd/gpu_plugin/README.md); the second is the older mode `split`
        monitor_resources=("gpu.intel.com/monitoring", "gpu.intel.com/*_monitoring"),
        # The Node Feature Discovery rules of its device plugins: family, device-id.<class>-<device>.present
        hardware_labels=("gpu.intel.com/*",),
    ),
    Vendor(  # Intel Gaudi
        resources=(
            # The first is what people write under the company's domain.
            *_patterns(_DEVICES, "intel.com/gaudi", card=GAUDI),
            *_patterns(_DEVICES, GAUDI),
            *_other_names("habana.ai", GAUDI),
        ),
        device_classes=_device_classes(GAUDI, "gaudi.intel.com"),
        one_device_each=(GAUDI,),
        visible_devices=("HABANA_VISIBLE_DEVICES",),
        # The hook of habana-container-runtime reads an empty value and `void` as `all` (`getDevicesFromEnvvar`).
        hiding_values=(NONE,),
        node_paths=("/dev/accel", "/dev/hl"),
    ),
    Vendor(  # AWS Neuron
        resources=(
            # `neuron` and `neurondevice` are cards, `neuroncore` parts of one.
            *_patterns(Measure.CORES, "aws.amazon.com/neuroncore", card=NEURON),
            *_patterns(_DEVICES, "aws.amazon.com/neuron*", card=NEURON),
            *_patterns(_DEVICES, NEURON),
        ),
        device_classes=_device_classes(NEURON, "neuron.aws.com"),
        node_paths=("/dev/neuron",),
    ),
    Vendor(  # Google TPU
        resources=(*_patterns(_DEVICES, TPU), *_patterns(Measure.CORES, "cloud-tpus.google.com/*", card=TPU)),
        device_classes=_device_classes(TPU, "tpu.google.com"),
        node_paths=("/dev/accel",),
        # Labels of GKE's TPU operator: accelerator, chip-count, topology
        hardware_labels=("tpu.google.com/*",),
    ),
    Vendor(  # Hygon
        resources=(
            # HAMi's names, and those of its own plugin (k8s-hcu-device-plugin, README): slots of a card, MiB, percent
            *_patterns(_SHARES, "hygon.com/dcunum", "hygon.com/hcunum"),
            *_patterns(_MIB, "hygon.com/dcumem", "hygon.com/hcumem"),
            *_patterns(_CORE_PERCENT, "hygon.com/dcucores", "hygon.com/hcucores", card="hygon.com/dcu"),
            # Parts cut beforehand: hcu-share-8c-4g, hcu-mig-1g-16gb
            *_patterns(_SHARES, "hygon.com/hcu-share-*", "hygon.com/hcu-mig-*", card="hygon.com/hcu"),
            *_patterns(_SHARES, "hygon.com/dcu-share-*", "hygon.com/dcu-mig-*", card="hygon.com/dcu"),
            *_gpustack("hygon.com/dcu", "hygon.com/hcu"),
            *_other_names("hygon.com"),
            # Koordinator (apis/extension/device_share.go)
            *_patterns(_DEVICES, "dcu.com/gpu", card="hygon.com/dcu"),
        ),
        # From its examples
        visible_devices=("DCU_VISIBLE_DEVICES",),
        node_paths=("/dev/dri/", "/dev/kfd/", "/dev/mkfd/", "/etc/vdev/"),
        # k8s-hcu-label-node (its README): name, cu-count, vram
        hardware_labels=("!hygon.com/hcu.driver*", "hygon.com/hcu.*", "hygon.com/dcu.*"),
        other_labels=("hygon.com/hcu.driver*",),
        product_labels=("hygon.com/hcu.name",),
        memory_gb_labels=("hygon.com/hcu.vram",),
    ),
    Vendor(  # Cambricon
        resources=(
            *_patterns(_DEVICES, "cambricon.com/mlunum"),
            *_patterns(_MIB, "cambricon.com/mlumem"),
            # Its device plugin (device-plugin/pkg/mlu/server.go): mlu, or the type of the card where it says so (mlu370).
            # Percent, or units of 256 MiB (HAMi's documentation, userguide/cambricon-device): as GiB they count too much,
            # never too little.
            *_patterns(Measure.MEMORY_GIB, "cambricon.com/*.smlu.vmemory"),
            *_patterns(_CORE_PERCENT, "cambricon.com/*.smlu.vcore", card="cambricon.com/mlu"),
            # env-share, and partitions (mlu370.mim-2m.8gb)
            *_patterns(_SHARES, "cambricon.com/vmlu", "cambricon.com/*.share", "cambricon.com/*gb"),
            # Counts the cards, whatever the nodes offer.
            *_patterns(_NOTHING, "cambricon.com/real-mlu-counts"),
            *_gpustack("cambricon.com/mlu"),
            *_other_names("cambricon.com"),
        ),
        # From its examples
        visible_devices=("CAMBRICON_VISIBLE_DEVICES",),
        node_paths=("/dev/cambricon",),
    ),
    Vendor(  # Huawei Ascend
        resources=(
            # HAMi: amounts beside a card
            *_patterns(_MIB, "huawei.com/Ascend*-memory"),
            *_patterns(_CORE_PERCENT, "huawei.com/Ascend*-core", card="huawei.com/npu"),
            # MindCluster (ascend-device-plugin/pkg/common/constants.go): vNPUs of n cores (Ascend310P-4c.3cpu.ndvpp)
            *_patterns(_SHARES, "huawei.com/Ascend*c", "huawei.com/Ascend*cpu"),
            *_patterns(_SHARES, "huawei.com/Ascend*g", "huawei.com/Ascend*dvpp"),
            *_patterns(_DEVICES, "huawei.com/Ascend*"),
            # Koordinator (apis/extension/device_share.go): percent of a card. The CPUs and codecs of that card count nothing.
            *_patterns(_CORE_PERCENT, "huawei.com/npu-core", "huawei.com/gpu-core"),
            *_patterns(_NOTHING, "huawei.com/npu-cpu", "huawei.com/npu-dvpp", "huawei.com/npu-vpc"),
            *_patterns(_NOTHING, "huawei.com/npu-vdec", "huawei.com/npu-jpeg*", "huawei.com/npu-pngd"),
            *_gpustack("huawei.com/npu"),
            *_patterns(_DEVICES, "huawei.com/ascend*", "huawei.com/npu*", "huawei.com/npu"),
        ),
        # HAMi's DRA driver
        device_classes=(DeviceClassPattern(pattern="ascend.project-hami.io"),),
        # ascend-docker-runtime
        visible_devices=("ASCEND_VISIBLE_DEVICES",),
        node_paths=("/dev/davinci",),
        # MindCluster (docs, scheduling/api/k8s): the kind of server, the name of the chip
        hardware_labels=("node.kubernetes.io/npu.*", "servertype"),
    ),
    Vendor(  # MetaX
        resources=(
            *_patterns(_DEVICES, "metax-tech.com/gpu"),
            *_patterns(_SHARES, "metax-tech.com/sgpu"),
            *_patterns(_CORE_PERCENT, "metax-tech.com/vcore", card="metax-tech.com/gpu"),
            # A bare number is GiB (HAMi, pkg/device/metax/sdevice.go). With a unit it is more than any card has: one card.
            *_patterns(Measure.MEMORY_GIB, "metax-tech.com/vmemory"),
            *_gpustack("metax-tech.com/gpu"),
            *_other_names("metax-tech.com"),
        ),
        hardware_labels=("!metax-tech.com/gpu.installed", "metax-tech.com/gpu.*"),
        product_labels=("metax-tech.com/gpu.product",),
    ),
    Vendor(  # Iluvatar
        resources=(
            *_patterns(_SHARES, "iluvatar.ai/*vgpu", "iluvatar.ai/vgpu"),
            *_patterns(
                _CORE_PERCENT, "iluvatar.ai/vcuda-core", "iluvatar.ai/*.vCore", card="iluvatar.ai/gpu"
            ),
            # Units of 256 MiB (HAMi's docs/iluvatar-gpu-support.md), which no measure has: as GiB they count too much, never too
            # little.
            *_patterns(Measure.MEMORY_GIB, "iluvatar.ai/vcuda-memory", "iluvatar.ai/*.vMem"),
            *_other_names("iluvatar.ai"),
            # Its own device plugin (README of ix-device-plugin)
            *_patterns(_DEVICES, "iluvatar.com/gpu"),
            *_gpustack("iluvatar.com/gpu"),
        ),
        node_paths=("/dev/iluvatar", "/dev/itrctl"),
    ),
    Vendor(  # Kunlunxin
        resources=(
            *_patterns(_SHARES, "kunlunxin.com/vxpu"),
            *_patterns(_MIB, "kunlunxin.com/vxpu-memory"),
            *_other_names("kunlunxin.com"),
        )
    ),
    Vendor(  # Enflame
        resources=(
            *_patterns(_SHARES, "enflame.com/vgcu", "enflame.com/shared-gcu", "enflame.com/drs-gcu"),
            *_patterns(Measure.MEMORY_PERCENT, "enflame.com/vgcu-percentage", card="enflame.com/gcu"),
            # In MiB (HAMi's documentation, userguide/enflame-device) or GiB (Enflame's GCUShare). Taken for GiB, an amount in MiB
            # exceeds the memory of a card, and so counts as one card.
            *_patterns(Measure.MEMORY_GIB, "enflame.com/gcu-memory"),
            *_patterns(_CORE_PERCENT, "enflame.com/gcu-core", card="enflame.com/gcu"),
            # What a node has in all (GCUShare, pkg/consts/const.go)
            *_patterns(_NOTHING, "enflame.com/gcu-count", "enflame.com/gcu-*-capacity"),
            *_other_names("enflame.com"),
        ),
        node_paths=("/dev/gcu",),
    ),
    Vendor(  # Moore Threads
        resources=(
            *_patterns(_SHARES, "mthreads.com/vgpu"),
            # sgpu-memory is in units of 512 MiB (HAMi's documentation, userguide/mthreads-device): as GiB it counts too much. The
            # others are sixteenths of a card's compute.
            *_patterns(Measure.MEMORY_GIB, "mthreads.com/sgpu-memory"),
            *_patterns(_CORE_PERCENT, "mthreads.com/sgpu-*", card="mthreads.com/gpu"),
            *_gpustack("mthreads.com/gpu"),
            *_other_names("mthreads.com"),
        ),
        # From its examples
        visible_devices=("MTHREADS_VISIBLE_DEVICES",),
    ),
    Vendor(  # Biren (README of its k8s-device-plugin): also halves and quarters of a card
        resources=(
            *_patterns(_SHARES, "birentech.com/1-*-gpu", card="birentech.com/gpu"),
            *_other_names("birentech.com"),
        ),
        node_paths=("/dev/biren",),
    ),
    Vendor(resources=_other_names("vastaitech.com")),
    Vendor(  # Rebellions (rbln-k8s-device-plugin, pkg/consts; rbln-npu-operator): ATOM, REBEL, npu
        resources=_other_names("rebellions.ai"),
        device_classes=(DeviceClassPattern(pattern="npu.rebellions.ai"),),
        node_paths=("/dev/rbln", "/dev/rsd"),
        hardware_labels=("!rebellions.ai/npu.present", "!rebellions.ai/npu.deploy.*", "rebellions.ai/npu.*"),
    ),
    Vendor(  # FuriosaAI (resource_name.go of its device plugin, its feature discovery): parts such as rngd-2core.12gb
        resources=(
            *_patterns(_SHARES, "furiosa.ai/*gb", card="furiosa.ai/rngd"),
            *_other_names("furiosa.ai"),
            *_patterns(_DEVICES, "beta.furiosa.ai/npu"),
        ),
        device_classes=(DeviceClassPattern(pattern="npu.furiosa.ai"),),
        hardware_labels=("furiosa.ai/npu.product", "furiosa.ai/npu.family", "furiosa.ai/npu.count"),
        other_labels=("furiosa.ai/driver.*", "furiosa.ai/npu.driver.*"),
        product_labels=("furiosa.ai/npu.product",),
    ),
    Vendor(  # Qualcomm: a unit is a SoC, of which an Ultra card has four (cloud-ai-sdk-pages)
        resources=_patterns(_DEVICES, "qualcomm.com/qaic*", "qualcomm.com/qaic"),
        node_paths=("/dev/qaic", "/dev/accel"),
    ),
    Vendor(resources=_other_names("tenstorrent.com"), node_paths=("/dev/tenstorrent/",)),
    Vendor(  # Alibaba's T-Head (documentation of ACS, GPUStack's and Tensor-Fusion's tables of vendors)
        resources=(
            *_patterns(_DEVICES, "alibabacloud.com/ppu"),
            *_gpustack("alibabacloud.com/ppu"),
            *_patterns(_SHARES, "alibabacloud.com/ppu-*", card="alibabacloud.com/ppu"),
            *_patterns(_DEVICES, "aliyun.com/ppu", card="alibabacloud.com/ppu"),
        ),
        hardware_labels=("alibabacloud.com/gpu-*",),
    ),
    Vendor(  # IBM Spyre (README of its device plugin): cards, also each by its PCI address, and virtual functions
        resources=(
            *_patterns(_SHARES, "ibm.com/spyre_vf*", "ibm.com/spyre_vf", card="ibm.com/spyre"),
            *_patterns(_DEVICES, "ibm.com/spyre"),
            *_patterns(_DEVICES, "ibm.com/spyre_pf", "ibm.com/spyre_pf_*", card="ibm.com/spyre"),
        ),
        hardware_labels=("!ibm.com/spyre.present", "!ibm.com/spyre.deploy.*", "ibm.com/spyre.*"),
        product_labels=("ibm.com/spyre.product",),
    ),
    # The READMEs of the device plugins of Mobilint, DEEPX and Hailo; Lynxi's and SambaNova's from manifests
    Vendor(resources=_patterns(_DEVICES, "mobilint.com/npu"), node_paths=("/dev/aries",)),
    Vendor(resources=_other_names("deepx.ai"), node_paths=("/dev/dxrt",)),
    Vendor(resources=_other_names("hailo.ai"), node_paths=("/dev/hailo",)),
    Vendor(resources=_other_names("lynxi.com")),
    Vendor(resources=_patterns(Measure.CORES, "sambanova.ai/rdu-tile")),
)


def from_all_vendors(field: Callable[[Vendor], tuple[T, ...]]) -> tuple[T, ...]:
    """Return the values of all vendors in that field, in their order, each once."""
    return tuple(dict.fromkeys(name for vendor in VENDORS for name in field(vendor)))


RESOURCE_MAPPING = ResourceMappingSpec(
    resources=from_all_vendors(lambda vendor: vendor.resources),
    device_classes=from_all_vendors(lambda vendor: vendor.device_classes),
)
"""The vendors' part of the built-in mapping."""

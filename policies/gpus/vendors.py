"""Vendors of accelerators, one table: the names of their devices in a pod and on a node, and how a container gets to them.

The built-in resource mapping, isolation, placement, `scan`, `doctor` and `export` read it. Names of software for cards of several
vendors, and names that are not GPUs, are in `webhook/configuration/builtin/resource-mapping.yaml`.
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from policies.gpus.resource_mapping import (
    NVIDIA_GPU,
    DeviceClassPattern,
    Measure,
    ResourceMappingSpec,
    ResourcePattern,
)

VOID, NONE = "void", "none"
HIDING = ("", NONE, VOID)
"""Values that show no GPU. `none` still mounts the driver's libraries (README of nvidia-container-runtime)."""

AMD_GPU, GAUDI, NEURON, TPU = "amd.com/gpu", "habana.ai/gaudi", "aws.amazon.com/neuron", "google.com/tpu"
NVIDIA_VISIBLE_DEVICES, MIG_SLICE = "NVIDIA_VISIBLE_DEVICES", "nvidia.com/mig-"

_DEVICES, _SHARES, _NOTHING = Measure.DEVICES, Measure.SHARES, Measure.NOTHING

T = TypeVar("T")


class Vendor(msgspec.Struct, frozen=True, kw_only=True):
    """The known properties of one vendor's accelerators.

    resources: resource names and their units. In each domain, the first matching pattern decides. The resource of the whole card
      is also the taint key of nodes.
    device_classes: DeviceClasses and drivers of DRA in the vendor's Helm charts and documentation. One device counts as a whole
      card, also of mig.nvidia.com, where only the claim's selectors have the size of the slice.
    one_device_each: resources whose unit is one device for a process. So not those of Neuron (a device has several cores, each a
      device), MIG (a process sees only one of two slices), Intel and TPUs (the unit depends on the node).
    visible_devices: variables by which the container runtime shows devices, from its sources.
    hiding: values of these variables that show no device. Findings suggest the last one.
    node_paths: beginnings of the paths of devices and drivers on a node. A directory ends with a slash.
    hardware_labels: globs of node labels by which pods choose hardware (`LabelKeys`).
    other_labels: globs of other node labels.
    product_labels, memory_mib_labels, memory_gb_labels: node labels with the product, and the memory of one card in MiB or as
      `192G`.
    """

    resources: tuple[ResourcePattern, ...] = ()
    device_classes: tuple[DeviceClassPattern, ...] = ()
    one_device_each: tuple[str, ...] = ()
    visible_devices: tuple[str, ...] = ()
    hiding: tuple[str, ...] = HIDING
    node_paths: tuple[str, ...] = ()
    hardware_labels: tuple[str, ...] = ()
    other_labels: tuple[str, ...] = ()
    product_labels: tuple[str, ...] = ()
    memory_mib_labels: tuple[str, ...] = ()
    memory_gb_labels: tuple[str, ...] = ()


def _names(measure: Measure, *patterns: str, card: str | None = None) -> tuple[ResourcePattern, ...]:
    return tuple(ResourcePattern(pattern=each, measure=measure, resource=card) for each in patterns)


def _device_classes(card: str, *patterns: str) -> tuple[DeviceClassPattern, ...]:
    return tuple(DeviceClassPattern(pattern=each, resource=card) for each in patterns)


VENDORS = (
    Vendor(  # NVIDIA
        resources=(
            # Its device plugin: whole cards, time-slicing with renameByDefault, MIG with the mixed strategy
            *_names(_DEVICES, NVIDIA_GPU),
            *_names(_SHARES, "nvidia.com/gpu.shared", "nvidia.com/mig-*.shared", card=NVIDIA_GPU),
            *_names(Measure.SLICES, f"{MIG_SLICE}*", card=NVIDIA_GPU),
            *_names(_SHARES, "nvidia.com/*.shared", card=NVIDIA_GPU),
            # HAMi: amounts beside nvidia.com/gpu
            *_names(Measure.MEMORY_MIB, "nvidia.com/gpumem", card=NVIDIA_GPU),
            *_names(Measure.MEMORY_PERCENT, "nvidia.com/gpumem-percentage", card=NVIDIA_GPU),
            *_names(Measure.CORE_PERCENT, "nvidia.com/gpucores", card=NVIDIA_GPU),
            *_names(_NOTHING, "nvidia.com/priority"),
            # Its Network Operator names network devices as its policies say (its documentation: hostdev, mlnxnics, sriov_rdma,
            # switchdev, bf2_sf, cx7_qsfp, and rail_0 or rail-1 of Spectrum-X; of DGX clusters: resibp24s0).
            *_names(_NOTHING, "nvidia.com/hostdev*", "nvidia.com/hostdev", "nvidia.com/mlnx*"),
            *_names(_NOTHING, "nvidia.com/rail*", "nvidia.com/resib*", "nvidia.com/switchdev*"),
            *_names(_NOTHING, "nvidia.com/switchdev", "nvidia.com/rdma*", "nvidia.com/rdma"),
            *_names(_NOTHING, "nvidia.com/*rdma", "nvidia.com/sriov*", "nvidia.com/roce*"),
            *_names(_NOTHING, "nvidia.com/*_sf", "nvidia.com/*_vf", "nvidia.com/cx*", "nvidia.com/bf*"),
            # Every other name is a device: the device plugin's `resources` and `rename`, KubeVirt's names of cards and vGPUs
            # (nvidia.com/GA102GL_A10, nvidia.com/GRID_T4-1Q, nvidia.com/L40S-48Q).
            *_names(_DEVICES, "nvidia.com/*", card=NVIDIA_GPU),
        ),
        device_classes=(
            *_device_classes(NVIDIA_GPU, "gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com"),
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
        other_labels=(
            "nvidia.com/cuda.driver.*",
            "nvidia.com/cuda.driver-version.*",
            "nvidia.com/cuda.runtime.*",
            "nvidia.com/cuda.runtime-version.*",
        ),
        product_labels=("nvidia.com/gpu.product",),
        memory_mib_labels=("nvidia.com/gpu.memory",),
    ),
    Vendor(  # AMD
        resources=(
            *_names(_DEVICES, AMD_GPU),
            # FPGAs (Xilinx's device plugin), media accelerators, and the NICs of its Network Operator
            *_names(
                _NOTHING, "amd.com/xilinx*", "amd.com/ama*", "amd.com/nic", "amd.com/vnic", "amd.com/sev*"
            ),
            # Every other name is a device, its partitions too (amd.com/cpx_nps4).
            *_names(_DEVICES, "amd.com/*", card=AMD_GPU),
        ),
        device_classes=_device_classes(AMD_GPU, "gpu.amd.com", "gpu.amd.com-spx"),
        one_device_each=(AMD_GPU,),
        # ROCm's container-toolkit (`internal/oci`)
        visible_devices=("AMD_VISIBLE_DEVICES",),
        node_paths=("/dev/dri/", "/dev/kfd/"),
        # The node labeller of ROCm's device plugin (its README): also with the value in the key, beta.amd.com/gpu.family.AI
        hardware_labels=("amd.com/gpu.*", "beta.amd.com/gpu.*"),
        product_labels=("amd.com/gpu.product-name",),
        memory_gb_labels=("amd.com/gpu.vram",),
    ),
    Vendor(  # Intel
        resources=(
            # Its device plugin: monitoring handles give no GPU
            *_names(_NOTHING, "gpu.intel.com/*_monitoring", "gpu.intel.com/monitoring"),
            *_names(Measure.CORE_MILLIS, "gpu.intel.com/millicores"),
            *_names(Measure.MEMORY_BYTES, "gpu.intel.com/memory.max"),
            # Its NPU plugin (npu.intel.com/accel), and the name that people give to GPUs under the company's domain
            *_names(_DEVICES, "gpu.intel.com/*", "npu.intel.com/*", "intel.com/gpu"),
        ),
        device_classes=_device_classes("gpu.intel.com/xe", "gpu.intel.com"),
        node_paths=("/dev/dri/",),
        # The Node Feature Discovery rules of its device plugins: family, device-id.<class>-<device>.present
        hardware_labels=("gpu.intel.com/*",),
    ),
    Vendor(  # Intel Gaudi
        resources=(
            # The first is what people write under the company's domain.
            *_names(_DEVICES, "intel.com/gaudi", card=GAUDI),
            *_names(_DEVICES, GAUDI),
            *_names(_DEVICES, "habana.ai/*", card=GAUDI),
        ),
        device_classes=_device_classes(GAUDI, "gaudi.intel.com"),
        one_device_each=(GAUDI,),
        visible_devices=("HABANA_VISIBLE_DEVICES",),
        # The hook of habana-container-runtime reads an empty value and `void` as `all` (`getDevicesFromEnvvar`).
        hiding=(NONE,),
        node_paths=("/dev/accel", "/dev/hl"),
    ),
    Vendor(  # AWS Neuron
        resources=(
            # `neuron` and `neurondevice` are cards, `neuroncore` parts of one.
            *_names(Measure.CORES, "aws.amazon.com/neuroncore", card=NEURON),
            *_names(_DEVICES, "aws.amazon.com/neuron*", card=NEURON),
            *_names(_DEVICES, NEURON),
        ),
        device_classes=_device_classes(NEURON, "neuron.aws.com"),
        node_paths=("/dev/neuron",),
    ),
    Vendor(  # Google TPU
        resources=(*_names(_DEVICES, TPU), *_names(Measure.CORES, "cloud-tpus.google.com/*", card=TPU)),
        device_classes=_device_classes(TPU, "tpu.google.com"),
        node_paths=("/dev/accel",),
    ),
    Vendor(  # Hygon
        resources=(
            *_names(_SHARES, "hygon.com/dcunum"),
            *_names(Measure.MEMORY_MIB, "hygon.com/dcumem"),
            *_names(Measure.CORE_PERCENT, "hygon.com/dcucores"),
            *_names(_DEVICES, "hygon.com/*"),
        ),
        # From its examples
        visible_devices=("DCU_VISIBLE_DEVICES",),
        node_paths=("/dev/dri/", "/dev/kfd/", "/dev/mkfd/"),
    ),
    Vendor(  # Cambricon
        resources=(
            *_names(_DEVICES, "cambricon.com/mlunum"),
            *_names(Measure.MEMORY_MIB, "cambricon.com/mlumem"),
            # mlu, or the type of the card where the device plugin says so (mlu370). Percent, or units of 256 MiB (HAMi's
            # documentation, userguide/cambricon-device): as GiB they count too much, never too little.
            *_names(Measure.MEMORY_GIB, "cambricon.com/*.smlu.vmemory"),
            *_names(Measure.CORE_PERCENT, "cambricon.com/*.smlu.vcore"),
            *_names(_SHARES, "cambricon.com/vmlu", "cambricon.com/mlu.share"),
            *_names(_DEVICES, "cambricon.com/*"),
        ),
        # From its examples
        visible_devices=("CAMBRICON_VISIBLE_DEVICES",),
        node_paths=("/dev/cambricon",),
    ),
    Vendor(  # Huawei Ascend
        resources=(
            *_names(Measure.MEMORY_MIB, "huawei.com/Ascend*-memory"),
            *_names(_DEVICES, "huawei.com/Ascend*"),
            *_names(Measure.CORE_PERCENT, "huawei.com/npu-core", "huawei.com/gpu-core"),
            *_names(_DEVICES, "huawei.com/ascend*", "huawei.com/npu*", "huawei.com/npu"),
        ),
        # ascend-docker-runtime
        visible_devices=("ASCEND_VISIBLE_DEVICES",),
        node_paths=("/dev/davinci",),
    ),
    Vendor(  # MetaX
        resources=(
            *_names(_DEVICES, "metax-tech.com/gpu"),
            *_names(_SHARES, "metax-tech.com/sgpu"),
            *_names(Measure.CORE_PERCENT, "metax-tech.com/vcore"),
            *_names(Measure.MEMORY_BYTES, "metax-tech.com/vmemory"),
            *_names(_DEVICES, "metax-tech.com/*"),
        ),
    ),
    Vendor(  # Iluvatar
        resources=(
            *_names(_SHARES, "iluvatar.ai/*vgpu"),
            *_names(Measure.CORE_PERCENT, "iluvatar.ai/vcuda-core", "iluvatar.ai/*.vCore"),
            # Units of 256 MiB (HAMi's docs/iluvatar-gpu-support.md), which no measure has: as GiB they count too much, never too
            # little.
            *_names(Measure.MEMORY_GIB, "iluvatar.ai/vcuda-memory", "iluvatar.ai/*.vMem"),
            *_names(_DEVICES, "iluvatar.ai/*", "iluvatar.com/gpu"),
        ),
    ),
    Vendor(  # Kunlunxin
        resources=(
            *_names(_SHARES, "kunlunxin.com/vxpu"),
            *_names(Measure.MEMORY_MIB, "kunlunxin.com/vxpu-memory"),
            *_names(_DEVICES, "kunlunxin.com/*"),
        ),
    ),
    Vendor(  # Enflame
        resources=(
            *_names(_SHARES, "enflame.com/vgcu", "enflame.com/shared-gcu", "enflame.com/drs-gcu"),
            *_names(Measure.MEMORY_PERCENT, "enflame.com/vgcu-percentage"),
            # In MiB (HAMi's documentation, userguide/enflame-device) or GiB (Enflame's GCUShare). Taken for GiB, an amount in MiB
            # exceeds the memory of a card, and so counts as one card.
            *_names(Measure.MEMORY_GIB, "enflame.com/gcu-memory"),
            *_names(Measure.CORE_PERCENT, "enflame.com/gcu-core"),
            *_names(_DEVICES, "enflame.com/*"),
        ),
    ),
    Vendor(  # Moore Threads
        resources=(
            *_names(_SHARES, "mthreads.com/vgpu"),
            # sgpu-memory is in units of 512 MiB (HAMi's documentation, userguide/mthreads-device): as GiB it counts too much. The
            # others are sixteenths of a card's compute.
            *_names(Measure.MEMORY_GIB, "mthreads.com/sgpu-memory"),
            *_names(Measure.CORE_PERCENT, "mthreads.com/sgpu-*"),
            *_names(_DEVICES, "mthreads.com/*"),
        ),
        # From its examples
        visible_devices=("MTHREADS_VISIBLE_DEVICES",),
    ),
    Vendor(resources=_names(_DEVICES, "birentech.com/*")),
    Vendor(resources=_names(_DEVICES, "vastaitech.com/*")),
    Vendor(resources=_names(_DEVICES, "rebellions.ai/*")),
    Vendor(resources=_names(_DEVICES, "furiosa.ai/*")),
    Vendor(resources=_names(_DEVICES, "qualcomm.com/qaic*", "qualcomm.com/qaic")),
    Vendor(resources=_names(_DEVICES, "tenstorrent.com/*")),
)


def from_all_vendors(field: Callable[[Vendor], tuple[T, ...]]) -> tuple[T, ...]:
    """Return the values of all vendors in that field, in their order, each once."""
    return tuple(dict.fromkeys(each for vendor in VENDORS for each in field(vendor)))


RESOURCE_MAPPING = ResourceMappingSpec(
    resources=from_all_vendors(lambda vendor: vendor.resources),
    device_classes=from_all_vendors(lambda vendor: vendor.device_classes),
)
"""The vendors' part of the built-in mapping."""

"""Which node labels and annotations of a pod choose its hardware."""

import pytest

from policies.gpus.classes import GPUClasses, NodeLabel
from policies.placement.hardware import HARDWARE_ANNOTATIONS, chosen_hardware, hardware_keys
from tests.builders import CLASSES, JSON, REQUIRED, gpu_class, pod, view
from tests.cases import cases
from tests.policies.placement.affinities import PREFERRED, PRODUCT, affine, selecting

L4 = gpu_class("nvidia-l4", "nvidia-l4", 24, node_labels=(NodeLabel(key=PRODUCT, values=("NVIDIA-L4",)),))
KEYS = GPUClasses((*CLASSES, L4)).label_keys


def chosen(spec: JSON, *globs: str) -> str | None:
    return chosen_hardware(view(pod(**spec)), hardware_keys(globs, KEYS), "accelerator")


CHOOSE = """
nvidia.com/gpu.product cloud.google.com/gke-accelerator cloud.google.com/gke-tpu-topology cloud.google.com/compute-class
cloud.google.com/gke-nodepool cloud.google.com/machine-family cloud.google.com/gke-gpu-partition-size
node.kubernetes.io/instance-type beta.kubernetes.io/instance-type instance-type karpenter.sh/nodepool
karpenter.sh/provisioner-name karpenter.k8s.aws/instance-family karpenter.k8s.gcp/instance-gpu-count
karpenter.azure.com/sku-name eks.amazonaws.com/nodegroup alpha.eksctl.io/nodegroup-name NodeGroupType NodePool
example.com/node-group gpuType agentpool kubernetes.azure.com/agentpool doks.digitalocean.com/gpu-model
lke.linode.com/pool-id aliyun.accelerator/nvidia_name machine.cluster.vke.volcengine.com/gpu-name amd.com/gpu.family
beta.amd.com/gpu.family.AI gpu.intel.com/family gpu.nvidia.com/vram skypilot.co/accelerator nvidia.com/mig.capable
feature.node.kubernetes.io/pci-0302_10de_2330.present kubernetes.io/hostname
amd.com/compute-memory-partition amd.com/compute-partitioning-supported tpu.google.com/topology servertype
node.kubernetes.io/npu.chip.name hygon.com/hcu.name metax-tech.com/gpu.product rebellions.ai/npu.product
furiosa.ai/npu.family alibabacloud.com/gpu-model-series alibabacloud.com/gpu-card-model ibm.com/spyre.product
gpu-count example.com/gpu_count gpuCount accelerator-count gpu_memory gpu-memory-gb gpu-mem gpuMemory gpu-family
"""


@pytest.mark.parametrize("key", CHOOSE.split())
def test_a_label_that_chooses_hardware(key: str) -> None:
    assert chosen(selecting(key)) == f"nodeSelector {key}=some"


@cases(
    "spec",
    gpu_family=affine(REQUIRED, "nvidia.com/gpu.family", "In", "hopper", "ampere"),
    gpu_memory=affine(REQUIRED, "nvidia.com/gpu.memory", "Gt", "40000"),
    another_product_than_that=affine(REQUIRED, PRODUCT, "NotIn", "Tesla-T4"),
    the_class_or_something_else=(affine(REQUIRED, "accelerator", "In", "nvidia-t4", "other")),
    a_node_by_its_name=(affine(REQUIRED, "metadata.name", "In", "node-7", field="matchFields")),
    a_class_is_preferred=affine(PREFERRED, "accelerator", "In", "nvidia-a100-80gb"),
    any_other_class_is_preferred=(affine(PREFERRED, "accelerator", "NotIn", "nvidia-t4")),
    memory_is_preferred=affine(PREFERRED, "nvidia.com/gpu.memory", "Gt", "40000"),
    a_machine_is_preferred=(affine(PREFERRED, "node.kubernetes.io/instance-type", "In", "p5")),
)
def test_an_affinity_that_chooses_hardware(spec: JSON) -> None:
    assert chosen(spec) is not None


@cases(
    ("spec", "want"),
    {
        "required": (affine(REQUIRED, "agentpool", "In", "gpu"), "node affinity on agentpool"),
        "preferred": (affine(PREFERRED, "agentpool", "In", "gpu"), "preferred node affinity on agentpool"),
        **{each: ({"annotations": {each: "A100"}}, f"annotation {each}") for each in HARDWARE_ANNOTATIONS},
    },
)
def test_a_choice_in_words(spec: JSON, want: str) -> None:
    assert chosen(spec) == want


@pytest.mark.parametrize(
    "key",
    [
        "nvidia.com/use-gputype",
        "nvidia.com/nouse-gpuuuid",
        "amd.com/use-gputype",
        "amd.com/nouse-gpu-uuid",
        "aws.amazon.com/use-neuron-uuid",
        "baidu.com/use-gpuuuid",
        "cambricon.com/nouse-mlutype",
        "hygon.com/use-dcutype",
        "virtual-kubelet.io/gpu-type",
        "k8s.aliyun.com/eci-use-specs",
        "eks.tke.cloud.tencent.com/gpu-type",
        "salad.com/gpu-classes",
    ],
)
def test_an_annotation_that_chooses_hardware(key: str) -> None:
    assert chosen({"annotations": {key: "A100"}}) == f"annotation {key}"


CHOOSE_NONE = """
nvidia.com/gpu.present nvidia.com/gpu.deploy.device-plugin feature.node.kubernetes.io/pci-10de.present
feature.node.kubernetes.io/pci-0302_10de.present kubernetes.azure.com/accelerator doks.digitalocean.com/gpu-brand
karpenter.k8s.aws/instance-gpu-manufacturer kubernetes.io/os topology.kubernetes.io/zone karpenter.sh/capacity-type
cloud.google.com/gke-spot nvidia.com/cuda.driver.major nvidia.com/cuda.runtime-version.full team
amd.com/gpu.driver-version amd.com/gpu.firmware hygon.com/hcu.driver_version metax-tech.com/gpu.installed
rebellions.ai/npu.present furiosa.ai/driver.version ibm.com/spyre.present
"""


@pytest.mark.parametrize("key", CHOOSE_NONE.split())
def test_a_label_that_chooses_no_hardware(key: str) -> None:
    assert chosen(selecting(key)) is None


@cases(
    "spec",
    nothing={},
    any_product=affine(REQUIRED, PRODUCT, "Exists"),
    not_another_class=affine(REQUIRED, "accelerator", "NotIn", "nvidia-a100"),
    a_zone_that_is_preferred=(affine(PREFERRED, "topology.kubernetes.io/zone", "In", "a")),
)
def test_no_choice_of_hardware(spec: JSON) -> None:
    assert chosen(spec) is None


@cases(
    ("globs", "key", "want"),
    a_label_more=(("example.com/rack-*",), "example.com/rack-kind", True),
    the_built_in_ones_stay=(("example.com/rack-*",), "agentpool", True),
    a_label_less=(("!agentpool",), "agentpool", False),
    none_of_the_built_in_ones=(("!*",), "karpenter.sh/nodepool", False),
    the_first_that_fits_decides=(("pool-gpu", "!pool-*"), "pool-gpu", True),
    what_classes_go_by_stays=(("!*",), PRODUCT, True),
)
def test_a_policy_says_which_labels_choose_hardware(globs: tuple[str, ...], key: str, want: bool) -> None:
    assert (chosen(selecting(key), *globs) is not None) is want

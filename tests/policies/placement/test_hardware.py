"""Which node labels and annotations of a pod choose its hardware."""

from policies.gpus.classes import ClassCatalogue, NodeLabel
from policies.placement.hardware import ANNOTATIONS, chosen_hardware, hardware_keys
from tests.builders import CLASSES, JSON, gpu_class, pod, view
from tests.cases import cases

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
PRODUCT = "nvidia.com/gpu.product"
L4 = gpu_class("nvidia-l4", "nvidia-l4", 24, node_labels=(NodeLabel(key=PRODUCT, values=("NVIDIA-L4",)),))
KEYS = ClassCatalogue((*CLASSES, L4)).label_keys


def affine(how: str, key: str, operator: str, *values: str, field: str = "matchExpressions") -> JSON:
    """Return the fields of a spec with one node affinity, required or preferred."""
    term = {field: [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}
    affinity = {"nodeSelectorTerms": [term]} if how == REQUIRED else [{"weight": 1, "preference": term}]
    return {"affinity": {"nodeAffinity": {how: affinity}}}


def selecting(key: str, value: str = "some") -> JSON:
    return {"nodeSelector": {key: value}}


def chosen(spec: JSON, *globs: str) -> str | None:
    return chosen_hardware(view(pod(**spec)), hardware_keys(globs, KEYS), "accelerator")


@cases(
    "spec",
    {
        "a-product-no-class-has": selecting(PRODUCT, "NVIDIA-RTX-6000-Ada-Generation"),
        "an-accelerator-of-gke": (selecting("cloud.google.com/gke-accelerator", "nvidia-gb300")),
        "a-topology-of-tpus": selecting("cloud.google.com/gke-tpu-topology", "2x4"),
        "a-compute-class": selecting("cloud.google.com/compute-class", "Accelerator"),
        "a-node-pool-of-gke": selecting("cloud.google.com/gke-nodepool", "gpu"),
        "a-machine-family": selecting("cloud.google.com/machine-family", "a3"),
        "a-partition-of-gke": selecting("cloud.google.com/gke-gpu-partition-size", "1g.5gb"),
        "an-instance-type": selecting("node.kubernetes.io/instance-type", "p5.48xlarge"),
        "an-instance-type-in-beta": (selecting("beta.kubernetes.io/instance-type", "g5.xlarge")),
        "an-instance-type-of-ones-own": selecting("instance-type", "trn1-32xl"),
        "a-node-pool-of-karpenter": selecting("karpenter.sh/nodepool", "gpu"),
        "a-provisioner-of-karpenter": selecting("karpenter.sh/provisioner-name", "gpu"),
        "an-instance-family": selecting("karpenter.k8s.aws/instance-family", "p5"),
        "karpenter-on-gcp": selecting("karpenter.k8s.gcp/instance-gpu-count", "8"),
        "a-sku-of-azure": selecting("karpenter.azure.com/sku-name", "Standard_ND96"),
        "a-node-group-of-eks": selecting("eks.amazonaws.com/nodegroup", "gpu"),
        "a-node-group-of-eksctl": selecting("alpha.eksctl.io/nodegroup-name", "gpu"),
        "a-node-group-of-data-on-eks": selecting("NodeGroupType", "g5-gpu-karpenter"),
        "a-node-pool-of-ones-own": selecting("NodePool", "gpu-mig"),
        "a-node-group-of-ones-own": selecting("example.com/node-group", "g5"),
        "a-type-of-cards-of-ones-own": selecting("gpuType", "A10"),
        "an-agent-pool": selecting("agentpool", "gpu"),
        "an-agent-pool-by-its-full-name": selecting("kubernetes.azure.com/agentpool", "gpu"),
        "digitalocean": selecting("doks.digitalocean.com/gpu-model", "h100"),
        "a-pool-of-linode": selecting("lke.linode.com/pool-id", "7"),
        "alibaba": selecting("aliyun.accelerator/nvidia_name", "Tesla-P100"),
        "volcengine": selecting("machine.cluster.vke.volcengine.com/gpu-name", "Tesla-V100"),
        "a-family-of-amd": selecting("amd.com/gpu.family", "AI"),
        "a-family-of-amd-in-the-key": selecting("beta.amd.com/gpu.family.AI", "1"),
        "a-family-of-intel": selecting("gpu.intel.com/family", "Max_Series"),
        "coreweave": selecting("gpu.nvidia.com/vram", "80"),
        "skypilot": selecting("skypilot.co/accelerator", "b300"),
        "cards-with-mig": selecting("nvidia.com/mig.capable", "true"),
        "a-pci-device": (selecting("feature.node.kubernetes.io/pci-0302_10de_2330.present", "true")),
        "a-node-by-its-hostname": selecting("kubernetes.io/hostname", "node-7"),
        "gpu-family": affine(REQUIRED, "nvidia.com/gpu.family", "In", "hopper", "ampere"),
        "gpu-memory": affine(REQUIRED, "nvidia.com/gpu.memory", "Gt", "40000"),
        "another-product-than-that": affine(REQUIRED, PRODUCT, "NotIn", "Tesla-T4"),
        "the-class-or-something-else": (affine(REQUIRED, "accelerator", "In", "nvidia-t4", "other")),
        "a-node-by-its-name": (affine(REQUIRED, "metadata.name", "In", "node-7", field="matchFields")),
        "a-class-is-preferred": affine(PREFERRED, "accelerator", "In", "nvidia-a100-80gb"),
        "any-other-class-is-preferred": (affine(PREFERRED, "accelerator", "NotIn", "nvidia-t4")),
        "memory-is-preferred": affine(PREFERRED, "nvidia.com/gpu.memory", "Gt", "40000"),
        "a-machine-is-preferred": (affine(PREFERRED, "node.kubernetes.io/instance-type", "In", "p5")),
    },
)
def test_a_choice_of_hardware(spec: JSON) -> None:
    assert chosen(spec) is not None


@cases(
    ("spec", "want"),
    {
        "selector": (selecting("agentpool", "gpu"), "nodeSelector agentpool=gpu"),
        "required": (affine(REQUIRED, "agentpool", "In", "gpu"), "node affinity on agentpool"),
        "preferred": (affine(PREFERRED, "agentpool", "In", "gpu"), "preferred node affinity on agentpool"),
        **{each: ({"annotations": {each: "A100"}}, f"annotation {each}") for each in ANNOTATIONS},
    },
)
def test_a_choice_in_words(spec: JSON, want: str) -> None:
    assert chosen(spec) == want


@cases(
    "spec",
    {
        "nothing": {},
        "a-node-with-a-gpu": selecting("nvidia.com/gpu.present", "true"),
        "what-the-operator-runs": selecting("nvidia.com/gpu.deploy.device-plugin", "true"),
        "a-device-of-the-vendor": (selecting("feature.node.kubernetes.io/pci-10de.present", "true")),
        "a-device-of-its-class-and-vendor": (
            selecting("feature.node.kubernetes.io/pci-0302_10de.present", "true")
        ),
        "the-vendor-on-azure": selecting("kubernetes.azure.com/accelerator", "nvidia"),
        "the-vendor-on-digitalocean": selecting("doks.digitalocean.com/gpu-brand", "nvidia"),
        "the-vendor": selecting("karpenter.k8s.aws/instance-gpu-manufacturer", "nvidia"),
        "the-os": selecting("kubernetes.io/os", "linux"),
        "a-zone": selecting("topology.kubernetes.io/zone", "a"),
        "spot": selecting("karpenter.sh/capacity-type", "spot"),
        "spot-of-gke": selecting("cloud.google.com/gke-spot", "true"),
        "a-driver": selecting("nvidia.com/cuda.driver.major", "550"),
        "a-label-of-ones-own": selecting("team", "vision"),
        "any-product": affine(REQUIRED, PRODUCT, "Exists"),
        "not-another-class": affine(REQUIRED, "accelerator", "NotIn", "nvidia-a100"),
        "a-zone-that-is-preferred": (affine(PREFERRED, "topology.kubernetes.io/zone", "In", "a")),
    },
)
def test_no_choice_of_hardware(spec: JSON) -> None:
    assert chosen(spec) is None


@cases(
    ("globs", "key", "want"),
    {
        "a-label-more": (("example.com/rack-*",), "example.com/rack-kind", True),
        "the-built-in-ones-stay": (("example.com/rack-*",), "agentpool", True),
        "a-label-less": (("!agentpool",), "agentpool", False),
        "none-of-the-built-in-ones": (("!*",), "karpenter.sh/nodepool", False),
        "the-first-that-fits-decides": (("pool-gpu", "!pool-*"), "pool-gpu", True),
        "what-classes-go-by-stays": (("!*",), PRODUCT, True),
    },
)
def test_a_policy_says_which_labels_choose_hardware(globs: tuple[str, ...], key: str, want: bool) -> None:
    assert (chosen(selecting(key), *globs) is not None) is want

"""gpu-class: an estimate and a default stay out where the pod chooses hardware itself, or asks for that of another vendor."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.finding import Severity
from policies.gpus.classes import ClassCatalogue, NodeLabel
from policies.placement.pinning import pinning
from policies.pods.patch import PodPatch
from policies.rule import Phase
from policies.rules.gpu_class import GPUClassOptions, check, mutate
from tests.builders import CLASSES, JSON, apply, container, context, gpu_class, gpu_container, pod, view
from tests.cases import cases
from webhook.configuration.loader import load_directory

DEFAULT = GPUClassOptions(default="nvidia-t4")
CLASS = "gpu-admission.dev/gpu-class"
PARAMS = "gpu-admission.dev/model-params"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
PRODUCT = "nvidia.com/gpu.product"
CATALOGUE = ClassCatalogue(
    [
        *CLASSES,
        gpu_class(
            "nvidia-l4",
            "nvidia-l4",
            24,
            node_labels=(
                NodeLabel(key="accelerator", values=("nvidia-l4",)),
                NodeLabel(key=PRODUCT, values=("NVIDIA-L4",)),
            ),
            equivalents={"volcano.sh/vgpu-number": "1/4"},
        ),
    ]
)
MAPPING = load_directory(None).resource_mapping
"""The built-in one, which knows the vendors."""


def affine(how: str, key: str, operator: str, *values: str, field: str = "matchExpressions") -> JSON:
    """Return the fields of a spec with one node affinity, required or preferred."""
    term = {field: [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}
    affinity = {"nodeSelectorTerms": [term]} if how == REQUIRED else [{"weight": 1, "preference": term}]
    return {"affinity": {"nodeAffinity": {how: affinity}}}


def selecting(key: str, value: str = "some") -> JSON:
    return {"nodeSelector": {key: value}}


def asking(resource: str = "nvidia.com/gpu", **spec: Any) -> JSON:
    return pod(gpu_container(resource=resource), **spec)


def added(document: JSON, options: GPUClassOptions = DEFAULT, **tweaks: Any) -> str | None:
    """Return the class to which the rule pins the pod; a second pass adds nothing."""
    given = context(Phase.MUTATE, classes=CATALOGUE, resource_mapping=MAPPING, **tweaks)
    patch = PodPatch(view(document))
    assert list(mutate(patch, options, given)) == []
    again = PodPatch(view(apply(document, patch)))
    assert list(mutate(again, options, given)) == []
    assert again.changes == []
    before = document["spec"].get("nodeSelector", {}).get("accelerator")
    after = (patch.pod.spec.node_selector or {}).get("accelerator")
    return after if after != before else None


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
def test_neither_default_nor_estimate_beside_a_choice_of_hardware(spec: JSON) -> None:
    assert added(asking(**spec)) is None
    assert added(asking(annotations={PARAMS: "7b"}, **spec), GPUClassOptions()) is None


@pytest.mark.parametrize(
    "annotation", ["nvidia.com/use-gputype", "nvidia.com/nouse-gputype", "nvidia.com/use-gpuuuid"]
)
def test_no_default_beside_a_card_that_hami_is_asked_for(annotation: str) -> None:
    assert added(asking(annotations={annotation: "A100,V100"})) is None


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
def test_a_default_beside_what_chooses_no_hardware(spec: JSON) -> None:
    assert added(asking(**spec)) == "nvidia-t4"


@cases(
    ("globs", "key", "want"),
    {
        "a-label-more": (("example.com/rack-*",), "example.com/rack-kind", None),
        "the-built-in-ones-stay": (("example.com/rack-*",), "agentpool", None),
        "a-label-less": (("!agentpool",), "agentpool", "nvidia-t4"),
        "none-of-the-built-in-ones": (("!*",), "karpenter.sh/nodepool", "nvidia-t4"),
        "the-first-that-fits-decides": (("pool-gpu", "!pool-*"), "pool-gpu", None),
        "what-classes-go-by-stays": (("!*",), PRODUCT, None),
    },
)
def test_a_policy_says_which_labels_choose_hardware(
    globs: tuple[str, ...], key: str, want: str | None
) -> None:
    options = GPUClassOptions(default="nvidia-t4", hardware_labels=globs)

    assert list(options.problems()) == []
    assert added(asking(**selecting(key)), options) == want


def test_what_an_annotation_names_is_no_guess() -> None:
    document = asking(annotations={CLASS: "nvidia-t4"}, **selecting("karpenter.sh/nodepool"))

    assert added(document, GPUClassOptions()) == "nvidia-t4"


@pytest.mark.parametrize("glob", ["", "!"])
def test_a_glob_of_nothing(glob: str) -> None:
    options = GPUClassOptions(hardware_labels=("a", glob))

    assert list(options.problems()) == [("hardwareLabels[1]", "must not be empty")]


CLAIM: JSON = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]}


@cases(
    ("document", "default", "want"),
    {
        "its-own": (asking(), "nvidia-t4", "nvidia-t4"),
        "nvidia-on-amd": (asking(), "amd-mi300x", None),
        "amd-on-amd": (asking("amd.com/gpu"), "amd-mi300x", "amd-mi300x"),
        "amd-on-nvidia": (asking("amd.com/gpu"), "nvidia-t4", None),
        "tpu": (asking("google.com/tpu"), "nvidia-t4", None),
        "neuron": (asking("aws.amazon.com/neuron"), "nvidia-t4", None),
        "cores-of-neuron": (asking("aws.amazon.com/neuroncore"), "nvidia-t4", None),
        "shares-of-hygon": (asking("hygon.com/dcunum"), "nvidia-t4", None),
        "shares-of-cambricon": (asking("cambricon.com/vmlu"), "nvidia-t4", None),
        "shares-of-metax": (asking("metax-tech.com/sgpu"), "nvidia-t4", None),
        "gaudi": (asking("habana.ai/gaudi"), "nvidia-t4", None),
        "ascend": (asking("huawei.com/Ascend910"), "nvidia-t4", None),
        "shares-of-its-own": (asking("nvidia.com/gpu.shared"), "nvidia-t4", "nvidia-t4"),
        "slices-of-its-own": (asking("nvidia.com/mig-1g.10gb"), "nvidia-a100", "nvidia-a100"),
        "two-vendors": (
            pod(gpu_container(resource="nvidia.com/gpu"), gpu_container(resource="amd.com/gpu", name="b")),
            "nvidia-t4",
            None,
        ),
        "shares-of-a-scheduler": (asking("volcano.sh/vgpu-number"), "nvidia-t4", None),
        "shares-that-the-class-weighs": (asking("volcano.sh/vgpu-number"), "nvidia-l4", "nvidia-l4"),
        "a-fraction": (
            pod(annotations={"gpu-fraction": "0.5"}, schedulerName="kai-scheduler"),
            "nvidia-t4",
            "nvidia-t4",
        ),
        "a-fraction-is-of-a-card-of-nvidia": (
            pod(annotations={"gpu-fraction": "0.5"}, schedulerName="kai-scheduler"),
            "amd-mi300x",
            None,
        ),
        "a-claim": (pod(**CLAIM), "nvidia-t4", None),
        "a-claim-that-the-template-gets-from-its-workflow": (
            pod(container(resources={"claims": [{"name": "gpu"}]})),
            "nvidia-t4",
            None,
        ),
        "a-claim-beside-a-gpu": (asking(**CLAIM), "nvidia-t4", None),
        "a-device-class": (asking("deviceclass.resource.kubernetes.io/gpu.nvidia.com"), "nvidia-t4", None),
    },
)
def test_a_default_is_for_its_own_vendor(document: JSON, default: str, want: str | None) -> None:
    assert added(document, GPUClassOptions(default=default)) == want


def test_no_estimate_for_devices_by_dra() -> None:
    assert added(asking(annotations={PARAMS: "7b"}), GPUClassOptions()) is not None
    assert added(asking(annotations={PARAMS: "7b"}, **CLAIM), GPUClassOptions()) is None


def test_a_model_is_not_refused_on_hardware_that_nobody_knows() -> None:
    document = asking(annotations={PARAMS: "405b"}, **selecting("nvidia.com/gpu.family", "rubin"))

    assert reported(document, GPUClassOptions()) == []


def reported(document: JSON, options: GPUClassOptions, **tweaks: Any) -> list[tuple[Severity, str]]:
    given = context(classes=CATALOGUE, resource_mapping=MAPPING, **tweaks)
    return [(each.severity, each.sentence()) for each in check(view(document), options, given)]


@cases(
    ("spec", "why"),
    {
        "hardware-that-nobody-knows": (
            selecting("karpenter.sh/nodepool", "gpu"),
            " (nodeSelector karpenter.sh/nodepool=gpu keeps the default nvidia-t4 out)",
        ),
        "a-class-that-is-only-preferred": (
            affine(PREFERRED, "accelerator", "In", "nvidia-t4"),
            " (preferred node affinity on accelerator keeps the default nvidia-t4 out)",
        ),
        "a-node": (
            affine(REQUIRED, "metadata.name", "In", "node-7", field="matchFields"),
            " (node affinity on metadata.name keeps the default nvidia-t4 out)",
        ),
        "a-claim": (CLAIM, ""),
    },
)
def test_what_is_not_allowed_stays_refused(spec: JSON, why: str) -> None:
    options = GPUClassOptions(default="nvidia-t4", allowed=("nvidia-t4",))

    assert reported(asking(**spec), options) == [
        (
            Severity.DENIAL,
            "spec: set gpu-admission.dev/gpu-class: nvidia-t4; must pin the pod to a GPU class: namespace "
            f"ml-training may not use every class{why} [gpu-class]",
        )
    ]


def test_a_preferred_class_pins_nothing_for_the_quota() -> None:
    assert pinning(view(asking(**affine(PREFERRED, "accelerator", "In", "nvidia-t4"))), CATALOGUE) is None


VENDORS = {
    "nvidia.com/gpu": "nvidia",
    "nvidia.com/gpu.shared": "nvidia",
    "amd.com/gpu": "amd",
    "google.com/tpu": "google",
    "aws.amazon.com/neuroncore": "aws",
    "hygon.com/dcunum": "hygon",
    "volcano.sh/vgpu-number": "volcano",
    "deviceclass.resource.kubernetes.io/gpu.nvidia.com": "any",
}
CHOOSES = {
    "karpenter.sh/nodepool": True,
    "node.kubernetes.io/instance-type": True,
    PRODUCT: True,
    "nvidia.com/gpu.memory": True,
    "accelerator": True,
    "nvidia.com/gpu.present": False,
    "topology.kubernetes.io/zone": False,
    "team": False,
}
"""Whether a value that no class has chooses hardware."""


@given(
    resources=st.lists(st.sampled_from(sorted(VENDORS)), min_size=1, max_size=2, unique=True),
    key=st.sampled_from(sorted(CHOOSES)),
    how=st.sampled_from(["nothing", "nodeSelector", REQUIRED, PREFERRED]),
    operator=st.sampled_from(["In", "Gt"]),
    claims=st.booleans(),
    default=st.sampled_from(["nvidia-t4", "amd-mi300x"]),
)
def test_whatever_comes_together_a_default_overrides_nothing(
    resources: list[str], key: str, how: str, operator: str, claims: bool, default: str
) -> None:
    of_one_vendor = {VENDORS[each] for each in resources} == {default.partition("-")[0]}
    is_open = how == "nothing" or not CHOOSES[key]
    constraint = {"nothing": {}, "nodeSelector": selecting(key, "7")}.get(
        how, affine(how, key, operator, "7")
    )
    containers = (gpu_container(resource=each, name=f"c{at}") for at, each in enumerate(resources))
    document = pod(*containers, **(constraint or {}), **(CLAIM if claims else {}))

    got = added(document, GPUClassOptions(default=default))

    assert got == (default if of_one_vendor and is_open and not claims else None)

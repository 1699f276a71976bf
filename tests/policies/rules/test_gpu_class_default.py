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


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(selecting(PRODUCT, "NVIDIA-RTX-6000-Ada-Generation"), id="a-product-no-class-has"),
        pytest.param(
            selecting("cloud.google.com/gke-accelerator", "nvidia-gb300"), id="an-accelerator-of-gke"
        ),
        pytest.param(selecting("cloud.google.com/gke-tpu-topology", "2x4"), id="a-topology-of-tpus"),
        pytest.param(selecting("cloud.google.com/compute-class", "Accelerator"), id="a-compute-class"),
        pytest.param(selecting("cloud.google.com/gke-nodepool", "gpu"), id="a-node-pool-of-gke"),
        pytest.param(selecting("cloud.google.com/machine-family", "a3"), id="a-machine-family"),
        pytest.param(selecting("cloud.google.com/gke-gpu-partition-size", "1g.5gb"), id="a-partition-of-gke"),
        pytest.param(selecting("node.kubernetes.io/instance-type", "p5.48xlarge"), id="an-instance-type"),
        pytest.param(
            selecting("beta.kubernetes.io/instance-type", "g5.xlarge"), id="an-instance-type-in-beta"
        ),
        pytest.param(selecting("instance-type", "trn1-32xl"), id="an-instance-type-of-ones-own"),
        pytest.param(selecting("karpenter.sh/nodepool", "gpu"), id="a-node-pool-of-karpenter"),
        pytest.param(selecting("karpenter.sh/provisioner-name", "gpu"), id="a-provisioner-of-karpenter"),
        pytest.param(selecting("karpenter.k8s.aws/instance-family", "p5"), id="an-instance-family"),
        pytest.param(selecting("karpenter.k8s.gcp/instance-gpu-count", "8"), id="karpenter-on-gcp"),
        pytest.param(selecting("karpenter.azure.com/sku-name", "Standard_ND96"), id="a-sku-of-azure"),
        pytest.param(selecting("eks.amazonaws.com/nodegroup", "gpu"), id="a-node-group-of-eks"),
        pytest.param(selecting("alpha.eksctl.io/nodegroup-name", "gpu"), id="a-node-group-of-eksctl"),
        pytest.param(selecting("NodeGroupType", "g5-gpu-karpenter"), id="a-node-group-of-data-on-eks"),
        pytest.param(selecting("NodePool", "gpu-mig"), id="a-node-pool-of-ones-own"),
        pytest.param(selecting("example.com/node-group", "g5"), id="a-node-group-of-ones-own"),
        pytest.param(selecting("gpuType", "A10"), id="a-type-of-cards-of-ones-own"),
        pytest.param(selecting("agentpool", "gpu"), id="an-agent-pool"),
        pytest.param(selecting("kubernetes.azure.com/agentpool", "gpu"), id="an-agent-pool-by-its-full-name"),
        pytest.param(selecting("doks.digitalocean.com/gpu-model", "h100"), id="digitalocean"),
        pytest.param(selecting("lke.linode.com/pool-id", "7"), id="a-pool-of-linode"),
        pytest.param(selecting("aliyun.accelerator/nvidia_name", "Tesla-P100"), id="alibaba"),
        pytest.param(selecting("machine.cluster.vke.volcengine.com/gpu-name", "Tesla-V100"), id="volcengine"),
        pytest.param(selecting("amd.com/gpu.family", "AI"), id="a-family-of-amd"),
        pytest.param(selecting("beta.amd.com/gpu.family.AI", "1"), id="a-family-of-amd-in-the-key"),
        pytest.param(selecting("gpu.intel.com/family", "Max_Series"), id="a-family-of-intel"),
        pytest.param(selecting("gpu.nvidia.com/vram", "80"), id="coreweave"),
        pytest.param(selecting("skypilot.co/accelerator", "b300"), id="skypilot"),
        pytest.param(selecting("nvidia.com/mig.capable", "true"), id="cards-with-mig"),
        pytest.param(
            selecting("feature.node.kubernetes.io/pci-0302_10de_2330.present", "true"), id="a-pci-device"
        ),
        pytest.param(selecting("kubernetes.io/hostname", "node-7"), id="a-node-by-its-hostname"),
        pytest.param(affine(REQUIRED, "nvidia.com/gpu.family", "In", "hopper", "ampere"), id="gpu-family"),
        pytest.param(affine(REQUIRED, "nvidia.com/gpu.memory", "Gt", "40000"), id="gpu-memory"),
        pytest.param(affine(REQUIRED, PRODUCT, "NotIn", "Tesla-T4"), id="another-product-than-that"),
        pytest.param(
            affine(REQUIRED, "accelerator", "In", "nvidia-t4", "other"), id="the-class-or-something-else"
        ),
        pytest.param(
            affine(REQUIRED, "metadata.name", "In", "node-7", field="matchFields"), id="a-node-by-its-name"
        ),
        pytest.param(affine(PREFERRED, "accelerator", "In", "nvidia-a100-80gb"), id="a-class-is-preferred"),
        pytest.param(
            affine(PREFERRED, "accelerator", "NotIn", "nvidia-t4"), id="any-other-class-is-preferred"
        ),
        pytest.param(affine(PREFERRED, "nvidia.com/gpu.memory", "Gt", "40000"), id="memory-is-preferred"),
        pytest.param(
            affine(PREFERRED, "node.kubernetes.io/instance-type", "In", "p5"), id="a-machine-is-preferred"
        ),
    ],
)
def test_neither_default_nor_estimate_beside_a_choice_of_hardware(spec: JSON) -> None:
    assert added(asking(**spec)) is None
    assert added(asking(annotations={PARAMS: "7b"}, **spec), GPUClassOptions()) is None


@pytest.mark.parametrize(
    "annotation", ["nvidia.com/use-gputype", "nvidia.com/nouse-gputype", "nvidia.com/use-gpuuuid"]
)
def test_no_default_beside_a_card_that_hami_is_asked_for(annotation: str) -> None:
    assert added(asking(annotations={annotation: "A100,V100"})) is None


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({}, id="nothing"),
        pytest.param(selecting("nvidia.com/gpu.present", "true"), id="a-node-with-a-gpu"),
        pytest.param(selecting("nvidia.com/gpu.deploy.device-plugin", "true"), id="what-the-operator-runs"),
        pytest.param(
            selecting("feature.node.kubernetes.io/pci-10de.present", "true"), id="a-device-of-the-vendor"
        ),
        pytest.param(
            selecting("feature.node.kubernetes.io/pci-0302_10de.present", "true"),
            id="a-device-of-its-class-and-vendor",
        ),
        pytest.param(selecting("kubernetes.azure.com/accelerator", "nvidia"), id="the-vendor-on-azure"),
        pytest.param(selecting("doks.digitalocean.com/gpu-brand", "nvidia"), id="the-vendor-on-digitalocean"),
        pytest.param(selecting("karpenter.k8s.aws/instance-gpu-manufacturer", "nvidia"), id="the-vendor"),
        pytest.param(selecting("kubernetes.io/os", "linux"), id="the-os"),
        pytest.param(selecting("topology.kubernetes.io/zone", "a"), id="a-zone"),
        pytest.param(selecting("karpenter.sh/capacity-type", "spot"), id="spot"),
        pytest.param(selecting("cloud.google.com/gke-spot", "true"), id="spot-of-gke"),
        pytest.param(selecting("nvidia.com/cuda.driver.major", "550"), id="a-driver"),
        pytest.param(selecting("team", "vision"), id="a-label-of-ones-own"),
        pytest.param(affine(REQUIRED, PRODUCT, "Exists"), id="any-product"),
        pytest.param(affine(REQUIRED, "accelerator", "NotIn", "nvidia-a100"), id="not-another-class"),
        pytest.param(
            affine(PREFERRED, "topology.kubernetes.io/zone", "In", "a"), id="a-zone-that-is-preferred"
        ),
    ],
)
def test_a_default_beside_what_chooses_no_hardware(spec: JSON) -> None:
    assert added(asking(**spec)) == "nvidia-t4"


@pytest.mark.parametrize(
    ("globs", "key", "want"),
    [
        pytest.param(("example.com/rack-*",), "example.com/rack-kind", None, id="a-label-more"),
        pytest.param(("example.com/rack-*",), "agentpool", None, id="the-built-in-ones-stay"),
        pytest.param(("!agentpool",), "agentpool", "nvidia-t4", id="a-label-less"),
        pytest.param(("!*",), "karpenter.sh/nodepool", "nvidia-t4", id="none-of-the-built-in-ones"),
        pytest.param(("pool-gpu", "!pool-*"), "pool-gpu", None, id="the-first-that-fits-decides"),
        pytest.param(("!*",), PRODUCT, None, id="what-classes-go-by-stays"),
    ],
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


@pytest.mark.parametrize(
    ("document", "default", "want"),
    [
        pytest.param(asking(), "nvidia-t4", "nvidia-t4", id="its-own"),
        pytest.param(asking(), "amd-mi300x", None, id="nvidia-on-amd"),
        pytest.param(asking("amd.com/gpu"), "amd-mi300x", "amd-mi300x", id="amd-on-amd"),
        pytest.param(asking("amd.com/gpu"), "nvidia-t4", None, id="amd-on-nvidia"),
        pytest.param(asking("google.com/tpu"), "nvidia-t4", None, id="tpu"),
        pytest.param(asking("aws.amazon.com/neuron"), "nvidia-t4", None, id="neuron"),
        pytest.param(asking("aws.amazon.com/neuroncore"), "nvidia-t4", None, id="cores-of-neuron"),
        pytest.param(asking("hygon.com/dcunum"), "nvidia-t4", None, id="shares-of-hygon"),
        pytest.param(asking("cambricon.com/vmlu"), "nvidia-t4", None, id="shares-of-cambricon"),
        pytest.param(asking("metax-tech.com/sgpu"), "nvidia-t4", None, id="shares-of-metax"),
        pytest.param(asking("habana.ai/gaudi"), "nvidia-t4", None, id="gaudi"),
        pytest.param(asking("huawei.com/Ascend910"), "nvidia-t4", None, id="ascend"),
        pytest.param(asking("nvidia.com/gpu.shared"), "nvidia-t4", "nvidia-t4", id="shares-of-its-own"),
        pytest.param(asking("nvidia.com/mig-1g.10gb"), "nvidia-a100", "nvidia-a100", id="slices-of-its-own"),
        pytest.param(
            pod(gpu_container(resource="nvidia.com/gpu"), gpu_container(resource="amd.com/gpu", name="b")),
            "nvidia-t4",
            None,
            id="two-vendors",
        ),
        pytest.param(asking("volcano.sh/vgpu-number"), "nvidia-t4", None, id="shares-of-a-scheduler"),
        pytest.param(
            asking("volcano.sh/vgpu-number"), "nvidia-l4", "nvidia-l4", id="shares-that-the-class-weighs"
        ),
        pytest.param(
            pod(annotations={"gpu-fraction": "0.5"}, schedulerName="kai-scheduler"),
            "nvidia-t4",
            "nvidia-t4",
            id="a-fraction",
        ),
        pytest.param(
            pod(annotations={"gpu-fraction": "0.5"}, schedulerName="kai-scheduler"),
            "amd-mi300x",
            None,
            id="a-fraction-is-of-a-card-of-nvidia",
        ),
        pytest.param(pod(**CLAIM), "nvidia-t4", None, id="a-claim"),
        pytest.param(
            pod(container(resources={"claims": [{"name": "gpu"}]})),
            "nvidia-t4",
            None,
            id="a-claim-that-the-template-gets-from-its-workflow",
        ),
        pytest.param(asking(**CLAIM), "nvidia-t4", None, id="a-claim-beside-a-gpu"),
        pytest.param(
            asking("deviceclass.resource.kubernetes.io/gpu.nvidia.com"),
            "nvidia-t4",
            None,
            id="a-device-class",
        ),
    ],
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


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        pytest.param(
            selecting("karpenter.sh/nodepool", "gpu"),
            " (nodeSelector karpenter.sh/nodepool=gpu keeps the default nvidia-t4 out)",
            id="hardware-that-nobody-knows",
        ),
        pytest.param(
            affine(PREFERRED, "accelerator", "In", "nvidia-t4"),
            " (preferred node affinity on accelerator keeps the default nvidia-t4 out)",
            id="a-class-that-is-only-preferred",
        ),
        pytest.param(
            affine(REQUIRED, "metadata.name", "In", "node-7", field="matchFields"),
            " (node affinity on metadata.name keeps the default nvidia-t4 out)",
            id="a-node",
        ),
        pytest.param(CLAIM, "", id="a-claim"),
    ],
)
def test_what_is_not_allowed_stays_refused(spec: JSON, why: str) -> None:
    options = GPUClassOptions(default="nvidia-t4", allowed=("nvidia-t4",))

    assert reported(asking(**spec), options) == [
        (
            Severity.DENIAL,
            (
                "spec: set gpu-admission.dev/gpu-class: nvidia-t4; must pin the pod to a GPU class: namespace "
                f"ml-training may not use every class{why} [gpu-class]"
            ),
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

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
        "a-node-pool-of-karpenter": selecting("karpenter.sh/nodepool", "gpu"),
        "the-class-or-something-else": affine(REQUIRED, "accelerator", "In", "nvidia-t4", "other"),
        "a-class-is-preferred": affine(PREFERRED, "accelerator", "In", "nvidia-a100-80gb"),
        "a-card-that-hami-is-asked-for": {"annotations": {"nvidia.com/use-gputype": "A100,V100"}},
    },
)
def test_neither_default_nor_estimate_beside_a_choice_of_hardware(spec: JSON) -> None:
    assert added(asking(**spec)) is None
    assert (
        added(
            asking(**{**spec, "annotations": {PARAMS: "7b"} | spec.get("annotations", {})}), GPUClassOptions()
        )
        is None
    )


@cases(
    "spec",
    {
        "nothing": {},
        "a-node-with-a-gpu": selecting("nvidia.com/gpu.present", "true"),
        "any-product": affine(REQUIRED, PRODUCT, "Exists"),
        "not-another-class": affine(REQUIRED, "accelerator", "NotIn", "nvidia-a100"),
    },
)
def test_a_default_beside_what_chooses_no_hardware(spec: JSON) -> None:
    assert added(asking(**spec)) == "nvidia-t4"


@cases(
    ("globs", "want"),
    {"the-built-in-ones": ((), None), "without-pools": (("!*nodepool",), "nvidia-t4")},
)
def test_a_policy_says_which_labels_choose_hardware(globs: tuple[str, ...], want: str | None) -> None:
    options = GPUClassOptions(default="nvidia-t4", hardware_labels=globs)

    assert list(options.problems()) == []
    assert added(asking(**selecting("karpenter.sh/nodepool")), options) == want


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

"""gpu-class: an estimate and a default stay out where the pod chooses hardware itself, or asks for that of another vendor."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from policies.finding import Severity
from policies.gpus.classes import GPUClasses, NodeLabel
from policies.placement.nodes import NodeState, node_facts
from policies.pods.patch import PodPatch
from policies.rule import Phase
from policies.rules.gpu_class import GPUClassOptions, check, mutate
from tests import builders
from tests.builders import CLASSES, JSON, apply, container, context, gpu_class, gpu_container, pod, view
from tests.cases import cases
from tests.policies.placement.affinities import PREFERRED, PRODUCT, affine, selecting
from webhook.configuration.loader import load_directory

DEFAULT = GPUClassOptions(default="nvidia-t4")
CLASS = "gpu-admission.dev/gpu-class"
PARAMS = "gpu-admission.dev/model-params"
CATALOGUE = GPUClasses(
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
    a_product_no_class_has=selecting(PRODUCT, "NVIDIA-RTX-6000-Ada-Generation"),
    a_node_pool_of_karpenter=selecting("karpenter.sh/nodepool", "gpu"),
    the_class_or_something_else=affine(builders.REQUIRED, "accelerator", "In", "nvidia-t4", "other"),
    a_class_is_preferred=affine(PREFERRED, "accelerator", "In", "nvidia-a100-80gb"),
    a_card_that_hami_is_asked_for={"annotations": {"nvidia.com/use-gputype": "A100,V100"}},
)
def test_neither_default_nor_estimate_beside_a_choice_of_hardware(spec: JSON) -> None:
    assert added(asking(**spec)) is None
    assert (
        added(
            asking(**{**spec, "annotations": {PARAMS: "7b"} | spec.get("annotations", {})}), GPUClassOptions()
        )
        is None
    )


@cases(("globs", "want"), the_built_in_ones=((), None), without_pools=(("!*nodepool",), "nvidia-t4"))
def test_a_policy_says_which_labels_choose_hardware(globs: tuple[str, ...], want: str | None) -> None:
    options = GPUClassOptions(default="nvidia-t4", hardware_labels=globs)

    assert list(options.problems()) == []
    assert added(asking(**selecting("karpenter.sh/nodepool")), options) == want


def test_what_an_annotation_names_is_no_guess() -> None:
    document = asking(annotations={CLASS: "nvidia-t4"}, **selecting("karpenter.sh/nodepool"))

    assert added(document, GPUClassOptions()) == "nvidia-t4"


FRACTION = pod(annotations={"gpu-fraction": "0.5"}, schedulerName="kai-scheduler")
CLAIM: JSON = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]}


@cases(
    ("document", "default", "want"),
    its_own=(asking(), "nvidia-t4", "nvidia-t4"),
    nvidia_on_amd=(asking(), "amd-mi300x", None),
    slices_of_its_own=(asking("nvidia.com/mig-1g.10gb"), "nvidia-a100", "nvidia-a100"),
    two_vendors=(
        pod(gpu_container(resource="nvidia.com/gpu"), gpu_container(resource="amd.com/gpu", name="b")),
        "nvidia-t4",
        None,
    ),
    shares_of_a_scheduler=(asking("volcano.sh/vgpu-number"), "nvidia-t4", None),
    shares_that_the_class_weighs=(asking("volcano.sh/vgpu-number"), "nvidia-l4", "nvidia-l4"),
    a_fraction=(FRACTION, "nvidia-t4", "nvidia-t4"),
    a_fraction_is_of_a_card_of_nvidia=(FRACTION, "amd-mi300x", None),
    a_claim=(pod(**CLAIM), "nvidia-t4", None),
    claim_of_a_workflow=(pod(container(resources={"claims": [{"name": "gpu"}]})), "nvidia-t4", None),
    a_device_class=(asking("deviceclass.resource.kubernetes.io/gpu.nvidia.com"), "nvidia-t4", None),
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
    hardware_that_nobody_knows=(
        selecting("karpenter.sh/nodepool", "gpu"),
        " (nodeSelector karpenter.sh/nodepool=gpu keeps the default nvidia-t4 out)",
    ),
    a_class_that_is_only_preferred=(
        affine(PREFERRED, "accelerator", "In", "nvidia-t4"),
        " (preferred node affinity on accelerator keeps the default nvidia-t4 out)",
    ),
    a_node=(
        affine(builders.REQUIRED, "metadata.name", "In", "node-7", field="matchFields"),
        " (node affinity on metadata.name keeps the default nvidia-t4 out)",
    ),
    a_claim=(CLAIM, ""),
)
def test_what_is_not_allowed_stays_refused(spec: JSON, why: str) -> None:
    options = GPUClassOptions(default="nvidia-t4", allowed=("nvidia-t4",))

    assert reported(asking(**spec), options) == [
        (
            Severity.DENIAL,
            "spec: set gpu-admission.dev/gpu-class: nvidia-t4; must pin the pod to a GPU class: namespace "
            f"ml-training may not use every class{why}",
        )
    ]


T4, L4 = (("accelerator", "nvidia-t4"),), (("accelerator", "nvidia-l4"),)
USABLE = NodeState(resources=frozenset({"nvidia.com/gpu"}))
NODES = node_facts(
    CATALOGUE.label_keys,
    [(T4, USABLE), (L4, USABLE)],
    with_other_labels=frozenset({(T4, ("cards=1", "team=ml")), (L4, ("cards=4", "team=ml"))}),
)


@cases(
    ("spec", "options", "want"),
    cards_of_other_nodes=(selecting("cards", "4"), DEFAULT, None),
    by_affinity=(affine(builders.REQUIRED, "cards", "In", "4"), DEFAULT, None),
    cards_of_its_nodes=(selecting("cards", "1"), DEFAULT, "nvidia-t4"),
    a_label_of_all=(selecting("team", "ml"), DEFAULT, "nvidia-t4"),
    nodes_that_are_made_on_demand=(
        selecting("cards", "4"),
        GPUClassOptions(default="nvidia-t4", autoscaled_classes=("nvidia-t4",)),
        "nvidia-t4",
    ),
)
def test_a_label_of_other_gpu_nodes_chooses_hardware(
    spec: JSON, options: GPUClassOptions, want: str | None
) -> None:
    assert added(asking(**spec), options, nodes=NODES) == want
    assert reported(asking(**spec), options, nodes=NODES) == []


def test_no_estimate_beside_a_label_of_other_gpu_nodes() -> None:
    document = asking(annotations={PARAMS: "3b"}, **selecting("cards", "4"))

    assert added(document, GPUClassOptions()) == "nvidia-t4"
    assert added(document, GPUClassOptions(), nodes=NODES) is None


@cases(
    ("allowed", "want"),
    its_class=(
        "nvidia-l4",
        "spec: set gpu-admission.dev/gpu-class: nvidia-l4; must pin the pod to a GPU class: namespace ml-training may not use "
        "every class (nodeSelector cards=4 keeps the default nvidia-t4 out)",
    ),
    another_class=(
        "nvidia-t4",
        "spec: no class that namespace ml-training may use has a node that takes the pod now; ask the platform team for "
        "nodes of nvidia-t4, then set gpu-admission.dev/gpu-class: nvidia-t4",
    ),
)
def test_a_label_of_other_gpu_nodes_where_classes_are_restricted(allowed: str, want: str) -> None:
    options = GPUClassOptions(default="nvidia-t4", allowed=(allowed, "nvidia-t4"))

    assert reported(asking(**selecting("cards", "4")), options, nodes=NODES) == [(Severity.DENIAL, want)]


OTHERS = """
google.com/tpu aws.amazon.com/neuron aws.amazon.com/neuroncore hygon.com/dcunum cambricon.com/vmlu metax-tech.com/sgpu
habana.ai/gaudi huawei.com/Ascend910 volcano.sh/vgpu-number
"""
VENDORS = {
    "nvidia.com/gpu": "nvidia",
    "nvidia.com/gpu.shared": "nvidia",
    "amd.com/gpu": "amd",
    "deviceclass.resource.kubernetes.io/gpu.nvidia.com": "any",
    **dict.fromkeys(OTHERS.split(), "another"),
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
    how=st.sampled_from(["nothing", "nodeSelector", builders.REQUIRED, PREFERRED]),
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

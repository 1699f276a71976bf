"""gpu-class: a GPU pod runs on the requested class, and the finding says so when it cannot."""

from policies.finding import Edit
from policies.gpus.classes import GPUClass, GPUClasses, NodeLabel
from policies.placement.pinning import ClassPin
from policies.rule import Mode
from policies.rules.gpu_class import GPUClassOptions, class_pins
from tests.builders import CLASSES, JSON, container, context, gpu_class, pod, view
from tests.cases import cases
from tests.policies.rules.class_pods import (
    ANY,
    CLASS,
    GATED,
    PARAMS,
    T4_ONLY,
    affinity,
    asking,
    modelled,
    placed,
    selecting,
)

PRODUCT = "nvidia.com/gpu.product"
BY_PRODUCT = GPUClassOptions(label_key=PRODUCT)


def by_product(name: str, memory_gib: int, *products: str) -> GPUClass:
    labels = (NodeLabel(key=PRODUCT, values=products),)
    return gpu_class(name, "nvidia-h100", memory_gib, node_labels=labels)


H100 = by_product("nvidia-h100", 80, "NVIDIA-H100-PCIe", "NVIDIA-H100-80GB-HBM3")
QUARTERS = gpu_class("nvidia-a100-shared", "nvidia-a100", 39, equivalents={"nvidia.com/gpu": "1/4"})

DEFAULT_T4, DEFAULT_A100 = GPUClassOptions(default="nvidia-t4"), GPUClassOptions(default="nvidia-a100")
CLAIM: JSON = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]}
NOT_T4 = affinity("accelerator", "NotIn", "nvidia-t4")
EITHER_H100 = affinity(PRODUCT, "In", "NVIDIA-H100-PCIe", "NVIDIA-H100-80GB-HBM3")
ANY_A100 = affinity("accelerator", "In", "nvidia-a100-40gb", "nvidia-a100-80gb")


@cases(
    ("document", "options", "want"),
    class_of_the_annotation=(asking("nvidia-t4"), ANY, "nvidia-t4"),
    family_of_the_annotation=(asking("nvidia-a100"), ANY, "nvidia-a100"),
    slice_of_a_family=(asking("nvidia-a100", resource="nvidia.com/mig-1g.10gb"), ANY, "nvidia-a100"),
    share=(asking("nvidia-t4", resource="nvidia.com/gpu.shared"), ANY, "nvidia-t4"),
    fraction=(pod(annotations={CLASS: "nvidia-t4", "gpu-fraction": "0.5"}), ANY, "nvidia-t4"),
    claim=(pod(annotations={CLASS: "nvidia-t4"}, **CLAIM), ANY, "nvidia-t4"),
    beside_other_selectors=(asking("nvidia-t4", nodeSelector={"disk": "ssd"}), ANY, "nvidia-t4"),
    default_class=(asking(), DEFAULT_T4, "nvidia-t4"),
    default_family=(asking(), DEFAULT_A100, "nvidia-a100"),
    annotation_before_default=(asking("nvidia-t4"), DEFAULT_A100, "nvidia-t4"),
    default_does_not_have_what_is_requested=(asking(resource="amd.com/gpu"), DEFAULT_T4, None),
    # 7b in bf16: 19.6 GiB
    smallest_class_that_fits_the_model=(modelled(), ANY, "nvidia-a100-40gb"),
    model_over_two_gpus=(modelled(gpus="2"), ANY, "nvidia-t4"),
    smallest_allowed=(modelled(), GPUClassOptions(allowed=("*-80gb",)), "nvidia-a100-80gb"),
    smallest_class_of_the_resource=(modelled(resource="amd.com/gpu"), ANY, "amd-mi300x"),
    class_that_has_the_slice=(modelled(resource="nvidia.com/mig-3g.40gb"), ANY, "nvidia-a100-80gb"),
    model_before_default=(modelled(), DEFAULT_T4, "nvidia-a100-40gb"),
    default_for_a_share=(modelled(resource="nvidia.com/gpu.shared"), DEFAULT_T4, "nvidia-t4"),
    annotation_before_model=(asking("nvidia-a100", annotations={PARAMS: "7b"}), ANY, "nvidia-a100"),
    part=(asking("nvidia-a100"), GPUClassOptions(allowed=("nvidia-a100-40*",)), "nvidia-a100-40gb"),
    nobody_says_anything=(asking(), ANY, None),
    no_gpu=(pod(container(), annotations={CLASS: "nvidia-t4"}), ANY, None),
    gated=(asking("nvidia-t4", schedulingGates=GATED), ANY, None),
    node_name=(asking("nvidia-t4", nodeName="node-1"), ANY, None),
    unknown_class=(asking("nvidia-t5"), ANY, None),
    model_that_fits_nowhere=(modelled("70b"), ANY, None),
    pinned_more_tightly=(asking("nvidia-a100", **selecting("nvidia-a100-80gb")), ANY, None),
    pinned_before_default=(asking(**selecting("nvidia-a100")), DEFAULT_T4, None),
    pinned_before_model=(modelled(**selecting("nvidia-t4")), ANY, None),
    unknown_value_is_kept=(asking(**selecting("somebody-elses")), DEFAULT_T4, None),
    default_that_the_pod_excludes=(asking(**NOT_T4), DEFAULT_T4, None),
    default_that_the_pod_leaves_open=(asking(**NOT_T4), DEFAULT_A100, "nvidia-a100"),
    annotation_narrows_the_pod=(asking("nvidia-a100-80gb", **ANY_A100), ANY, "nvidia-a100-80gb"),
    family_label_beside_the_class=(asking("nvidia-a100-80gb", **selecting("nvidia-a100")), ANY, None),
)
def test_placement(document: JSON, options: GPUClassOptions, want: str | None) -> None:
    before = document["spec"]
    selector = {**before.get("nodeSelector", {}), "accelerator": want}

    assert placed(document, options)["spec"] == ({**before, "nodeSelector": selector} if want else before)


@cases(
    ("document", "options", "want"),
    several_values=(asking("nvidia-h100"), BY_PRODUCT, EITHER_H100),
    model=(modelled(), BY_PRODUCT, EITHER_H100),
    one_of_the_values_is_demanded_already=(
        asking("nvidia-h100", nodeSelector={PRODUCT: "NVIDIA-H100-PCIe"}),
        BY_PRODUCT,
        selecting("NVIDIA-H100-PCIe", PRODUCT),
    ),
    share_of_a_card_has_not_the_memory_of_the_card=(modelled(), ANY, selecting("nvidia-a100-40gb")),
    class_before_family_of_that_name=(asking("nvidia-t4"), T4_ONLY, selecting("nvidia-t4")),
)
def test_placement_by_the_labels_of_nodes(document: JSON, options: GPUClassOptions, want: JSON) -> None:
    spec = {**placed(document, options, classes=GPUClasses((*CLASSES, H100, QUARTERS)))["spec"]}
    del spec["containers"]

    assert spec == want


def test_classes_of_a_family_that_go_by_values_are_alternatives() -> None:
    h100_nvl = by_product("nvidia-h100-nvl", 94, "NVIDIA-H100-NVL")
    h100_pcie = by_product("nvidia-h100-pcie", 80, "NVIDIA-H100-PCIe")

    document = placed(asking("nvidia-h100"), BY_PRODUCT, classes=GPUClasses((h100_nvl, h100_pcie)))

    want = affinity(PRODUCT, "In", "NVIDIA-H100-NVL", "NVIDIA-H100-PCIe")
    assert document["spec"]["affinity"] == want["affinity"]


def test_pods_of_a_daemonset_are_not_pinned() -> None:
    assert placed(asking("nvidia-t4"), made_by_daemonset=True) == asking("nvidia-t4")


@cases(
    ("options", "want"),
    defaults=(ANY, []),
    label_of_a_cloud=(GPUClassOptions(label_key="cloud.google.com/gke-accelerator"), []),
    all_at_once=(
        GPUClassOptions(label_key="my label", default="", allowed=()),
        [
            ("labelKey", 'must be a label key, not "my label"'),
            ("default", "must not be empty: set null for no default"),
            ("allowed", 'must not be empty: set ["*"] to allow every class'),
        ],
    ),
    empty_globs=(
        GPUClassOptions(allowed=("nvidia-t4", ""), hardware_labels=("a", "", "!"), autoscaled_classes=("",)),
        [
            (field, "must not be empty")
            for field in ("allowed[1]", "autoscaledClasses[0]", "hardwareLabels[1]", "hardwareLabels[2]")
        ],
    ),
)
def test_problems(options: GPUClassOptions, want: list[tuple[str, str]]) -> None:
    assert list(options.problems()) == want


@cases(
    ("options", "want"),
    defaults=(ANY, []),
    family_partly_allowed=(GPUClassOptions(default="nvidia-a100", allowed=("nvidia-a100-40*",)), []),
    all_at_once=(
        GPUClassOptions(
            label_key="accel",
            default="nvidia-t5",
            allowed=("h1", "nvidia-a10", "*"),
            autoscaled_classes=("nvidia-t40",),
        ),
        [
            ("labelKey", 'must be a node label of some class, not "accel"'),
            ("allowed[0]", '"h1" matches no class'),
            ("allowed[1]", '"nvidia-a10" matches no class: did you mean nvidia-a100?'),
            ("autoscaledClasses[0]", '"nvidia-t40" matches no class: did you mean nvidia-t4?'),
            ("default", 'must be a class or a family, not "nvidia-t5": did you mean nvidia-t4?'),
        ],
    ),
    default_that_is_not_allowed=(
        GPUClassOptions(default="nvidia-t4", allowed=("nvidia-a100",)),
        [("default", 'must match allowed (nvidia-a100), and "nvidia-t4" does not')],
    ),
)
def test_class_problems(options: GPUClassOptions, want: list[tuple[str, str]]) -> None:
    assert list(options.class_problems(CLASSES)) == want


@cases(
    ("document", "want"),
    of_all=(asking(), ["nvidia-a100-40gb", "nvidia-a100-80gb", "nvidia-t4"]),
    only_where_its_model_fits=(modelled("13b"), ["nvidia-a100-40gb", "nvidia-a100-80gb"]),
    pinned=(asking(**selecting("nvidia-t4")), []),
    by_its_annotation=(asking("nvidia-t4"), []),
    placed_by_name=(asking(nodeName="node-1"), []),
    that_selects_a_node_by_its_hostname=(asking(nodeSelector={"kubernetes.io/hostname": "node-1"}), []),
    of_hardware_that_it_selects_itself=(asking(nodeSelector={"nvidia.com/gpu.memory": "81920"}), []),
)
def test_pins_that_an_annotation_may_bring(document: JSON, want: list[str]) -> None:
    found = class_pins(view(document), context(options_of=lambda _: ANY))

    by_annotation = "metadata.annotations[gpu-admission.dev/gpu-class]"
    assert found == {name: ClassPin("accelerator", name, Edit(by_annotation, name)) for name in want}
    assert class_pins(view(document), context()) == {}, "where the rule is off"


@cases(
    ("options", "by_daemonset"),
    rule_that_only_warns=(GPUClassOptions(mode=Mode.WARN), False),
    daemonset=(ANY, True),
)
def test_the_node_selector_names_a_class_where_no_annotation_does(
    options: GPUClassOptions, by_daemonset: bool
) -> None:
    label, value = "accelerator", "nvidia-t4"

    found = class_pins(view(asking()), context(options_of=lambda _: options, made_by_daemonset=by_daemonset))

    assert found["nvidia-t4"] == ClassPin(label, value, Edit(f"spec.nodeSelector[{label}]", value))

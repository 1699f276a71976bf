"""cuda-version: a pod runs where the driver is new enough for its image, as far as the nodes say."""

from typing import Any

from policies.finding import Severity
from policies.placement.hardware import kept_label_keys
from policies.placement.nodes import Labels, NodeFacts, NodeGroup
from policies.pods.patch import PodPatch
from policies.rule import Phase
from policies.rules.cuda_version import FULL, MAJOR, CUDAVersionOptions, check, mutate
from tests.builders import CLASSES, JSON, apply, container, context, gpu_container, node_affinity, pod, view
from tests.cases import cases

CUDA = "gpu-admission.dev/cuda"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ANY = CUDAVersionOptions()
EXACT = CUDAVersionOptions(exact_version=True)
CPU: Labels = ()
REQUIRE = {"name": "NVIDIA_REQUIRE_CUDA", "value": "cuda>=12.4"}
POOL = NodeGroup({"accelerator": frozenset({"nvidia-t4"})}, pool="spot")
NEWER_THAN_11 = {"key": MAJOR, "operator": "Gt", "values": ["11"]}
NOT_BEFORE_12_4 = {"key": FULL, "operator": "NotIn", "values": ["12.0", "12.1", "12.2", "12.3"]}
NEW_ENOUGH = [[NEWER_THAN_11, NOT_BEFORE_12_4]]


def node(version: str = "", accelerator: str = "nvidia-t4") -> Labels:
    """Return the labels of a node of a class; GPU Feature Discovery runs there if there is a version."""
    labels = {"accelerator": accelerator}
    if version:
        labels |= {FULL: version, MAJOR: version.partition(".")[0]}
    return tuple(sorted(labels.items()))


def asking(version: str = "12.4", **tweaks: Any) -> JSON:
    return pod(gpu_container(), annotations={CUDA: version}, **tweaks)


def requiring(expression: str, *more: JSON) -> JSON:
    return pod(gpu_container(env=[{**REQUIRE, "value": expression}, *more]))


def facts(*label_sets: Labels, pools: tuple[NodeGroup, ...] = ()) -> NodeFacts:
    return NodeFacts(
        keys=kept_label_keys(CLASSES.label_keys, ()), label_sets=frozenset(label_sets), pools=pools
    )


def added(document: JSON, *label_sets: Labels, options: CUDAVersionOptions = ANY, **tweaks: Any) -> Any:
    """Return the required terms as /mutate leaves them, None where there are none; a second pass changes nothing."""
    known = context(Phase.MUTATE, nodes=facts(*label_sets, pools=tweaks.pop("pools", ())), **tweaks)
    patch = PodPatch(view(document))
    assert list(mutate(patch, options, known)) == []
    again = PodPatch(patch.pod)
    list(mutate(again, options, known))
    assert again.changes == []
    assert list(check(patch.pod, options, known)) == [] or not patch.changes
    affinity = apply(document, patch)["spec"].get("affinity", {}).get("nodeAffinity", {})
    return [term["matchExpressions"] for term in affinity.get(REQUIRED, {}).get("nodeSelectorTerms", [])]


@cases(
    ("document", "nodes", "want"),
    annotation=(asking(), [node("12.4"), node("12.2")], [[NEWER_THAN_11]]),
    older_driver_of_the_major_version=(asking(), [node("12.2")], [[NEWER_THAN_11]]),
    major_version_alone=(asking("12"), [node("12.2")], [[NEWER_THAN_11]]),
    before_minor_version_compatibility=(
        asking("10.1"),
        [node("10.1")],
        [[{**NEWER_THAN_11, "values": ["9"]}, {**NOT_BEFORE_12_4, "values": ["10.0"]}]],
    ),
    later_major_version=(asking("12.0"), [node("13.0")], [[NEWER_THAN_11]]),
    beside_cpu_nodes=(asking("12"), [node("12.8"), CPU], [[NEWER_THAN_11]]),
    variable=(requiring("cuda>=12.4"), [node("12.4")], NEW_ENOUGH),
    least_alternative=(requiring("cuda>=12.4,driver>=550 cuda>=13.0"), [node("12.4")], NEW_ENOUGH),
    every_alternative_of_the_pod=(
        asking("12", affinity=node_affinity([("zone", "Exists")], [("disk", "Exists")])),
        [node("12.4")],
        [
            [{"key": "zone", "operator": "Exists"}, NEWER_THAN_11],
            [{"key": "disk", "operator": "Exists"}, NEWER_THAN_11],
        ],
    ),
    every_one_of_the_most_alternatives=(
        asking("12", affinity=node_affinity(*[[("zone", "Exists")]] * 16)),
        [node("12.4")],
        [[{"key": "zone", "operator": "Exists"}, NEWER_THAN_11]] * 16,
    ),
    more_alternatives_than_are_changed=(
        asking("12", affinity=node_affinity(*[[("zone", "Exists")]] * 17)),
        [node("12.4")],
        [[{"key": "zone", "operator": "Exists"}]] * 17,
    ),
    nodes_of_its_class=(
        asking("12", nodeSelector={"accelerator": "nvidia-t4"}),
        [node("12.4"), node("11.8", "nvidia-a100-80gb")],
        [[NEWER_THAN_11]],
    ),
)
def test_affinity(document: JSON, nodes: list[Labels], want: list[Any]) -> None:
    assert added(document, *nodes) == want


def test_affinity_on_the_exact_version_where_the_policy_wants_it() -> None:
    assert added(asking(), node("12.4"), node("12.2"), options=EXACT) == NEW_ENOUGH
    assert added(asking(), node("12.2"), options=EXACT) == []


@cases(
    "document",
    nothing_requested=pod(gpu_container()),
    no_gpu=pod(container(), annotations={CUDA: "12.4"}),
    node_name=asking(nodeName="node-1"),
    version_that_the_pod_selects_itself=asking(nodeSelector={"nvidia.com/cuda.runtime.major": "12"}),
    another_vendor=pod(gpu_container(resource="amd.com/gpu"), annotations={CUDA: "12.4"}),
    alternative_without_a_cuda_version=requiring("cuda>=12.4 brand=tesla,driver>=535,driver<536"),
    requirement_switched_off=requiring("cuda>=12.4", {"name": "NVIDIA_DISABLE_REQUIRE", "value": "1"}),
    variable_of_a_container_without_gpu=pod(gpu_container(), container("log", env=[REQUIRE])),
    variable_that_names_none=requiring("cuda>=new"),
    variable_longer_than_any_constraint=requiring("cuda>=12.4 " * 400),
    variable_of_more_containers_than_are_read=pod(
        *(gpu_container("1", f"c{n}", env=[{**REQUIRE, "value": ""}]) for n in range(8)),
        gpu_container("1", "last", env=[REQUIRE]),
    ),
)
def test_nothing_added(document: JSON) -> None:
    assert added(document, (*node("12.4"), ("nvidia.com/cuda.runtime.major", "12"))) == []


@cases(
    ("of_node", "tweaks"),
    no_node_says=(node(), {}),
    every_node_is_too_old=(node("11.8"), {}),
    pool_whose_nodes_would_not_be_made_for_it=(node("12.4"), {"pools": (POOL,)}),
    daemonset=(node("12.4"), {"made_by_daemonset": True}),
)
def test_nothing_added_where_no_node_could_take_the_pod_for_it(of_node: Labels, tweaks: Any) -> None:
    assert added(asking(), of_node, **tweaks) == []


ANNOTATED = f'metadata.annotations[{CUDA}] = "12.4": '
MISSING = f"has no effect: label {FULL} is missing on"
ASK = "; ask the platform team for the label, which GPU Feature Discovery sets"
OLDER = (
    "use an image with an older CUDA; should be at most {}, the newest CUDA of the nodes that can take the pod; "
    "or ask the platform team for newer drivers"
)


@cases(
    ("document", "given", "want"),
    no_node_is_new_enough=(
        asking(),
        facts(node("11.8"), node("11.4")),
        ANNOTATED + OLDER.format("11.x"),
    ),
    variable=(
        requiring("cuda>=12.4"),
        facts(node("12.2")),
        f'spec.containers[0].env[0] (container "main") = "cuda>=12.4": {OLDER.format("12.2")}',
    ),
    none_says=(asking(), facts(node()), f"{ANNOTATED}{MISSING} the nodes that can take the pod{ASK}"),
    a_pool=(asking(), facts(node("12.4"), pools=(POOL,)), f"{ANNOTATED}{MISSING} node pool spot{ASK}"),
)
def test_warning(document: JSON, given: NodeFacts, want: str) -> None:
    found = list(check(view(document), ANY, context(nodes=given)))

    assert [(each.severity, each.sentence()) for each in found] == [(Severity.WARNING, want)]


def test_warning_about_the_exact_version() -> None:
    (found,) = check(view(asking()), EXACT, context(nodes=facts(node("12.2"))))

    assert found.sentence() == ANNOTATED + OLDER.format("12.2")


@cases(
    ("document", "given"),
    driver_of_the_major_version=(asking(), facts(node("12.2"))),
    nodes_are_not_known=(asking(), None),
    variable_where_no_node_says=(requiring("cuda>=12.4"), facts(node())),
    pod_that_no_node_can_take=(asking(nodeSelector={"accelerator": "nvidia-l4"}), facts(node("12.2"))),
)
def test_nothing_to_say(document: JSON, given: NodeFacts | None) -> None:
    assert list(check(view(document), ANY, context(nodes=given))) == []


@cases(
    ("text", "advice"),
    **{text: (text, "set for example") for text in ("new", "0.9", "-12", "", "1e1", "112.4")},
    with_a_patch=("12.4.1", "set"),
    with_a_letter=("v12.4", "set"),
    with_its_name=("cuda-12.4", "set"),
)
def test_an_annotation_that_is_not_a_version_is_denied(text: str, advice: str) -> None:
    (found,) = check(view(asking(text)), ANY, context())

    assert found.severity is Severity.DENIAL
    assert found.sentence() == (
        f'metadata.annotations[{CUDA}] = "{text}": {advice} {CUDA}: "12.4"; must be a CUDA version'
    )

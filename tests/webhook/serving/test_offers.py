"""What authors are offered by the nodes and the quota, in place of a mistake."""

from fractions import Fraction

from policies.finding import Edit
from policies.placement.nodes import Labels
from policies.pods.field_paths import annotation_path, path_parts, with_edit
from policies.quota.amounts import CLASSES, GPUS
from policies.quota.demand import UnclassifiedPods
from tests.builders import JSON, container, gpu_container, pod, quota_ledger
from tests.cases import cases
from tests.webhook.serving.authors_view import (
    A100,
    CLASS,
    DEDICATED,
    GPU_TAINT,
    LIMIT,
    RESERVED,
    T4,
    ZONE,
    Node,
    node,
    on,
    seen,
    warned,
)
from webhook.configuration.loader import load_objects
from webhook.evaluation.decision import Outcome

ON_A100 = f'metadata.annotations[{CLASS}] = "nvidia-a100-80gb": '
AMD_LIMIT = LIMIT.format("amd.com/gpu")
AMD = pod(gpu_container(resource="amd.com/gpu"), annotations={CLASS: "nvidia-a100-80gb"})
AMD_ON_A100 = pod(gpu_container(resource="amd.com/gpu"), nodeSelector={"accelerator": "nvidia-a100-80gb"})
SLICE = pod(gpu_container(resource="nvidia.com/mig-1g.24gb"), annotations={CLASS: "nvidia-a100-80gb"})
PINNED = "the pod is pinned to nvidia-a100-80gb (nodeSelector accelerator=nvidia-a100-80gb) [gpu-requests]"


@cases(
    ("document", "classes", "autoscaled", "want"),
    any_class_if_the_nodes_are_not_known=(
        AMD, (), (), [f"{ON_A100}set {CLASS}: amd-mi300x or amd-mi325x or amd-mi350x or amd-mi355x; must be a class with "
        "amd.com/gpu [gpu-class]"],
    ),
    the_class_with_nodes=(
        AMD, ("nvidia-t4", "amd-mi300x"), (),
        [f"{ON_A100}set {CLASS}: amd-mi300x; must be a class with amd.com/gpu [gpu-class]"],
    ),
    the_class_that_is_created_on_demand=(
        AMD, ("nvidia-t4",), ("amd-mi355x",),
        [f"{ON_A100}set {CLASS}: amd-mi355x; must be a class with amd.com/gpu [gpu-class]"],
    ),
    the_resource_that_nodes_have=(
        AMD, ("nvidia-t4",), (),
        [f"{ON_A100}request nvidia.com/gpu: 1; no class with nodes that namespace team may use has amd.com/gpu; or "
         "ask the platform team for nodes of amd-mi300x or amd-mi325x or amd-mi350x or amd-mi355x, then "
         f"set {CLASS}: amd-mi300x or amd-mi325x or amd-mi350x or amd-mi355x [gpu-class]"],
    ),
    one_finding_of_a_slice=(
        SLICE, ("nvidia-t4", "nvidia-h100-94gb"), (),
        [f"{ON_A100}set {CLASS}: nvidia-h100-94gb; must be a class with nvidia.com/mig-1g.24gb [gpu-class]"],
    ),
    no_other_class_for_a_selector=(
        AMD_ON_A100, ("nvidia-a100-80gb",), (), [f"{AMD_LIMIT}request nvidia.com/gpu; must be nvidia.com/gpu: {PINNED}"],
    ),
    another_class_for_a_selector=(
        AMD_ON_A100, ("nvidia-a100-80gb", "amd-mi300x"), (),
        [f"{AMD_LIMIT}request nvidia.com/gpu, or pin the pod to amd-mi300x, which has amd.com/gpu; must be nvidia.com/gpu: "
        f"{PINNED}"],
    ),
)  # fmt: skip
def test_what_is_offered(
    document: JSON, classes: tuple[str, ...], autoscaled: tuple[str, ...], want: list[str]
) -> None:
    nodes: list[Node] = [((("accelerator", each),), None) for each in classes]
    found = seen(document, {"gpu-class": {"autoscaledClasses": list(autoscaled)}}, nodes)

    assert [each.finding.sentence() for each in found if each.outcome is Outcome.DENIED] == want


BOTH = {"limits": {"nvidia.com/gpu": 1, "amd.com/gpu": 1}}
BESIDE = (
    LIMIT.format("amd.com/gpu")
    + "remove amd.com/gpu; must be nvidia.com/gpu: the pod is pinned to nvidia-a100-80gb "
)


@cases(
    ("tweaks", "why"),
    of_a_selector=({"nodeSelector": {"accelerator": "nvidia-a100-80gb"}}, "nodeSelector accelerator=nvidia-a100-80gb"),
    of_an_annotation=({"annotations": {CLASS: "nvidia-a100-80gb"}}, f"annotation {CLASS}"),
)  # fmt: skip
def test_gpus_of_two_vendors(tweaks: JSON, why: str) -> None:
    document = pod(container(resources=BOTH), **tweaks)

    (found,) = seen(document, {}, [((("accelerator", "nvidia-a100-80gb"),), None)])
    assert found.finding.sentence() == f"{BESIDE}({why}) [gpu-requests]"
    ((edit,),) = found.finding.choices
    assert not seen(with_edit(document, path_parts(edit.path), None), {}, ())


H100: Labels = (("accelerator", "nvidia-h100-80gb"),)
L4: Labels = (("accelerator", "nvidia-l4"),)
SHARES = "nvidia.com/gpu.shared"


@cases(
    ("document", "others", "want"),
    its_nodes_are_cordoned=(on("nvidia-x"), [node(H100, cordoned=True)], ["nvidia-a100-80gb"]),
    its_nodes_have_a_taint=(on("nvidia-x"), [node(L4, taints=(RESERVED,))], ["nvidia-a100-80gb"]),
    the_pod_tolerates_the_taint=(
        on("nvidia-x", tolerations=[DEDICATED]),
        [node(L4, taints=(RESERVED,))],
        ["nvidia-a100-80gb", "nvidia-l4"],
    ),
    its_nodes_have_the_taint_of_gpus=(
        on("nvidia-x"),
        [node(L4, taints=(GPU_TAINT,))],
        ["nvidia-a100-80gb", "nvidia-l4"],
    ),
    its_nodes_are_not_ready=(on("nvidia-x"), [node(H100, usable=False)], ["nvidia-a100-80gb"]),
    its_nodes_have_only_shares=(on("nvidia-x"), [node(H100, SHARES)], ["nvidia-a100-80gb"]),
    its_nodes_have_too_few=(
        pod(gpu_container("8"), annotations={CLASS: "nvidia-x"}),
        [node(H100, each=4)],
        ["nvidia-a100-80gb"],
    ),
    another_zone=(
        on("nvidia-x", nodeSelector={ZONE: "a"}),
        [node((*H100, (ZONE, "b")))],
        ["nvidia-a100-80gb"],
    ),
    one_of_them_takes_it=(
        on("nvidia-x"),
        [node(H100, cordoned=True), node(H100, taints=(RESERVED,)), node(H100)],
        ["nvidia-a100-80gb", "nvidia-h100-80gb"],
    ),
)
def test_only_classes_whose_nodes_take_the_pod_are_named(
    document: JSON, others: list[Node], want: list[str]
) -> None:
    found = seen(document, {}, [node((*A100, (ZONE, "a"))), *others])

    (denied,) = (each.finding for each in found if each.outcome is Outcome.DENIED)
    assert [edit.value for (edit,) in denied.choices] == want, denied.sentence()


def test_a_policy_s_tolerations_count_for_the_classes_that_are_named() -> None:
    rules: JSON = {"gpu-toleration": {"tolerations": [{"key": "reserved", "operator": "Exists"}]}}
    (denied,) = seen(on("nvidia-x"), rules, [node(L4, taints=(RESERVED,)), node(H100, cordoned=True)])

    assert [edit.value for (edit,) in denied.finding.choices] == ["nvidia-l4"]


@cases(
    ("document", "nodes", "want"),
    all_are_cordoned=(
        on("nvidia-x"),
        [node(H100, cordoned=True), node(L4)],
        "must be a GPU class or a family of classes; no class that namespace team may use has a node that takes the pod now; "
        f"ask the platform team for nodes of nvidia-h100-80gb, then set {CLASS}: nvidia-h100-80gb",
    ),
)
def test_where_no_class_takes_the_pod_the_denial_says_what_is_missing(
    document: JSON, nodes: list[Node], want: str
) -> None:
    rules = {"gpu-class": {"allowed": ["nvidia-h100-80gb"]}}
    sentences = [
        each.finding.sentence() for each in seen(document, rules, nodes) if each.outcome is Outcome.DENIED
    ]
    assert sentences[0] == f'metadata.annotations[{CLASS}] = "nvidia-x": {want} [gpu-class]'


def test_nodes_that_share_are_said_to_have_shares() -> None:
    assert warned(pod(gpu_container()), node(T4, SHARES, each=4)) == [
        LIMIT.format("nvidia.com/gpu")
        + "request nvidia.com/gpu.shared; no schedulable node has nvidia.com/gpu now, but 4 "
        "nvidia.com/gpu.shared: the pod stays pending [gpu-requests]"
    ]


def test_three_gpus_where_a_class_grants_two() -> None:
    """The denial of an unpinned pod that counts for every class names a class on which it fits, through all the rules."""
    hard = {GPUS: Fraction(8), CLASSES + "nvidia-a100": Fraction(2)}
    ledger = quota_ledger(hard=hard, unclassified_pods=UnclassifiedPods.MOST_EXPENSIVE)
    document = pod(gpu_container(3))
    (denied,) = seen(document, {}, (), ledger=ledger)

    (edit,) = denied.finding.fix
    assert edit == Edit(annotation_path(CLASS), "nvidia-a10"), denied.finding.sentence()
    fixed = with_edit(document, path_parts(edit.path), edit.value)
    assert not seen(fixed, {}, (), ledger=ledger), "the class that is named takes the pod"


def test_no_class_is_named_whose_nodes_have_fewer_gpus_though_the_quota_has_room_for_none() -> None:
    ledger = quota_ledger(hard={GPUS: Fraction(8)}, unclassified_pods=UnclassifiedPods.DENY)
    found = seen(pod(gpu_container("12"), gpu_container("12")), {}, (), ledger=ledger)
    (denied,) = (each.finding for each in found if each.outcome is Outcome.DENIED)

    named = [edit.value for (edit,) in denied.choices]
    assert named
    per_node = [gpu_class.gpus_per_node for gpu_class in load_objects([]).classes.named(named)]
    assert all(most is None or most >= 24 for most in per_node), denied.sentence()

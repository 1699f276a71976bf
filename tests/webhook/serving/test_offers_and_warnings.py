"""What authors learn from the nodes and the quota: that no node can take a pod now, and what to write in place of a mistake."""

from collections.abc import Sequence
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import msgspec
import pytest

from policies.finding import Edit
from policies.placement.availability import NO_NODE
from policies.placement.named_nodes import Labels
from policies.placement.node_state import NodeState
from policies.placement.nodes import NodeOffer, node_facts
from policies.pods.field_paths import annotation_path, path_parts, with_edit
from policies.pods.pod import Toleration
from policies.quota.amounts import CLASSES, GPUS
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.quota_ledger import QuotaLedger
from tests.builders import JSON, container, deployment, gpu_container, pod, quota_ledger
from tests.cases import cases
from webhook.configuration.documents import Document
from webhook.configuration.loader import keys_to_know, load_objects
from webhook.evaluation.decision import Outcome, Violation
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.evaluator import Evaluator
from webhook.evaluation.facts import Facts
from webhook.quota.enforcer import ReadOnlyQuota
from webhook.tools.stored_objects import evaluate

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
CLASS = "gpu-admission.dev/gpu-class"
LIMIT = 'spec.containers[0].resources.limits[{}] (container "main") = "1": '
PENDING = "no schedulable node has {} now, but nvidia.com/gpu: the pod stays pending [gpu-requests]"
ZONE = "topology.kubernetes.io/zone"
T4: Labels = (("accelerator", "nvidia-t4"),)
A100: Labels = (("accelerator", "nvidia-a100-80gb"),)
RESERVED = Toleration(key="reserved", value="team-a", effect="NoSchedule")
GPU_TAINT = Toleration(key="nvidia.com/gpu", effect="NoSchedule")
NODE_1 = {"key": "metadata.name", "operator": "In", "values": ["node-1"]}
ON_NODE_1 = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [NODE_1]}]}
    }
}
Node = tuple[Labels, NodeState | None]


def node(
    labels: Labels,
    *resources: str,
    taints: tuple[Toleration, ...] = (),
    cordoned: bool = False,
    usable: bool = True,
    **amounts: int,
) -> Node:
    named = frozenset(resources or ("nvidia.com/gpu",))
    known = tuple((name, amounts["each"]) for name in sorted(named) if amounts)
    return labels, NodeState(not cordoned, taints, named, known, usable)


def on(gpu_class: str, **spec: Any) -> JSON:
    return pod(gpu_container(), annotations={CLASS: gpu_class}, **spec)


def seen(
    document: JSON,
    rules: JSON,
    nodes: Sequence[Node],
    pools: tuple[NodeOffer, ...] = (),
    ledger: QuotaLedger | None = None,
) -> list[Violation]:
    """Return what the author sees. Without nodes, they are not known."""
    configuration = load_objects([Document("GPUPolicy", "cluster-default", {"rules": rules})])
    facts = node_facts(keys_to_know(configuration), nodes, pools) if nodes else None
    quota = ReadOnlyQuota(ledger, configuration, is_unused=True)
    by = Evaluator(
        cache=DecisionCache(configuration),
        now=NOW,
        facts=Facts(nodes=lambda: facts),
        quota_of=lambda _: quota,
    )
    group = document["apiVersion"].rpartition("/")[0]
    found = evaluate(group, document["kind"], "team", msgspec.json.encode(document), by).findings()
    return [each for each in found if each.outcome is not Outcome.AUDITED]


def warned(document: JSON, *nodes: Node, pools: tuple[NodeOffer, ...] = (), **rules: JSON) -> list[str]:
    names = {name.replace("_", "-"): options for name, options in rules.items()}
    found = seen(document, names, nodes, pools)
    assert all(each.outcome is Outcome.WARNED for each in found)
    return [each.finding.sentence() for each in found]


def pending(resource: str, advice: str) -> list[str]:
    return [LIMIT.format(resource) + advice + PENDING.format(resource)]


ALL_CORDONED = (
    "class nvidia-a100-80gb: all its nodes are cordoned now, so the pod stays pending; "
    "or ask the platform team to uncordon one of them with nvidia.com/gpu [gpu-class]"
)
CORDONED = f"set {CLASS}: nvidia-t4; {ALL_CORDONED}"
UNTOLERATED = (
    "spec.tolerations: add {key: reserved, operator: Equal, value: team-a, effect: NoSchedule} if "
    "the pod may run there; each node with nvidia.com/gpu that the pod selects has a taint that it does not "
    "tolerate, such as reserved=team-a:NoSchedule, so the pod stays pending [gpu-toleration]"
)


@cases(
    ("document", "nodes", "want"),
    another_vendor_s_gpu=(
        pod(gpu_container(resource="amd.com/gpu")),
        [node(T4)],
        pending("amd.com/gpu", "request nvidia.com/gpu; "),
    ),
    a_slice_where_no_node_has_any=(
        pod(gpu_container(resource="nvidia.com/mig-1g.5gb")),
        [node(T4)],
        pending("nvidia.com/mig-1g.5gb", "request nvidia.com/gpu; "),
    ),
    the_only_node_that_has_it_is_cordoned=(
        pod(gpu_container(resource="amd.com/gpu")),
        [node(T4), node((), "amd.com/gpu", cordoned=True)],
        pending("amd.com/gpu", "request nvidia.com/gpu; "),
    ),
    a_class_of_cordoned_nodes=(
        on("nvidia-a100-80gb"),
        [node(T4), node(A100, cordoned=True), node(A100, cordoned=True)],
        [CORDONED],
    ),
    a_template_on_a_class_of_cordoned_nodes=(
        deployment("web", gpu_container(), annotations={CLASS: "nvidia-a100-80gb"}),
        [node(T4), node(A100, cordoned=True)],
        [CORDONED],
    ),
    a_class_whose_nodes_have_slices=(
        on("nvidia-a100-80gb"),
        [node(T4), node(A100, "nvidia.com/mig-1g.10gb")],
        [
            f"set {CLASS}: nvidia-t4; class nvidia-a100-80gb: no schedulable node of it has nvidia.com/gpu now, so the pod "
            "stays pending [gpu-class]"
        ],
    ),
    a_class_whose_nodes_have_no_device_and_no_others_either=(
        on("nvidia-a100-80gb"),
        [(A100, NodeState())],
        [
            "class nvidia-a100-80gb: no schedulable node of it has nvidia.com/gpu now, so the pod stays pending [gpu-class]"
        ],
    ),
    a_class_whose_nodes_have_neither_of_two_devices=(
        pod(
            gpu_container(),
            gpu_container(resource="nvidia.com/gpu.shared"),
            annotations={CLASS: "nvidia-a100-80gb"},
        ),
        [(A100, NodeState())],
        [
            "class nvidia-a100-80gb: no schedulable node of it has nvidia.com/gpu and nvidia.com/gpu.shared together now, so the "
            "pod stays pending [gpu-class]"
        ],
    ),
    gpu_nodes_on_which_no_device_plugin_runs=(
        pod(gpu_container(resource="amd.com/gpu")),
        [node(T4, "vpc.amazonaws.com/pod-eni")],
        [
            LIMIT.format("amd.com/gpu")
            + "no schedulable node has amd.com/gpu now: the pod stays pending [gpu-requests]"
        ],
    ),
    a_pod_that_names_its_node=(
        pod(gpu_container(resource="nvidia.com/gpu.shared"), affinity=ON_NODE_1),
        [node(T4)],
        pending("nvidia.com/gpu.shared", ""),
    ),
    a_taint_that_nothing_of_the_policy_tolerates=(
        pod(gpu_container()),
        [node(T4, taints=(GPU_TAINT, RESERVED))],
        [UNTOLERATED],
    ),
    a_template_on_tainted_nodes=(
        deployment("web", gpu_container(), annotations={CLASS: "nvidia-t4"}),
        [node(T4, taints=(RESERVED,)), node(A100)],
        [UNTOLERATED.removeprefix("spec.")],
    ),
)
def test_a_warning_says_why_no_node_takes_the_pod_now(
    document: JSON, nodes: list[Node], want: list[str]
) -> None:
    found = warned(document, *nodes)

    assert [each.removeprefix("spec.template: ") for each in found] == want


@cases(
    ("document", "nodes"),
    one_of_the_nodes_is_cordoned=(on("nvidia-a100-80gb"), [node(A100, cordoned=True), node(A100)]),
    a_resource_that_no_class_has=(
        pod(gpu_container(resource="google.com/tpu")),
        [node(T4), node((), "google.com/tpu")],
    ),
    the_usual_taint=(pod(gpu_container()), [node(T4, taints=(GPU_TAINT,))]),
    the_pod_tolerates_it=(
        pod(gpu_container(), tolerations=[{"key": "reserved", "operator": "Exists"}]),
        [node(T4, taints=(RESERVED,))],
    ),
    one_node_has_no_such_taint=(pod(gpu_container()), [node(T4, taints=(RESERVED,)), node(A100)]),
    the_state_of_a_node_is_not_known=(pod(gpu_container(resource="amd.com/gpu")), [node(T4), (A100, None)]),
    no_gpu_node_is_there_yet=(pod(gpu_container(resource="amd.com/gpu")), [node((), "vpc.amazonaws.com/pod-eni")]),
    memory_that_only_a_scheduler_counts=(
        pod({"name": "main", "resources": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}}}),
        [node(T4)],
    ),
    devices_of_a_dra_driver=(
        pod(gpu_container(resource="deviceclass.resource.kubernetes.io/gpu.nvidia.com")),
        [node(T4)],
    ),
    a_gated_pod=(
        pod(gpu_container(), schedulingGates=[{"name": "kueue.x-k8s.io/admission"}]),
        [node(T4, taints=(RESERVED,))],
    ),
    a_pod_without_gpu=(pod(), [node(T4, taints=(RESERVED,), cordoned=True)]),
)  # fmt: skip
def test_nothing_is_said_where_a_node_may_take_the_pod(document: JSON, nodes: list[Node]) -> None:
    assert warned(document, *nodes) == []


@cases(
    ("document", "node_there"),
    another_vendor_s_gpu=(pod(gpu_container(resource="amd.com/gpu")), node(T4)),
    a_class_of_cordoned_nodes=(on("nvidia-a100-80gb"), node(A100, cordoned=True)),
    a_tainted_class=(on("nvidia-a100-80gb"), node(A100, taints=(RESERVED,))),
)
def test_nothing_is_said_where_an_autoscaler_may_create_a_node(document: JSON, node_there: Node) -> None:
    nodes = (node(T4), node_there)

    assert warned(document, *nodes), "without an autoscaler"
    assert warned(document, *nodes, pools=(NodeOffer({}, ("accelerator",), "any"),)) == []
    created = {"autoscaledClasses": ["nvidia-a100-80gb", "amd-*"]}
    assert warned(document, *nodes, gpu_class=created) == []


@pytest.mark.parametrize("mode", ["audit", "disabled"])
def test_a_rule_that_is_not_enforced_says_no_more_than_its_mode(mode: str) -> None:
    assert warned(pod(gpu_container()), node(T4, taints=(RESERVED,)), gpu_toleration={"mode": mode}) == []


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
DEDICATED = {"key": "reserved", "operator": "Exists"}


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


POOL = NodeOffer({"accelerator": frozenset({"nvidia-h100-80gb"})}, pool="h100")
TAINTED_POOL = NodeOffer({"accelerator": frozenset({"nvidia-h100-80gb"})}, pool="h100", taints=(RESERVED,))


@cases(
    ("document", "pool", "want"),
    the_pool_adds_a_node=(on("nvidia-h100-80gb"), POOL, []),
    the_pool_makes_another_class=(
        on("nvidia-a100-80gb"),
        POOL,
        [f"set {CLASS}: nvidia-h100-80gb; {ALL_CORDONED}"],
    ),
    the_pod_does_not_tolerate_the_pool=(on("nvidia-h100-80gb"), TAINTED_POOL, [UNTOLERATED]),
    the_pod_tolerates_the_pool=(on("nvidia-h100-80gb", tolerations=[DEDICATED]), TAINTED_POOL, []),
)
def test_a_pool_at_zero_counts_for_pods_that_it_takes(
    document: JSON, pool: NodeOffer, want: list[str]
) -> None:
    assert warned(document, node(T4), node(A100, cordoned=True), pools=(pool,)) == want


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


def test_a_model_on_too_few_cards_is_told_how_many_of_those_there_are_hold_it() -> None:
    """The catalogue has a class that holds it on one card, but no node is of that class."""
    model = {"gpu-admission.dev/model-params": "70b"}
    nodes = (node(T4), node(A100))

    assert warned(pod(gpu_container(), annotations=model), *nodes) == [
        'metadata.annotations[gpu-admission.dev/model-params] = "70b": set nvidia.com/gpu: 4; should fit on nvidia-a100-80gb '
        "(80.0 GiB usable), the largest card of the nodes, or the pod stays pending: 70b bf16 serving needs 195.6 GiB by "
        "rule of thumb [gpu-class]"
    ]
    (found,) = seen(pod(gpu_container(), annotations=model), {}, nodes)
    assert found.finding.reason is NO_NODE
    assert warned(pod(gpu_container("4"), annotations=model), *nodes) == []


def test_a_warning_of_both_phases_is_shown_once_though_the_second_knows_who_pinned_the_pod() -> None:
    rules = {"gpu-class": {"default": "nvidia-l4"}, "gpu-requests": {"maxPerContainer": 2}}

    found = seen(pod(gpu_container("16")), rules, [node(A100)])

    assert [each.finding.message for each in found if each.finding.reason is NO_NODE] == [
        "class nvidia-l4: no node matches nodeSelector accelerator=nvidia-l4, so the pod stays pending"
    ]

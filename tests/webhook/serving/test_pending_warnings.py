"""Warnings that no node can take a pod now."""

import pytest

from policies.placement.availability import NO_NODE
from policies.placement.nodes import NodeGroup, NodeState
from tests.builders import JSON, deployment, gpu_container, pod
from tests.cases import cases
from tests.webhook.serving.authors_view import (
    A100,
    CLASS,
    DEDICATED,
    GPU_TAINT,
    LIMIT,
    ON_NODE_1,
    PENDING,
    RESERVED,
    T4,
    Node,
    node,
    on,
    seen,
    warned,
)


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
    assert warned(document, *nodes, pools=(NodeGroup({}, ("accelerator",), "any"),)) == []
    created = {"autoscaledClasses": ["nvidia-a100-80gb", "amd-*"]}
    assert warned(document, *nodes, gpu_class=created) == []


@pytest.mark.parametrize("mode", ["audit", "disabled"])
def test_a_rule_that_is_not_enforced_says_no_more_than_its_mode(mode: str) -> None:
    assert warned(pod(gpu_container()), node(T4, taints=(RESERVED,)), gpu_toleration={"mode": mode}) == []


POOL = NodeGroup({"accelerator": frozenset({"nvidia-h100-80gb"})}, pool="h100")
TAINTED_POOL = NodeGroup({"accelerator": frozenset({"nvidia-h100-80gb"})}, pool="h100", taints=(RESERVED,))


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
    document: JSON, pool: NodeGroup, want: list[str]
) -> None:
    assert warned(document, node(T4), node(A100, cordoned=True), pools=(pool,)) == want


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

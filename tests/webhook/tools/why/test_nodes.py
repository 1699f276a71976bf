"""What `why` says of nodes that no pod can be placed on, and which choices of a finding it keeps."""

from typing import Any

from msgspec.structs import replace

from policies.finding import Edit, Edits, Finding, separate_choices
from policies.placement.availability import NO_NODE
from policies.placement.class_advice import ClassAdvice
from policies.pods.pod import Pod
from tests.builders import JSON
from tests.cases import cases
from tests.webhook.tools.why.situations import RUNNING, fits, pod, situation, unschedulable
from webhook.tools.stored_pod import StoredPod
from webhook.tools.why.explanation import Awaited, NodeFit, Remedy
from webhook.tools.why.reasons import answer_of
from webhook.tools.why.tried_remedies import FitsAfter, RemainingSteps, cause_that_helps, nearest
from webhook.tools.why.unschedulable import UnschedulablePod

FULL = replace(fits("a", "has 0 of 8 free", remedy="wait for 4"), way=Remedy(awaits=(Awaited.ROOM,)))


def deployment(updated: int = 1, **strategy: Any) -> JSON:
    """Return a Deployment of one pod, which has a second one while it is updated."""
    return {
        "kind": "Deployment",
        "spec": {"replicas": 1, "strategy": strategy},
        "status": {"replicas": 2, "updatedReplicas": updated},
    }


@cases(
    ("given", "message", "remedy"),
    the_nearest_node=(
        {"nodes": [fits("a", "is cordoned", remedy="uncordon it"), fits("b", "is cordoned", "is not Ready")]},
        "none of the 2 nodes with GPUs can take it: Node a is cordoned",
        "uncordon it",
    ),
    the_only_node=(
        {"nodes": [fits("a", "is cordoned")], "classes": ["t4"]},
        "the only node of class t4 cannot take it: Node a is cordoned",
        "",
    ),
    all_that_is_against_it=(
        {"nodes": [fits("a", "is cordoned", "is not Ready", remedy="uncordon it")]},
        "the only node with GPUs cannot take it: Node a is cordoned, and is not Ready",
        "uncordon it",
    ),
    nodes_that_may_not_be_listed=(
        {"nodes": [fits("", "has 0 of 8 free", number=3)], "classes": ["t4"]},
        "none of the 3 nodes of class t4 can take it: the one with the most has 0 of 8 free",
        "",
    ),
    one_node_that_may_not_be_listed=(
        {"nodes": [fits("", "has 0 of 8 free")], "classes": ["t4"]},
        "the only node of class t4 cannot take it: it has 0 of 8 free",
        "",
    ),
    no_node_of_the_class=(
        {
            "nodes": [],
            "classes": ["nvidia-l4"],
            "other_classes": {"nvidia-t4": RemainingSteps()},
            "new_nodes": ClassAdvice(ask_contact="for nodes"),
        },
        "there is no node of class nvidia-l4 now",
        "name a class that has nodes (nvidia-t4), or ask the platform team for nodes",
    ),
    no_node_of_the_class_and_no_room_on_others=(
        {"nodes": [], "classes": ["nvidia-l4"], "other_classes": {"nvidia-t4": RemainingSteps("wait for 4")}},
        "there is no node of class nvidia-l4 now",
        "name a class that has nodes (nvidia-t4), and wait for 4",
    ),
    no_node_would_match=(
        {"nodes": [], "classes": ["nvidia-l4", "nvidia-t4"]},
        "there is no node of class nvidia-l4 or nvidia-t4 now",
        "",
    ),
    no_node_yet_of_a_class_that_an_autoscaler_adds=(
        {"nodes": [], "classes": ["nvidia-l4"], "node_source": "NodePool l4"},
        "there is no node of class nvidia-l4 now",
        "wait until NodePool l4 adds a node, or see in its log why it does not",
    ),
    full_nodes_beside_an_autoscaler=(
        {"nodes": [fits("a", "has 0 of 8 free", remedy="wait for 4")], "node_source": "the autoscaler"},
        "the only node with GPUs cannot take it: Node a has 0 of 8 free",
        "wait for 4, or wait until the autoscaler adds a node, or see in its log why it does not",
    ),
    an_update_that_would_wait_for_its_own_pods=(
        {"nodes": [FULL], "data": deployment()},
        "the only node with GPUs cannot take it: Node a has 0 of 8 free; its update ends no old pod before a new one is ready",
        "set type: Recreate (without rollingUpdate), or rollingUpdate.maxUnavailable: 1",
    ),
    an_update_that_ends_old_pods_first=(
        {"nodes": [FULL], "data": deployment(rollingUpdate={"maxUnavailable": 1})},
        "the only node with GPUs cannot take it: Node a has 0 of 8 free",
        "wait for 4",
    ),
    an_update_that_ends_all_old_pods=(
        {"nodes": [FULL], "data": deployment(type="Recreate")},
        "the only node with GPUs cannot take it: Node a has 0 of 8 free",
        "wait for 4",
    ),
    an_updated_deployment=(
        {"nodes": [FULL], "data": deployment(updated=2)},
        "the only node with GPUs cannot take it: Node a has 0 of 8 free",
        "wait for 4",
    ),
    no_gpu_node=(
        {"nodes": [], "new_nodes": ClassAdvice(ask_contact="for nodes")},
        "there is no GPU node now",
        "ask the platform team for nodes",
    ),
)
def test_the_nodes(given: JSON, message: str, remedy: str) -> None:
    _, _, (_, reason) = answer_of(situation(pods=[unschedulable("train-0")], **given))
    assert (reason.message, reason.remedy) == (message, remedy)


@cases("nodes", forbidden=None, one_fits=[fits("a", "is cordoned"), fits("b")])
def test_nothing_is_said_of_nodes_that_may_fit(nodes: list[NodeFit] | None) -> None:
    _, _, reasons = answer_of(situation(pods=[unschedulable("train-0")], nodes=nodes))
    assert [each.source.value for each in reasons] == ["scheduler"]


@cases(
    ("nodes", "want"),
    forbidden=(None, ["a node has free GPUs for it, but another pod has its host ports"]),
    one_fits=(
        [fits("a", "is cordoned"), fits("b")],
        ["Node b has free GPUs for it, but another pod has its host ports"],
    ),
    none_fits=([fits("a", "is cordoned")], ["the only node with GPUs cannot take it: Node a is cordoned"]),
)
def test_what_the_scheduler_says_of_a_node_that_fits(nodes: list[NodeFit] | None, want: list[str]) -> None:
    words = "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports"
    unscheduled = UnschedulablePod(words, Pod(), ("nvidia.com/gpu",), "#gpus")
    pods = [unschedulable("train-0", words)]
    _, _, (_, *reasons) = answer_of(situation(pods=pods, nodes=nodes, unscheduled=unscheduled))
    assert [each.message for each in reasons] == want


@cases(
    ("pods", "want"),
    one_finds_no_node=([pod("a", spec={"nodeName": "t4-0"}), unschedulable("b")], "b"),
    one_does_not_start=([RUNNING, pod("a", spec={"nodeName": "t4-0"})], "a"),
    none=([RUNNING, pod("a", phase="Succeeded")], None),
)
def test_the_pod_with_which_nodes_are_compared(pods: list[StoredPod], want: str | None) -> None:
    stuck = situation(pods=pods).stuck
    assert (stuck.metadata.name if stuck else None) == want


T4 = Edit("spec.nodeSelector[accelerator]", "nvidia-t4")
L4 = Edit("spec.nodeSelector[accelerator]", "nvidia-l4")
SMALLER = Edit("spec.containers[0].resources.limits[nvidia.com/gpu]", 1)
FREE = NodeFit(name="a", kind="t4", free={}, allocatable={})
FULL = replace(
    FREE,
    against=("has 0 of 8 free",),
    remedy="wait until 1 GPU is free",
    way=Remedy(awaits=(Awaited.ROOM,)),
)
TOO_SMALL = replace(FREE, against=("has 1 of 2",), remedy="request 1 GPU", way=Remedy(edits=(SMALLER,)))


@cases(
    ("after", "remedy"),
    runs_at_once=(FitsAfter([FREE]), "set accelerator: nvidia-t4"),
    a_full_node=(FitsAfter([FULL]), "set accelerator: nvidia-t4, and wait until 1 GPU is free"),
    an_autoscaler=(
        FitsAfter([], adds="NodePool t4"),
        "set accelerator: nvidia-t4, and wait until NodePool t4 adds a node",
    ),
)
def test_a_choice_says_what_the_pod_then_waits_for(after: FitsAfter, remedy: str) -> None:
    finding = Finding(reason=NO_NODE, message="no node has class nvidia-l4", choices=separate_choices(T4, L4))

    def tried(edits: Edits) -> FitsAfter | None:
        return after if edits == (T4,) else None

    assert cause_that_helps(finding, tried).remedy == remedy


def test_a_node_says_what_to_write_and_what_the_pod_then_waits_for() -> None:
    nodes = nearest([TOO_SMALL], lambda _: FitsAfter([FULL]))
    assert [node.remedy for node in nodes] == ["request 1 GPU, and wait until 1 GPU is free"]

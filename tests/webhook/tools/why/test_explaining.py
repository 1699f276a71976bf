"""What is read of a cluster to explain an object, and what the object itself says; on a real API server: tests/cluster/why/."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.builders import JSON, gpu_container, manifest
from tests.cases import cases
from tests.webhook.cluster.apiserver import status
from tests.webhook.commands.checked_cluster import POLICIES, policy
from tests.webhook.tools.why.situations import explained
from webhook.tools.why.explanation import Answer

NOW = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)
SCALED = {
    "manager": "kubectl-scale",
    "time": "2026-11-22T08:00:00Z",
    "fieldsV1": {"f:spec": {"f:replicas": {}}},
}


@cases(
    ("kind", "spec", "more", "summary"),
    scaled_to_zero=(
        "Deployment",
        {"replicas": 0},
        {"metadata": {"managedFields": [SCALED]}},
        "scaled to zero: spec.replicas is 0, written by kubectl-scale at 08:00 UTC",
    ),
    a_daemon_set_that_matches_no_node=(
        "DaemonSet",
        {},
        {"status": {"desiredNumberScheduled": 0}},
        "no node matches its pods: status.desiredNumberScheduled is 0",
    ),
    a_job_with_all_its_completions=(
        "Job",
        {"completions": 1, "parallelism": 1},
        {"status": {"succeeded": 1}},
        "as it is written, it makes no pods",
    ),
)
def test_why_an_object_makes_no_pods(tmp_path: Path, kind: str, spec: JSON, more: JSON, summary: str) -> None:
    found = explained(tmp_path, kind, spec, more)

    assert found.summary == summary
    assert found.answer is Answer.STOPPED


def test_what_a_limit_range_gives_is_explained(tmp_path: Path) -> None:
    giving = {
        "metadata": {"name": "gpus", "namespace": "ml"},
        "spec": {"limits": [{"type": "Container", "default": {"nvidia.com/gpu": "2"}}]},
    }
    found = explained(tmp_path, "Deployment", {}, {}, **{"/api/v1/namespaces/ml/limitranges": [giving]})

    assert found.requested == {"nvidia.com/gpu": 2}
    assert (
        'containers[0].resources.limits[nvidia.com/gpu] (container "main") = "2": '
        "set nvidia.com/gpu: 0 in resources.limits if it needs none; "
        "LimitRange gpus gives nvidia.com/gpu: 2 to each container that requests none [gpu-requests]"
    ) in [each.sentence for each in found.verdicts]


POOL = {
    "metadata": {"name": "l4", "uid": "p"},
    "spec": {
        "template": {"metadata": {"labels": {"accelerator": "nvidia-l4"}}, "spec": {"requirements": []}}
    },
}
OTHER_POOL = {**POOL, "spec": {"template": {"spec": {"taints": [{"key": "own", "effect": "NoSchedule"}]}}}}
KARPENTER = {"/apis/karpenter.sh": {"versions": [{"version": "v1"}]}}
ON_DEMAND = policy({"namespaces": ["*"]}, **{"gpu-class": {"autoscaledClasses": ["nvidia-l4"]}})
NO_NODE_OF_L4 = "there is no node of class nvidia-l4 now"


@cases(
    ("objects", "want"),
    by_a_pool=(
        {**KARPENTER, "/apis/karpenter.sh/v1/nodepools": [POOL]},
        "wait until NodePool l4 adds a node, or see in its log why it does not",
    ),
    by_the_policy=(
        {POLICIES: [ON_DEMAND]},
        "wait until the autoscaler adds a node, or see in its log why it does not",
    ),
    by_nothing=(
        {**KARPENTER, "/apis/karpenter.sh/v1/nodepools": [OTHER_POOL]},
        "ask the platform team for nodes, or to name nvidia-l4 in gpu-class.autoscaledClasses if an autoscaler adds them",
    ),
)
def test_what_adds_a_node_for_a_pod_that_finds_none(
    tmp_path: Path, objects: dict[str, Any], want: str
) -> None:
    spec = {
        "containers": [gpu_container()],
        "nodeSelector": {"accelerator": "nvidia-l4"},
        "schedulerName": "default-scheduler",
    }
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}
    found_none = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/0 nodes",
    }
    stuck = manifest("v1", "Pod", "train-0", spec, namespace="ml", ownerReferences=[owner], uid="x")
    stuck["status"] = {"phase": "Pending", "conditions": [found_none]}
    listed = {"/api/v1/namespaces/ml/pods": [stuck], "/api/v1/namespaces/ml/pods/train-0": stuck}

    found = explained(tmp_path, "Job", {}, {}, **listed, **objects)

    assert (NO_NODE_OF_L4, want) in [(each.message, each.remedy) for each in found.reasons]


def test_a_pod_says_what_its_gates_wait_for(tmp_path: Path) -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}
    gated = manifest(
        "v1", "Pod", "train-0", {"containers": [], "schedulingGates": [{"name": "a/b"}]}, namespace="ml"
    )
    gated["metadata"] |= {"ownerReferences": [owner], "creationTimestamp": "2026-11-22T08:00:00Z"}
    gated["status"] = {"phase": "Pending"}

    listed = "/api/v1/namespaces/ml/pods"
    (state,) = explained(tmp_path, "Job", {}, {}, **{listed: [gated], f"{listed}/train-0": gated}).pods

    assert state.reason == "waits for a/b"


def test_what_may_not_be_read_is_named(tmp_path: Path) -> None:
    forbidden = {
        f"/api/v1/namespaces/ml/{plural}": status(403, "no", "Forbidden") for plural in ("events", "pods")
    }

    found = explained(tmp_path, "Deployment", {"replicas": 1}, {}, **forbidden)

    assert found.omitted == ("list events -n ml", "list pods -n ml")

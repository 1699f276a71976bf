"""What a scan knows and counts where its caller may not read everything; on a real API server: tests/cluster/scan/."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from policies.quota.waiting import GATE
from tests.builders import gpu_container, uid
from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, answering, status
from tests.webhook.tools.doctor.objects import POLICIES, stored
from tests.webhook.tools.status.stored import allocated, cluster_with
from webhook.configuration.loader import load_directory
from webhook.quota.team_documents import team_path
from webhook.tools.scan.scanning import ClusterFacts, Scan, _unread_remarks
from webhook.tools.scan.tally import Tally
from webhook.tools.status.tolerant_reader import TolerantReader

NODE = {"metadata": {"name": "l4-0", "uid": "n", "labels": {"accelerator": "nvidia-l4"}}}


def pod(name: str, resource: str = "nvidia.com/gpu", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": uid(name)},
        "spec": {"nodeName": "l4-0", "containers": [gpu_container("2", resource=resource)], **spec},
    }


@cases(
    ("stored", "may_list_nodes", "gpus", "classes"),
    the_node_decides=(pod("a"), True, "2", {"nvidia-l4": "2"}),
    an_unknown_node_decides_nothing=(pod("a"), False, "2", {}),
    but_a_class_that_the_pod_pins=(
        pod("a", nodeSelector={"accelerator": "nvidia-t4"}), False, "2", {"nvidia-t4": "2"},
    ),
    the_largest_part_of_a_slice=(pod("a", "nvidia.com/mig-1g.10gb"), False, "1/2", {}),
)  # fmt: skip
def test_what_pods_of_a_namespace_hold(
    tmp_path: Path, stored: dict[str, Any], may_list_nodes: bool, gpus: str, classes: dict[str, str]
) -> None:
    objects: dict[str, Any] = {
        "/api": [],
        "/apis": [],
        "/api/v1/namespaces/ml/pods": [stored],
        "/api/v1/nodes": [NODE] if may_list_nodes else status(403, "no", "Forbidden"),
    }
    with ApiServer(tmp_path, answering(objects)) as server:
        now = datetime(2026, 11, 21, tzinfo=UTC)
        (use,) = Scan(server.client(), now=now, namespace="ml").report(verify_proposal=False).namespaces

    held = {name: str(amount) for name, amount in use.classes.items()}
    assert (str(use.gpus), held) == (gpus, classes)


@cases(
    ("claim", "gpus", "proposed"),
    it_has_a_slice=(allocated("gpu-0-mig-1g10gb-0"), "1/7", 1),
    it_has_a_card=(allocated("gpu-0", request="gpu/large"), "1", 2),
    it_has_nothing_yet=(allocated(), "1", 2),
    it_has_a_device_that_no_slice_lists=(allocated("gone"), "1", 2),
    other_pods_may_use_it=(allocated("gpu-0-mig-1g10gb-0", made_for_pod=False), "1", 2),
)
def test_claims_hold_what_they_have(tmp_path: Path, claim: dict[str, Any], gpus: str, proposed: int) -> None:
    """As the proposed quotas count them. Nothing is installed, so no kinds of devices are published."""
    with ApiServer(tmp_path, cluster_with(claim)) as server:
        now = datetime(2026, 11, 21, tzinfo=UTC)
        report = Scan(server.client(), now=now, namespace="ml").report(verify_proposal=False)

    assert [str(use.gpus) for use in report.namespaces] == [gpus]
    assert report.proposal.quotas == {"ml": proposed}


TEAM = {
    "metadata": {"name": "team-ml", "uid": "t", "generation": 1},
    "spec": {
        "namespaces": {"selector": {"matchLabels": {"team": "ml"}}},
        "hard": {"gpus": 9},
        "guaranteed": {"ml-prod": {"gpus": 6}},
    },
}


@cases(
    ("labels", "want"),
    of_a_team_what_it_leaves=({"team": "ml"}, 3),
    of_no_team_what_it_holds_and_its_largest_pod=({}, 4),
)
def test_a_proposal_counts_no_pod_that_waits(tmp_path: Path, labels: dict[str, str], want: int) -> None:
    waiting = pod("b", schedulingGates=[{"name": GATE}])
    objects: dict[str, Any] = {
        "/api": [],
        "/apis": [],
        "/api/v1/namespaces/ml": {"metadata": {"name": "ml", "labels": labels}},
        "/api/v1/namespaces/ml/pods": [pod("a"), waiting],
        "/api/v1/nodes": [NODE],
        team_path(): [TEAM],
    }
    with ApiServer(tmp_path, answering(objects)) as server:
        now = datetime(2026, 11, 21, tzinfo=UTC)
        found = Scan(server.client(), now=now, namespace="ml").report(verify_proposal=False)

    assert found.proposal.quotas == {"ml": want}
    assert found.source == "the built-in defaults"


T4_NODE = {"metadata": {"name": "a", "uid": "u", "labels": {"accelerator": "nvidia-t4"}}}
POOL = {
    "metadata": {"name": "spot"},
    "spec": {"template": {"metadata": {"labels": {"accelerator": "nvidia-l4"}}}},
}

LISTED: dict[str, Any] = {
    "/api": [],
    "/apis": [],
    "/api/v1/namespaces/ml": {"metadata": {"name": "ml"}},
    "/api/v1/namespaces/ml/pods": [],
    "/api/v1/nodes": [NODE],
}


@cases(
    ("forbidden", "knows_nodes", "knows_all", "omitted"),
    everything_may_be_listed=("", True, True, []),
    without_the_pools=("nodepools", True, False, ["list nodepools.karpenter.sh"]),
    without_the_nodes=("nodes", False, False, ["list nodes"]),
)
def test_nodes_and_pools(
    tmp_path: Path, forbidden: str, knows_nodes: bool, knows_all: bool, omitted: list[str]
) -> None:
    """No pod is said to fit nowhere unless nodes and pools are known; a node that is known has its labels."""
    objects: dict[str, Any] = {
        "/api/v1/nodes": [T4_NODE],
        "/apis/karpenter.sh": {"versions": [{"version": "v1"}]},
        "/apis/karpenter.sh/v1/nodepools": [POOL],
    }
    objects |= {path: status(403, "no", "Forbidden") for path in objects if path.endswith(f"/{forbidden}")}
    with ApiServer(tmp_path, answering(objects)) as server:
        reader = TolerantReader(server.client())
        by = ClusterFacts(reader, "").evaluator(load_directory(None), datetime(2026, 11, 21, tzinfo=UTC))

    found = by.facts.named_nodes().find(("metadata.name", "a"))
    assert found == ({(("accelerator", "nvidia-t4"),)} if knows_nodes else frozenset())
    nodes = by.facts.nodes()
    assert (nodes is not None) is knows_all
    if nodes is not None:
        assert nodes.label_sets == {(("accelerator", "nvidia-t4"),)}
        assert [dict(pool.labels)["accelerator"] for pool in nodes.pools] == [frozenset({"nvidia-l4"})]
    assert reader.omitted == omitted


@cases(
    ("namespace", "path", "want"),
    of_all_namespaces=("", "/api/v1/namespaces", "list namespaces"),
    of_one=("ml", "/api/v1/namespaces/ml", "get namespaces/ml"),
)
def test_labels_that_may_not_be_read(tmp_path: Path, namespace: str, path: str, want: str) -> None:
    with ApiServer(tmp_path, answering({path: status(403, "no", "Forbidden")})) as server:
        reader = TolerantReader(server.client())

        assert ClusterFacts(reader, namespace).labels == {}

    (omitted,) = reader.omitted
    assert omitted == want


@cases(
    ("path", "want"),
    nodes=("/api/v1/nodes", "list nodes"),
    pods=("/api/v1/namespaces/ml/pods", "list pods -n ml"),
    quotas=(
        "/apis/gpu-admission.dev/v1alpha1/namespaces/ml/gpuquotas",
        "list gpuquotas.gpu-admission.dev",
    ),
)
def test_what_may_not_be_listed_is_named(tmp_path: Path, path: str, want: str) -> None:
    objects = {**LISTED, path: status(403, "no", "Forbidden")}
    with ApiServer(tmp_path, answering(objects)) as server:
        found = Scan(server.client(), now=datetime(2026, 11, 21, tzinfo=UTC), namespace="ml").report(
            verify_proposal=False
        )

    assert found.omitted == (want,)


GIVING = {
    "metadata": {"name": "gpus", "namespace": "ml"},
    "spec": {"limits": [{"type": "Container", "default": {"nvidia.com/gpu": "1"}}]},
}


def test_a_limit_range_that_gives_gpus_is_part_of_what_is_scanned(tmp_path: Path) -> None:
    limit_ranges = "/api/v1/namespaces/ml/limitranges"
    with ApiServer(tmp_path, answering({**LISTED, limit_ranges: [GIVING]})) as server:
        now = datetime(2026, 11, 21, tzinfo=UTC)
        found = Scan(server.client(), now=now, namespace="ml").report(verify_proposal=False)
        asked = [each.path for each in server.requests if "limitranges" in each.path]

    assert [(each.subject, each.message, each.remedy) for each in found.limit_ranges] == [
        (
            "LimitRange/gpus in ml",
            "spec.limits[0].default[nvidia.com/gpu]: each container that requests none gets it, also sidecars and init "
            "containers",
            "set default[nvidia.com/gpu] and defaultRequest[nvidia.com/gpu] to 0",
        )
    ]
    assert limit_ranges in asked


def test_progress_is_said_every_500_pods(tmp_path: Path) -> None:
    said: list[str] = []
    objects = {**LISTED, "/api/v1/namespaces/ml/pods": [pod(f"a-{number}") for number in range(500)]}
    with ApiServer(tmp_path, answering(objects)) as server:
        now = datetime(2026, 11, 21, tzinfo=UTC)
        Scan(server.client(), now=now, namespace="ml", progress=said.append).report(verify_proposal=False)

    assert said == ["pods", "pods: 500", "nodes"]


def test_objects_that_no_rule_can_read() -> None:
    tally = Tally()
    tally.unknown_kinds["kubeflow.org", "TFJob"] = 2
    tally.unreadable["ml/Pod/a"] = "Expected `object`, got `null`"

    tally.unknown_kinds["", "Node"] = 1
    kind, of_core, unreadable = _unread_remarks(tally)

    assert kind.subject == "Kind TFJob.kubeflow.org"
    assert kind.message == (
        "makes 2 of the GPU pods, and no rule reads its objects: mistakes in them show only in the pods"
    )
    assert kind.remedy == "name the paths of its pod templates in workloadKinds of a GPUResourceMapping"
    assert of_core.subject == "Kind Node"
    assert unreadable.message == "could not be read: Expected `object`, got `null`"


def test_the_documents_of_the_cluster_are_those_that_are_tried(tmp_path: Path) -> None:
    pods, namespace = "/api/v1/namespaces/ml/pods", {"metadata": {"name": "ml"}}
    objects = {"/api": [], "/apis": [], "/api/v1/nodes": [], pods: [], "/api/v1/namespaces/ml": namespace}
    with ApiServer(tmp_path, answering({**objects, POLICIES: [stored({"priority": 1})]})) as server:
        scan = Scan(server.client(), now=datetime(2026, 11, 21, tzinfo=UTC), namespace="ml")
        found = scan.report(verify_proposal=False)

    assert found.source == "the cluster's documents"


def served(group: str, **kinds: str) -> dict[str, Any]:
    resources = [
        {"resource": plural, "responseKind": {"kind": kind}, "scope": "Namespaced"}
        for kind, plural in kinds.items()
    ]
    return {"metadata": {"name": group}, "versions": [{"version": "v1", "resources": resources}]}


def budget(app: str, *, expected: int = 2, seen: int = 1, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "a", "namespace": "ml", "generation": 1},
        "spec": {"selector": {"matchLabels": {"app": app}}, **spec},
        "status": {"expectedPods": expected, "observedGeneration": seen},
    }


TEMPLATE = {"metadata": {"labels": {"app": "chat"}}, "spec": {"containers": [gpu_container("1")]}}
SERVER = {"metadata": {"name": "chat", "namespace": "ml"}, "spec": {"replicas": 2, "template": TEMPLATE}}
BROKEN = {"metadata": {"name": "b", "namespace": "ml"}, "spec": {"template": {"spec": 1}}}


@cases(
    ("stored", "want"),
    none_may_go=(budget("chat", maxUnavailable=0), "spec.maxUnavailable"),
    one_may_go=(budget("chat", maxUnavailable=1), None),
    it_selects_none=(budget("web", expected=0, maxUnavailable=1), "spec.selector"),
    it_selects_pods_of_something_else=(budget("web", maxUnavailable=1), None),
    it_was_changed_since=(budget("web", expected=0, seen=0, maxUnavailable=1), None),
    unreadable=(budget("chat", maxUnavailable=[]), None),
)
def test_budgets_beside_servers(tmp_path: Path, stored: dict[str, Any], want: str | None) -> None:
    objects: dict[str, Any] = {
        **LISTED,
        "/apis": [
            served("apps", Deployment="deployments"),
            served("policy", PodDisruptionBudget="poddisruptionbudgets"),
        ],
        "/apis/apps/v1/namespaces/ml/deployments": [SERVER, BROKEN],
        "/apis/policy/v1/namespaces/ml/poddisruptionbudgets": [stored],
    }
    with ApiServer(tmp_path, answering(objects)) as server:
        found = Scan(server.client(), now=datetime(2026, 11, 21, tzinfo=UTC), namespace="ml").report(
            verify_proposal=False
        )

    said = [each for each in found.problems if each.rule == "disruption"]
    assert [(each.owner, each.sentence.partition(" ")[0].rstrip(":")) for each in said] == (
        [("PodDisruptionBudget/a", want)] if want else []
    )


RUN = {
    "apiVersion": "tekton.dev/v1",
    "kind": "TaskRun",
    "metadata": {"name": "a", "namespace": "ml"},
    "spec": {"taskRef": {"name": "train"}},
}
STEP = {"name": "train", "computeResources": {"limits": {"nvidia.com/gpu": 1}}}
TASK = {"metadata": {"name": "train", "namespace": "ml"}, "spec": {"steps": [STEP]}}


@cases(
    ("run", "task", "want"),
    of_a_task_with_gpus=(
        RUN, TASK,
        ["spec.taskRef.name: the GPUs of train are read only in the pods that the controller creates [workloads]"],
    ),
    of_a_task_without_gpus=(RUN, {**TASK, "spec": {"steps": [{"name": "train"}]}}, []),
    of_a_task_that_may_not_be_read=(
        RUN, status(403, "no", "Forbidden"),
        [
            'spec.taskRef.name = "train": apply the Task first, or check both together; names a Task that is not known here, nor '
            "are its GPUs [workloads]"
        ],
    ),
    that_has_ended=({**RUN, "status": {"completionTime": "2026-11-20T00:00:00Z"}}, TASK, []),
)  # fmt: skip
def test_a_run_and_the_task_that_it_names(
    tmp_path: Path, run: dict[str, Any], task: Any, want: list[str]
) -> None:
    objects: dict[str, Any] = {
        **LISTED,
        "/apis": [served("tekton.dev", TaskRun="taskruns")],
        "/apis/tekton.dev/v1/namespaces/ml/taskruns": [run],
        "/apis/tekton.dev/v1/namespaces/ml/tasks/train": task,
    }
    with ApiServer(tmp_path, answering(objects)) as server:
        found = Scan(server.client(), now=datetime(2026, 11, 21, tzinfo=UTC), namespace="ml").report(
            verify_proposal=False
        )

    assert [each.sentence for each in found.problems] == want

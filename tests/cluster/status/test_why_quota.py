"""What `why` says of a full quota is what apply said; and its list of a namespace. On a real API server with controllers."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.builders import JSON, gpu_container
from tests.cases import cases
from tests.cluster.controllers import eventually, shows
from tests.cluster.status.conftest import apply, on, replicated, workload
from tests.cluster.test_workload_kinds import CRDS, install
from tests.controlplane import Client, ControlPlane
from tests.controlplane.gpuquota import Namespace
from webhook.commands import main

T4 = on("nvidia-t4")
UPDATES, JOBS, GANGS, QUIET = "updates", "jobs", "gangs", "quiet"
NEVER = (
    "2 pods that must run together need 16 GPUs, which can never fit: the GPUQuota of gangs grants 8 in all"
)


def why(plane: ControlPlane, *arguments: str, columns: int = 0) -> Result:
    env = {"COLUMNS": str(columns)} if columns else {}
    return CliRunner(env=env).invoke(main, ["why", *arguments, "--kubeconfig", str(plane.kubeconfig())])


def explained(plane: ControlPlane, namespace: str, name: str) -> Any:
    return json.loads(why(plane, name, "-n", namespace, "-o", "json").stdout)


@pytest.fixture(scope="module")
def full(cluster: ControlPlane) -> Iterator[ControlPlane]:
    """Three namespaces whose quotas are held by the very workloads that lack pods."""
    client = cluster.client()
    install(client, "kubeflow.org", "v1", "PyTorchJob")
    Namespace(cluster, QUIET)
    teams = {name: Namespace(cluster, name) for name in (UPDATES, JOBS, GANGS)}
    for (name, team), gpus in zip(teams.items(), (2, 2, 8), strict=True):
        team.quota({"gpus": str(gpus)})
        assert shows(team, 0), name
    _updated(cluster, teams[UPDATES])
    pod = {"restartPolicy": "Never", "containers": [gpu_container("1", "pytorch")], **T4}
    spec = {"parallelism": 3, "completions": 3, "template": {"spec": pod}}
    apply(client, JOBS, workload("Job", "sweep", spec))
    _gang(cluster, teams[GANGS])
    yield cluster
    client.delete(f"{CRDS}/pytorchjobs.kubeflow.org")


def _updated(plane: ControlPlane, team: Namespace) -> None:
    """Run both pods of a Deployment, then change it: a new pod must start beside them."""
    client = plane.client()
    apply(client, UPDATES, replicated("chat", "Deployment", gpu_container("1", "pytorch"), 2, **T4))
    assert shows(team, 2)
    started = {"name": "main", "ready": True, "state": {"running": {"startedAt": "2026-11-22T08:00:00Z"}}}
    ready = {"type": "Ready", "status": "True"}
    status = {"phase": "Running", "conditions": [ready], "containerStatuses": [started]}
    for pod in client.get(team.path("pods"))[1]["items"]:
        path = team.path("pods", pod["metadata"]["name"])
        assert eventually(partial(_is_bound, client, path), seconds=30)
        assert client.patch(f"{path}/status", {"status": status})[0] == 200
    deployment = "/apis/apps/v1/namespaces/updates/deployments/chat"
    assert eventually(lambda: client.get(deployment)[1]["status"].get("availableReplicas") == 2, seconds=30)
    change = {"spec": {"template": {"metadata": {"annotations": {"example.com/version": "2"}}}}}
    assert client.patch(deployment, change)[0] == 200


def _is_bound(client: Client, path: str) -> bool:
    return bool(client.get(path)[1]["spec"].get("nodeName"))


def _gang(plane: ControlPlane, team: Namespace) -> None:
    """Store a PyTorchJob of 16 GPUs, and one of its two pods as its operator would."""
    template = {"spec": {"containers": [gpu_container("8", "pytorch")], **T4}}
    replicas = {name: {"replicas": 1, "template": template} for name in ("Master", "Worker")}
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "train"},
        "spec": {"pytorchReplicaSpecs": replicas},
    }
    status, stored = plane.client().post("/apis/kubeflow.org/v1/namespaces/gangs/pytorchjobs", job)
    assert status == 201, stored
    owner = {key: job[key] for key in ("apiVersion", "kind")} | {"name": "train", "controller": True}
    owner["uid"] = stored["metadata"]["uid"]
    team.pod("train-master-0", 8, metadata={"ownerReferences": [owner]}, **T4)
    assert shows(team, 8)


def quota_cause(found: Any) -> JSON:
    return next((each for each in found["reasons"] if each["source"] == "quota"), {})


@cases(
    ("namespace", "name", "summary", "message", "remedy", "reason"),
    a_rolling_update_that_waits_for_its_own_pods=(
        UPDATES,
        "deploy/chat",
        "2 of 2 pods run, 2 of them not updated",
        "spec.strategy: an update needs 1 GPU for a pod beside the others, and will not finish: updates will have "
        "0 of 2 free [gpu-quota]",
        "set type: Recreate, or rollingUpdate.maxUnavailable: 1, or replicas: 1",
        "QuotaExceeded",
    ),
    a_gang_larger_than_the_quota=(
        GANGS,
        "pytorchjob/train",
        "0 of 2 pods run",
        f"{NEVER} [gpu-quota]",
        "ask the platform team to raise spec.hard.gpus",
        "QuotaCanNeverFit",
    ),
    a_job_of_which_a_part_runs=(
        JOBS,
        "job/sweep",
        "0 of 3 pods run",
        "spec.parallelism: needs 3 GPUs, which can never fit: the GPUQuota of jobs grants 2 in all; 2 of 3 pods "
        "will start [gpu-quota]",
        "set parallelism: 2, or ask the platform team to raise spec.hard.gpus",
        "QuotaCanNeverFit",
    ),
)
def test_why_says_what_apply_said(
    full: ControlPlane, namespace: str, name: str, summary: str, message: str, remedy: str, reason: str
) -> None:
    want = {"source": "quota", "message": message, "remedy": remedy, "reason": reason}
    eventually(lambda: quota_cause(explained(full, namespace, name)) == want, seconds=30)

    found = explained(full, namespace, name)
    assert quota_cause(found) == want
    assert (found["answer"], found["summary"].partition(":")[0]) == ("refused", summary)


def test_the_replica_set_of_a_stuck_update_is_told_what_its_deployment_is(full: ControlPlane) -> None:
    sets = "/apis/apps/v1/namespaces/updates/replicasets"
    reported = quota_cause(explained(full, UPDATES, "deploy/chat"))

    new = next(each for each in full.client().get(sets)[1]["items"] if not each["status"]["replicas"])
    assert quota_cause(explained(full, UPDATES, f"rs/{new['metadata']['name']}")) == reported


def test_without_a_name_what_is_denied_or_pending_is_listed(full: ControlPlane) -> None:
    def listed(namespace: str) -> Any:
        return json.loads(why(full, "-n", namespace, "-o", "json").stdout)

    assert eventually(lambda: listed(UPDATES)["problems"] and listed(JOBS)["problems"], seconds=30)
    (problem,) = listed(UPDATES)["problems"]
    assert (problem["answer"], problem["owner"]) == ("refused", "Deployment/chat")
    assert "maxUnavailable: 1" in problem["message"]
    assert listed(UPDATES)["since"] == problem["first"] <= problem["last"]

    shown = why(full, "-n", JOBS, columns=80)
    assert shown.exit_code == 1
    assert "jobs: 1 problem, denials seen since 20" in shown.output
    assert "\n  Job/sweep: denied " in shown.output
    assert max(map(len, shown.output.splitlines())) <= 80
    quiet = why(full, "-n", QUIET)
    assert (quiet.exit_code, quiet.output) == (
        0,
        "quiet: nothing is denied, or pending for longer than a minute\n",
    )

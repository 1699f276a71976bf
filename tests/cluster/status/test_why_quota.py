"""What `why` says of a full quota is what apply said; and its list of a namespace. On a real API server with controllers."""

import json
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.builders import JSON, gpu_container
from tests.cases import cases
from tests.cluster.controllers import eventually, shows
from tests.cluster.status.conftest import MIG, TAINT, apply, on, replicated, workload
from tests.cluster.workload_kinds import install
from tests.controlplane import Client, ControlPlane, create_gpu_node
from tests.controlplane.gpuquota import Namespace
from webhook.commands import main

T4, AT = on("nvidia-t4"), r"[\d: -]+ UTC"
UPDATES, JOBS, GANGS, REPLACED, QUIET = "updates", "jobs", "gangs", "replaced", "quiet"
NEVER = (
    "2 pods that must run together need 16 GPUs, which can never fit: the GPUQuota of gangs grants 8 in all"
)


def why(plane: ControlPlane, *arguments: str, columns: int = 0) -> Result:
    env = {"COLUMNS": str(columns) if columns else None}
    return CliRunner(env=env).invoke(main, ["why", *arguments, "--kubeconfig", str(plane.kubeconfig())])


def explained(plane: ControlPlane, namespace: str, name: str) -> Any:
    return json.loads(why(plane, name, "-n", namespace, "-o", "json").stdout)


@pytest.fixture(scope="module")
def full(cluster: ControlPlane) -> Iterator[ControlPlane]:
    """Namespaces whose quotas are held by the very workloads that lack pods, and one where nothing runs."""
    client = cluster.client()
    t4 = {"nvidia.com/gpu": "4"}
    create_gpu_node(client, "t4-1", labels=T4["nodeSelector"], taints=(TAINT,), resources=t4)
    install(client, "kubeflow.org", "v1", "PyTorchJob")
    Namespace(cluster, QUIET)
    teams = {name: Namespace(cluster, name) for name in (UPDATES, JOBS, REPLACED, GANGS)}
    for (name, team), gpus in zip(teams.items(), (2, 2, 2, 8), strict=True):
        team.quota({"gpus": str(gpus)})
        assert shows(team, 0), name
    _updated(cluster, teams[UPDATES], {})
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}
    _updated(cluster, teams[REPLACED], {"strategy": strategy}, terminationGracePeriodSeconds=3600)
    pod = {"restartPolicy": "Never", "containers": [gpu_container("1", "pytorch")], **T4}
    spec = {"parallelism": 3, "completions": 3, "template": {"spec": pod}}
    apply(client, JOBS, workload("Job", "sweep", spec))
    assert shows(teams[JOBS], 2)
    apply(client, JOBS, replicated("sliced", "Deployment", MIG, 1))
    orphan = replicated(
        "orphan", "Deployment", gpu_container("1", "pytorch"), 1, serviceAccountName="missing", **T4
    )
    apply(client, GANGS, orphan)
    _gang(cluster, teams[GANGS])
    yield cluster
    assert client.delete("/api/v1/nodes/t4-1")[0] == 200


def _updated(plane: ControlPlane, team: Namespace, spec: JSON, **template: Any) -> None:
    """Run both pods of a Deployment, then change it: a new pod must start beside them, or after one of them."""
    client, name = plane.client(), team.name
    document = replicated("chat", "Deployment", gpu_container("1", "pytorch"), 2, **T4, **template)
    document["spec"] |= spec
    apply(client, name, document)
    assert shows(team, 2)
    started = {"name": "main", "ready": True, "state": {"running": {"startedAt": "2026-11-22T08:00:00Z"}}}
    ready = {"type": "Ready", "status": "True"}
    status = {"phase": "Running", "conditions": [ready], "containerStatuses": [started]}
    for pod in client.get(team.path("pods"))[1]["items"]:
        path = team.path("pods", pod["metadata"]["name"])
        assert eventually(partial(_is_bound, client, path), seconds=30)
        assert client.patch(f"{path}/status", {"status": status})[0] == 200
    deployment = f"/apis/apps/v1/namespaces/{name}/deployments/chat"
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
    """Return what the quota says, in words; tests/remedies/test_why.py is about its data."""
    cause: JSON = next((each for each in found["reasons"] if each["source"] == "quota"), {})
    return {key: value for key, value in cause.items() if key != "ways"}


@cases(
    ("namespace", "name", "summary", "message", "remedy", "reason"),
    a_rolling_update_that_waits_for_its_own_pods=(
        UPDATES,
        "deploy/chat",
        "2 of 2 pods run, 2 of them not updated",
        "spec.strategy: an update needs 1 GPU for a pod beside the others, and will not finish: updates will have "
        "0 of 2 free [gpu-quota]",
        "set type: Recreate (without rollingUpdate), or rollingUpdate.maxUnavailable: 1, or replicas: 1",
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
    want = {"source": "quota", "message": message, "remedy": remedy, "reason": reason, "details": []}
    eventually(lambda: quota_cause(explained(full, namespace, name)) == want, seconds=30)

    found = explained(full, namespace, name)
    assert quota_cause(found) == want
    assert (found["answer"], found["summary"].partition(":")[0]) == ("denied", summary)


def test_an_update_waits_for_an_old_pod_that_is_being_deleted(full: ControlPlane) -> None:
    """maxUnavailable: 1 is set, so that nothing but the end of the old pod helps."""

    def found() -> list[JSON]:
        return list(explained(full, REPLACED, "deploy/chat")["reasons"])

    assert eventually(lambda: [each["source"] for each in found()] == ["pod", "event"], seconds=30), found()
    explanation = explained(full, REPLACED, "deploy/chat")
    cause, denied = explanation["reasons"]
    assert re.fullmatch(
        rf"Pod chat-\S+ has been terminating since {AT} and holds 1 nvidia.com/gpu until it has ended, at {AT} at the latest",
        cause["message"],
    )
    assert cause["remedy"].startswith("wait until then, and set a terminationGracePeriodSeconds below 3600 ")
    assert denied["message"].startswith("Deployment/chat was denied pods ")
    assert explanation["summary"].startswith("1 of 2 pods run, 1 of them not updated: ")
    (problem,) = json.loads(why(full, "-n", REPLACED, "-o", "json").stdout)["problems"]
    assert problem["message"].startswith("exceeded quota until its old pods have ended: Pod chat-")


def test_what_others_denied_to_a_replica_set_without_pods(full: ControlPlane) -> None:
    assert eventually(lambda: explained(full, GANGS, "deploy/orphan")["answer"] == "denied", seconds=30)

    reasons = explained(full, GANGS, "deploy/orphan")["reasons"]
    (cause,) = (each for each in reasons if each["source"] == "event")
    assert cause["message"].startswith("Deployment/orphan: Error creating: ")
    assert 'serviceaccount "missing" not found' in cause["message"]


def test_a_rule_and_a_full_quota_are_named_both(full: ControlPlane) -> None:
    assert eventually(lambda: explained(full, JOBS, "deploy/sliced")["answer"] == "denied", seconds=30)

    shown = why(full, "deploy/sliced", "-n", JOBS).output
    policy, quota, *_ = explained(full, JOBS, "deploy/sliced")["reasons"]
    assert [policy["reason"], quota["reason"]] == ["UnknownSlice", "QuotaExceeded"]
    assert f"fix first: {policy['remedy']}\n" in shown
    assert f"then fix: {quota['remedy']}\n" in shown
    assert quota["remedy"] == (
        "wait until Job/sweep releases 1 GPU, or ask the platform team to raise spec.hard.gpus"
    )


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
    assert (problem["answer"], problem["owner"]) == ("denied", "Deployment/chat")
    assert "maxUnavailable: 1" in problem["message"]
    assert listed(UPDATES)["since"] == problem["first"] <= problem["last"]

    shown = why(full, "-n", JOBS, columns=80)
    assert shown.exit_code == 1
    assert "jobs: 2 problems, denials seen since " in shown.output
    assert "\n  Job/sweep: denied " in shown.output
    assert max(map(len, shown.output.splitlines())) <= 80
    assert f"\n  {JOBS} Job/sweep: denied " in why(full, "-A").output
    assert why(full, "-A", "-n", JOBS).exit_code == 2
    quiet = why(full, "-n", QUIET)
    assert (quiet.exit_code, quiet.output) == (
        0,
        "quiet: nothing is denied, or pending for longer than a minute\n",
    )

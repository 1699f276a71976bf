"""What pods wait for that exist and do not run, and what becomes of the next pod where pods were denied."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from policies.finding import Finding
from tests.builders import JSON, gpu_container, manifest
from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, answering
from tests.webhook.commands.checked_cluster import QUOTA, cluster
from tests.webhook.tools.why.situations import NO_GPU, event, fits, pod, situation, unschedulable
from webhook.tools.why.explaining import explain
from webhook.tools.why.explanation import Source, cause_of
from webhook.tools.why.reasons import answer_of, observed_events


def container_status(reason: str, **more: Any) -> JSON:
    return {"containerStatuses": [{"name": "main", "state": {"waiting": {"reason": reason}}, **more}]}


def ended(code: int, reason: str) -> JSON:
    return {"terminated": {"exitCode": code, "reason": reason}}


ON_T4 = {"nodeName": "t4-0"}


@cases(
    ("given", "message", "remedy"),
    an_image_that_is_not_there=(
        {"pods": [pod(spec=ON_T4, **container_status("ErrImagePull"))]},
        "Pod train-0 waits on Node t4-0: container main: ErrImagePull",
        "correct the image or imagePullSecrets",
    ),
    an_image_that_is_not_there_again=(
        {"pods": [pod(spec=ON_T4, **container_status("ImagePullBackOff"))]},
        "Pod train-0 waits on Node t4-0: container main: ImagePullBackOff",
        "correct the image or imagePullSecrets",
    ),
    an_image_that_has_no_name=(
        {"pods": [pod(spec=ON_T4, **container_status("InvalidImageName"))]},
        "Pod train-0 waits on Node t4-0: container main: InvalidImageName",
        "correct the image",
    ),
    nothing_that_is_known=(
        {},
        "pods are missing, and no Event says why",
        "see the log of the controller that makes pods of this kind",
    ),
    nothing_that_the_caller_may_read=(
        {"rule_denials": None},
        "pods are missing, no Event says why, and you may not read what decides which rules hold",
        "ask the platform team for the rights that are named below",
    ),
    a_scheduler_of_its_own=(
        {"pods": [pod(spec={"schedulerName": "volcano"})]},
        "Pod train-0 has not been considered by a scheduler yet",
        'see the log of the scheduler that spec.schedulerName names ("volcano")',
    ),
    a_gate=(
        {"pods": [pod(spec={"schedulingGates": [{"name": "a/b"}]})]},
        "Pod train-0 waits for its scheduling gates to be removed: a/b",
        "see the controller that sets them",
    ),
    a_job_of_which_one_pod_failed_without_a_word=(
        {"data": {"kind": "Job"}, "pods": [pod(spec=ON_T4), pod("train-2", "Failed")]},
        "1 pod has failed, Pod train-2: its status does not say why",
        "",
    ),
    a_container_that_exits=(
        {
            "pods": [
                pod(
                    phase="Running",
                    spec=ON_T4,
                    **container_status("CrashLoopBackOff", restartCount=7, lastState=ended(137, "OOMKilled")),
                )
            ]
        },
        "Pod train-0 waits on Node t4-0: container main: CrashLoopBackOff, after it exited with code 137, OOMKilled "
        "(restarts: 7)",
        "see why the container exits: kubectl logs --previous -n ml train-0",
    ),
    a_stateful_set_in_order=(
        {"data": {"kind": "StatefulSet"}, "pods": [pod(spec=ON_T4)], "wanted": 2},
        "the next pod is created when Pod train-0 is ready (podManagementPolicy: OrderedReady)",
        "",
    ),
    a_job_of_which_pods_failed=(
        {
            "data": {"kind": "Job"},
            "pods": [
                pod(spec=ON_T4),
                pod("train-1", "Failed", containerStatuses=[{"name": "main", "state": ended(1, "Error")}]),
                pod("train-2", "Failed"),
            ],
        },
        "2 pods have failed, Pod train-1: container main exited with code 1, Error",
        "kubectl logs -n ml train-1",
    ),
    a_job_of_which_a_pod_failed_for_no_stated_reason=(
        {
            "data": {"kind": "Job"},
            "pods": [pod("train-1", "Failed", containerStatuses=[{"name": "main", "state": ended(1, "")}])],
        },
        "1 pod has failed, Pod train-1: container main exited with code 1, no reason",
        "kubectl logs -n ml train-1",
    ),
    a_class_that_is_none=(
        {"pods": [unschedulable("train-0")], "no_node_causes": [cause_of(Source.NODES, NO_GPU)]},
        "spec: must be whole [gpu-requests]",
        "set 1, or ask the platform team to allow it",
    ),
)
def test_what_pods_wait_for(given: JSON, message: str, remedy: str) -> None:
    *_, last = answer_of(situation(nodes=[fits("a")], **given))[2]

    assert (last.message, last.remedy) == (message, remedy)


def test_what_the_scheduler_tried_is_no_second_sentence() -> None:
    said = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu"
    tried = f"{said}. no new claims to deallocate, preemption: 0/3 nodes are available: 3 No preemption victims found."
    _, _, reasons = answer_of(situation(pods=[unschedulable("train-0", tried)], nodes=None))
    (shown,) = observed_events([event(tried)])
    assert (reasons[0].message, shown.message) == (f"Pod train-0 finds no node: {said}", said)


WEBHOOK = 'Error creating: admission webhook "pods.validate.gpu-admission.dev" denied the request: '
ADMITTED_NOW = "a pod would be admitted now: its controller tries again by itself"


@cases(
    ("rule_denials", "remedy"),
    known_rules=([], ADMITTED_NOW),
    rules_that_the_caller_may_not_read=(None, ""),
)
def test_what_was_denied_and_would_not_be_now(rule_denials: list[Finding] | None, remedy: str) -> None:
    _, _, (reason,) = answer_of(
        situation(rule_denials=rule_denials, events=[event(WEBHOOK + "no GPU\nmore")])
    )
    assert reason.message == "Job/train was denied pods once, last at 08:00 UTC: no GPU"
    assert reason.remedy == remedy


@cases(
    ("sees_quota", "denial", "remedy"),
    a_team_whose_figures_are_not_seen=(
        False,
        "exceeded quota: ClusterGPUQuota team-vision, 64 of 64 used",
        "do as it says; its controller tries again by itself, and succeeds once the team has room",
    ),
    a_team_whose_figures_are_seen=(
        True,
        "exceeded quota: ClusterGPUQuota team-vision, 64 of 64 used",
        ADMITTED_NOW,
    ),
    a_quota_that_was_deleted=(False, "exceeded quota: team/default, 8 of 8 used", ADMITTED_NOW),
)
def test_what_a_full_quota_denied_and_would_not_be_now(sees_quota: bool, denial: str, remedy: str) -> None:
    _, _, (reason,) = answer_of(situation(sees_quota=sees_quota, events=[event(WEBHOOK + denial)]))
    assert reason.remedy == remedy


NOW = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)
KINDS = {
    "MPIJob": ("kubeflow.org", "v2beta1", "mpijobs"),
    "JobSet": ("jobset.x-k8s.io", "v1alpha2", "jobsets"),
    "Job": ("batch", "v1", "jobs"),
}
SERVED = {
    "items": [
        {
            "metadata": {"name": group},
            "versions": [
                {
                    "version": version,
                    "resources": [
                        {"resource": plural, "responseKind": {"kind": kind}, "scope": "Namespaced"}
                    ],
                }
            ],
        }
        for kind, (group, version, plural) in KINDS.items()
    ]
}


def template(gpus: int) -> JSON:
    return {"spec": {"containers": [gpu_container(str(gpus))], "restartPolicy": "Never"}}


def jobs(parallelism: int, gpus: int) -> JSON:
    return {"parallelism": parallelism, "completions": parallelism, "template": template(gpus)}


def quota(hard: int, **holders: int) -> JSON:
    held = [{"name": f"Job/{name}", "amount": str(amount)} for name, amount in holders.items()]
    return {
        "metadata": {
            "name": "default",
            "namespace": "ml",
            "uid": "q",
            "resourceVersion": "1",
            "generation": 1,
        },
        "spec": {"hard": {"gpus": str(hard)}},
        "status": {
            "hard": {"gpus": str(hard)},
            "used": {"gpus": str(sum(holders.values()))},
            "holders": {"gpus": held},
            "observedGeneration": 1,
        },
    }


@cases(
    ("kind", "spec", "limits", "want"),
    workers_of_which_none_fits=(
        "MPIJob",
        {"mpiReplicaSpecs": {"Worker": {"replicas": 2, "template": template(4)}}},
        quota(8, other=7),
        (
            "spec.mpiReplicaSpecs.Worker.template: needs 8 GPUs; ml has 1 of 8 free: 0 of 2 pods will start [gpu-quota]",
            "wait until others release 7 GPUs",
        ),
    ),
    more_than_the_quota_grants=(
        "JobSet",
        {"replicatedJobs": [{"name": "w", "replicas": 4, "template": {"spec": jobs(1, 8)}}]},
        quota(16, other=12),
        (
            "spec.replicatedJobs[0].replicas: needs 32 GPUs, which can never fit: the GPUQuota of ml grants 16 in all; 0 of 4 "
            "pods will start [gpu-quota]",
            "set replicas: 2 or less, and wait until that much is free, or ask the platform team to raise spec.hard.gpus",
        ),
    ),
    one_pod=(
        "Job",
        jobs(1, 4),
        quota(8, other=6),
        (
            "exceeded quota: ml/default, requested 4 GPUs, 6 of 8 used [gpu-quota]",
            "set nvidia.com/gpu: 2, or wait until Job/other releases 2 GPUs, or ask the platform team to raise spec.hard.gpus",
        ),
    ),
)
def test_the_advice_is_for_all_pods_of_the_object(
    tmp_path: Path, kind: str, spec: JSON, limits: JSON, want: tuple[str, str]
) -> None:
    group, version, plural = KINDS[kind]
    path = f"/apis/{group}/{version}/namespaces/ml/{plural}"
    stored = manifest(f"{group}/{version}", kind, "train", spec, namespace="ml", uid="u")
    objects: dict[str, Any] = {
        "/apis": SERVED,
        "/api/v1/namespaces/ml/events": [],
        "/api/v1/namespaces/ml/pods": [],
        QUOTA: limits,
        f"{path}/train": stored,
    }
    with ApiServer(tmp_path, answering({**cluster(), **objects})) as server:
        found = explain(server.client(), kind, "train", "ml", NOW)

    assert [(reason.message, reason.remedy) for reason in found.reasons] == [want]

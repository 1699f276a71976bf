"""What pods wait for that exist and do not run."""

from typing import Any

from tests.builders import JSON
from tests.cases import cases
from tests.webhook.tools.why.situations import NO_GPU, event, fits, pod, situation, unschedulable
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
        {"pods": [unschedulable("train-0")], "no_node": [cause_of(Source.NODES, NO_GPU)]},
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

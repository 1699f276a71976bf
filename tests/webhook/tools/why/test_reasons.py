"""From a situation to the answer, its sentence, and the reasons."""

from collections.abc import Sequence
from typing import Any

import msgspec

from policies.finding import Edit, Finding
from policies.quota.shortage import QUOTA_EXCEEDED
from tests.builders import JSON
from tests.cases import cases
from tests.webhook.tools.why.situations import NO_GPU, RUNNING, event, pod, situation, unschedulable
from webhook.tools.status.denials import ClusterEvent
from webhook.tools.stored_pod import StoredPod
from webhook.tools.why.explanation import Answer, Source, cause_of
from webhook.tools.why.reasons import answer_of, observed_events

WEBHOOK = 'Error creating: admission webhook "pods.validate.gpu-admission.dev" denied the request: '
NEW = "0 of 1 pods run: Pod train-0 has not been considered by a scheduler yet"


@cases(
    ("given", "answer", "summary"),
    running=({"pods": [RUNNING]}, Answer.RUNNING, "1 of 1 pods run"),
    all_pods_ended=({"pods": [pod(phase="Succeeded")]}, Answer.ENDED, "it has ended"),
    a_job_whose_pods_are_gone=(
        {"data": {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}},
        Answer.ENDED,
        "it has ended",
    ),
    suspended=({"data": {"spec": {"suspend": True}}, "wanted": 0}, Answer.STOPPED, "spec.suspend is true"),
    scaled_to_zero=(
        {"why_no_pods": "scaled to zero: spec.replicas is 0", "wanted": 0},
        Answer.STOPPED,
        "scaled to zero: spec.replicas is 0",
    ),
    woken_by_an_autoscaler_and_denied=(
        {
            "why_no_pods": "scaled to zero: spec.minReplicas is 0",
            "wanted": 0,
            "events": [event(WEBHOOK + "no")],
        },
        Answer.DENIED,
        "0 of 0 pods run: Job/train was denied pods once, last at 08:00 UTC: no",
    ),
    scaled_to_zero_after_a_denial=(
        {"why_no_pods": "scaled to zero: spec.replicas is 0", "wanted": 0, "events": [event(WEBHOOK + "no")]},
        Answer.STOPPED,
        "scaled to zero: spec.replicas is 0",
    ),
    failed=(
        {"data": {"status": {"conditions": [{"type": "Failed", "status": "True", "message": "too often"}]}}},
        Answer.ENDED,
        "it has failed: too often",
    ),
    a_cron_job_between_two_runs=(
        {"data": {"spec": {"schedule": "0 3 * * *"}}},
        Answer.STOPPED,
        "it makes pods when spec.schedule (0 3 * * *) is due",
    ),
    a_cron_job_whose_last_run_was_denied=(
        {"data": {"spec": {"schedule": "0 3 * * *"}}, "events": [event(WEBHOOK + "no")]},
        Answer.DENIED,
        "0 of 1 pods run: Job/train was denied pods once, last at 08:00 UTC: no",
    ),
    nobody_says_why=({}, Answer.UNKNOWN, "0 of 1 pods run: pods are missing, and no Event says why"),
    a_kind_that_makes_no_pods=(
        {"wanted": None},
        Answer.UNKNOWN,
        "it has no pods, and objects of its kind are not known to make any",
    ),
    an_autoscaler=(
        {"data": {"spec": {"scaleTargetRef": {"kind": "Deployment", "name": "chat"}}}, "wanted": None},
        Answer.UNKNOWN,
        "it makes no pods, but scales Deployment/chat: gpu-admission why Deployment/chat explains its pods",
    ),
    just_created=({"pods": [pod()]}, Answer.PENDING, NEW),
    another_scheduler=({"pods": [pod(spec={"schedulerName": "volcano"})]}, Answer.PENDING, NEW),
    gated=(
        {"pods": [pod(spec={"schedulingGates": [{"name": "a/b"}]})]},
        Answer.GATED,
        "0 of 1 pods run: Pod train-0 waits for its scheduling gates to be removed: a/b",
    ),
    alike_pods_are_one_reason=(
        {"pods": [RUNNING, unschedulable("train-1"), unschedulable("train-2")], "wanted": 3},
        Answer.PENDING,
        "1 of 3 pods run: Pod train-1 (and 1 more) finds no node: 0/3 nodes are available",
    ),
    refused_by_somebody_else=(
        {"events": [event("Error creating: exceeded quota: compute")]},
        Answer.DENIED,
        "0 of 1 pods run: Job/train: Error creating: exceeded quota: compute",
    ),
    refused_by_somebody_else_again_and_again=(
        {
            "events": [
                event("Error creating: pod a", count=2),
                event("(combined from similar events): Error creating: pod b", minute=1),
            ]
        },
        Answer.DENIED,
        "0 of 1 pods run: Job/train: Error creating: pod b (3 times)",
    ),
    what_was_denied_before_does_not_matter_any_more=(
        {"pods": [RUNNING], "events": [event(WEBHOOK + "no")], "rule_denials": [NO_GPU]},
        Answer.RUNNING,
        "1 of 1 pods run",
    ),
    an_unknown_number=({"wanted": None, "pods": [RUNNING]}, Answer.RUNNING, "1 of 1 pods run"),
)
def test_the_answer(given: JSON, answer: Answer, summary: str) -> None:
    assert answer_of(situation(**given))[:2] == (answer, summary)


FULL = Finding(
    rule="gpu-quota",
    reason=QUOTA_EXCEEDED,
    path="spec.parallelism",
    message="needs 12 GPUs; ml has 8 of 8 free: 8 of 12 pods will start",
    choices=((Edit("spec.parallelism", 8),),),
)
UPDATE = {"kind": "Deployment", "spec": {"replicas": 1}}
ONE = {"replicas": 1}
FAILED = {**ONE, "conditions": [{"type": "ReplicaFailure", "status": "True"}]}


def test_a_finding_keeps_its_words_and_its_reason() -> None:
    answer, _, (cause,) = answer_of(situation(quota_denials=[FULL]))

    assert answer is Answer.DENIED
    assert cause.message == (
        "spec.parallelism: needs 12 GPUs; ml has 8 of 8 free: 8 of 12 pods will start [gpu-quota]"
    )
    assert (cause.source, cause.remedy, cause.reason) == (Source.QUOTA, "set parallelism: 8", "QuotaExceeded")


@cases(
    ("data", "events", "want"),
    denied_by_its_condition=({**UPDATE, "status": FAILED}, [], Answer.DENIED),
    denied_by_an_event=({**UPDATE, "status": ONE}, [event(WEBHOOK + "no")], Answer.DENIED),
    all_are_updated=({**UPDATE, "status": {**FAILED, "updatedReplicas": 1}}, [], Answer.RUNNING),
    a_pod_that_was_never_created_is_not_outdated=(
        {**UPDATE, "spec": {"replicas": 2}, "status": {**FAILED, "updatedReplicas": 1}},
        [],
        Answer.RUNNING,
    ),
    under_way=({**UPDATE, "status": ONE}, [], Answer.RUNNING),
    paused=({**UPDATE, "spec": {"paused": True}, "status": FAILED}, [], Answer.RUNNING),
    of_another_kind=({**UPDATE, "kind": "StatefulSet", "status": FAILED}, [], Answer.RUNNING),
)
def test_a_rolling_update_that_is_denied_pods(data: JSON, events: list[ClusterEvent], want: Answer) -> None:
    found = situation(data=data, events=events, pods=[RUNNING], quota_denials=[FULL])
    answer, summary, _ = answer_of(found)

    assert (answer, "1 of them not updated" in summary) == (want, want is Answer.DENIED)


def test_what_the_rules_deny_comes_first_and_is_said_once() -> None:
    events = [event(WEBHOOK + "old", count=2), event(WEBHOOK + "last\nmore", minute=5, count=3)]
    _, _, reasons = answer_of(situation(rule_denials=[NO_GPU], events=events))
    assert [(each.message, each.remedy) for each in reasons] == [
        ("spec: must be whole [gpu-requests]", "set 1, or ask the platform team to allow it"),
        ("Job/train was denied pods 5 times, last at 08:05 UTC", ""),
    ]


def claim_denial(pod_name: str) -> ClusterEvent:
    denied = f"resourceclaim ml/{pod_name}-gpu-x7k2p: wait; exceeded quota: ml/default [gpu-quota]"
    message = f'create ResourceClaim : admission webhook "resourceclaims.validate.gpu-admission.dev" denied the request: {denied}'
    return event(message, owner=pod_name, kind="Pod")


@cases(
    ("waiting", "answer", "message"),
    without_its_claim=(
        [pod("train-0"), pod("train-1")],
        Answer.DENIED,
        "Pod train-0 (and 1 more) was denied a ResourceClaim: wait; exceeded quota: ml/default [gpu-quota]",
    ),
    with_its_claim_by_now=(
        [unschedulable("train-0"), unschedulable("train-1")],
        Answer.PENDING,
        "Pod train-0 (and 1 more) finds no node: 0/3 nodes are available",
    ),
)
def test_a_pod_that_waits_for_a_claim_that_was_denied(
    waiting: list[StoredPod], answer: Answer, message: str
) -> None:
    events = [claim_denial("train-0"), claim_denial("train-1")]
    given = situation(pods=waiting, events=events, wanted=2)
    assert (answer_of(given)[0], [each.message for each in answer_of(given)[2]]) == (answer, [message])


def gated(name: str, *gates: str) -> StoredPod:
    return pod(name, spec={"schedulingGates": [{"name": gate} for gate in gates]})


def change_denial(name: str, kind: str = "Pod") -> ClusterEvent:
    by = "change by system:serviceaccount:kueue-system:kueue-controller-manager"
    webhook = 'admission webhook "pod-placement.validate.gpu-admission.dev"'
    message = (
        f"{by}: {webhook} denied the request: pod ml/{name}: set nvidia-t4; not allowed [gpu-class]\nmore"
    )
    return msgspec.structs.replace(event(message, owner=name, kind=kind), reason="FailedUpdate")


KUEUE_GATE, OUR_GATE = "kueue.x-k8s.io/admission", "gpu-admission.dev/quota"
KEEPS = (
    "Pod train-0 (and 1 more) keeps its scheduling gate kueue.x-k8s.io/admission, since the change by "
    "system:serviceaccount:kueue-system:kueue-controller-manager was denied: set nvidia-t4; not allowed [gpu-class]"
)


@cases(
    ("pods", "answer", "messages"),
    under_that_gate=([gated("train-0", KUEUE_GATE), gated("train-1", KUEUE_GATE)], Answer.DENIED, [KEEPS]),
    under_ours_as_well=(
        [gated("train-0", OUR_GATE, KUEUE_GATE), gated("train-1", OUR_GATE, KUEUE_GATE)],
        Answer.DENIED,
        [KEEPS],
    ),
    under_two_of_the_same_controller=(
        [gated("train-0", KUEUE_GATE, "kueue.x-k8s.io/topology"), RUNNING],
        Answer.DENIED,
        [
            KEEPS.replace(" (and 1 more)", "").replace(
                f"gate {KUEUE_GATE}", f"gates {KUEUE_GATE} and kueue.x-k8s.io/topology"
            )
        ],
    ),
    without_that_gate_by_now=(
        [unschedulable("train-0"), RUNNING],
        Answer.PENDING,
        ["Pod train-0 finds no node: 0/3 nodes are available"],
    ),
)
def test_a_pod_whose_change_by_a_controller_was_denied(
    pods: list[StoredPod], answer: Answer, messages: list[str]
) -> None:
    events = [change_denial("train-0"), change_denial("train-1"), change_denial("train", "Job")]
    for wanted in (2, None):  # of an object of a kind that is not known to make pods, too
        found = answer_of(situation(pods=pods, events=events, wanted=wanted))
        assert (found[0], [each.message for each in found[2]]) == (answer, messages)
        expected = "do as the denial says: who changes the pod tries again by itself"
        assert found[2][0].remedy == (expected if answer is Answer.DENIED else "")


def test_a_pod_whose_group_is_incomplete_keeps_its_gate() -> None:
    group = "1 of 2 pods of train exist"
    answer, _, (cause,) = answer_of(situation(pods=[gated("train-0", KUEUE_GATE)], group=group))
    assert (answer, cause.message, cause.remedy) == (
        Answer.GATED,
        f"Pod train-0 keeps its scheduling gate {KUEUE_GATE} until its group is complete: {group}",
        "create the missing pods, or delete this one, which holds its quota",
    )


def test_denied_claims_of_a_pod_are_one_event() -> None:
    first = claim_denial("train-0")
    second = msgspec.structs.replace(first, message=first.message.replace("x7k2p", "9qz4d"))
    assert [each.count for each in observed_events([first, second])] == [2]


@cases(
    ("denial", "want"),
    by_us=(WEBHOOK + "no GPU", "Deployment/chat was denied pods once, last at 08:00 UTC: no GPU"),
    by_others=("exceeded quota: compute", "Deployment/chat: exceeded quota: compute"),
)
def test_pods_of_a_replica_set_are_those_of_its_deployment(denial: str, want: str) -> None:
    events = [event(denial, owner="chat-5d9f8c7b6d", kind="ReplicaSet")]
    given = situation(data={"kind": "Deployment", "metadata": {"name": "chat"}}, events=events)

    assert [each.message for each in answer_of(given)[2]] == [want]


def test_before_it_makes_pods_it_is_said_what_denies_them() -> None:
    answer, _, reasons = answer_of(
        situation(wanted=0, why_no_pods="spec.replicas is 0", rule_denials=[NO_GPU], quota_denials=[FULL])
    )

    assert (answer, [each.source for each in reasons]) == (Answer.STOPPED, [Source.POLICY, Source.QUOTA])


def test_two_obstacles_in_the_order_in_which_to_repair_them() -> None:
    found = situation(
        rule_denials=[NO_GPU],
        quota_denials=[FULL],
        no_node_causes=[cause_of(Source.NODES, NO_GPU)] * 2,
        events=[event(WEBHOOK + "no")],
    )

    assert [each.source.value for each in answer_of(found)[2]] == [
        "policy",
        "nodes",
        "nodes",
        "quota",
        "event",
    ]


@cases(
    ("denial", "want"),
    by_a_rule_that_cannot_be_read=("no [gpu-class]", ["event", "quota"]),
    by_the_quota=("full [gpu-quota]", ["quota", "event"]),
)
def test_without_the_right_to_read_rules_their_denial_comes_first(denial: str, want: list[str]) -> None:
    found = situation(rule_denials=None, quota_denials=[FULL], events=[event(WEBHOOK + denial)])
    reasons = answer_of(found)[2]

    assert [each.source.value for each in reasons] == want
    assert (denial in reasons[0].message) is (want[0] == "event")


def ending(end: str, *, finalizers: Sequence[str] = (), **spec: Any) -> StoredPod:
    metadata = {
        "name": "old-0",
        "deletionTimestamp": f"2026-11-22T{end}:00Z",
        "deletionGracePeriodSeconds": 600,
        "finalizers": finalizers,
    }
    document = {"metadata": metadata, "spec": {"nodeName": "t4-0", **spec}, "status": {"phase": "Running"}}
    return msgspec.convert(document, StoredPod)


@cases(
    ("old", "message", "remedy"),
    in_its_grace_period=(
        ending("09:05"),
        "Pod old-0 has been terminating since 08:55 UTC and holds 1 GPU until it has ended, at "
        "09:05 UTC at the latest",
        "wait until then, and set a terminationGracePeriodSeconds below 600 if later updates must be faster",
    ),
    longer=(
        ending("08:55"),
        "Pod old-0 has been terminating since 08:45 UTC and holds 1 GPU until it has ended; its grace period "
        "ended at 08:55 UTC, and Node t4-0 has not confirmed its end",
        "see whether Node t4-0 is Ready",
    ),
    kept_by_a_finalizer=(
        ending("08:55", finalizers=["example.com/backup"]),
        "Pod old-0 has been terminating since 08:45 UTC and holds 1 GPU until it has ended: its finalizers are "
        "example.com/backup",
        "see the controller that set them",
    ),
)
def test_an_update_waits_for_an_old_pod_that_is_being_deleted(
    old: StoredPod, message: str, remedy: str
) -> None:
    status = {"replicas": 1}
    found = situation(
        data={"kind": "Deployment", "status": status},
        pods=[RUNNING, old],
        wanted=2,
        events=[event(WEBHOOK + "full")],
        held={"old-0": "1 GPU"},
    )
    answer, summary, (cause, denied) = answer_of(found)

    assert (answer, summary.partition(",")[0]) == (Answer.DENIED, "1 of 2 pods run")
    assert (cause.message, cause.remedy) == (message, remedy)
    assert denied.message == "Job/train was denied pods once, last at 08:00 UTC"


def test_a_pod_that_is_being_deleted_is_pending_by_itself() -> None:
    answer, _, (cause,) = answer_of(situation(data=None, pods=[ending("09:05")]))

    assert answer is Answer.PENDING
    assert cause.message.startswith("Pod old-0 has been terminating since 08:55 UTC, at ")


def test_denials_of_one_owner_are_one_line() -> None:
    """Each names another pod, and so is an Event of its own."""
    quota_denial = WEBHOOK + "pod ml/train-{}: no [gpu-quota]"
    denials = (event(quota_denial.format(1), minute=1, count=2), event(quota_denial.format(2), minute=3))
    found = observed_events([*denials, event("exceeded quota: compute", minute=2)])

    assert [(each.about, each.count, each.last and each.last.minute, each.message) for each in found] == [
        ("Job/train", 3, 3, "pod ml/train-2: no [gpu-quota]"),
        ("Job/train", 1, 2, "exceeded quota: compute"),
    ]

"""From a situation to the answer, its sentence, and the reasons."""

from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import msgspec

from policies.finding import Finding
from tests.builders import JSON
from tests.cases import cases
from webhook.tools.status.denials import ClusterEvent
from webhook.tools.status.report import QuotaState
from webhook.tools.why.explanation import Answer, NodeFit, QuotaDemand, QuotaFit
from webhook.tools.why.family import StoredPod
from webhook.tools.why.reasons import Situation, answered, observed

NO_GPU = Finding(rule="gpu-requests", path="spec", message="must be whole", remedy="set 1", ask="to allow it")
WEBHOOK = 'Error creating: admission webhook "pods.validate.gpu-admission.dev" denied the request: '


def pod(name: str = "train-0", phase: str = "Pending", spec: JSON | None = None, **status: Any) -> StoredPod:
    document = {"metadata": {"name": name}, "spec": spec or {}, "status": {"phase": phase, **status}}
    return msgspec.convert(document, StoredPod)


def unschedulable(name: str, message: str = "0/3 nodes are available") -> StoredPod:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return pod(name, conditions=[condition])


def event(message: str, *, minute: int = 0, count: int = 1, owner: str = "train") -> ClusterEvent:
    document = {
        "metadata": {},
        "involvedObject": {"kind": "Job", "name": owner},
        "reason": "FailedCreate",
        "message": message,
        "count": count,
        "lastTimestamp": datetime(2026, 11, 22, 8, minute, tzinfo=UTC),
    }
    return msgspec.convert(document, ClusterEvent)


def demand(
    key: str, requested: str, used: str | None, hard: str, *, reserved: str = "0", fits: bool = False
) -> QuotaDemand:
    amounts = {"requested": Fraction(requested), "reserved": Fraction(reserved), "hard": Fraction(hard)}
    never = amounts["requested"] > amounts["hard"]
    return QuotaDemand(
        key=key, used=None if used is None else Fraction(used), fits=fits, never=never, **amounts
    )


def quota(*rows: QuotaDemand) -> QuotaFit:
    return QuotaFit(state=QuotaState.READY, rows=rows, is_held=False)


def situation(**given: Any) -> Situation:
    return Situation(**{"data": {}, "pods": (), "events": (), "wanted": 1, **given})


RUNNING = pod("train-0", "Running")
NEW = "0 of 1 pods run: Pod train-0 has not been considered by a scheduler yet"


@cases(
    ("given", "answer", "summary"),
    {
        "running": ({"pods": [RUNNING]}, Answer.RUNNING, "1 of 1 pods run"),
        "all-pods-ended": ({"pods": [pod(phase="Succeeded")]}, Answer.ENDED, "it has ended"),
        "a-job-whose-pods-are-gone": (
            {"data": {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}},
            Answer.ENDED,
            "it has ended",
        ),
        "suspended": (
            {"data": {"spec": {"suspend": True}}, "wanted": 0},
            Answer.STOPPED,
            "spec.suspend is true",
        ),
        "scaled-to-zero": (
            {"data": {"spec": {"replicas": 0}}, "wanted": 0},
            Answer.STOPPED,
            "spec.replicas is 0",
        ),
        "only-a-template": ({"wanted": 0}, Answer.STOPPED, "as it is written, it makes no pods"),
        "a-cron-job-between-two-runs": (
            {"data": {"spec": {"schedule": "0 3 * * *"}}},
            Answer.STOPPED,
            "it makes pods when spec.schedule (0 3 * * *) is due",
        ),
        "a-cron-job-whose-last-run-was-denied": (
            {"data": {"spec": {"schedule": "0 3 * * *"}}, "events": [event(WEBHOOK + "no")]},
            Answer.REFUSED,
            "0 of 1 pods run: Job/train was denied pods once, last at 2026-11-22T08:00:00Z: no",
        ),
        "nobody-says-why": ({}, Answer.UNKNOWN, "0 of 1 pods run: pods are missing, and no Event says why"),
        "just-created": ({"pods": [pod()]}, Answer.PENDING, NEW),
        "another-scheduler": ({"pods": [pod(spec={"schedulerName": "volcano"})]}, Answer.PENDING, NEW),
        "gated": (
            {"pods": [pod(spec={"schedulingGates": [{"name": "a/b"}]})]},
            Answer.GATED,
            "0 of 1 pods run: Pod train-0 waits for its scheduling gates to be removed: a/b",
        ),
        "alike-pods-are-one-reason": (
            {"pods": [RUNNING, unschedulable("train-1"), unschedulable("train-2")], "wanted": 3},
            Answer.PENDING,
            "1 of 3 pods run: Pod train-1 (and 1 more) finds no node: 0/3 nodes are available",
        ),
        "refused-by-somebody-else": (
            {"events": [event("Error creating: exceeded quota: compute")]},
            Answer.REFUSED,
            "0 of 1 pods run: Job/train: Error creating: exceeded quota: compute",
        ),
        "what-was-denied-before-does-not-matter-any-more": (
            {"pods": [RUNNING], "events": [event(WEBHOOK + "no")], "denials": [NO_GPU]},
            Answer.RUNNING,
            "1 of 1 pods run",
        ),
        "an-unknown-number": ({"wanted": None, "pods": [RUNNING]}, Answer.RUNNING, "1 of 1 pods run"),
    },
)
def test_the_answer(given: JSON, answer: Answer, summary: str) -> None:
    assert answered(situation(**given))[:2] == (answer, summary)


RAISE = "ask ml-support to raise spec.hard.{}"
WAIT = "wait until others finish, delete pods that are not needed any more, or "
HALF = demand("gpus", "2", "2", "4")


@cases(
    ("rows", "given", "message", "remedy"),
    {
        "larger-than-the-quota": (
            [demand("gpus", "8", "3", "4")],
            {},
            "a pod asks for 8 of gpus and can never fit: the quota grants 4 in all",
            "ask for 4 or fewer in one pod, or " + RAISE.format("gpus"),
        ),
        "taken-for-now": (
            [demand("gpus", "3", "2", "4", reserved="1")],
            {},
            "a pod asks for 3 of gpus: 2 of 4 are used, being created: 1",
            WAIT + RAISE.format("gpus"),
        ),
        "what-never-fits-comes-before-what-is-taken": (
            [demand("gpus", "8", "0", "16"), demand("classes/nvidia-a100", "8", "0", "4")],
            {},
            "a pod asks for 8 of classes/nvidia-a100 and can never fit: the quota grants 4 in all",
            "ask for 4 or fewer in one pod, or " + RAISE.format("classes[nvidia-a100]"),
        ),
        "the-scarcest-dimension": (
            [demand("gpus", "4", "14", "16"), demand("resources/nvidia.com/gpu", "4", "8", "8")],
            {},
            "a pod asks for 4 of resources/nvidia.com/gpu: 8 of 8 are used",
            WAIT + RAISE.format("resources[nvidia.com/gpu]"),
        ),
        "not-counted-yet": (
            [demand("gpus", "1", None, "4")],
            {},
            "a pod asks for 1 of gpus: the quota is not counted yet, and denies until it is",
            "wait some seconds; if it stays so, gpu-admission doctor says what keeps the controller from counting",
        ),
        "its-replicas-are-larger-than-the-whole-quota": (
            [HALF],
            {"data": {"spec": {"replicas": 3}}, "wanted": 3, "pods": [RUNNING]},
            "3 pods ask for 6 of gpus and can never fit: the quota grants 4 in all",
            "set replicas: 2, or " + RAISE.format("gpus"),
        ),
        "others-hold-what-it-lacks": (
            [HALF],
            {"data": {"spec": {"replicas": 2}}, "wanted": 2, "pods": [RUNNING]},
            "a pod asks for 2 of gpus: 2 of 4 are used",
            WAIT + RAISE.format("gpus"),
        ),
        "pods-of-a-job-take-turns": (
            [HALF],
            {"data": {"spec": {"parallelism": 3}}, "wanted": 3, "pods": [RUNNING]},
            "a pod asks for 2 of gpus: 2 of 4 are used",
            WAIT + RAISE.format("gpus"),
        ),
        "what-is-no-amount-of-gpus-is-not-compared": (
            [HALF],
            {"denials": [NO_GPU]},
            "spec: must be whole [gpu-requests]",
            "set 1, or ask the platform team to allow it",
        ),
    },
)
def test_the_quota(rows: list[QuotaDemand], given: Any, message: str, remedy: str) -> None:
    answer, _, (reason,) = answered(situation(quota=quota(*rows), contact="ml-support", **given))
    assert (answer, reason.message, reason.remedy) == (Answer.REFUSED, message, remedy)


def test_what_the_rules_deny_comes_first_and_is_said_once() -> None:
    events = [event(WEBHOOK + "old", count=2), event(WEBHOOK + "last\nmore", minute=5, count=3)]
    _, _, reasons = answered(situation(denials=[NO_GPU], events=events))
    assert [(each.message, each.remedy) for each in reasons] == [
        ("spec: must be whole [gpu-requests]", "set 1, or ask the platform team to allow it"),
        ("Job/train was denied pods 5 times, last at 2026-11-22T08:05:00Z", ""),
    ]


@cases(
    ("denials", "remedy"),
    {
        "known-rules": ([], "a pod would be admitted now: its controller tries again by itself"),
        "rules-that-the-caller-may-not-read": (None, ""),
    },
)
def test_what_was_denied_and_would_not_be_now(denials: list[Finding] | None, remedy: str) -> None:
    _, _, (reason,) = answered(situation(denials=denials, events=[event(WEBHOOK + "no GPU\nmore")]))
    assert reason.message == "Job/train was denied pods once, last at 2026-11-22T08:00:00Z: no GPU"
    assert reason.remedy == remedy


def fits(name: str, *against: str, remedy: str = "") -> NodeFit:
    return NodeFit(name=name, kind="t4", free={}, allocatable={}, against=against, remedy=remedy)


@cases(
    ("given", "message", "remedy"),
    {
        "the-nearest-node": (
            {
                "nodes": [
                    fits("a", "is cordoned", remedy="uncordon it"),
                    fits("b", "is cordoned", "is not Ready"),
                ]
            },
            "none of the 2 nodes with GPUs can take it: Node a is cordoned",
            "uncordon it",
        ),
        "no-node-of-the-class": (
            {"nodes": [], "classes": ["nvidia-l4"], "other_kinds": ["nvidia-t4"]},
            "there is no node of class nvidia-l4 now",
            "name a class that has nodes (nvidia-t4), or ask the platform team for nodes",
        ),
        "no-gpu-node": ({"nodes": []}, "there is no GPU node now", "ask the platform team for nodes"),
    },
)
def test_the_nodes(given: JSON, message: str, remedy: str) -> None:
    _, _, (_, reason) = answered(situation(pods=[unschedulable("train-0")], **given))
    assert (reason.message, reason.remedy) == (message, remedy)


@cases("nodes", {"forbidden": None, "one-fits": [fits("a", "is cordoned"), fits("b")]})
def test_nothing_is_said_of_nodes_that_may_fit(nodes: list[NodeFit] | None) -> None:
    _, _, reasons = answered(situation(pods=[unschedulable("train-0")], nodes=nodes))
    assert [each.source.value for each in reasons] == ["scheduler"]


def test_denials_of_one_owner_are_one_line() -> None:
    """Each names another pod, and so is an Event of its own."""
    quota_denial = WEBHOOK + "pod ml/train-{}: no [gpu-quota]"
    denials = (event(quota_denial.format(1), minute=1, count=2), event(quota_denial.format(2), minute=3))
    found = observed([*denials, event("exceeded quota: compute", minute=2)])

    assert [(each.about, each.count, each.last and each.last.minute, each.message) for each in found] == [
        ("Job/train", 3, 3, "pod ml/train-2: no [gpu-quota]"),
        ("Job/train", 1, 2, "exceeded quota: compute"),
    ]


@cases(
    ("pods", "want"),
    {
        "one-finds-no-node": ([pod("a", spec={"nodeName": "t4-0"}), unschedulable("b")], "b"),
        "one-does-not-start": ([RUNNING, pod("a", spec={"nodeName": "t4-0"})], "a"),
        "none": ([RUNNING, pod("a", phase="Succeeded")], None),
    },
)
def test_the_pod_with_which_nodes_are_compared(pods: list[StoredPod], want: str | None) -> None:
    stuck = situation(pods=pods).stuck
    assert (stuck.metadata.name if stuck else None) == want

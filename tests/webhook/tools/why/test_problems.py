"""What a namespace's conditions, Events and pods say is denied or pending, and in which order."""

from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from tests.builders import JSON
from tests.cases import cases
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.tools.why.problems import OwnerProblems, read_problems

NOW = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)
WEBHOOK = 'Error creating: admission webhook "pods.validate.gpu-admission.dev" denied the request: '
UNSCHEDULED = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}


class Listed(list[Any]):
    @property
    def items(self) -> list[Any]:
        return [each for each in self if each is not None]


class ListedObjects:
    """Answers lists from objects by plural; a plural that it lacks is forbidden."""

    def __init__(self, **objects: list[JSON]) -> None:
        self.objects = objects

    def list(self, path: str, read: Any, **_: object) -> Listed:
        plural = path.rpartition("/")[2]
        if plural not in self.objects:
            raise errors.Forbidden(f"{plural} is forbidden")
        return Listed(read(msgspec.json.encode(each)) for each in self.objects[plural])

    def get(self, path: str, **_: object) -> bytes:
        raise errors.NotFound(f"{path} not found")


OWNERS = "deployments replicasets replicationcontrollers statefulsets jobs"
NOTHING: dict[str, list[JSON]] = {plural: [] for plural in f"{OWNERS} events pods".split()}


def found(namespace: str = "ml", **objects: list[JSON]) -> OwnerProblems:
    return read_problems(cast(ApiClient, ListedObjects(**{**NOTHING, **objects})), namespace, NOW)


def event(
    owner: str,
    message: str = WEBHOOK + "no",
    *,
    first: str = "08:10",
    count: int = 1,
    reason: str = "FailedCreate",
) -> JSON:
    kind, _, name = owner.partition("/")
    return {
        "metadata": {},
        "involvedObject": {"kind": kind, "name": name, "namespace": "ml"},
        "reason": reason,
        "message": message,
        "count": count,
        "firstTimestamp": f"2026-11-22T{first}:00Z",
        "lastTimestamp": "2026-11-22T08:50:00Z",
    }


def owner(name: str, spec: JSON | None = None, owned: bool = False, **status: Any) -> JSON:
    references = [{"kind": "Deployment", "name": "chat", "controller": True}] if owned else []
    metadata = {"name": name, "namespace": "ml", "ownerReferences": references}
    return {"metadata": metadata, "spec": spec or {}, "status": status}


def failed(message: str = WEBHOOK + "no\nmore", since: str = "2026-11-22T05:00:00Z") -> list[JSON]:
    return [{"type": "ReplicaFailure", "status": "True", "lastTransitionTime": since, "message": message}]


def pod(
    name: str,
    created: str,
    *,
    by: str = "",
    spec: JSON | None = None,
    metadata: JSON | None = None,
    **status: Any,
) -> JSON:
    references = [{"kind": "Job", "name": by, "controller": True}] if by else []
    metadata = {
        "name": name,
        "namespace": "ml",
        "creationTimestamp": f"2026-11-22T{created}Z",
        "ownerReferences": references,
        **(metadata or {}),
    }
    return {"metadata": metadata, "spec": spec or {}, "status": {"phase": "Pending", **status}}


def lines(problems: OwnerProblems) -> list[tuple[str, str, int, str, str]]:
    return [
        (each.answer.value, each.owner, each.count, f"{each.first:%H:%M}", each.message)
        for each in problems.problems
    ]


JOB = {"parallelism": 3, "completions": 3}
KUEUES = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
OURS = {"schedulingGates": [{"name": "gpu-admission.dev/quota"}]}


def change(owner: str, count: int = 1) -> JSON:
    return event(owner, f"change by x: {WEBHOOK}pod ml/a: no", count=count, reason="FailedUpdate")


@cases(
    ("objects", "want"),
    nothing=({}, []),
    an_event_of_an_object_that_lacks_pods=(
        {"events": [event("Job/train", count=4)], "jobs": [owner("train", JOB, active=2)]},
        [("denied", "Job/train", 4, "08:10", "no")],
    ),
    somebody_else_denied_them=(
        {"events": [event("PyTorchJob/train", "exceeded quota: compute")]},
        [("denied", "PyTorchJob/train", 1, "08:10", "exceeded quota: compute")],
    ),
    it_has_its_pods_now=(
        {"events": [event("Job/train")], "jobs": [owner("train", JOB, active=2, succeeded=1)]},
        [],
    ),
    it_has_ended=(
        {
            "events": [event("Job/train")],
            "jobs": [owner("train", JOB, conditions=[{"type": "Failed", "status": "True"}])],
        },
        [],
    ),
    it_is_gone=({"events": [event("StatefulSet/chat")]}, []),
    a_stateful_set_lacks_a_pod=(
        {"events": [event("StatefulSet/chat")], "statefulsets": [owner("chat", {"replicas": 2}, replicas=1)]},
        [("denied", "StatefulSet/chat", 1, "08:10", "no")],
    ),
    a_condition_outlives_the_events=(
        {"deployments": [owner("chat", conditions=failed())]},
        [("denied", "Deployment/chat", 0, "05:00", "no")],
    ),
    a_condition_says_since_when_and_events_how_often=(
        {
            "deployments": [owner("chat", conditions=failed())],
            "events": [event("Deployment/chat", WEBHOOK + "newer", count=9)],
        },
        [("denied", "Deployment/chat", 9, "05:00", "newer")],
    ),
    the_replica_set_of_a_deployment_is_not_said_again=(
        {"replicasets": [owner("chat-abc", owned=True, conditions=failed())]},
        [],
    ),
    a_pod_of_a_minute=({"pods": [pod("a", "08:59:00")]}, []),
    pods_of_longer=(
        {
            "pods": [
                pod("a", "08:58:59", by="train", conditions=[UNSCHEDULED]),
                pod("b", "08:40:00", by="train", conditions=[UNSCHEDULED]),
                pod("c", "08:30:00", by="train"),
            ]
        },
        [("pending", "Job/train", 3, "08:30", "Pod a (and 1 more) finds no node: 0/3 nodes are available")],
    ),
    running_or_ended=(
        {"pods": [pod("a", "07:00:00", phase="Running"), pod("b", "07:00:00", phase="Failed")]},
        [],
    ),
    a_pod_whose_gate_may_not_be_removed=(
        {"events": [change("Pod/a", 3)], "pods": [pod("a", "08:00:00", spec=KUEUES)]},
        [("denied", "Pod/a", 3, "08:10", "pod ml/a: no")],
    ),
    a_job_that_has_its_pods_whose_gates_may_not_be_removed=(
        {
            "events": [change("Job/train", 2)],
            "jobs": [owner("train", JOB, active=3)],
            "pods": [pod("a", "08:00:00", by="train", spec=KUEUES)],
        },
        [("denied", "Job/train", 2, "08:10", "pod ml/a: no")],
    ),
    a_gate_that_was_removed_later=(
        {"events": [change("Pod/a")], "pods": [pod("a", "08:00:00", spec=OURS)]},
        [("waiting", "Pod/a", 1, "08:00", "Pod a waits in line for quota")],
    ),
    a_pod_that_is_gone=({"events": [change("Pod/a")]}, []),
    the_worst_first=(
        {
            "events": [event("X/few"), event("X/many", count=5), event("X/old", first="08:01")],
            "pods": [
                pod("gated", "07:00:00", spec={"schedulingGates": [{"name": "a/b"}]}),
                pod("late", "08:00:00", conditions=[UNSCHEDULED]),
                pod("early", "07:30:00", conditions=[UNSCHEDULED]),
            ],
        },
        [
            ("denied", "X/many", 5, "08:10", "no"),
            ("denied", "X/old", 1, "08:01", "no"),
            ("denied", "X/few", 1, "08:10", "no"),
            ("pending", "Pod/early", 1, "07:30", "Pod early finds no node: 0/3 nodes are available"),
            ("pending", "Pod/late", 1, "08:00", "Pod late finds no node: 0/3 nodes are available"),
            ("gated", "Pod/gated", 1, "07:00", "Pod gated waits for its scheduling gates to be removed: a/b"),
        ],
    ),
)
def test_what_is_listed(objects: dict[str, list[JSON]], want: list[tuple[str, str, int, str, str]]) -> None:
    assert lines(found("ml", **objects)) == want


ENDING = {"deletionTimestamp": "2026-11-22T09:05:00Z", "deletionGracePeriodSeconds": 600}
OVERDUE = ENDING | {"deletionTimestamp": "2026-11-22T08:55:00Z"}
SINCE = "Pod a has been terminating since 08:55 UTC, at 09:05 UTC at the latest"
FULL = WEBHOOK + "pod ml/b: set rollingUpdate.maxUnavailable: 1 [gpu-quota]"


@cases(
    ("metadata", "events", "want"),
    in_its_grace_period=(ENDING, [], []),
    longer=(
        OVERDUE,
        [],
        [
            "Pod a has been terminating since 08:45 UTC; its grace period ended at 08:55 UTC, and "
            "Node t4-0 has not confirmed its end"
        ],
    ),
    the_quota_waits_for_it=(ENDING, [FULL], [f"exceeded quota until its old pods have ended: {SINCE}"]),
    a_rule_does_not=(ENDING, [WEBHOOK + "no [gpu-class]"], ["no [gpu-class]"]),
)
def test_a_pod_that_is_being_deleted(metadata: JSON, events: list[str], want: list[str]) -> None:
    pods = [pod("a", "01:00:00", by="train", spec={"nodeName": "t4-0"}, metadata=metadata, phase="Running")]
    jobs = [owner("train", JOB)]
    problems = found(pods=pods, jobs=jobs, events=[event("Job/train", text) for text in events]).problems

    assert [each.message for each in problems] == want


def test_all_namespaces_by_the_same_order() -> None:
    other = pod("b", "08:00:00", metadata={"namespace": "a"})
    problems = found(
        "",
        events=[event("X/denied")],
        pods=[pod("a", "08:00:00"), other, pod("c", "08:00:00", phase="Running")],
    ).problems

    assert [(each.namespace, each.owner) for each in problems] == [
        ("ml", "X/denied"),
        ("a", "Pod/b"),
        ("ml", "Pod/a"),
    ]


def test_a_replica_set_that_is_listed_is_not_read_again() -> None:
    sets = [owner("chat-abc", owned=True)]
    deployments = [owner("chat", conditions=failed())]
    problems = found(
        deployments=deployments, replicasets=sets, events=[event("ReplicaSet/chat-abc")]
    ).problems

    assert [(each.owner, each.count) for each in problems] == [("Deployment/chat", 1)]


def test_the_span_that_was_seen() -> None:
    deployments, pods = [owner("chat", conditions=failed())], [pod("a", "01:00:00")]

    assert found(deployments=deployments, pods=pods).since == datetime(2026, 11, 22, 5, 0, tzinfo=UTC)
    assert found(pods=pods).since is None


@cases(("namespace", "where"), one=("ml", "-n ml"), all=("", "in all namespaces"))
def test_what_may_not_be_read_is_said_and_then_events_count(namespace: str, where: str) -> None:
    api = cast(ApiClient, ListedObjects(events=[event("Job/train")]))
    problems = read_problems(api, namespace, NOW)

    assert [each.owner for each in problems.problems] == ["Job/train"]
    assert problems.omitted == (
        f"list deployments.apps {where}",
        f"list replicasets.apps {where}",
        f"list replicationcontrollers {where}",
        f"list statefulsets.apps {where}",
        f"list jobs.batch {where}",
        f"list pods {where}",
    )


def test_a_pod_whose_claim_is_denied_is_one_problem_until_it_has_the_claim() -> None:
    events = [event("Pod/has-it"), event("Pod/lacks-it")]
    pods = [pod("lacks-it", "08:10:00"), pod("has-it", "08:10:00", spec={"nodeName": "t4-0"})]
    assert lines(found(events=events, pods=pods)) == [
        ("denied", "Pod/lacks-it", 1, "08:10", "no"),
        (
            "pending",
            "Pod/has-it",
            1,
            "08:10",
            "Pod has-it is on Node t4-0, whose kubelet has not started it yet",
        ),
    ]


def test_pods_that_wait_in_line_come_last_and_as_one_problem() -> None:
    gated = [
        pod(name, "07:00:00", by="train", spec={"schedulingGates": [{"name": "gpu-admission.dev/quota"}]})
        for name in ("train-0", "train-1")
    ]
    problems = found(pods=[*gated, pod("late", "08:00:00", conditions=[UNSCHEDULED])]).problems
    assert [(each.answer.value, each.owner, each.count, each.message) for each in problems] == [
        ("pending", "Pod/late", 1, "Pod late finds no node: 0/3 nodes are available"),
        ("waiting", "Job/train", 2, "Pod train-0 (and 1 more) waits in line for quota"),
    ]


def test_a_pod_that_joined_the_line_just_now_is_named() -> None:
    """Another pod of its age may just be starting."""
    gates = {"schedulingGates": [{"name": "gpu-admission.dev/quota"}]}
    pods = [pod("queued", "08:59:58", spec=gates), pod("starting", "08:59:58", conditions=[UNSCHEDULED])]

    assert [(each.answer.value, each.message) for each in found(pods=pods).problems] == [
        ("waiting", "Pod queued waits in line for quota")
    ]

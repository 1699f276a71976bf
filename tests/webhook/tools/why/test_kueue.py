"""What is said of an object that Kueue queues; with the real Kueue: tests/neighbours/test_kueue.py."""

from pathlib import Path
from typing import Any

from tests.builders import JSON, gpu_container
from tests.cases import cases
from tests.webhook.cluster.apiserver import group
from tests.webhook.commands.checked_cluster import FORBIDDEN
from tests.webhook.tools.why.situations import explained
from webhook.tools.why.explanation import Answer, Awaited, Source

API = "/apis/kueue.x-k8s.io/v1beta2"
WORKLOADS, QUEUES = f"{API}/namespaces/ml/workloads", f"{API}/namespaces/ml/localqueues"
AT = "2026-11-22T08:02:00Z"


def condition(kind: str, status: str = "True", message: str = "", reason: str = "Any", at: str = AT) -> JSON:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}


def workload(
    owner: str,
    *conditions: JSON,
    minute: int = 0,
    queue: str = "team-a",
    spec: JSON | None = None,
    **status: Any,
) -> JSON:
    return {
        "metadata": {
            "name": f"job-{owner}",
            "uid": f"w-{owner}",
            "creationTimestamp": f"2026-11-22T08:{minute:02}:00Z",
            "ownerReferences": [{"uid": owner, "kind": "Job"}],
        },
        "spec": {"queueName": queue, **(spec or {})},
        "status": {"conditions": list(conditions), **status},
    }


WAITS = condition("QuotaReserved", "False", "couldn't assign flavors to pod set main: 2 more needed")
RESERVED, ADMITTED = condition("QuotaReserved"), condition("Admitted")
LOCAL = {"metadata": {"name": "team-a"}, "spec": {"clusterQueue": "gpus"}}
QUOTAS = [{"name": "nvidia.com/gpu", "nominalQuota": "8"}, {"name": "cpu", "nominalQuota": "100"}]
WHOLE = {
    "metadata": {"name": "gpus"},
    "spec": {"resourceGroups": [{"flavors": [{"name": "h100", "resources": QUOTAS}]}]},
    "status": {
        "flavorsReservation": [{"name": "h100", "resources": [{"name": "nvidia.com/gpu", "total": "6"}]}]
    },
}


def stopped(queue: JSON) -> JSON:
    return {**queue, "spec": {**queue["spec"], "stopPolicy": "Hold"}}


WAIT, NO_WAY = "wait until Kueue admits it", ()
BY_KUEUE = (Awaited.KUEUE,)


@cases(
    ("workloads", "objects", "message", "remedy"),
    behind_one_that_is_older=(
        [workload("u", WAITS, minute=5), workload("other", minute=4), workload("x", RESERVED, minute=3)],
        {},
        "waits in LocalQueue team-a of Kueue, place 2 of 2: couldn't assign flavors to pod set main: 2 more needed; "
        "ClusterQueue gpus has reserved 6 of 8 nvidia.com/gpu of flavor h100",
        WAIT,
    ),
    before_one_of_less_priority=(
        [workload("u", minute=5, spec={"priority": 10}), workload("other", minute=4)],
        {},
        "waits in LocalQueue team-a of Kueue, place 1 of 2; ClusterQueue gpus has reserved 6 of 8 nvidia.com/gpu of flavor h100",
        WAIT,
    ),
    behind_since_its_pods_were_not_ready_in_time=(
        [
            workload("u", condition("Evicted", reason="PodsReadyTimeout", at="2026-11-22T08:30:00Z")),
            workload("other", minute=4),
            workload("elsewhere", queue="team-b"),
        ],
        {f"{API}/clusterqueues/gpus": FORBIDDEN},
        "waits in LocalQueue team-a of Kueue, place 2 of 2",
        WAIT,
    ),
    reserved_and_not_admitted=(
        [
            workload(
                "u", RESERVED, admissionChecks=[{"name": "prov", "state": "Pending", "message": "no node"}]
            )
        ],
        {},
        "waits in LocalQueue team-a: Kueue has reserved quota, and has not admitted it: AdmissionCheck prov is Pending: no node",
        WAIT,
    ),
    in_a_queue_that_does_not_exist=(
        [workload("u", WAITS, queue="team-x")],
        {},
        "waits for LocalQueue team-x, which does not exist",
        "set label kueue.x-k8s.io/queue-name: team-a",
    ),
    where_no_queue_exists=(
        [workload("u", WAITS, queue="team-x")],
        {QUEUES: []},
        "waits for LocalQueue team-x, which does not exist",
        "ask the platform team for a LocalQueue of the namespace",
    ),
    without_a_queue=(
        [workload("u", queue="")],
        {},
        "names no LocalQueue",
        "set label kueue.x-k8s.io/queue-name: team-a",
    ),
    deactivated=(
        [
            workload(
                "u",
                condition("Evicted", message="exceeded the maximum number of retries"),
                spec={"active": False},
            )
        ],
        {},
        "is deactivated: spec.active of Workload job-u is false: exceeded the maximum number of retries",
        "ask the platform team to set spec.active: true of Workload job-u",
    ),
    in_a_stopped_queue=(
        [workload("u", WAITS)],
        {QUEUES: [stopped(LOCAL)], f"{API}/clusterqueues/gpus": stopped(WHOLE)},
        "waits in LocalQueue team-a: stopPolicy of LocalQueue team-a and ClusterQueue gpus is set",
        "wait until it is None, or ask the platform team why it is set",
    ),
)
def test_a_job_that_kueue_holds(
    tmp_path: Path, workloads: list[JSON], objects: JSON, message: str, remedy: str
) -> None:
    found = explained(tmp_path, "Job", {"suspend": True}, {}, **kueue(workloads, objects))

    assert (found.answer, found.summary) == (Answer.WAITING, message)
    cause = found.reasons[0]
    assert (cause.source, cause.remedy) == (Source.KUEUE, remedy)
    awaited = tuple(each for way in cause.ways for each in way.awaits)
    assert awaited == (BY_KUEUE if remedy.startswith("wait") else NO_WAY)


def kueue(workloads: list[JSON], objects: JSON) -> dict[str, Any]:
    return {
        "/apis/kueue.x-k8s.io": group("v1beta2"),
        WORKLOADS: workloads,
        QUEUES: [LOCAL],
        f"{API}/clusterqueues/gpus": WHOLE,
        **objects,
    }


def test_a_job_that_kueue_has_admitted(tmp_path: Path) -> None:
    found = explained(
        tmp_path, "Job", {"suspend": True}, {}, **kueue([workload("u", RESERVED, ADMITTED)], {})
    )

    assert found.kueue is not None
    assert found.kueue.in_words(found.at) == "LocalQueue team-a, admitted at 08:02 UTC"
    assert found.kueue.amounts == "ClusterQueue gpus has reserved 6 of 8 nvidia.com/gpu of flavor h100"
    assert (found.answer, found.summary) == (Answer.STOPPED, "spec.suspend is true")


def test_a_job_for_which_kueue_has_reserved_quota(tmp_path: Path) -> None:
    found = explained(tmp_path, "Job", {"suspend": True}, {}, **kueue([workload("u", RESERVED)], {}))

    assert found.kueue is not None
    assert found.kueue.in_words(found.at) == "LocalQueue team-a, quota reserved at 08:02 UTC"


def test_a_pod_under_its_gate(tmp_path: Path) -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}
    gates = [{"name": "kueue.x-k8s.io/admission"}]
    pod = {
        "metadata": {"name": "train-0", "namespace": "ml", "uid": "x", "ownerReferences": [owner]},
        "spec": {"containers": [gpu_container()], "schedulingGates": gates},
        "status": {"phase": "Pending"},
    }
    pods = "/api/v1/namespaces/ml/pods"
    objects = {**kueue([workload("x", WAITS)], {}), pods: [pod], f"{pods}/train-0": pod}
    found = explained(tmp_path, "Job", {}, {}, **objects)

    assert (found.answer, found.reasons[0].source) == (Answer.GATED, Source.KUEUE)
    assert found.kueue is not None
    assert found.kueue.in_words(found.at) == "LocalQueue team-a, place 1 of 1"
    assert found.reasons[0].message.startswith(
        "Pod train-0 waits in LocalQueue team-a of Kueue, place 1 of 1: couldn't assign flavors"
    )


def test_rights_that_are_missing_are_named(tmp_path: Path) -> None:
    found = explained(tmp_path, "Job", {"suspend": True}, {}, **kueue([], {WORKLOADS: FORBIDDEN}))

    assert found.kueue is None
    assert found.omitted == ("list workloads.kueue.x-k8s.io -n ml",)

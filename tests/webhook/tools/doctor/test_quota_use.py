"""Doctor on pods that wait in line for quota, pods that hold quota without a node, and budgets."""

from pathlib import Path
from typing import Any

from policies.quota.waiting import GATE
from tests.builders import JSON, gpu_container
from tests.builders import pod as made_pod
from tests.cases import cases
from tests.webhook.tools.doctor.objects import COUNTED, LEADS, QUOTAS, lease, quota
from tests.webhook.tools.installed_clusters import assert_found

POLICIES = "/apis/gpu-admission.dev/v1alpha1/gpupolicies"
RESOURCE_QUOTAS = "/api/v1/resourcequotas"


def pod(name: str, *gates: str, since: str = "2027-01-31T11:00:00Z", phase: str = "Pending") -> JSON:
    metadata = {"name": name, "namespace": "team", "creationTimestamp": since}
    spec = {
        "containers": [{"name": "main", "image": "x"}],
        "schedulingGates": [{"name": each} for each in gates],
    }
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase}}


def policy(**options: str) -> dict[str, Any]:
    metadata = {"name": "default", "uid": "p", "resourceVersion": "1", "generation": 1}
    return {POLICIES: [{"metadata": metadata, "spec": {"rules": {"gpu-quota": options}}}]}


def status(
    used: str, since: str = "2027-01-31T11:00:00Z", team_free: str = "", **hard: Any
) -> dict[str, Any]:
    """Return a quota of four GPUs, for one of which the pod `a` is first in line. `team_free`: GPUs of its team."""
    stored = quota(COUNTED)
    demand = {"gpus": "1", **hard}
    first = {"name": "a", "place": 1, "since": since, "demand": demand}
    stored["status"] |= {"hard": {"gpus": "4", **hard}, "used": {"gpus": used, **hard}}
    if team_free:
        stored["status"]["team"] = {"name": "t", "hard": {"gpus": "8"}, "free": {"gpus": team_free}}
    stored["status"]["waiting"] = {"pods": 1, "demand": {"gpus": "1"}, "next": [first]}
    return {QUOTAS: [stored]}


PODS = {
    "/api/v1/pods": [pod("a", GATE), pod("b", "example.com/other"), pod("c", GATE, phase="Failed"), pod("d")]
}
QUEUE = policy(onExceeded="Queue")


@cases(
    ("objects", "want"),
    nobody_waits=({"/api/v1/pods": [pod("d")]}, []),
    all_is_well=({**PODS, **LEADS, **QUEUE, **status("4")}, []),
    no_controller_ever=(
        {**PODS, **QUEUE, **status("4")},
        [
            "waiting-without-controller: pods wait in line for quota (team/a), and no controller leads that "
            "would start them\n"
            "start the controller (gpu-admission-controller); in an emergency: gpu-admission pause "
            "--for 1h --reason emergency, then "
            "gpu-admission release --all"
        ],
    ),
    no_controller_for_minutes=(
        {**PODS, **QUEUE, **status("4"), **lease("11:55:00")},
        [
            "waiting-without-controller: pods wait in line for quota (team/a), and no controller leads that "
            "would start them\n"
            "start the controller (gpu-admission-controller); in an emergency: gpu-admission pause "
            "--for 1h --reason emergency, then "
            "gpu-admission release --all"
        ],
    ),
    no_quota=(
        {**PODS, **LEADS, **QUEUE},
        [
            "waiting-for-nothing: pods in team wait in line for quota (a), although the namespace has no "
            "GPUQuota\n"
            "see the log of the controller; in an emergency: gpu-admission pause "
            "--for 1h --reason emergency, then gpu-admission release -n "
            "team"
        ],
    ),
    it_has_just_been_deleted=(
        {**LEADS, **QUEUE, "/api/v1/pods": [pod("a", GATE, since="2027-01-31T11:59:30Z")]},
        [],
    ),
    a_rule_that_denies_nothing=(
        {**PODS, **LEADS, **policy(onExceeded="Queue", mode="warn"), **status("4")},
        [
            "waiting-for-nothing: pods in team wait in line for quota (a), although the namespace has no policy "
            "that enforces its GPUQuota"
        ],
    ),
    no_line_any_more=(
        {**PODS, **LEADS, **policy(onExceeded="Deny"), **status("4")},
        [
            "waiting-out-of-use: pods in team wait in line for quota (a), which no new pod does: onExceeded is "
            "Deny\n"
            "wait: they start in order; to start them now: gpu-admission pause "
            "--for 1h --reason emergency, then gpu-admission release -n "
            "team"
        ],
    ),
    with_room=(
        {**PODS, **LEADS, **QUEUE, **status("3")},
        [
            "waiting-with-room: pods in team Pod/a is first in line since 2027-01-31T11:00:00Z, although the "
            "quota has room for what it needs\n"
            "see the log of the controller; in an emergency: gpu-admission pause "
            "--for 1h --reason emergency, then gpu-admission release -n "
            "team"
        ],
    ),
    with_room_for_a_moment=({**PODS, **LEADS, **QUEUE, **status("3", since="2027-01-31T11:55:00Z")}, []),
    with_room_in_its_quota_and_none_in_its_team=(
        {**PODS, **LEADS, **QUEUE, **status("3", team_free="0")},
        [],
    ),
    with_room_in_its_quota_and_its_team=(
        {**PODS, **LEADS, **QUEUE, **status("3", team_free="1")},
        [
            "waiting-with-room: pods in team Pod/a is first in line since 2027-01-31T11:00:00Z, although the "
            "quota has room for what it needs"
        ],
    ),
    with_room_in_one_of_two_limits=(
        {**PODS, **LEADS, **QUEUE, **status("3", **{"classes/nvidia-t4": "1"})},
        [],
    ),
)
def test_pods_that_wait(objects: JSON, want: list[str], tmp_path: Path) -> None:
    assert_found("waiting-pods", objects, want, tmp_path)


LIMITS_PODS = {
    RESOURCE_QUOTAS: [{"metadata": {"name": "compute", "namespace": "team"}, "spec": {"hard": {"pods": "9"}}}]
}


@cases(
    ("objects", "want"),
    where_pods_wait=(
        {**LIMITS_PODS, **QUEUE, **status("4")},
        [
            "resource-quota-waiting: ResourceQuota/compute in team spec.hard: pods also count pods that wait in "
            "line for quota: beyond them, a pod is denied instead\n"
            "omit them, or leave room for the pods that wait"
        ],
    ),
    where_they_are_denied=({**LIMITS_PODS, **policy(onExceeded="Deny"), **status("4")}, []),
    where_nothing_is_limited=({**LIMITS_PODS, **QUEUE}, []),
)
def test_a_resource_quota_that_counts_them(objects: JSON, want: list[str], tmp_path: Path) -> None:
    assert_found("resource-quotas", objects, want, tmp_path)


@cases(
    ("item", "want"),
    that_gives_gpus=(
        {"type": "Container", "max": {"nvidia.com/gpu": "2"}, "default": {"nvidia.com/gpu": "1"}},
        [
            "limit-range-gives-gpus: LimitRange/gpus in team spec.limits[0].default[nvidia.com/gpu]: each container that "
            "requests none gets it, also sidecars and init containers\n"
            "set default[nvidia.com/gpu] and defaultRequest[nvidia.com/gpu] to 0"
        ],
    ),
    that_only_bounds_them=({"type": "Pod", "max": {"nvidia.com/gpu": "2"}}, []),
)
def test_a_limit_range(item: JSON, want: list[str], tmp_path: Path) -> None:
    stored = {"metadata": {"name": "gpus", "namespace": "team"}, "spec": {"limits": [item]}}

    assert_found("limit-ranges", {"/api/v1/limitranges": [stored]}, want, tmp_path)


def controller(
    namespace: str = "gpu-admission", account: str = "gpu-admission-controller", *flags: str
) -> JSON:
    spec = {"serviceAccountName": account, "containers": [{"name": "controller", "args": list(flags)}]}
    return {
        "metadata": {"name": "controller", "namespace": namespace},
        "spec": {"template": {"spec": spec}},
    }


USER = "system:serviceaccount:{}:{}"
FOUND = (
    "controller-user: Deployment/controller in {} must run as system:serviceaccount:gpu-admission:gpu-admission-controller: "
    "the webhook puts back the gates that {} removes"
)


@cases(
    ("deployments", "want"),
    as_installed=([controller()], []),
    none_is_a_deployment=([], []),
    without_an_account=(
        [controller(account="")],
        [
            FOUND.format("gpu-admission", USER.format("gpu-admission", "default"))
            + "\nrun it in gpu-admission with serviceAccountName: gpu-admission-controller, without --kubeconfig"
        ],
    ),
    another_account=(
        [controller(account="builder")],
        [FOUND.format("gpu-admission", USER.format("gpu-admission", "builder"))],
    ),
    in_another_namespace=(
        [controller("b"), controller()],
        [FOUND.format("b", USER.format("b", "gpu-admission-controller"))],
    ),
    by_a_kubeconfig=(
        [controller("gpu-admission", "gpu-admission-controller", "--kubeconfig=/admin")],
        [FOUND.format("gpu-admission", "the user of its --kubeconfig")],
    ),
)
def test_whom_the_webhook_lets_start_pods(deployments: list[JSON], want: list[str], tmp_path: Path) -> None:
    assert_found("controller-user", {"/apis/apps/v1/deployments": deployments}, want, tmp_path)


FIT = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
QUOTA = {QUOTAS: [quota(COUNTED)], "/api/v1/nodes": []}


def unplaced(name: str, since: str, *, node: str = "") -> JSON:
    """Return a pending pod of the day on which doctor looks, at 12:00."""
    document = made_pod(gpu_container("2"), nodeName=node)
    created = f"2027-01-31T{since}:00Z"
    document["metadata"] = {"name": name, "namespace": "team", "uid": name, "creationTimestamp": created}
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": FIT}
    return {**document, "status": {"phase": "Pending", "conditions": [condition]}}


def pods(*found: JSON) -> JSON:
    return {"/api/v1/pods": list(found)}


HOLDS = "pending-with-quota: pods in team hold"


@cases(
    ("objects", "want"),
    for_nine_minutes=({**QUOTA, **pods(unplaced("a", "11:51"))}, []),
    on_a_node=({**QUOTA, **pods(unplaced("a", "11:00", node="b"))}, []),
    without_a_quota=(pods(unplaced("a", "11:00")), []),
    for_longer=(
        {**QUOTA, **pods(unplaced("a", "11:49"))},
        [
            f"{HOLDS} 2 GPUs of the quota and have no node: Pod/a since 2027-01-31 11:49 UTC, {FIT}\n"
            "gpu-admission why Pod/a -n team says what each node lacks; delete what is not needed"
        ],
    ),
    several=(
        {**QUOTA, **pods(unplaced("a", "11:49"), unplaced("b", "11:00"), unplaced("c", "11:59"))},
        [
            f"{HOLDS} 4 GPUs of the quota and have no node: Pod/b since 2027-01-31 11:00 UTC, {FIT}; and 1 more"
        ],
    ),
)
def test_pods_that_hold_quota_without_a_node(objects: JSON, want: list[str], tmp_path: Path) -> None:
    assert_found("pending-pods", objects, want, tmp_path)


SPENT = ("BudgetSpent", "True", "100 of 100 GPU-hours used this month")


def budget(until: str = "11:55:00", used: str = "4", **spec: JSON) -> JSON:
    """Return a quota with a budget that was counted at a time of the day on which doctor looks, at 12:00."""
    stored = quota(COUNTED, SPENT, **{"budget": {"gpuHours": 100}, **spec})
    stored["status"]["used"] = {"gpus": used}
    stored["status"]["budget"] = {
        "period": "month",
        "start": "2027-01-01T00:00:00Z",
        "end": "2027-02-01T00:00:00Z",
        "until": f"2027-01-31T{until}Z",
        "granted": {"gpus": "100"},
        "used": {"gpus": "100"},
    }
    return {QUOTAS: [stored]}


@cases(
    ("objects", "want"),
    a_quota_without_a_budget=({QUOTAS: [quota(COUNTED)]}, []),
    a_spent_budget_is_no_fault=({**budget(), **LEADS}, []),
    nothing_is_used_so_nothing_is_counted=({**budget("08:00:00", used="0"), **LEADS}, []),
    no_controller=(
        budget(),
        [
            "budget-not-counted: GPUQuota in team has a budget of GPU-hours, and no controller leads that counts "
            "them: a spent budget denies until the end of its period, and no other one does\n"
            "start the controller (gpu-admission-controller) of this version, and see its log"
        ],
    ),
    no_controller_for_minutes=(
        {**budget(), **lease("11:44:00")},
        [
            "budget-not-counted: GPUQuota in team has a budget of GPU-hours, and no controller leads that counts "
            "them: a spent budget denies until the end of its period, and no other one does\n"
            "start the controller (gpu-admission-controller) of this version, and see its log"
        ],
    ),
    a_controller_that_knows_no_budgets=(
        {QUOTAS: [quota(COUNTED, budget={"gpuHours": 100})], **LEADS},
        [
            "budget-not-counted: GPUQuota in team has a budget of GPU-hours, and the controller that leads has "
            "not counted them"
        ],
    ),
    a_controller_that_stopped_counting=(
        {**budget("11:44:00"), **LEADS},
        [
            "budget-not-counted: GPUQuota in team has a budget of GPU-hours, and the last count is of "
            "2027-01-31T11:44:00Z"
        ],
    ),
)
def test_whether_somebody_counts_them(objects: JSON, want: list[str], tmp_path: Path) -> None:
    assert_found("budgets", objects, want, tmp_path)

"""Messages of the quota that end by themselves: a pod waits in line, others wait, or the ledger cannot decide yet."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial

from policies.finding import ContactEdit, Edit, Finding, Reason, Wait, one_choice, warning
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.field_paths import value_at
from policies.pods.workload import Workload
from policies.quota.ledger.decide import Line, ReservationRequest, VerdictReason
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.team import team_title
from policies.quota.quota_request import QuotaRequest, ReservationOutcome
from policies.quota.shortage_facts import RELEASE_SECONDS, quota_title, shortage_facts
from policies.quota.spec import NAME
from policies.quota.waiting import POD_GROUP, why_never_waits

QUOTA_QUEUED = Reason("QuotaQueued", "the pod waits in line for quota")
OTHERS_WAIT = Reason("OthersWait", "other pods wait in line for the quota")
UNWANTED_GATE = Reason("UnwantedGate", "the pod has the gate of the line for quota, where pods do not wait")
TURN = Wait(seconds=60)
"""A pod that is denied because of others in line comes again within a minute."""
IN_STAGES = (
    "its pods start in stages, which wait in line for quota one after the other: two such objects may hold a part of the quota "
    "each, and wait for each other"
)
QUEUE_FULL = Reason("QueueFull", "as many pods wait in line for the quota as may")
NOT_STORED = Reason("NotStored", "pods of the namespace were admitted lately, and never stored")
QUOTA_NOT_COUNTED = Reason("QuotaNotCounted", "the quota, or a dimension of it, has not been counted yet")
QUOTA_RECALCULATING = Reason("QuotaRecalculating", "the quota is being recalculated under a new catalogue")
LEDGER_UNREADABLE = Reason("LedgerUnreadable", "the ledger of the quota has reservations that cannot be read")
LEDGER_FULL = Reason("LedgerFull", "the ledger of the quota cannot hold more reservations")


def queued_warning(namespace: str, outcome: ReservationOutcome, now: datetime) -> Finding:
    """Return the warning that a pod waits in line, and for what."""
    ledger, verdict = outcome.ledger, outcome.verdict
    quota, waiting = (quota_title(namespace, ledger), ledger.all_waiting) if ledger else (NAME, 0)
    facts = f"{pod_count_text(waiting)} before it" if waiting else "next in line"
    state = ledger.team_state if ledger else None
    if state and not waiting and verdict and verdict.reason is VerdictReason.OTHERS_WAIT:
        team = team_title(state.team.name)
        facts = f"{pod_count_text(state.waiting)} of other namespaces of {team} in line, too"
    if verdict and verdict.shortfalls:
        facts = f"{facts}, {shortage_facts(verdict.shortfalls, now).removeprefix(f'{quota}, ')}"
    return warning(reason=QUOTA_QUEUED, message=f"waits in line for {quota}: {facts}")


def why_not_queued(request: QuotaRequest, *, queues_pods: bool) -> Iterator[str]:
    """Yield why the object does not wait in line, although others do."""
    if queues_pods and request.line is Line.NEVER_WAITS:
        kind = request.pod and (why_never_waits(request.pod, by_daemonset=False) or "a pod of a DaemonSet")
        yield f"{kind or 'a ResourceClaim'} does not wait in line for quota"


def group_notes(request: QuotaRequest) -> Iterator[str]:
    """Yield what happens to the group of a new pod that is denied: its other pods wait for this one."""
    labels = (request.pod and request.pod.metadata and request.pod.metadata.labels) or {}
    if request.before is None and POD_GROUP in labels:
        yield (
            f"the other pods of pod group {labels[POD_GROUP]} cannot start without it, and hold their quota: "
            "delete them, if it is not created again"
        )


def others_wait_denial(
    namespace: str, reason: VerdictReason, ledger: QuotaLedger, request: ReservationRequest, *, joins: bool
) -> Finding:
    """Return the denial of a request because of the pods that wait in line. `joins`: it may become one of them."""
    quota, waiting = quota_title(namespace, ledger), ledger.all_waiting
    if reason is VerdictReason.QUEUE_FULL:
        # Also in a team, each namespace has a line of its own. Without a GPUQuota it has the default of `maxWaiting`.
        new = "to create a GPUQuota with a larger spec.queue.maxWaiting"
        to_raise = "to raise spec.queue.maxWaiting of the GPUQuota" if ledger.has_quota else new
        return Finding(
            reason=QUEUE_FULL,
            message=f"the line for {quota} is full: {pod_count_text(waiting)} in it",
            remedy="create it again when some of them have started",
            awaits=TURN,
            ask_contact=to_raise,
            contact_choices=((ContactEdit("GPUQuota", "spec.queue.maxWaiting", waiting + 1),),),
        )
    if reason is VerdictReason.NOT_HELD:
        message = f"too little of {quota} is held for the pod to remove its scheduling gate"
        remedy = "wait, the controller tries again"
        return Finding(reason=OTHERS_WAIT, message=message, remedy=remedy, awaits=TURN)
    of_whom, has_no_gate = "", request.line is Line.NEVER_WAITS
    is_passed = not waiting or (has_no_gate and ledger.scarce.keys().isdisjoint(request.demand))
    if is_passed and ledger.team_state is not None:
        quota, waiting = team_title(ledger.team_state.team.name), ledger.team_state.waiting
        of_whom = " of other namespaces"
    message = f"{pod_count_text(waiting)}{of_whom} in line for {quota} must start first"
    remedy = "create the pod again: it then waits, too" if joins else "try again when they have started"
    if has_no_gate:
        remedy = "try again within a minute, and again until its turn comes: it has a place in line"
    blocked = partial(Finding, reason=OTHERS_WAIT, message=message, awaits=TURN)
    return blocked(remedy=remedy, ask_contact="if it persists")


def pod_count_text(number: int) -> str:
    return "1 pod" if number == 1 else f"{number} pods"


def line_advice(workload: Workload, resource_mapping: ResourceMapping, before: int) -> Iterator[Finding]:
    """Yield warnings about pods that wait in line. `before`: the number of queued pods ahead of this workload, which fits."""
    waiting = partial(warning, reason=QUOTA_QUEUED)
    pods = [pod for pod in workload.pods if pod.count.running]
    is_denied = (any if workload.is_one_gang else all)(pod.denied for pod in pods)
    if pods and before and not is_denied:
        message = f"its pods will wait in line, {pod_count_text(before)} before them{deadline_note(workload)}"
        yield waiting(path=pods[0].path, message=message)
    for pod in pods:
        if pod.pod.spec.resource_claims and resource_mapping.requests_gpus_without_claims(pod.pod):
            message = (
                "pods with ResourceClaims do not wait in line: they are denied while the quota has no room"
            )
            yield waiting(path=f"{pod.path}.spec.resourceClaims", message=message)
    of_gpus = {resource_mapping.pod_requests_gpus(pod.pod) for pod in pods}
    if workload.stage_field and sum(pod.count.running or 0 for pod in pods) > 1 and True in of_gpus:
        yield waiting(path=workload.stage_field, message=IN_STAGES)
    if workload.leader_edit and of_gpus == {True, False}:
        path, choices = workload.leader_edit.path, one_choice(workload.leader_edit)
        message = "its pods without GPUs start at once, and fail while the others wait in line for quota"
        yield waiting(path=path, message=message, choices=choices)
    is_cron_job = (workload.group, workload.kind) == ("batch", "CronJob")
    policy, deadline = (value_at(workload.data, path) for path in _CRON_JOB)
    if pods and is_cron_job and policy in {None, "Allow"} and not deadline:
        message = "Jobs that wait in line for quota pile up, because each schedule adds one"
        forbid = Edit("spec.concurrencyPolicy", "Forbid")
        yield waiting(path=forbid.path, message=message, choices=one_choice(forbid))


_CRON_JOB = ("spec", "concurrencyPolicy"), ("spec", "jobTemplate", "spec", "activeDeadlineSeconds")


def deadline_note(workload: Workload) -> str:
    """Return a note that a deadline of the object also counts while its pods wait; "" without a deadline."""
    return f"; {workload.deadline} counts meanwhile" if workload.deadline else ""


_TEXTS: Mapping[VerdictReason, tuple[Reason, str, str, str]] = {
    VerdictReason.UNCOUNTED: (
        QUOTA_NOT_COUNTED,
        "has not been counted yet: it, or a dimension of it, is new",
        "try again in some seconds",
        "see its conditions and the log of `gpu-admission controller`",
    ),
    VerdictReason.OTHER_CATALOGUE: (
        QUOTA_RECALCULATING,
        "is being recalculated: this replica cannot read the GPUClasses or resource names by which it was counted",
        f"try again in some seconds, at most {RELEASE_SECONDS} while creations are in flight",
        "see its conditions and the log of `gpu-admission controller`, which publishes what replicas must read",
    ),
    VerdictReason.UNREADABLE: (
        LEDGER_UNREADABLE,
        "cannot be decided: its ledger has reservations that cannot be read",
        f"try again in {RELEASE_SECONDS} s, within which the controller drops them",
        "see its condition Ready and the log of `gpu-admission controller`",
    ),
    VerdictReason.FULL: (
        LEDGER_FULL,
        "cannot hold more reservations than it has now",
        f"try again in {RELEASE_SECONDS} s, within which each is counted or dropped",
        "`gpu-admission controller` is not running",
    ),
    VerdictReason.NOT_STORED: (
        NOT_STORED,
        "admitted some in the last 10 min that were never stored: now those in creation may take half of what is free",
        "request less, and find out what rejects pods of this namespace, such as a name that is taken, or a ResourceQuota",
        "see `gpu-admission doctor`",
    ),
}
"""For a ledger that cannot decide: reason, message, remedy, and what to do if it persists."""
_MOVING_TEAM = (
    QUOTA_NOT_COUNTED,
    "joins or leaves a ClusterGPUQuota, and has not been counted yet",
    "try again in some seconds",
    "see the log of `gpu-admission controller`",
)
"""Likewise for a ledger without a GPUQuota or a team. The controller will soon count it for a new team, or delete it."""


def undecided_finding(namespace: str, ledger: QuotaLedger, reason: VerdictReason) -> Finding:
    """Return the denial of a request on which the ledger cannot decide."""
    title = quota_title(namespace, ledger)
    if reason is VerdictReason.UNCOUNTED and ledger.team_state is not None and not ledger.uncounted:
        title = team_title(ledger.team_state.team.name)  # only another namespace is not counted
    is_moving = ledger.team_state is None and not ledger.has_quota
    kind, message, remedy, if_it_persists = _MOVING_TEAM if is_moving else _TEXTS[reason]
    message = f"{title} {message}; if it persists, {if_it_persists}"
    return Finding(reason=kind, message=message, remedy=remedy, awaits=Wait(seconds=RELEASE_SECONDS))

"""From what is known of an object to the answer: its reasons, the most certain first, and one sentence that sums them up."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from math import floor
from typing import Any

import msgspec
from msgspec.structs import replace

from policies.finding import PLATFORM_TEAM, Finding
from policies.quota.amounts import GPUS, format_amount
from policies.quota.spec import hard_field
from policies.rules import gpu_requests
from webhook.cluster.objects import timestamp
from webhook.tools.status.denials import ClusterEvent
from webhook.tools.why.explanation import (
    Answer,
    NodeFit,
    ObservedEvent,
    QuotaDemand,
    QuotaFit,
    Reason,
    Source,
)
from webhook.tools.why.family import StoredPod

MOST_EVENTS = 10
FAILED_CREATE = "FailedCreate"
"""The reason of controllers' Events on pods that the API server did not take (`pkg/controller`, v1.36)."""
SCHEDULER_LOG = 'see the log of the scheduler that spec.schedulerName names ("{}")'
DEFAULT_SCHEDULER = "default-scheduler"
_ENDED = frozenset({"Complete", "Completed", "Succeeded", "Failed"})
"""Conditions with which Jobs, JobSets and training jobs say that they are over."""

NO_REASON = Reason(
    source=Source.CONTROLLER,
    message="pods are missing, and no Event says why",
    remedy="see the log of the controller that makes pods of this kind",
)


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an object and its pods.

    data: the object. wanted: how many pods it makes, None if it does not say. denials: what the rules deny now of its pods; None
      where that is not known. events: warnings about the object, the owners of its pods, and its pods.
    nodes: of its classes; None where they cannot be read, or where the pods request no resource of a node.
    other_kinds: other classes that have nodes and that the namespace may use.
    """

    data: Any
    pods: Sequence[StoredPod]
    events: Sequence[ClusterEvent]
    wanted: int | None
    denials: Sequence[Finding] | None = ()
    quota: QuotaFit | None = None
    classes: Sequence[str] = ()
    nodes: Sequence[NodeFit] | None = None
    other_kinds: Sequence[str] = ()
    contact: str = PLATFORM_TEAM

    @property
    def living(self) -> list[StoredPod]:
        return [pod for pod in self.pods if not pod.has_ended]

    @property
    def stuck(self) -> StoredPod | None:
        """A pod that does not run; of several one that finds no node, so that nodes are compared with that one."""
        waiting = (pod for pod in self.living if not pod.is_running)
        return min(waiting, key=lambda pod: not pod.unscheduled, default=None)

    @property
    def denied(self) -> list[ClusterEvent]:
        """Events of pods that we denied, the last one first."""
        found = (event for event in self.events if event.denial)
        return sorted(found, key=lambda each: each.last.timestamp() if each.last else 0.0, reverse=True)

    @property
    def is_missing_pods(self) -> bool:
        return bool(self.denied) if self.wanted is None else len(self.living) < self.wanted

    @property
    def replicas(self) -> int:
        """How many pods of one template it keeps as long as it is there; 0 where it is not of that kind."""
        replicas = _map(_map(self.data).get("spec")).get("replicas")
        return replicas if isinstance(replicas, int) and replicas == self.wanted else 0

    @property
    def has_ended(self) -> bool:
        conditions = _map(_map(self.data).get("status")).get("conditions") or ()
        over = any(each.get("type") in _ENDED and each.get("status") == "True" for each in conditions)
        return over or (bool(self.pods) and not self.living)

    @property
    def stopped(self) -> str:
        """Why it makes no pods now, "" if it should."""
        spec = _map(_map(self.data).get("spec"))
        if self.living or (self.wanted and not spec.get("schedule")):
            return ""
        if spec.get("suspend") is True:
            return "spec.suspend is true"
        if spec.get("schedule") and not self.denied:
            return f"it makes pods when spec.schedule ({spec['schedule']}) is due"
        if self.wanted == 0:
            return "spec.replicas is 0" if spec.get("replicas") == 0 else "as it is written, it makes no pods"
        return ""


def answered(of: Situation) -> tuple[Answer, str, tuple[Reason, ...]]:
    """Return the answer, in one sentence, too, and the reasons."""
    if of.has_ended:
        return Answer.ENDED, "it has ended", ()
    if of.stopped:
        return Answer.STOPPED, of.stopped, ()
    reasons = tuple(_reasons(of)) or ((NO_REASON,) if of.is_missing_pods else ())
    answer = _answer(of, reasons)
    running, wanted = sum(pod.is_running for pod in of.living), of.wanted
    number = f"{running} of {len(of.living) if wanted is None else wanted} pods run"
    why = reasons[0].message if reasons else "nothing that can be read says why"
    return answer, number if answer is Answer.RUNNING else f"{number}: {why}", reasons


def observed(events: Sequence[ClusterEvent]) -> Iterator[ObservedEvent]:
    """Yield the newest first, the denials of one owner as one: each names another pod."""
    found: dict[tuple[str, str, str], ObservedEvent] = {}
    for each in sorted(events, key=lambda each: each.last.timestamp() if each.last else 0.0, reverse=True):
        key = (each.owner, each.reason, "" if each.denial else each.message)
        newer = found.get(key)
        found[key] = ObservedEvent(
            about=each.owner,
            reason=each.reason,
            message=newer.message if newer else each.denial or each.message,
            count=each.times + (newer.count if newer else 0),
            last=newer.last if newer else each.last,
        )
    yield from islice(found.values(), MOST_EVENTS)


def _answer(of: Situation, reasons: Sequence[Reason]) -> Answer:
    sources, living = {reason.source for reason in reasons}, of.living
    if sources & {Source.POLICY, Source.QUOTA, Source.EVENT}:
        return Answer.REFUSED
    if living and all(pod.gates for pod in living):
        return Answer.GATED
    if any(not pod.is_running for pod in living):
        return Answer.PENDING
    return Answer.RUNNING if living and not of.is_missing_pods else Answer.UNKNOWN


def _reasons(of: Situation) -> Iterator[Reason]:
    """Yield why pods are missing, then why those that exist do not run."""
    if of.is_missing_pods:
        found = [*map(_denial, of.denials or ()), *_quota_reasons(of)]
        yield from found
        yield from _event_reasons(of, is_explained=bool(found))
    yield from _pod_reasons(of)
    unscheduled = [pod for pod in of.living if pod.unscheduled]
    if unscheduled and of.nodes is not None:
        yield from _node_reasons(of, of.nodes)


def _denial(finding: Finding) -> Reason:
    remedy = ", or ".join(filter(None, (finding.remedy, finding.escalation)))
    return Reason(source=Source.POLICY, message=replace(finding, remedy="", ask="").sentence(), remedy=remedy)


def _quota_reasons(of: Situation) -> Iterator[Reason]:
    """Yield the dimension of the quota that limits most; nothing where the amount itself is invalid."""
    rows = [row for row in (of.quota.rows if of.quota else ()) if not row.fits]
    if not rows or any(each.rule == gpu_requests.RULE.id for each in of.denials or ()):
        return
    row = min(rows, key=lambda row: (not row.never, row.share, row.key == GPUS, row.key))
    message = f"a pod asks for {format_amount(row.requested)} of {row.key}{_lack(row)}"
    remedy = _way_out(row, of.contact)
    wanted = of.replicas
    if not row.never and wanted * row.requested > row.hard:  # too many even for an unused quota
        message = f"{wanted} pods ask for {format_amount(wanted * row.requested)} of {row.key}{_lack(replace(row, never=True))}"
        remedy = f"set replicas: {floor(row.hard / row.requested)}, or {_raised(row, of.contact)}"
    yield Reason(source=Source.QUOTA, message=message, remedy=remedy)


def _lack(row: QuotaDemand) -> str:
    hard = format_amount(row.hard)
    if row.never:
        return f" and can never fit: the quota grants {hard} in all"
    if row.used is None:
        return ": the quota is not counted yet, and denies until it is"
    creating = f", being created: {format_amount(row.reserved)}" if row.reserved else ""
    return f": {format_amount(row.used)} of {hard} are used{creating}"


def _raised(row: QuotaDemand, contact: str) -> str:
    return f"ask {contact} to raise {hard_field(row.key)}"


def _way_out(row: QuotaDemand, contact: str) -> str:
    raised = _raised(row, contact)
    if row.never:
        return f"ask for {format_amount(row.hard)} or fewer in one pod, or {raised}"
    if row.used is None:
        return "wait some seconds; if it stays so, gpu-admission doctor says what keeps the controller from counting"
    return f"wait until others finish, delete pods that are not needed any more, or {raised}"


def _event_reasons(of: Situation, *, is_explained: bool) -> Iterator[Reason]:
    """Yield why controllers could not create pods; of our denials the message only where no other reason explains them."""
    denied = of.denied
    if denied:
        last, number = denied[0], sum(each.times for each in denied)
        at = f", last at {timestamp(last.last)}" if last.last else ""
        said = "" if is_explained else f": {last.denial.partition(chr(10))[0]}"
        is_over = not is_explained and of.denials is not None
        remedy = "a pod would be admitted now: its controller tries again by itself" if is_over else ""
        message = f"{last.owner} was denied pods {'once' if number == 1 else f'{number} times'}{at}{said}"
        yield Reason(source=Source.EVENT, message=message, remedy=remedy)
    others = {
        (event.owner, event.message): event
        for event in of.events
        if event.reason == FAILED_CREATE and not event.denial
    }
    for owner, message in others:
        yield Reason(source=Source.EVENT, message=f"{owner}: {message}")


def _pod_reasons(of: Situation) -> Iterator[Reason]:
    """Yield why pods do not run, one reason for all pods of which it is true."""
    found: dict[Reason, list[StoredPod]] = defaultdict(list)
    for pod in of.living:
        reason = _pod_reason(pod)
        if reason is not None:
            found[reason].append(pod)
    for reason, pods in found.items():
        more = f" (and {len(pods) - 1} more)" if len(pods) > 1 else ""
        yield replace(reason, message=f"Pod {pods[0].metadata.name}{more} {reason.message}")


def _pod_reason(pod: StoredPod) -> Reason | None:
    """Return why a pod does not run, without its name; None if it does."""
    source, remedy, node = Source.POD, "", pod.spec.node_name
    scheduler = pod.spec.scheduler_name or DEFAULT_SCHEDULER
    if pod.is_running:
        return None
    if pod.gates:
        message = f"waits for its scheduling gates to be removed: {', '.join(pod.gates)}"
        remedy = "see the controller that sets them"
    elif pod.unscheduled:
        source, message = Source.SCHEDULER, f"finds no node: {pod.unscheduled}"
    elif pod.waiting:
        message = f"waits on Node {node}: {'; '.join(pod.waiting)}"
    elif node:
        message = f"is on Node {node}, whose kubelet has not started it yet"
    else:
        source, message = Source.SCHEDULER, "has not been considered by a scheduler yet"
        remedy = "" if scheduler == DEFAULT_SCHEDULER else SCHEDULER_LOG.format(scheduler)
    return Reason(source=source, message=message, remedy=remedy)


def _node_reasons(of: Situation, nodes: Sequence[NodeFit]) -> Iterator[Reason]:
    """Yield why no node of its classes can take an unscheduled pod; nothing where one of them can."""
    classes = " or ".join(of.classes)
    if not nodes:
        what = f"there is no node of class {classes} now" if classes else "there is no GPU node now"
        others = [kind for kind in of.other_kinds if kind not in of.classes]
        remedy = f"name a class that has nodes ({', '.join(others)}), or " if others and classes else ""
        yield Reason(source=Source.NODES, message=what, remedy=f"{remedy}ask {of.contact} for nodes")
    elif all(node.against for node in nodes):
        first = nodes[0]
        kind = f"of class {classes}" if classes else "with GPUs"
        number = (
            f"none of the {len(nodes)} nodes {kind} can" if len(nodes) > 1 else f"the only node {kind} cannot"
        )
        message = f"{number} take it: Node {first.name} {', and '.join(first.against)}"
        yield Reason(source=Source.NODES, message=message, remedy=first.remedy)


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

"""The answer to why the pods of an object do not run: the reasons, the most certain first, and a sentence that sums them up."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from policies.finding import PLATFORM_TEAM, Finding
from webhook.cluster.objects import timestamp
from webhook.tools.status.denials import ClusterEvent
from webhook.tools.why.explanation import (
    Answer,
    Cause,
    NodeFit,
    ObservedEvent,
    Source,
)
from webhook.tools.why.family import StoredPod

MOST_EVENTS = 10
FAILED_CREATE = "FailedCreate"
"""The reason of a controller's Event about a pod that it could not create (`pkg/controller`, v1.36)."""
SCHEDULER_LOG = 'see the log of the scheduler that spec.schedulerName names ("{}")'
DEFAULT_SCHEDULER = "default-scheduler"
REPLICA_FAILURE = "ReplicaFailure"
"""The condition of Deployments, ReplicaSets and ReplicationControllers whose pods could not be created."""
_ENDED = frozenset({"Complete", "Completed", "Succeeded", "Failed"})
"""Conditions of Jobs, JobSets and training jobs that have ended."""

NO_REASON = Cause(
    source=Source.CONTROLLER,
    message="pods are missing, and no Event says why",
    remedy="see the log of the controller that makes pods of this kind",
)


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an object and its pods.

    data: the object. wanted: how many pods the object makes, None if it does not say. events: warnings about the object, the
      owners of its pods, and its pods.
    rule_denials: denials of the rules if a pod were created now; None if they are not known. (Past denials are in `events`.)
    quota_denials: what the quota says if a pod were created now, in the words that its author reads at apply.
    classes: on which the pods can run; empty if nothing pins them. nodes: nodes of these classes; None if they cannot be read, or
      if the pods request no resource of a node. other_kinds: other classes that have nodes and that the namespace may use.
    """

    data: Any
    pods: Sequence[StoredPod]
    events: Sequence[ClusterEvent]
    wanted: int | None
    rule_denials: Sequence[Finding] | None = ()
    quota_denials: Sequence[Finding] = ()
    classes: Sequence[str] = ()
    nodes: Sequence[NodeFit] | None = None
    other_kinds: Sequence[str] = ()
    contact: str = PLATFORM_TEAM

    @property
    def living(self) -> list[StoredPod]:
        return [pod for pod in self.pods if not pod.has_ended]

    @property
    def stuck(self) -> StoredPod | None:
        """A pod that does not run. A pod that finds no node comes first, because the nodes are compared with this pod."""
        waiting = (pod for pod in self.living if not pod.is_running)
        return min(waiting, key=lambda pod: not pod.unscheduled, default=None)

    @property
    def denial_events(self) -> list[ClusterEvent]:
        """Events about pods that our webhook denied in the past, the last one first."""
        denials = (event for event in self.events if event.denial)
        return sorted(denials, key=lambda each: each.last.timestamp() if each.last else 0.0, reverse=True)

    @property
    def outdated(self) -> int:
        """How many pods a rolling update of a Deployment cannot replace, since new ones are denied beside the old ones."""
        data, status = _map(self.data), _map(_map(self.data).get("status"))
        failed = is_true(status, REPLICA_FAILURE) or bool(self.denial_events)
        if data.get("kind") != "Deployment" or not failed or _map(data.get("spec")).get("paused"):
            return 0
        return max(int(status.get("replicas", 0)) - int(status.get("updatedReplicas", 0)), 0)

    @property
    def is_missing_pods(self) -> bool:
        if self.wanted is None:
            return bool(self.denial_events)
        return len(self.living) < self.wanted or bool(self.outdated)

    @property
    def has_ended(self) -> bool:
        is_over = has_ended(_map(_map(self.data).get("status")))
        return is_over or (bool(self.pods) and not self.living)

    @property
    def why_stopped(self) -> str:
        """Why the object should make no pods now, "" if it should make some."""
        spec = _map(_map(self.data).get("spec"))
        if self.living or (self.wanted and not spec.get("schedule")):
            return ""
        if spec.get("suspend") is True:
            return "spec.suspend is true"
        if spec.get("schedule") and not self.denial_events:
            return f"it makes pods when spec.schedule ({spec['schedule']}) is due"
        if self.wanted == 0:
            return "spec.replicas is 0" if spec.get("replicas") == 0 else "as it is written, it makes no pods"
        return ""


def answer_of(situation: Situation) -> tuple[Answer, str, tuple[Cause, ...]]:
    """Return the answer, a sentence that says it, and the reasons."""
    if situation.has_ended:
        return Answer.ENDED, "it has ended", ()
    if situation.why_stopped:
        return Answer.STOPPED, situation.why_stopped, ()
    reasons = tuple(_reasons(situation)) or ((NO_REASON,) if situation.is_missing_pods else ())
    answer = _answer(situation, reasons)
    running, wanted = sum(pod.is_running for pod in situation.living), situation.wanted
    summary = f"{running} of {len(situation.living) if wanted is None else wanted} pods run"
    if situation.outdated:
        summary += f", {situation.outdated} of them not updated"
    if answer is not Answer.RUNNING:
        why = reasons[0].message if reasons else "nothing that can be read says why"
        summary = f"{summary}: {why}"
    return answer, summary, reasons


def is_true(status: Mapping[str, Any], *types: str) -> bool:
    """Whether one of these conditions of a status is true."""
    conditions = status.get("conditions") or ()
    return any(each.get("type") in types and each.get("status") == "True" for each in conditions)


def has_ended(status: Mapping[str, Any]) -> bool:
    return is_true(status, *_ENDED)


def observed_events(events: Sequence[ClusterEvent]) -> Iterator[ObservedEvent]:
    """Yield the newest Events first. Denials of one owner are one Event, although each message names another pod."""
    merged: dict[tuple[str, str, str], ObservedEvent] = {}
    for each in sorted(events, key=lambda each: each.last.timestamp() if each.last else 0.0, reverse=True):
        key = (each.owner, each.reason, "" if each.denial else each.message)
        newer = merged.get(key)
        merged[key] = ObservedEvent(
            about=each.owner,
            reason=each.reason,
            message=newer.message if newer else each.denial or each.message,
            count=each.times + (newer.count if newer else 0),
            last=newer.last if newer else each.last,
        )
    yield from islice(merged.values(), MOST_EVENTS)


def _answer(situation: Situation, reasons: Sequence[Cause]) -> Answer:
    sources, living = {reason.source for reason in reasons}, situation.living
    if sources & {Source.POLICY, Source.QUOTA, Source.EVENT}:
        return Answer.REFUSED
    if living and all(pod.gates for pod in living):
        return Answer.GATED
    if any(not pod.is_running for pod in living):
        return Answer.PENDING
    return Answer.RUNNING if living and not situation.is_missing_pods else Answer.UNKNOWN


def _reasons(situation: Situation) -> Iterator[Cause]:
    """Yield why pods are missing, then why the existing pods do not run."""
    if situation.is_missing_pods:
        explanations = [_cause(Source.POLICY, each) for each in situation.rule_denials or ()]
        explanations += [_cause(Source.QUOTA, each) for each in situation.quota_denials]
        yield from explanations
        yield from _event_reasons(situation, is_explained=bool(explanations))
    yield from _pod_reasons(situation)
    unscheduled = [pod for pod in situation.living if pod.unscheduled]
    if unscheduled and situation.nodes is not None:
        yield from _node_reasons(situation, situation.nodes)


def _cause(source: Source, finding: Finding) -> Cause:
    """Return a finding as the cause that it is, in its own words."""
    remedy = ", or ".join(filter(None, (finding.advice, finding.escalation)))
    message = replace(finding, remedy="", fix=(), ask="").sentence()
    return Cause(source=source, message=message, remedy=remedy, reason=finding.reason.value)


def _event_reasons(situation: Situation, *, is_explained: bool) -> Iterator[Cause]:
    """Yield why controllers could not create pods.

    is_explained: other reasons explain our denials, so their message is left out.
    """
    denials = situation.denial_events
    if denials:
        last, number = denials[0], sum(each.times for each in denials)
        at = f", last at {timestamp(last.last)}" if last.last else ""
        text = "" if is_explained else f": {last.denial.partition(chr(10))[0]}"
        is_over = not is_explained and situation.rule_denials is not None
        remedy = "a pod would be admitted now: its controller tries again by itself" if is_over else ""
        message = f"{last.owner} was denied pods {'once' if number == 1 else f'{number} times'}{at}{text}"
        yield Cause(source=Source.EVENT, message=message, remedy=remedy)
    other_failures = {
        (event.owner, event.message): event
        for event in situation.events
        if event.reason == FAILED_CREATE and not event.denial
    }
    for owner, message in other_failures:
        yield Cause(source=Source.EVENT, message=f"{owner}: {message}")


def _pod_reasons(situation: Situation) -> Iterator[Cause]:
    """Yield why pods do not run. A reason names one pod, and how many more it is true for."""
    pods_by_reason: dict[Cause, list[StoredPod]] = defaultdict(list)
    for pod in situation.living:
        reason = pod_cause(pod)
        if reason is not None:
            pods_by_reason[reason].append(pod)
    for reason, pods in pods_by_reason.items():
        more = f" (and {len(pods) - 1} more)" if len(pods) > 1 else ""
        yield replace(reason, message=f"Pod {pods[0].metadata.name}{more} {reason.message}")


def pod_cause(pod: StoredPod) -> Cause | None:
    """Return why a pod does not run, without its name. None if it runs."""
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
    return Cause(source=source, message=message, remedy=remedy)


def _node_reasons(situation: Situation, nodes: Sequence[NodeFit]) -> Iterator[Cause]:
    """Yield why no node of its classes can take an unscheduled pod. Yield nothing if one of them can."""
    classes = " or ".join(situation.classes)
    if not nodes:
        message = f"there is no node of class {classes} now" if classes else "there is no GPU node now"
        others = [kind for kind in situation.other_kinds if kind not in situation.classes]
        remedy = f"name a class that has nodes ({', '.join(others)}), or " if others and classes else ""
        yield Cause(source=Source.NODES, message=message, remedy=f"{remedy}ask {situation.contact} for nodes")
    elif all(node.against for node in nodes):
        first = nodes[0]
        kind = f"of class {classes}" if classes else "with GPUs"
        number = (
            f"none of the {len(nodes)} nodes {kind} can" if len(nodes) > 1 else f"the only node {kind} cannot"
        )
        message = f"{number} take it: Node {first.name} {', and '.join(first.against)}"
        yield Cause(source=Source.NODES, message=message, remedy=first.remedy)


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

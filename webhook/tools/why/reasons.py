"""The answer to why the pods of an object do not run: the reasons, the most certain first, and a sentence that sums them up."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice

from msgspec.structs import replace

from policies.finding import PLATFORM_TEAM, ContactEdit
from policies.gpus.near_names import UNKNOWN_RESOURCE_NAME
from policies.placement.availability import EXCEEDS_NODE, NO_NODE
from policies.placement.class_choice import CLASS_CONTRADICTION, UNKNOWN_CLASS
from policies.pods.conditions import true_condition
from policies.quota.ledger.team import team_title
from policies.quota.shortage import ROOM_FOR_UPDATE, room_for_update
from policies.quota.waiting import KUEUE
from policies.times import utc
from webhook.tools.status.denials import ClusterEvent
from webhook.tools.stored_pod import StoredPod, without_attempts
from webhook.tools.why.explanation import (
    Answer,
    Awaited,
    Cause,
    NodeFit,
    ObservedEvent,
    Remedy,
    Source,
    cause_of,
    remedy_of_change,
)
from webhook.tools.why.situation import Situation, as_map, last_seen

MAX_EVENTS = 10
FAILED_CREATE = "FailedCreate"
"""The reason of a controller's Event about a pod that it could not create (`pkg/controller`, v1.37)."""
_COMBINED_PREFIX = "(combined from similar events): "
"""How client-go begins an Event that stands for several (`tools/record/events_cache.go`, v0.36)."""
SCHEDULER_LOG_REMEDY = 'see the log of the scheduler that spec.schedulerName names ("{}")'
DEFAULT_SCHEDULER = "default-scheduler"
FAILED_CONDITION = "Failed"
FINDS_NO_NODE = frozenset({NO_NODE, UNKNOWN_CLASS, CLASS_CONTRADICTION, EXCEEDS_NODE, UNKNOWN_RESOURCE_NAME})
"""Reasons of warnings that a pod will find no node."""
_WAITING_REMEDIES = {
    "CrashLoopBackOff": "see why the container exits: kubectl logs --previous -n {} {}",
    "ErrImagePull": "correct the image or imagePullSecrets",
    "ImagePullBackOff": "correct the image or imagePullSecrets",
    "InvalidImageName": "correct the image",
}
"""By the reason for which the kubelet does not run a container (`pkg/kubelet/images` and `container`, v1.37)."""

NO_REASON = Cause(
    source=Source.CONTROLLER,
    message="pods are missing, and no Event says why",
    remedy="see the log of the controller that makes pods of this kind",
)
RULES_UNREADABLE = Cause(
    source=Source.CONTROLLER,
    message="pods are missing, no Event says why, and you may not read what decides which rules hold",
    remedy=f"ask {PLATFORM_TEAM} for the rights that are named below",
    ways=(Remedy(contact_edits=(ContactEdit("ClusterRole"),)),),
)


def answer_of(situation: Situation) -> tuple[Answer, str, tuple[Cause, ...]]:
    """Return the answer, a sentence that says it, and the reasons."""
    if situation.has_ended:
        return Answer.ENDED, _end_sentence(situation), tuple(_failure_causes(situation))
    if situation.why_stopped and situation.kueue is not None:
        return Answer.WAITING, situation.kueue.message, (situation.kueue, *_denial_causes(situation))
    if situation.why_stopped:
        # What denies its pods can be repaired before it makes some.
        return (
            Answer.STOPPED,
            situation.why_stopped,
            (*_terminating_causes(situation), *_denial_causes(situation)),
        )
    reasons = tuple(_causes(situation))
    if situation.is_missing_pods and not reasons:
        reasons = (NO_REASON if situation.rule_denials is not None else RULES_UNREADABLE,)
    answer = _answer(situation, reasons)
    running, wanted = sum(pod.is_running for pod in situation.remaining_pods), situation.wanted
    summary = f"{running} of {wanted or len(situation.remaining_pods)} pods run"
    if situation.outdated_pods:
        summary += f", {situation.outdated_pods} of them not updated"
    if reasons and answer is not Answer.RUNNING:
        summary = f"{summary}: {reasons[0].message}"
    elif answer is Answer.UNKNOWN:
        summary = _no_pods_sentence(situation)
    return answer, summary, reasons


def _no_pods_sentence(situation: Situation) -> str:
    """Return why there is nothing to explain: the object has no pods, and does not say that it makes some."""
    if target := as_map(as_map(as_map(situation.data).get("spec")).get("scaleTargetRef")):
        scaled = f"{target.get('kind')}/{target.get('name')}"
        return f"it makes no pods, but scales {scaled}: gpu-admission why {scaled} explains its pods"
    return "it has no pods, and objects of its kind are not known to make any"


def _end_sentence(situation: Situation) -> str:
    failed = true_condition(as_map(as_map(situation.data).get("status")), FAILED_CONDITION)
    return f"it has failed: {failed.get('message') or failed.get('reason')}" if failed else "it has ended"


def _failure_causes(situation: Situation) -> Iterator[Cause]:
    """Yield how many pods failed, and how one of them did."""
    failed = [pod for pod in situation.pods if pod.status.phase == FAILED_CONDITION]
    if failed:
        pod = next((pod for pod in failed if pod.failure), failed[0])
        how = pod.failure or pod.status.message or "its status does not say why"
        number = "1 pod has failed" if len(failed) == 1 else f"{len(failed)} pods have failed"
        remedy = f"kubectl logs -n {pod.metadata.namespace} {pod.metadata.name}" if pod.failure else ""
        yield Cause(source=Source.POD, message=f"{number}, Pod {pod.metadata.name}: {how}", remedy=remedy)


def observed_events(events: Sequence[ClusterEvent]) -> Iterator[ObservedEvent]:
    """Yield the newest Events first. Denials of one owner are one Event, although each message names another pod or claim."""
    merged: dict[tuple[str, str, bool, str], ObservedEvent] = {}
    for event in sorted(events, key=last_seen, reverse=True):
        is_ours = bool(event.denial)
        is_alike = is_ours or event.reason == FAILED_CREATE  # but for the name of the pod or claim
        key = (event.owner, event.reason, is_ours, "" if is_alike else event.message)
        newer = merged.get(key)
        merged[key] = ObservedEvent(
            about=event.owner,
            reason=event.reason,
            message=newer.message if newer else event.denial or without_attempts(event.message),
            count=event.times + (newer.count if newer else 0),
            last=newer.last if newer else event.last,
        )
    yield from islice(merged.values(), MAX_EVENTS)


def _answer(situation: Situation, reasons: Sequence[Cause]) -> Answer:
    sources, pods = {reason.source for reason in reasons}, situation.remaining_pods
    if sources & {Source.POLICY, Source.QUOTA, Source.EVENT}:
        return Answer.DENIED
    idle = [pod for pod in pods if not pod.is_running]
    if idle and all(pod.waits_in_line for pod in idle):
        return Answer.WAITING
    if pods and all(pod.gates for pod in pods):
        return Answer.GATED
    if idle:
        return Answer.PENDING
    return Answer.RUNNING if pods and not situation.is_missing_pods else Answer.UNKNOWN


def _causes(situation: Situation) -> Iterator[Cause]:
    """Yield why pods are missing, then why the existing pods do not run."""
    if situation.is_missing_pods:
        explanations = (*_terminating_causes(situation), *_denial_causes(situation))
        rule_unreadable = situation.rule_denials is None and not situation.is_quota_denial
        yield from () if rule_unreadable else explanations
        yield from _event_causes(situation, is_explained=bool(explanations) and not rule_unreadable)
        yield from explanations if rule_unreadable else ()
    yield from _pod_causes(situation)
    yield from situation.devices
    yield from _ordered_creation_cause(situation)
    if as_map(situation.data).get("kind") == "Job":
        yield from _failure_causes(situation)
    if any(pod.unscheduled for pod in situation.remaining_pods):
        yield from () if situation.is_missing_pods else situation.no_node_causes
        yield from _scheduler_causes(situation)
        if situation.nodes is not None and not any(cause.remedy for cause in situation.no_node_causes):
            yield from _node_causes(situation, situation.nodes)


def _denial_causes(situation: Situation) -> Iterator[Cause]:
    """Yield what denies a pod that is created now, or keeps it pending, in the order of repair."""
    denied = [cause_of(Source.POLICY, rule_denial) for rule_denial in situation.rule_denials or ()]
    full = [cause_of(Source.QUOTA, quota_denial) for quota_denial in situation.quota_denials]
    yield from (*denied, *(situation.no_node_causes if denied or full else ()), *full)


def _terminating_causes(situation: Situation) -> Iterator[Cause]:
    for pod in situation.terminating:
        cause = terminating_cause(pod, situation.now, situation.held.get(pod.metadata.name, ""))
        yield replace(cause, message=f"Pod {pod.metadata.name} {cause.message}")


def terminating_cause(pod: StoredPod, now: datetime, held: str = "") -> Cause:
    """Return since when a pod is being deleted, and what it waits for, without its name. `held`: what it holds."""
    meta, ways = pod.metadata, tuple[Remedy, ...]()
    end = meta.deletion_timestamp or now
    since = end - timedelta(seconds=meta.deletion_grace_period_seconds)
    holds = f" and holds {held} until it has ended" if held else ""
    message = f"has been terminating since {utc(since, now)}{holds}"
    if now <= end:
        message += f", at {utc(end, now)} at the latest"
        grace = f"terminationGracePeriodSeconds below {meta.deletion_grace_period_seconds}"
        remedy = f"wait until then, and set a {grace} if later updates must be faster"
        ways = (Remedy(awaits=(Awaited.END_OF_POD,)),)
    elif meta.finalizers:
        message += f": its finalizers are {', '.join(meta.finalizers)}"
        remedy = "see the controller that set them"
    else:
        message += f"; its grace period ended at {utc(end, now)}, and Node {pod.spec.node_name} has not confirmed its end"
        remedy = f"see whether Node {pod.spec.node_name} is Ready"
    return Cause(source=Source.POD, message=message, remedy=remedy, ways=ways)


def _ordered_creation_cause(situation: Situation) -> Iterator[Cause]:
    """Yield that a StatefulSet creates its next pod when the one before is ready."""
    data, pod = as_map(situation.data), situation.stuck
    policy = as_map(data.get("spec")).get("podManagementPolicy", "OrderedReady")
    is_ordered = data.get("kind") == "StatefulSet" and policy == "OrderedReady"
    if is_ordered and pod is not None and len(situation.remaining_pods) < (situation.wanted or 0):
        when = f"when Pod {pod.metadata.name} is ready (podManagementPolicy: {policy})"
        yield Cause(source=Source.CONTROLLER, message=f"the next pod is created {when}")


def _outlook_text(situation: Situation, last: ClusterEvent) -> str:
    """Return what happens to the next pod when no known rule denies it."""
    # An Event has the sentence of a denial, and no reason code.
    if not situation.sees_quota and team_title("") in last.denial:
        return "do as it says; its controller tries again by itself, and succeeds once the team has room"
    return "a pod would be admitted now: its controller tries again by itself"


def _event_causes(situation: Situation, *, is_explained: bool) -> Iterator[Cause]:
    """Yield why controllers could not create pods.

    is_explained: other reasons explain our denials, so their message is left out.
    """
    denials = situation.denial_events
    if denials:
        last, number = denials[0], sum(denial.times for denial in denials)
        at = f", last at {utc(last.last, situation.now)}" if last.last else ""
        text = "" if is_explained else f": {last.denial.partition(chr(10))[0]}"
        is_over = not is_explained and situation.rule_denials is not None
        remedy = _outlook_text(situation, last) if is_over else ""
        owner = situation.author_of(last.owner)
        message = f"{owner} was denied pods {'once' if number == 1 else f'{number} times'}{at}{text}"
        yield Cause(source=Source.EVENT, message=message, remedy=remedy)
    by_owner: dict[str, list[ClusterEvent]] = defaultdict(list)
    for event in situation.events:
        if event.reason == FAILED_CREATE and not event.denial:
            by_owner[event.owner].append(event)
    for owner, events in by_owner.items():
        newest = max(events, key=last_seen)
        number = sum(event.times for event in events)
        times = f" ({number} times)" if number > 1 else ""
        message = newest.message.removeprefix(_COMBINED_PREFIX)
        yield Cause(source=Source.EVENT, message=f"{situation.author_of(owner)}: {message}{times}")


def _pod_causes(situation: Situation) -> Iterator[Cause]:
    """Yield why pods do not run. Each reason names one pod, and counts the others with the same reason."""
    pods_by_reason: dict[Cause, list[StoredPod]] = defaultdict(list)
    name, wait = situation.line or ("", None)
    for pod in sorted(situation.remaining_pods, key=lambda stored_pod: stored_pod.metadata.name != name):
        reason = _kept_gates_cause(pod, situation) or (wait if pod.waits_in_line else None)
        reason = reason or _claim_denial_cause(pod, situation) or pod_cause(pod, situation.now)
        if reason is not None:
            pods_by_reason[reason].append(pod)
    for reason, pods in pods_by_reason.items():
        more = f" (and {len(pods) - 1} more)" if len(pods) > 1 else ""
        yield replace(reason, message=f"Pod {pods[0].metadata.name}{more} {reason.message}")


def _claim_denial_cause(pod: StoredPod, situation: Situation) -> Cause | None:
    """Return our last denial of the ResourceClaim of a pod, without names. No scheduler considers a pod without its claim."""
    denials = (event for event in situation.denial_events if event.owner == f"Pod/{pod.metadata.name}")
    last = next(denials, None)
    if last is None or not pod.awaits_scheduler:
        return None
    denial = last.denial.partition("\n")[0].partition(": ")[2]
    return Cause(source=Source.EVENT, message=f"was denied a ResourceClaim: {denial}")


def _kept_gates_cause(pod: StoredPod, situation: Situation) -> Cause | None:
    """Return why a pod keeps the scheduling gates of others, without its name: our last denial of a change, or its group."""
    denials = (event for event in situation.events if event.denied_change)
    of_pod = (event for event in denials if event.owner == f"Pod/{pod.metadata.name}")
    last = max(of_pod, key=last_seen, default=None)
    gates = "gate" if len(pod.other_gates) == 1 else "gates"
    keeps = f"keeps its scheduling {gates} {' and '.join(pod.other_gates)}"
    if not pod.other_gates:
        return None
    if last is not None:
        denial = last.denial.partition("\n")[0].partition(": ")[2]
        message = f"{keeps}, since the {last.denied_change} was denied: {denial}"
        remedy = "do as the denial says: who changes the pod tries again by itself"
        return Cause(source=Source.EVENT, message=message, remedy=remedy)
    if situation.group:
        message = f"{keeps} until its group is complete: {situation.group}"
        remedy = "create the missing pods, or delete this one, which holds its quota"
        return Cause(source=Source.POD, message=message, remedy=remedy)
    return situation.kueue if any(gate.startswith(KUEUE) for gate in pod.other_gates) else None


def pod_cause(pod: StoredPod, now: datetime) -> Cause | None:
    """Return why a pod does not run, without its name. None if it runs."""
    source, remedy, node = Source.POD, "", pod.spec.node_name
    scheduler = pod.spec.scheduler_name or DEFAULT_SCHEDULER
    if pod.is_running:
        return None
    if pod.is_terminating:
        return terminating_cause(pod, now)
    if pod.waits_in_line:
        source, message = Source.LINE, "waits in line for quota"
    elif pod.gates:
        message = f"waits for its scheduling gates to be removed: {', '.join(pod.gates)}"
        remedy = "see the controller that sets them"
    elif pod.unscheduled:
        source, message = Source.SCHEDULER, f"finds no node: {pod.unscheduled}"
    elif pod.waiting:
        message = f"waits on Node {node}: {'; '.join(pod.waiting)}"
        remedy = next((text for key, text in _WAITING_REMEDIES.items() if f": {key}" in message), "")
        remedy = remedy.format(pod.metadata.namespace, pod.metadata.name)
    elif node:
        message = f"is on Node {node}, whose kubelet has not started it yet"
    else:
        source, message = Source.SCHEDULER, "has not been considered by a scheduler yet"
        remedy = "" if scheduler == DEFAULT_SCHEDULER else SCHEDULER_LOG_REMEDY.format(scheduler)
    return Cause(source=source, message=message, remedy=remedy)


def _scheduler_causes(situation: Situation) -> Iterator[Cause]:
    """Yield what else keeps the explained pod from nodes that take it as far as these are compared."""
    if situation.unscheduled is not None:
        fitting = (node.subject for node in situation.nodes or () if not node.against)
        node = "a node" if situation.nodes is None else next(fitting, "")
        has_siblings = any(pod.spec.node_name for pod in situation.remaining_pods)
        yield from situation.unscheduled.causes(node, has_siblings=has_siblings)


def _node_causes(situation: Situation, nodes: Sequence[NodeFit]) -> Iterator[Cause]:
    """Yield why no node of its classes can take an unscheduled pod, by the node with the fewest obstacles."""
    classes, adds, ways = " or ".join(situation.classes), "", tuple[Remedy, ...]()
    if situation.node_source:
        adds = f"wait until {situation.node_source} adds a node, or see in its log why it does not"
        ways = (Remedy(awaits=(Awaited.NODE,)),)
    if not nodes:
        message = f"there is no node of class {classes} now" if classes else "there is no GPU node now"
        kinds = situation.other_classes if classes else {}
        named = f"name a class that has nodes ({', '.join(kinds)})" if kinds else ""
        wait = next((kind.words for kind in kinds.values()), "")
        named = f"{named}, and {wait}" if wait else named
        words = situation.new_nodes.ask_contact
        remedy = ", or ".join(filter(None, (named, adds or (words and f"ask {situation.contact} {words}"))))
        others = ways or map(remedy_of_change, situation.new_nodes.contact_choices)
        ways = (*(kind.way for kind in kinds.values()), *others)
        yield Cause(source=Source.NODES, message=message, remedy=remedy, ways=ways)
        return
    first = nodes[0]
    if all(node.against for node in nodes):
        kind = f"of class {classes}" if classes else "with GPUs"
        total = sum(node.number for node in nodes)
        number = f"none of the {total} nodes {kind} can" if total > 1 else f"the only node {kind} cannot"
        subject = first.subject if total > 1 or first.name else "it"
        message = f"{number} take it: {subject} {', and '.join(first.against)}"
        remedy, own = first.remedy, ([first.way] if first.remedy else [])
        if situation.adds_pods_first and first.way == Remedy(awaits=(Awaited.ROOM,)):
            message += "; its update ends no old pod before a new one is ready"
            remedy, own = f"set {room_for_update(0)}", [Remedy(edits=edits) for edits in ROOM_FOR_UPDATE]
        remedy = ", or ".join(filter(None, (remedy, adds)))
        yield Cause(source=Source.NODES, message=message, remedy=remedy, ways=(*own, *ways))

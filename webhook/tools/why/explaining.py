"""Explains why an object's pods are refused, or do not run: from the object, its pods, Events, the quota and the nodes."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from policies.pods.pod import Pod, decode_pod
from policies.quota.amounts import format_amount
from policies.quota.spec import NAME
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.controller.records import QUOTAS, QuotaRecord, quota_record
from webhook.tools.status.capacity import GPUNode, read_gpu_nodes
from webhook.tools.status.denials import ClusterEvent, read_events
from webhook.tools.status.permitted import Permitted
from webhook.tools.status.quotas import quota_status
from webhook.tools.why.discovery import ServedKind, ServedKinds
from webhook.tools.why.explanation import (
    Answer,
    Explanation,
    NodeFit,
    ObservedEvent,
    PodState,
    QuotaFit,
    Reason,
    Source,
)
from webhook.tools.why.family import StoredPod, read_family
from webhook.tools.why.fit import asked_of_nodes, classes_for, node_fits, quota_fit
from webhook.workloads.places import workload_pods

MOST_PODS = 20
MOST_EVENTS = 10
_ENDED = {"Complete", "Completed", "Succeeded", "Failed"}
"""Conditions with which Jobs, JobSets and training jobs say that they are over."""

_PLAIN = {Answer.ENDED: "it has ended", Answer.STOPPED: "it makes no pods as it is written"}


def explain(
    api: ApiClient, kind: str, name: str, namespace: str, now: datetime, *, config: Path | None = None
) -> Explanation:
    """Explain the object now; `kind` is any name of it that kubectl takes.

    Raises UnknownKindError, ConfigurationError, and `errors.ApiError`: NotFound where there is no such object.
    """
    reader = Permitted(api)
    kinds = ServedKinds(api)
    served = kinds.find(kind)
    case = _Case(reader, kinds, served, namespace, name, now, config)
    return case.of_pod() if (served.group, served.kind) == ("", "Pod") else case.of_workload()


class _Case:
    """One object and all that explains it."""

    def __init__(
        self,
        reader: Permitted,
        kinds: ServedKinds,
        served: ServedKind,
        namespace: str,
        name: str,
        now: datetime,
        config: Path | None,
    ) -> None:
        self.reader, self.kinds, self.served = reader, kinds, served
        self.namespace, self.name, self.now = namespace, name, now
        self.document = reader.api.get(served.resource.path(namespace, name))
        self.configuration = reader.configuration(config)
        self.events = (
            reader.attempt(f"list events -n {namespace}", partial(read_events, reader.api, namespace)) or []
        )
        nodes = reader.attempt("list nodes", partial(read_gpu_nodes, reader.api, self.configuration))
        self.nodes: tuple[GPUNode, ...] | None = nodes
        if nodes and nodes[0].used is None:
            reader.omitted.append("list pods in all namespaces")
        self.quota = self._quota()

    def of_pod(self) -> Explanation:
        stored, pod = msgspec.json.decode(self.document, type=StoredPod), decode_pod(self.document)
        events = [each for each in self.events if each.involved_object.uid == stored.metadata.uid]
        return self._explained(pod, [stored], events, 1, is_stored=True)

    def of_workload(self) -> Explanation:
        served, document = self.served, msgspec.Raw(self.document)
        data, places = workload_pods(self.configuration.workload_kinds, served.group, served.kind, document)
        uid = data["metadata"]["uid"]
        denied = [event for event in self.events if event.denial]
        family = read_family(self.reader, self.kinds, self.namespace, uid, denied)
        uids = {*family.uids, *(pod.metadata.uid for pod in family.pods)}
        events = [event for event in self.events if event.involved_object.uid in uids]
        counts = [place.count.running for place, _ in places]
        wanted = None if None in counts or not counts else sum(each or 0 for each in counts)
        asking = (pod for _, pod in places if self.configuration.resource_mapping.pod_asks(pod))
        template = next(asking, places[0][1] if places else Pod())
        stuck = next((pod for pod in family.pods if not pod.is_running and not pod.has_ended), None)
        if stuck is not None:
            template = decode_pod(self.reader.api.get(self._pod_path(stuck)))
        return self._explained(
            template, family.pods, events, wanted, is_stored=stuck is not None, has_ended=_has_ended(data)
        )

    def _pod_path(self, pod: StoredPod) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{pod.metadata.name}"

    def _quota(self) -> QuotaRecord | None:
        read = partial(self.reader.api.get, QUOTAS.path(self.namespace, NAME))
        try:
            found = self.reader.attempt(f"get gpuquotas.gpu-admission.dev -n {self.namespace}", read)
        except errors.NotFound:
            return None
        return quota_record(msgspec.Raw(found)) if found else None

    def _explained(
        self,
        pod: Pod,
        pods: Sequence[StoredPod],
        events: Sequence[ClusterEvent],
        wanted: int | None,
        *,
        is_stored: bool,
        has_ended: bool = False,
    ) -> Explanation:
        configuration, nodes = self.configuration, self.nodes or ()
        asked = asked_of_nodes(pod, configuration.resource_mapping)
        classes = classes_for(pod, nodes, configuration)
        fits = None if self.nodes is None else node_fits(pod, _of_classes(nodes, classes), asked)
        quota = self._quota_fit(pod, is_stored=is_stored)
        reasons = list(_reasons(pods, events, quota, fits if asked else None, wanted))
        answer = _answer(pods, reasons, wanted, has_ended=has_ended)
        ordered = sorted(pods, key=lambda each: (each.is_running, each.has_ended, each.metadata.name))
        return Explanation(
            kind=self.served.kind,
            name=self.name,
            namespace=self.namespace,
            at=self.now,
            answer=answer,
            summary=_summary(answer, pods, reasons, wanted),
            reasons=tuple(reasons),
            asked=asked,
            classes=classes,
            quota=quota,
            nodes=fits,
            pods=tuple(map(_pod_state, ordered[:MOST_PODS])),
            pods_total=len(pods),
            pods_wanted=wanted,
            events=tuple(_observed(events)),
            omitted=tuple(self.reader.omitted),
        )

    def _quota_fit(self, pod: Pod, *, is_stored: bool) -> QuotaFit | None:
        if self.quota is None or self.quota.ledger is None:
            return None
        status = quota_status(self.quota, None)
        return quota_fit(
            pod, self.quota.ledger, status, self.nodes or (), self.configuration, is_held=is_stored
        )


def _of_classes(nodes: Sequence[GPUNode], classes: Sequence[str]) -> list[GPUNode]:
    return [node for node in nodes if not classes or set(node.classes) & set(classes)]


def _reasons(
    pods: Sequence[StoredPod],
    events: Sequence[ClusterEvent],
    quota: QuotaFit | None,
    nodes: Sequence[NodeFit] | None,
    wanted: int | None,
) -> Iterator[Reason]:
    """Yield why pods are missing, then why those that exist do not run."""
    living = [pod for pod in pods if not pod.has_ended]
    is_missing = wanted is None or len(living) < wanted
    if is_missing and quota is not None:
        yield from _quota_reasons(quota)
    denied = [event for event in events if event.denial]
    if is_missing and denied:
        last = max(denied, key=lambda each: each.last.timestamp() if each.last else 0.0)
        yield Reason(source=Source.EVENT, message=f"{last.owner}: {last.denial.partition(chr(10))[0]}")
    for pod in living:
        yield from _pod_reasons(pod, nodes)


def _quota_reasons(quota: QuotaFit) -> Iterator[Reason]:
    for row in quota.rows:
        if row.fits:
            continue
        asked, hard = format_amount(row.asked), format_amount(row.hard)
        if row.never:
            yield Reason(
                source=Source.QUOTA,
                message=f"a pod asks for {asked} of {row.key} and can never fit: the quota grants {hard} in all",
                remedy=f"ask for {hard} or fewer",
            )
        elif row.used is None:
            yield Reason(source=Source.QUOTA, message=f"{row.key} is not counted yet: GPU pods are denied")
        else:
            held = f"{format_amount(row.used)} of {hard} used"
            held += f", {format_amount(row.reserved)} for pods being created" if row.reserved else ""
            yield Reason(
                source=Source.QUOTA,
                message=f"a pod asks for {asked} of {row.key}: {held}",
                remedy="wait until others finish, or delete what is no longer needed",
            )


def _pod_reasons(pod: StoredPod, nodes: Sequence[NodeFit] | None) -> Iterator[Reason]:
    name = pod.metadata.name
    if pod.gates:
        gates = ", ".join(pod.gates)
        message = f"Pod {name} waits until its scheduling gates are removed: {gates}"
        yield Reason(source=Source.POD, message=message, remedy="see the controller that set them")
    elif pod.unscheduled:
        yield Reason(source=Source.SCHEDULER, message=f"Pod {name}: {pod.unscheduled}")
        if nodes is not None and not any(not node.against for node in nodes):
            for node in nodes[:1]:
                yield Reason(source=Source.NODES, message=f"Node {node.name} {node.against[0]}")
    for waiting in pod.waiting:
        yield Reason(source=Source.POD, message=f"Pod {name} on {pod.spec.node_name}: {waiting}")


def _answer(
    pods: Sequence[StoredPod], reasons: Sequence[Reason], wanted: int | None, *, has_ended: bool
) -> Answer:
    sources = {reason.source for reason in reasons}
    living = [pod for pod in pods if not pod.has_ended]
    tests: tuple[tuple[Answer, Callable[[], bool]], ...] = (
        (Answer.ENDED, lambda: has_ended or (bool(pods) and not living)),
        (Answer.STOPPED, lambda: wanted == 0 and not living),
        (Answer.REFUSED, lambda: bool(sources & {Source.POLICY, Source.QUOTA, Source.EVENT})),
        (Answer.GATED, lambda: bool(living) and all(pod.gates for pod in living)),
        (Answer.PENDING, lambda: any(not pod.is_running for pod in living)),
        (Answer.RUNNING, lambda: bool(living)),
    )
    return next((answer for answer, holds in tests if holds()), Answer.UNKNOWN)


def _summary(answer: Answer, pods: Sequence[StoredPod], reasons: Sequence[Reason], wanted: int | None) -> str:
    running = sum(pod.is_running for pod in pods)
    number = f"{running} of {wanted if wanted is not None else len(pods)} pods run"
    if answer in _PLAIN:
        return _PLAIN[answer]
    if answer is Answer.RUNNING:
        return number
    return f"{number}: {reasons[0].message}" if reasons else f"{number}; nothing that can be read says why"


def _pod_state(pod: StoredPod) -> PodState:
    gated = f"waits for {', '.join(pod.gates)}" if pod.gates else ""
    reason = gated or pod.unscheduled or "; ".join(pod.waiting) or pod.status.message
    return PodState(name=pod.metadata.name, phase=pod.status.phase, node=pod.spec.node_name, reason=reason)


def _observed(events: Sequence[ClusterEvent]) -> Iterator[ObservedEvent]:
    newest = sorted(events, key=lambda each: each.last.timestamp() if each.last else 0.0, reverse=True)
    for each in newest[:MOST_EVENTS]:
        yield ObservedEvent(
            about=each.owner, reason=each.reason, message=each.message, count=each.times, last=each.last
        )


def _has_ended(data: Any) -> bool:
    conditions = (data.get("status") or {}).get("conditions") or ()
    return any(each.get("type") in _ENDED and each.get("status") == "True" for each in conditions)

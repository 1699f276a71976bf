"""Evaluation of workloads in reviews, and of stored objects as if they were created now, without a reservation.

A stored pod is evaluated as its author submitted it (`policies.pods.injected`), by /mutate and then, changed, by /validate.
A workload is evaluated by its templates and as a whole. What is DENIED there would be denied to its pods.
Evaluations of workloads raise DeadlineExceeded, and msgspec.ValidationError for an object that cannot be read.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import chain
from typing import Any

import msgspec
from msgspec.structs import replace

from policies.pods.injected import as_submitted, names_its_node
from policies.pods.limits import check_size
from policies.pods.patch import Change
from policies.pods.pod import Pod, decode_pod
from policies.pods.workload import Workload, WorkloadPods
from policies.policy import EffectivePolicy
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.quota_request import QuotaRequest, ReservationOutcome, decide_by_own_catalogue
from policies.rule import Mode
from webhook.cluster.objects import decode_owned
from webhook.configuration.loader import Configuration
from webhook.serving.engine import MAX_FINDINGS, POD, Decision, Outcome, Violation
from webhook.serving.evaluator import Evaluator
from webhook.serving.pod_reviews import MIRROR_ANNOTATION, has_controller
from webhook.serving.review import GroupKind
from webhook.workloads.autoscalers import ScaleTarget
from webhook.workloads.gangs import starts_together
from webhook.workloads.places import PodPlace, workload_pods
from webhook.workloads.unread import unread_gpus


class EvaluatedPod(msgspec.Struct, frozen=True):
    """A pod or one template, and the decisions of the phases in their order; paths of findings start at the object."""

    place: PodPlace
    """With the data of a template; of a pod without."""
    submitted: Pod
    """The pod as it was evaluated, without what was injected."""
    decisions: Sequence[Decision]

    @property
    def policy(self) -> EffectivePolicy:
        return self.decisions[0].policy

    @property
    def violations(self) -> tuple[Violation, ...]:
        return tuple(dict.fromkeys(chain.from_iterable(each.violations for each in self.decisions)))

    @property
    def changes(self) -> tuple[Change, ...]:
        return () if self.place.is_partial else self.decisions[0].changes

    @property
    def admitted(self) -> Pod:
        """The pod with what the rules add; of a template, to what is known of its pods."""
        return self.decisions[0].pod or self.submitted

    @property
    def is_refused(self) -> bool:
        return any(each.outcome is Outcome.DENIED for each in self.violations)


def evaluate_workload(
    by: Evaluator, policy: EffectivePolicy, kind: GroupKind, document: msgspec.Raw, *, is_update: bool
) -> tuple[list[EvaluatedPod], list[Decision]]:
    """Return the templates with the decision on each, and the decisions on the object."""
    configuration, key = by.engine.configuration, (kind.group, kind.kind)
    data, places = workload_pods(configuration.workload_kinds, *key, document)
    pods = _templates(by, policy, kind.kind, places)
    workload_kind = configuration.workload_kinds.get(key)
    workload = Workload(
        *key,
        policy.namespace,
        data,
        tuple(_readable(pods)),
        starts_together=workload_kind is not None and starts_together(workload_kind, data),
    )
    advice = [by.check_workload(policy, workload, is_update=is_update)]
    if workload_kind is None:
        unread = unread_gpus(kind.kind, data, configuration.resource_mapping)
        advice.append(Decision.of_findings(policy, unread, Mode.WARN))
    return pods, advice


def evaluate_autoscaler(
    by: Evaluator,
    policy: EffectivePolicy,
    kind: GroupKind,
    data: Any,
    scales: ScaleTarget,
    stored: Any,
    *,
    is_update: bool,
) -> Decision:
    """Return the decision on an autoscaler, as plain data, by the `stored` object that it scales."""
    kinds = by.engine.configuration.workload_kinds
    scaled, places = workload_pods(kinds, scales.group, scales.kind, scales.scaled(stored))
    pods = tuple(_readable(_templates(by, policy, scales.kind, places)))
    target = Workload(scales.group, scales.kind, policy.namespace, scaled, pods)
    workload = Workload(kind.group, kind.kind, policy.namespace, data, (), target)
    return by.check_workload(policy, workload, is_update=is_update)


def _templates(
    by: Evaluator, policy: EffectivePolicy, kind: str, places: Iterable[tuple[PodPlace, Pod]]
) -> list[EvaluatedPod]:
    """Decide on each template, until there are more findings than anybody reads."""
    pods: list[EvaluatedPod] = []
    findings = 0
    for place, pod in places:
        decision = by.check_template(policy, kind, pod, place.owner).located(place.located)
        pods.append(EvaluatedPod(place, pod, (decision,)))
        findings += len(decision.violations)
        if findings >= MAX_FINDINGS:
            break
    return pods


def _readable(pods: Iterable[EvaluatedPod]) -> Iterator[WorkloadPods]:
    """Yield the pods of templates, without those that are too long to be read."""
    for each in pods:
        place, admitted = each.place, each.decisions[0].pod
        if admitted is not None:
            count, owner = place.count, place.owner
            yield WorkloadPods(place.path, each.submitted, count, admitted, each.is_refused, owner)


class Verdict(Enum):
    """The result for a stored object, if it were created now."""

    REFUSED = "refused"
    """It, or the pods that it makes, would be denied."""
    CHANGED = "changed"
    ACCEPTED = "accepted"
    UNREADABLE = "unreadable"
    """It is not what its kind says, or too long to be read."""


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The evaluation of one stored object; `advice` is about a workload as a whole.

    `owner` is the controller of the object, as `Job/train`, or "" without a controller.
    """

    group: str
    kind: str
    namespace: str
    name: str
    owner: str = ""
    pods: Sequence[EvaluatedPod] = ()
    advice: tuple[Violation, ...] = ()
    unreadable: str = ""
    """Why it cannot be read, "" if it can."""

    @property
    def verdict(self) -> Verdict:
        if self.unreadable:
            return Verdict.UNREADABLE
        if any(pod.is_refused for pod in self.pods):
            return Verdict.REFUSED
        return Verdict.CHANGED if any(pod.changes for pod in self.pods) else Verdict.ACCEPTED

    def findings(self) -> Iterator[Violation]:
        """Yield everything that was found, about the pods first."""
        return chain(*(pod.violations for pod in self.pods), self.advice)


def evaluate(
    group: str, kind: str, namespace: str, document: bytes | msgspec.Raw, by: Evaluator
) -> Evaluation:
    """Evaluate a stored object in JSON. Of a kind that makes no pods, as far as is known, there is only advice."""
    found = Evaluation(group=group, kind=kind, namespace=namespace, name="")
    try:
        raw = check_size(msgspec.Raw(document))
        metadata = decode_owned(raw).metadata
        found = replace(found, name=metadata.name or "", owner=metadata.controlled_by)
        if (group, kind) == POD:
            return replace(found, pods=(_pod(namespace, raw, by),))
        policy, its_kind = by.policy(namespace), GroupKind(group=group, kind=kind)
        pods, decisions = evaluate_workload(by, policy, its_kind, raw, is_update=True)
        advice = chain.from_iterable(each.violations for each in decisions)
        return replace(found, pods=pods, advice=tuple(advice))
    except msgspec.ValidationError as error:
        return replace(found, unreadable=str(error))


def _pod(namespace: str, document: msgspec.Raw, by: Evaluator) -> EvaluatedPod:
    stored = decode_pod(document)
    # A mirror pod shows a static pod of the kubelet's own, and passes. The kubelet deletes others with the annotation.
    if MIRROR_ANNOTATION in stored.annotations and has_controller(stored, "Node", "v1"):
        return EvaluatedPod(_WHOLE, stored, [Decision(policy=by.policy(namespace))])
    by_author = bool(stored.spec.node_name) and names_its_node(document)
    submitted = as_submitted(stored, by_author=by_author)
    by_daemonset = has_controller(stored, "DaemonSet", "apps/")
    decisions = by.create(by.policy(namespace), submitted, by_daemonset=by_daemonset)
    return EvaluatedPod(_WHOLE, submitted, decisions)


_WHOLE = PodPlace((), {}, {(): ()})
"""The place of a pod that is an object itself."""


class UnusedQuota(msgspec.Struct, frozen=True):
    """An unused `NamespaceQuota`: it denies what could never fit, and reserves nothing.

    `quota` is a ledger that was never counted, None if the namespace has no quota.
    """

    quota: QuotaLedger | None
    configuration: Configuration

    def reserve(self, quota_request: QuotaRequest) -> ReservationOutcome:
        if self.quota is None or quota_request.is_free:
            return ReservationOutcome()
        return decide_by_own_catalogue(self.quota.using({}), quota_request, self.configuration)

    def ledger(self) -> QuotaLedger | None:
        return self.quota

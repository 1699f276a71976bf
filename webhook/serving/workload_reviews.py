"""Decisions on a workload: on each of its templates, and on the object as a whole."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from policies.gpus.cards import too_many_resources
from policies.gpus.claims import DeviceClassNames
from policies.placement.nodes import NodeFacts
from policies.pods.limits import excesses
from policies.pods.pod import Pod
from policies.pods.workload import Workload, WorkloadPods
from policies.policy import EffectivePolicy
from policies.quota.charge_request import NamespaceQuota
from policies.rule import Mode
from webhook.serving.engine import MOST_FINDINGS, Decision, Engine, Subject
from webhook.serving.review import GroupVersionKind
from webhook.workloads.autoscalers import ScaleTarget
from webhook.workloads.places import PodPlace, workload_pods
from webhook.workloads.unread import unread_gpus


class ReviewedTemplate(NamedTuple):
    """A template as it is written, and the decision on its pods; the paths of the findings start at the object."""

    place: PodPlace
    pod: Pod
    decision: Decision


class WorkloadReview(msgspec.Struct, frozen=True, kw_only=True):
    """What the review of a workload decides by. `claims` are those of a pod, `deadline` is a moment of `monotonic`."""

    engine: Engine
    policy: EffectivePolicy
    kind: GroupVersionKind
    is_update: bool
    nodes: NodeFacts | None
    claims: Callable[[Pod], Mapping[str, DeviceClassNames]]
    quota: NamespaceQuota | None
    now: datetime
    deadline: float

    def decisions(self, document: msgspec.Raw) -> list[Decision]:
        """Return the decisions on each template, and on the object. Raises OutOfTime, msgspec.ValidationError."""
        templates, advice = self.reviewed(document)
        return [*(each.decision for each in templates), *advice]

    def reviewed(self, document: msgspec.Raw) -> tuple[list[ReviewedTemplate], list[Decision]]:
        """Return each template with the decision on it, and the decisions on the object. Raises as `decisions`."""
        configuration, group, kind = self.engine.configuration, self.kind.group, self.kind.kind
        data, pods = workload_pods(configuration.workload_kinds, group, kind, document)
        templates = self._templates(kind, pods)
        advice = [self._advice(data, templates)]
        if (group, kind) not in configuration.workload_kinds:
            unread = unread_gpus(kind, data, configuration.resource_mapping)
            advice.append(Decision.on(self.policy, unread, Mode.WARN))
        return templates, advice

    def autoscaler(self, data: Any, scales: ScaleTarget, stored: Any) -> Decision:
        """Return the decision on an autoscaler by what it scales, as that is `stored`. Raises as `decisions`."""
        group, kind, namespace = scales.group, scales.kind, self.policy.namespace
        kinds = self.engine.configuration.workload_kinds
        scaled, pods = workload_pods(kinds, group, kind, scales.scaled(stored))
        readable = _readable(self._templates(kind, pods))
        return self._advice(data, (), Workload.of(group, kind, namespace, scaled, readable))

    def _templates(self, kind: str, pods: Iterable[tuple[PodPlace, Pod]]) -> list[ReviewedTemplate]:
        """Decide on each template, until there are more findings than anybody reads."""
        reviewed: list[ReviewedTemplate] = []
        for place, pod in pods:
            if too_long := excesses(pod) or too_many_resources(
                pod, self.engine.configuration.resource_mapping
            ):
                decision = Decision.on(self.policy, too_long, Mode.ENFORCE)
            else:
                subject = Subject(
                    policy=self.policy,
                    pod=pod,
                    claims=self.claims(pod),
                    made_by_daemonset=kind == "DaemonSet",
                    nodes=self.nodes,
                    deadline=self.deadline,
                )
                decision = self.engine.check_template(subject, self.now)
            reviewed.append(ReviewedTemplate(place, pod, decision.located(place.located)))
            if sum(len(each.decision.evaluated) for each in reviewed) >= MOST_FINDINGS:
                break
        return reviewed

    def _advice(
        self, data: Any, templates: Iterable[ReviewedTemplate], target: Workload | None = None
    ) -> Decision:
        group, kind, pods = self.kind.group, self.kind.kind, _readable(templates)
        workload = Workload.of(group, kind, self.policy.namespace, data, pods, target)
        subject = Subject(policy=self.policy, is_update=self.is_update, nodes=self.nodes, quota=self.quota)
        return self.engine.check_workload(workload, subject, self.now)


def _readable(templates: Iterable[ReviewedTemplate]) -> Iterator[WorkloadPods]:
    """Yield the pods of templates but for those that are too long to be read."""
    for place, pod, decision in templates:
        if decision.pod is not None:
            yield WorkloadPods(place.path, pod, place.count, decision.pod, denied=not decision.allowed)

"""Decisions on a workload: on each of its templates, and on the object as a whole."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

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
        configuration, group, kind = self.engine.configuration, self.kind.group, self.kind.kind
        data, pods = workload_pods(configuration.workload_kinds, group, kind, document)
        decisions, readable = self._templates(kind, pods)
        decisions.append(self._advice(data, readable))
        if (group, kind) not in configuration.workload_kinds:
            unread = unread_gpus(kind, data, configuration.resource_mapping)
            decisions.append(Decision.on(self.policy, unread, Mode.WARN))
        return decisions

    def autoscaler(self, data: Any, scales: ScaleTarget, stored: Any) -> Decision:
        """Return the decision on an autoscaler by what it scales, as that is `stored`. Raises as `decisions`."""
        group, kind, namespace = scales.group, scales.kind, self.policy.namespace
        kinds = self.engine.configuration.workload_kinds
        scaled, pods = workload_pods(kinds, group, kind, scales.scaled(stored))
        _, readable = self._templates(kind, pods)
        return self._advice(data, (), Workload.of(group, kind, namespace, scaled, readable))

    def _templates(
        self, kind: str, pods: Iterable[tuple[PodPlace, Pod]]
    ) -> tuple[list[Decision], list[WorkloadPods]]:
        """Decide on each template, until there are more findings than anybody reads; return the readable pods as well."""
        decisions: list[Decision] = []
        readable: list[WorkloadPods] = []
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
                readable.append(WorkloadPods(place.path, pod, place.count, decision.pod or pod))
            decisions.append(decision.located(place.located))
            if sum(len(decision.judged) for decision in decisions) >= MOST_FINDINGS:
                break
        return decisions, readable

    def _advice(self, data: Any, pods: Iterable[WorkloadPods], target: Workload | None = None) -> Decision:
        workload = Workload.of(self.kind.group, self.kind.kind, self.policy.namespace, data, pods, target)
        subject = Subject(policy=self.policy, is_update=self.is_update, nodes=self.nodes, quota=self.quota)
        return self.engine.check_workload(workload, subject, self.now)

"""The one way by which objects are evaluated: for reviews, `check`, `scan`, `why` and the console."""

from collections.abc import Callable, Mapping
from datetime import datetime
from math import inf
from typing import Any

import msgspec
from msgspec.structs import replace

from policies.gpus.cards import too_many_resources
from policies.gpus.claims import ClaimName, DeviceClassNames, requested_by
from policies.placement.named_nodes import NO_NODES, NodeIndex
from policies.placement.nodes import NodeFacts
from policies.pods.limits import excesses
from policies.pods.pod import Pod
from policies.pods.workload import Workload
from policies.policy import EffectivePolicy, Labels
from policies.quota.demand import RULE_ID
from policies.quota.quota_request import (
    LedgerError,
    QuotaGrant,
    QuotaRequest,
    ReservationOutcome,
    quota_request_for_pod,
)
from policies.rule import FETCHER_IMAGE, Mode
from policies.rules.gpu_quota import check_reservation, needs_grant
from webhook.configuration.loader import Configuration
from webhook.quota.enforcer import NamespaceQuota
from webhook.serving.engine import CLAIM_TEMPLATE, MOST_FINDINGS, Decision, Engine, OutOfTime, Subject, advise


class Evaluator(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration and what is known besides an object; of what is left out nothing is known."""

    engine: Engine
    now: datetime
    deadline: float = inf
    """A moment of `monotonic`. Every evaluation raises OutOfTime once it has passed."""
    labels_of: Callable[[str], Labels] = lambda _namespace: ()
    nodes: NodeFacts | None = None
    named_nodes: NodeIndex = NO_NODES
    claims: Callable[[ClaimName], DeviceClassNames | None] | None = None
    quota_of: Callable[[str], NamespaceQuota | None] = lambda _namespace: None
    """The quota of a namespace; None where it is not asked."""

    def policy(self, namespace: str) -> EffectivePolicy:
        """Return the policy of a namespace, by its labels only if anything depends on them: policies are cached by both."""
        policies = self.engine.configuration.policies
        labels = self.labels_of(namespace) if policies.asks_labels(namespace) else ()
        return policies.for_namespace(namespace, labels)

    def claims_of(self, namespace: str, pod: Pod) -> Mapping[str, DeviceClassNames]:
        """Return for what the claims of a pod ask, as far as that is known."""
        if self.claims is None or not pod.spec.resource_claims:
            return {}
        return requested_by(pod, namespace, self.claims)

    def too_long(self, policy: EffectivePolicy, pod: Pod, before: Pod | None = None) -> Decision | None:
        """Return the denial of a pod that is too long for the rules to read; `before` is the pod as it is stored."""
        found = excesses(pod) or (excesses(before) if before else ())
        if not found and before is None:
            found = too_many_resources(pod, self.engine.configuration.resource_mapping)
        return Decision.on(policy, found[:MOST_FINDINGS], Mode.ENFORCE) if found else None

    def subject(self, policy: EffectivePolicy, pod: Pod, **more: Any) -> Subject:
        """Return the pod with what is known besides it."""
        claims = self.claims_of(policy.namespace, pod)
        return Subject(
            policy=policy, pod=pod, claims=claims, nodes=self.nodes, deadline=self.deadline, **more
        )

    def mutate(self, subject: Subject) -> Decision:
        return self.engine.mutate(subject, self.now)

    def validate(self, subject: Subject, request: QuotaRequest) -> Decision:
        """Return what is wrong with the pod, and with what it asks of the quota."""
        return self.reserve(self.engine.validate(subject, self.now), request)

    def create(
        self, policy: EffectivePolicy, pod: Pod, *, by_daemonset: bool, counted: bool = True
    ) -> list[Decision]:
        """Return what both phases decide on a pod that is created now; of two findings on one thing the first counts.

        A pod that /mutate denies never reaches /validate; here its author sees the findings of both at once.
        """
        if too_long := self.too_long(policy, pod):
            return [too_long]
        subject = self.subject(policy, pod, made_by_daemonset=by_daemonset)
        mutated = self.mutate(subject)
        final = mutated.pod or pod
        validated = self.engine.validate(replace(subject, pod=final), self.now)
        if counted:
            configuration = self.engine.configuration
            request = quota_request_for_pod("review", final, None, configuration, self.named_nodes)
            validated = self.reserve(validated, request)
        known = {each.about for each in mutated.evaluated}
        rest = tuple(each for each in validated.evaluated if each.about not in known)
        return [mutated, replace(validated, evaluated=rest)]

    def check_template(self, policy: EffectivePolicy, kind: str, pod: Pod) -> Decision:
        """Return what is wrong with the pods that a template of an object of this kind makes."""
        if too_long := self.too_long(policy, pod):
            return too_long
        subject = self.subject(policy, pod, made_by_daemonset=kind == "DaemonSet")
        return self.engine.check_template(subject, self.now)

    def check_workload(self, policy: EffectivePolicy, workload: Workload, *, is_update: bool) -> Decision:
        """Return the advice on an object as a whole."""
        needs = needs_grant(workload, self.engine.configuration.resource_mapping)
        grant = self.grant(policy) if needs else None
        subject = Subject(policy=policy, is_update=is_update, nodes=self.nodes, grant=grant)
        return self.engine.check_workload(workload, subject, self.now)

    def advise(
        self, policy: EffectivePolicy, kind: tuple[str, str], document: bytes | msgspec.Raw
    ) -> Decision:
        """Return the advice on an object of a kind that is always admitted."""
        subject = Subject(policy=policy, grant=self.grant(policy) if kind == CLAIM_TEMPLATE else None)
        return advise(kind, document, subject, self.engine, self.now)

    def demand(self, policy: EffectivePolicy, request: QuotaRequest) -> Decision:
        """Return what the quota says of an object on which no rule decides."""
        return self.reserve(Decision.of_nothing(policy, self.now), request)

    def reserve(self, decision: Decision, request: QuotaRequest) -> Decision:
        """Return the decision with what the quota says of the request: it is asked last, and only if nothing denies."""
        if not decision.allowed:
            return replace(decision, request=request)
        OutOfTime.check(self.deadline)
        policy = decision.policy
        quota, held = self.quota_of(policy.namespace), policy.in_force(RULE_ID, self.now)
        if quota is None or held is None:
            return replace(decision, request=request)
        (binding, mode), outcome = held, None
        answer: ReservationOutcome | LedgerError
        try:
            answer = outcome = quota.reserve(request)
        except LedgerError as error:
            answer = error
        options: Any = binding.options
        found = check_reservation(answer, request, options, policy.namespace, self.now)
        return replace(decision.adding(found, mode), request=request, reservation=outcome)

    def grant(self, policy: EffectivePolicy) -> QuotaGrant | None:
        """Return what the quota grants, None where no rule looks at it."""
        quota = self.quota_of(policy.namespace) if policy.in_force(RULE_ID, self.now) else None
        return quota.grant() if quota is not None else None


class EngineInForce:
    """Calls return the engine of the configuration in force, built once a snapshot."""

    def __init__(self, source: Callable[[], Configuration], fetcher_image: str = FETCHER_IMAGE) -> None:
        self._configuration, self._engine = source, Engine(source(), fetcher_image)

    def __call__(self) -> Engine:
        configuration = self._configuration()
        if self._engine.configuration is not configuration:
            self._engine = Engine(configuration, self._engine.fetcher_image)
        return self._engine

"""Decides on pods, claims, templates and workloads, in the same way for reviews, `check`, `scan`, `why` and the console."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from math import inf
from time import monotonic
from typing import Self

import msgspec
from msgspec.structs import replace

from policies.finding import Edits
from policies.gpus.cards import too_many_resources
from policies.gpus.claimed_devices import (
    RequestedDevices,
    ResourceClaim,
    ResourceClaimTemplate,
    accelerator_classes,
    devices_by_claim,
    without_other_claims,
)
from policies.gpus.limit_range_findings import refusal_findings
from policies.placement.claim_classes import ClaimedClasses
from policies.pods.injected import as_submitted
from policies.pods.label_selector import LabelSelector
from policies.pods.limit_ranges import NamespaceLimits, as_admitted
from policies.pods.limits import excesses
from policies.pods.pod import Pod
from policies.pods.workload import NO_OWNER, Owner, Workload
from policies.policy import EffectivePolicy
from policies.quota.claim_protection import borrowed_claims
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.quota_request import LedgerError, QuotaRequest, ReservationOutcome, quota_request_for_pod
from policies.quota.waiting import has_quota_gate
from policies.registry import QUOTA_RULE, edits_to_try
from policies.rule import Context, Mode, Need, Phase
from webhook.configuration.loader import Configuration
from webhook.evaluation.advised_documents import document_findings
from webhook.evaluation.decision import MAX_FINDINGS, DeadlineExceeded, Decision, Violation
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.facts import Facts, owner_of
from webhook.evaluation.fitting_choices import may_exceed, with_choices_that_fit
from webhook.evaluation.limit_range_decisions import limits_needed, with_limit_ranges_named
from webhook.evaluation.rule_pass import RulePass
from webhook.evaluation.tried_choices import denials_with, with_tried_choices
from webhook.quota.enforcer import NamespaceQuota, ReadOnlyQuota


class Creation(msgspec.Struct, frozen=True):
    """In which phase and under which policy a pod is evaluated, and what makes it. owner: None for what its metadata say."""

    phase: Phase
    policy: EffectivePolicy
    by_daemonset: bool = False
    owner: Owner | None = None


class Evaluator(msgspec.Struct, frozen=True, kw_only=True):
    """Decides by the configuration, and by the facts and the quota that decisions depend on besides the object."""

    cache: DecisionCache
    now: datetime
    deadline: float = inf
    """A moment of `monotonic`. Every evaluation raises DeadlineExceeded once it has passed."""
    facts: Facts = Facts()
    quota_of: Callable[[str], NamespaceQuota | None] = lambda _namespace: None
    """The quota of a namespace; None if it is not to be asked."""
    answer_holds: Callable[[], bool] = lambda: True
    """Whether the decision still holds when the answer is written. If not, decide again."""
    queue_outcome: Callable[[QuotaRequest], ReservationOutcome | None] | None = None
    """Returns the verdict that makes a new pod wait in line; None if it need not wait. None where nothing will be stored."""
    tries_choices: bool = True
    """Whether choices of findings are tried. False in such a trial."""

    @property
    def configuration(self) -> Configuration:
        return self.cache.configuration

    def policy(self, namespace: str) -> EffectivePolicy:
        """Return the policy of a namespace, by its labels only if anything depends on them: policies are cached by both."""
        policies = self.configuration.policies
        labels = self.facts.labels_of(namespace) if policies.depends_on_labels(namespace) else ()
        return policies.for_namespace(namespace, labels)

    def claims_of(self, namespace: str, pod: Pod) -> Mapping[str, RequestedDevices]:
        """Return what those claims of the pod request that are known."""
        if self.facts.claims is None or not pod.spec.resource_claims:
            return {}
        return devices_by_claim(pod, namespace, self.facts.claims)

    def too_long(self, policy: EffectivePolicy, pod: Pod, before: Pod | None = None) -> Decision | None:
        """Return the denial of a pod that is too long for the rules to read; `before` is the stored pod."""
        findings = excesses(pod) or (excesses(before) if before else ())
        if not findings and before is None:
            findings = too_many_resources(pod, self.configuration.resource_mapping)
        return Decision.of_findings(policy, findings[:MAX_FINDINGS], Mode.ENFORCE) if findings else None

    def borrows_claim(self, policy: EffectivePolicy, pod: Pod) -> Decision | None:
        """Return the denial of a new pod that names a claim of another pod. No mode or exemption lifts it."""
        findings = tuple(borrowed_claims(pod, policy.namespace, self.facts.is_made_for_pod))[:MAX_FINDINGS]
        return Decision.of_findings(policy, findings, Mode.ENFORCE) if findings else None

    def _rule_pass(
        self,
        creation: Creation,
        pod: Pod | None = None,
        *,
        is_update: bool = False,
        limits: NamespaceLimits | None = None,
        ledger: QuotaLedger | None = None,
        pdb_selectors: tuple[LabelSelector, ...] | None = None,
    ) -> RulePass:
        """Return a pass of the rules, with all that they may look at."""
        configuration, policy, pod = self.configuration, creation.policy, pod or Pod()
        claims = self.claims_of(policy.namespace, pod)
        mapping, gpu_classes = configuration.resource_mapping, configuration.classes
        visible_pod = without_other_claims(pod, claims, mapping)
        claimed_classes = ClaimedClasses(mapping, gpu_classes, configuration.devices.taints)
        single_claim = [claims.get(claim.name) for claim in visible_pod.spec.resource_claims or ()]
        claim_classes = {name: claimed_classes.of_claim(choices) for name, choices in claims.items()}
        context = Context(
            phase=creation.phase,
            namespace=policy.namespace,
            now=self.now,
            classes=gpu_classes,
            resource_mapping=mapping,
            device_classes=accelerator_classes(pod, claims, mapping),
            claim_classes={name: classes for name, classes in claim_classes.items() if classes},
            claimed_gpus=claimed_classes.gpu_count(single_claim[0])
            if len(single_claim) == 1 and single_claim[0]
            else None,
            device_taints=configuration.devices.taints,
            claim_taints={
                name: taints for name, claim in claims.items() if (taints := claimed_classes.taints(claim))
            },
            made_by_daemonset=creation.by_daemonset,
            owner=creation.owner or NO_OWNER,
            is_update=is_update,
            fetcher_image=self.cache.fetcher_image,
            nodes=self.facts.nodes(),
            limit_ranges=limits,
            ledger=ledger,
            lets_wait=ledger is not None and self._waits_now(policy),
            pdb_selectors=pdb_selectors,
            config_maps=self.facts.config_maps(policy.namespace),
            options_of=policy.options_of,
        )
        return RulePass(policy, context, visible_pod, self.deadline)

    def evaluate(
        self, creation: Creation, pod: Pod, *, is_update: bool = False, fingerprint: bytes | None = None
    ) -> Decision:
        """Return what the rules decide in a phase. With its `fingerprint`, the decision may be that on an equal pod."""
        phase, policy, owner = creation.phase, creation.policy, creation.owner
        if owner is None:
            owner = owner_of(policy, pod, self.configuration, self.facts)
            creation = replace(creation, owner=owner)
        # While the policy is paused or has exemptions, time decides which rules hold.
        is_timeless = policy.paused_until_at(self.now) is None and not policy.exemptions
        limits = limits_needed(self.facts, policy, phase, pod)
        key = (phase, fingerprint, creation.by_daemonset, is_update, owner, policy.namespace, limits)
        is_cacheable = fingerprint is not None and is_timeless and not owner.problem
        within_quota = partial(self._within_quota, creation, pod)
        if is_cacheable and (known := self.cache.cached_decision(key, policy, self.facts.nodes())):
            return known if is_update else within_quota(known)
        rules = self._rule_pass(creation, pod, is_update=is_update, limits=limits)
        match phase:
            case Phase.MUTATE:
                rules.mutate_pod()
            case Phase.VALIDATE:
                rules.validate_pod()
            case Phase.TEMPLATE:
                rules.check_template()
        decision = rules.decision()
        if self.tries_choices:
            # Without time for trials, the decision stands, and its choices are offered as the rules made them.
            with suppress(DeadlineExceeded):
                find = partial(self.trial().findings_by_phase, creation, asks_quota=decision.allowed)
                mapping = self.configuration.resource_mapping
                decision = with_limit_ranges_named(decision, pod, limits, mapping, find)
            if not is_update:
                author_pod = as_submitted(pod, author_set_node=True) if phase is Phase.VALIDATE else pod
                others = partial(edits_to_try, author_pod, rules.context)
                decision = self.with_helpful_choices(decision, creation, author_pod, others)
        if phase is Phase.MUTATE:
            decision = replace(decision, request=self._queue_request(policy, rules.patch.pod))
        if is_cacheable:
            self.cache.cache_decision(key, decision, rules.context.nodes)
        return decision if is_update else within_quota(decision)

    def _within_quota(self, creation: Creation, pod: Pod, decision: Decision) -> Decision:
        """Return the decision on a new pod with those choices of warnings that the quota has room for now.

        Equal pods share a decision; each meets another usage. A controller does not read the answer to its new pod: no ledger is
        read for it. Where nothing will be stored, people read it.
        """
        by_controller = pod.metadata is not None and pod.metadata.controller is not None
        is_shown = self.queue_outcome is None or not by_controller
        is_tried = self.tries_choices and creation.phase is not Phase.TEMPLATE and may_exceed(decision)
        ledger = self._ledger(decision.policy) if is_tried and is_shown else None
        if ledger is None:
            return decision
        quota = self._tried_quota(decision.policy, ledger)
        find = partial(self.trial().findings_by_phase, creation, quota=quota)
        return with_choices_that_fit(decision, pod, find)

    def _tried_quota(
        self, policy: EffectivePolicy, ledger: QuotaLedger | None, *, is_unused: bool = False
    ) -> ReadOnlyQuota:
        """Return the quota by which a trial decides; it lets pods wait where a review does."""
        has_controller = self._waits_now(policy)
        return ReadOnlyQuota(ledger, self.configuration, is_unused=is_unused, has_controller=has_controller)

    def trial(self) -> Self:
        """Return an evaluator that tries choices, in at most half of the time that is left."""
        return replace(self, tries_choices=False, deadline=(monotonic() + self.deadline) / 2)

    def with_helpful_choices(
        self,
        decision: Decision,
        creation: Creation,
        pod: Pod,
        others: Callable[[], Iterable[Edits]] = tuple,
    ) -> Decision:
        """Return the decision with those choices that help the pod, as its author submitted it."""
        if not self.tries_choices:
            return decision
        phases_of = partial(self.trial().findings_by_phase, creation, asks_quota=decision.allowed)
        with suppress(DeadlineExceeded):
            return with_tried_choices(decision, pod, phases_of, others)
        return decision

    def findings_by_phase(
        self,
        creation: Creation,
        pod: Pod,
        limits: NamespaceLimits | None = None,
        *,
        quota: ReadOnlyQuota | None = None,
        asks_quota: bool = True,
    ) -> Iterator[tuple[Violation, ...]]:
        """Yield what each phase finds of a pod that is created now, given as its author or /validate sees it, or of a template.

        limits: the LimitRanges then; None for those of the namespace. quota: None for the unused one. asks_quota: false for a pod
        that rules deny, whose review reads no ledger.
        """
        evaluator, phase, policy = self, creation.phase, creation.policy
        if limits is not None:
            evaluator = replace(self, facts=replace(self.facts, limits_of=lambda _namespace: limits))
        pod = as_submitted(pod, author_set_node=True) if phase is Phase.VALIDATE else pod
        pod = evaluator.with_limit_range_defaults(policy, pod)
        is_template = phase is Phase.TEMPLATE
        first = evaluator.evaluate(creation if is_template else replace(creation, phase=Phase.MUTATE), pod)
        yield first.violations
        yield evaluator.by_limit_ranges(policy, first.pod or pod).violations
        if is_template:
            return
        admitted = first.pod or pod
        yield evaluator.evaluate(replace(creation, phase=Phase.VALIDATE), admitted).violations
        if asks_quota:
            quota = quota or self._tried_quota(policy, self._ledger(policy), is_unused=True)
            yield self._by_quota(policy, quota, admitted).violations

    def _by_quota(self, policy: EffectivePolicy, quota: ReadOnlyQuota, pod: Pod) -> Decision:
        """Return the decision of this quota alone on a new pod, whatever rules find of it."""
        demand = quota_request_for_pod("review", pod, None, self.configuration, self.facts.named_nodes())
        # Of a hostile pod, no ledger can hold these.
        demand = replace(demand, uid="", name="", controlled_by="")
        return replace(self, quota_of=lambda _: quota, queue_outcome=None, tries_choices=False).reserve(
            Decision(policy=policy), demand
        )

    def with_limit_range_defaults(self, policy: EffectivePolicy, pod: Pod) -> Pod:
        """Return a new pod, as its author wrote it, with what LimitRanges give it before webhooks see it."""
        limits = self.facts.limits_of(policy.namespace)
        return as_admitted(pod, limits) if limits is not None else pod

    def by_limit_ranges(self, policy: EffectivePolicy, pod: Pod, *, is_partial: bool = False) -> Decision:
        """Return the decision of LimitRanges on the final pod."""
        limits, mapping = self.facts.limits_of(policy.namespace), self.configuration.resource_mapping
        findings = refusal_findings(pod, limits, mapping, is_partial=is_partial) if limits is not None else ()
        return Decision.of_findings(policy, findings, Mode.ENFORCE)

    def _queue_request(self, policy: EffectivePolicy, pod: Pod) -> QuotaRequest | None:
        """Return the demand of a new pod that may wait in line, None of another one."""
        if has_quota_gate(pod) or not self.lets_wait(policy):
            return None
        return quota_request_for_pod("review", pod, None, self.configuration, self.facts.named_nodes())

    def check_workload(self, policy: EffectivePolicy, workload: Workload, *, is_update: bool) -> Decision:
        """Return the advice on an object as a whole."""
        needs = self._needs(policy, workload)
        ledger = self._ledger(policy) if Need.LEDGER in needs else None
        pdb_selectors = self.facts.pdb_selectors(policy.namespace) if Need.PDBS in needs else None
        advised = Creation(Phase.TEMPLATE, policy)
        rules = self._rule_pass(advised, is_update=is_update, ledger=ledger, pdb_selectors=pdb_selectors)
        rules.check_workload(workload)
        return rules.decision()

    def advise(
        self, policy: EffectivePolicy, group_kind: tuple[str, str], document: bytes | msgspec.Raw
    ) -> Decision:
        """Warn, in every mode, of what the author of a ResourceQuota or LimitRange would not see."""
        mapping = self.configuration.resource_mapping
        findings = document_findings(group_kind, document, mapping, partial(self._has_line, policy))
        return Decision.of_findings(policy, findings, Mode.WARN)

    def _has_line(self, policy: EffectivePolicy) -> bool:
        return bool(self.lets_wait(policy)) and self._ledger(policy) is not None

    def demand(self, policy: EffectivePolicy, request: QuotaRequest) -> Decision:
        """Return the decision of the quota on an object that no rule reads."""
        exemption, paused_until = policy.exemption_in_force(self.now), policy.paused_until_at(self.now)
        return self.reserve(Decision(policy=policy, exemption=exemption, paused_until=paused_until), request)

    def check_claim_template(self, policy: EffectivePolicy, template: ResourceClaimTemplate) -> Decision:
        """Return the decision on a template. No rule checks the claims that are made from it.

        In every mode it warns of claims that can never fit.
        """
        rules = self._rule_pass(Creation(Phase.TEMPLATE, policy), ledger=self._ledger(policy))
        rules.check_claim(template.spec.spec if template.spec else None, "spec.spec")
        rules.check_claim_template(template)
        return rules.decision()

    def check_claim(
        self, policy: EffectivePolicy, claim: ResourceClaim, request: QuotaRequest, *, by_cluster: bool
    ) -> Decision:
        """Return the decision on a new ResourceClaim.

        by_cluster: Kubernetes made it for a pod. Then the pod and the template, if there is one, were checked.
        """
        rules = self._rule_pass(Creation(Phase.VALIDATE, policy))
        if not by_cluster:
            rules.check_claim(claim.spec, "spec")
        return self.reserve(rules.decision(), request)

    def lets_wait(self, policy: EffectivePolicy) -> bool | None:
        """Whether pods that exceed the quota wait in line, instead of being denied. None where it denies nothing."""
        rule_in_force = policy.in_force(QUOTA_RULE.id, self.now)
        return (
            rule_in_force[0].options.queues_pods
            if rule_in_force is not None and rule_in_force[1] is Mode.ENFORCE
            else None
        )

    def _waits_now(self, policy: EffectivePolicy) -> bool:
        """Whether a new pod that exceeds the quota gets the gate, which only a controller removes."""
        quota = self.quota_of(policy.namespace)
        return quota is not None and bool(self.lets_wait(policy)) and quota.has_controller

    def reserve(self, decision: Decision, request: QuotaRequest) -> Decision:
        """Return the decision with the answer of the quota, which is asked last, and only if nothing denies."""
        policy, outcome = decision.policy, None
        if decision.allowed:
            DeadlineExceeded.check(self.deadline)
            quota, rule_in_force = self.quota_of(policy.namespace), policy.in_force(QUOTA_RULE.id, self.now)
            check = rule_in_force[0].rule.check_reservation if rule_in_force is not None else None
            if quota is not None and rule_in_force is not None and check is not None:
                bound, mode = rule_in_force
                may_exceed = bound.options.respects_kueue
                request = replace(request, is_enforced=mode is Mode.ENFORCE, may_exceed=may_exceed)
                answer: ReservationOutcome | LedgerError
                try:
                    answer = outcome = quota.reserve(request)
                except LedgerError as error:
                    answer = error
                findings = check(
                    answer,
                    request,
                    bound.options,
                    policy.namespace,
                    self.now,
                    partial(self._context, policy, request),
                    helps=partial(
                        self._is_admitted_with, policy, request, outcome.ledger if outcome else None
                    ),
                    would_wait=self.queue_outcome is None and request.may_wait and self._waits_now(policy),
                )
                decision = decision.with_findings(findings, mode, bound.rule.id)
                if request.pod is not None and not decision.allowed and self.tries_choices:
                    limits = limits_needed(self.facts, policy, Phase.VALIDATE, request.pod)
                    mapping = self.configuration.resource_mapping
                    tried = self._tried_quota(policy, outcome.ledger if outcome else None)
                    find = self._find_within(policy, request, tried)
                    with suppress(DeadlineExceeded):
                        decision = with_limit_ranges_named(decision, request.pod, limits, mapping, find)
        return replace(decision, request=request, reservation=outcome)

    def _is_admitted_with(
        self,
        policy: EffectivePolicy,
        request: QuotaRequest,
        ledger: QuotaLedger | None,
        edits: Edits,
        once_unused: bool | None,
    ) -> bool:
        """Whether a new pod, denied by the quota, would be admitted with the edits, now or once the quota is unused.

        once_unused: None for whatever the quota grants.
        """
        if not self.tries_choices or request.pod is None or request.before is not None:
            return True
        counted = None if once_unused is None else ledger
        quota = self._tried_quota(policy, counted, is_unused=bool(once_unused))
        return not denials_with(edits, request.pod, self._find_within(policy, request, quota))

    def _find_within(
        self, policy: EffectivePolicy, request: QuotaRequest, quota: ReadOnlyQuota
    ) -> Callable[..., Iterator[tuple[Violation, ...]]]:
        """Return a function that yields the violations of a new pod, also by this quota."""
        return partial(self.trial().findings_by_phase, _creation(policy, request), quota=quota)

    def _context(self, policy: EffectivePolicy, request: QuotaRequest, pod: Pod) -> Context:
        return self._rule_pass(_creation(policy, request), pod).context

    def _needs(self, policy: EffectivePolicy, workload: Workload) -> frozenset[Need]:
        """Return what the rules in force need for their advice on an object."""
        rules, mapping = policy.rules(self.now), self.configuration.resource_mapping
        concerned = (bound.rule for bound, _ in rules if bound.rule.concerns(workload, mapping))
        return frozenset[Need]().union(*(rule.needs for rule in concerned))

    def _ledger(self, policy: EffectivePolicy) -> QuotaLedger | None:
        """Return the ledger of the namespace, None if no rule reads it."""
        quota = self.quota_of(policy.namespace) if policy.in_force(QUOTA_RULE.id, self.now) else None
        return quota.ledger() if quota is not None else None


def _creation(policy: EffectivePolicy, request: QuotaRequest) -> Creation:
    return Creation(Phase.VALIDATE, policy, request.controlled_by.startswith("DaemonSet/"))

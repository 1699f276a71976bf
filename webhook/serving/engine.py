"""Run the rules over a pod or a claim, and decide.

Deterministic but for the deadline; the time is an argument, and there is no I/O. Every rule runs even after one has denied the
pod, so that its author sees everything at once.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from enum import Enum
from math import inf
from time import monotonic
from typing import Self

import msgspec
from msgspec.structs import replace

from policies.finding import Finding, Severity
from policies.gpus.claims import ResourceClaimTemplate
from policies.placement.nodes import NodeFacts
from policies.placement.pinning import named_nodes
from policies.pods.annotations import INJECTED
from policies.pods.fingerprint import TOKEN_VOLUME
from policies.pods.patch import Change, Operation, PodPatch
from policies.pods.pod import Pod
from policies.pods.workload import Workload
from policies.policy import Binding, EffectivePolicy, Exemption
from policies.quota.catalogue import CatalogueVersion
from policies.quota.demand import Demand
from policies.quota.quota_request import QuotaRequest, ReservationOutcome, demand_input
from policies.reason import Reason
from policies.registry import RULES, fingerprints
from policies.rule import FETCHER_IMAGE, Context, Mode
from webhook.configuration.loader import Configuration

MOST_FINDINGS = 100
"""Findings of one outcome that are looked for, so that an object of 3 MiB neither takes minutes nor makes an audit line of 30."""

MOST_REMEMBERED, LONGEST_REMEMBERED = 256, 16 * 1024
"""Decisions that are remembered for pods with equal fingerprints, and bytes of each as JSON: 4 MiB in all."""

MOST_DEMANDS, LONGEST_DEMAND_INPUT = 1_024, 2 * 1024
"""Keys by which the demands of equal pods are remembered, and bytes of a `demand_input`, which bound their denials."""

RESOURCE_QUOTA = ("", "ResourceQuota")
CLAIM = ("resource.k8s.io", "ResourceClaim")
CLAIM_TEMPLATE = ("resource.k8s.io", "ResourceClaimTemplate")
ADVISED = frozenset({RESOURCE_QUOTA, CLAIM_TEMPLATE})
"""Kinds, with their API groups, that are always admitted, though their effect shows only later, out of sight."""


class Outcome(Enum):
    """What became of a finding once its rule's mode was taken into account."""

    DENIED = "denied"
    WARNED = "warned"
    AUDITED = "audited"


class Violation(msgspec.Struct, frozen=True):
    """A finding, and what it means under the policy."""

    finding: Finding
    outcome: Outcome

    @classmethod
    def of(cls, finding: Finding, mode: Mode, policy: EffectivePolicy) -> Self:
        return cls(finding.with_contact(policy.contact), outcome_of(finding.severity, mode))

    @property
    def about(self) -> tuple[str, str, str | None, str | None]:
        """What it is about: the sentence may differ once the pod is pinned."""
        finding = self.finding
        return finding.rule, finding.path or finding.message, finding.container, finding.value


class OutOfTime(Exception):  # noqa: N818 - no bug
    """The deadline passed before the decision: the API server is about to stop waiting."""

    @classmethod
    def check(cls, deadline: float) -> None:
        """Raise it if the deadline, a moment of `monotonic`, has passed."""
        if monotonic() >= deadline:
            raise cls


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one object. What is DENIED rejects it, what is WARNED its author sees, what is AUDITED is only logged."""

    policy: EffectivePolicy
    evaluated: tuple[Violation, ...] = ()
    changes: tuple[Change, ...] = ()
    pod: Pod | None = None
    """The pod with the changes. None if it is not known: the decision is that on an equal pod, or on no pod."""
    note: Change | None = None
    """The annotation that tells people what was injected; there only if something was."""
    exemption: Exemption | None = None
    paused_until: datetime | None = None
    """There only if the policy was paused when this was decided."""
    request: QuotaRequest | None = None
    """The demand on the quota."""
    reservation: ReservationOutcome | None = None
    """The answer of the quota. None if the quota was not asked, or did not answer."""

    @classmethod
    def on(cls, policy: EffectivePolicy, findings: Iterable[Finding], mode: Mode) -> Self:
        """Return the verdict by findings alone."""
        return cls(policy=policy, evaluated=tuple(Violation.of(each, mode, policy) for each in findings))

    @classmethod
    def of_nothing(cls, policy: EffectivePolicy, now: datetime) -> Self:
        """Return the verdict before any rule was run."""
        return cls(policy=policy, exemption=policy.exemption_in_force(now), paused_until=policy.paused(now))

    def adding(self, findings: Iterable[Finding], mode: Mode) -> Self:
        """Return the verdict by these findings as well."""
        more = self.on(self.policy, findings, mode).evaluated
        if not more:
            return self
        added = dict.fromkeys([*self.evaluated, *more])
        by_outcome = [[each for each in added if each.outcome is outcome] for outcome in Outcome]
        limited = (each for found in by_outcome for each in found[:MOST_FINDINGS])
        return replace(self, evaluated=tuple(limited))

    @property
    def allowed(self) -> bool:
        return not any(each.outcome is Outcome.DENIED for each in self.evaluated)

    @property
    def operations(self) -> list[Operation]:
        changes = (*self.changes, self.note) if self.note else self.changes
        return [operation for change in changes for operation in change.operations]

    def located(self, path_of: Callable[[str], str]) -> Self:
        """Return the decision with every path in the pod replaced by what `path_of` says, for a pod inside another object."""
        located = (Violation(each.finding.at(path_of), each.outcome) for each in self.evaluated)
        return replace(self, evaluated=tuple(located))

    def findings(self, outcome: Outcome) -> Iterator[Finding]:
        return (each.finding for each in self.evaluated if each.outcome is outcome)


class Engine:
    """A configuration, and what is remembered of the pods that were reviewed under it."""

    def __init__(self, configuration: Configuration, fetcher_image: str = FETCHER_IMAGE) -> None:
        self.configuration = configuration
        self.fetcher_image = fetcher_image
        self.remembered: dict[tuple[object, ...], tuple[Decision, NodeFacts | None]] = {}
        self.fingerprints = fingerprints(RULES, configuration.resource_mapping)
        self._demands: dict[bytes, dict[CatalogueVersion, Demand]] = {}

    def demands(self, pod: Pod, fingerprint: bytes | None) -> dict[CatalogueVersion, Demand]:
        """Return the demands that new pods with an equal `demand_input` share: to compute one takes 0.1 ms.

        A pod that names nodes shares none, because its demand depends on them.
        """
        found = self._demands.get(fingerprint or b"")
        if found is not None:
            return found
        if named_nodes(pod):
            return {}
        text = demand_input(self.fingerprints.reduced(pod))
        found = self._demands.get(text, {})
        if len(text) <= LONGEST_DEMAND_INPUT:
            if len(self._demands) >= MOST_DEMANDS:
                self._demands.clear()
            self._demands |= {key: found for key in (text, fingerprint) if key}
        return found

    def recall(
        self, key: tuple[object, ...], policy: EffectivePolicy, nodes: NodeFacts | None
    ) -> Decision | None:
        """Return the decision on an equal pod, without its pod, if the same policy and nodes led to it."""
        found = self.remembered.get(key)
        return found[0] if found and found[0].policy is policy and found[1] is nodes else None

    def remember(self, key: tuple[object, ...], decision: Decision, nodes: NodeFacts | None) -> None:
        """Keep the decision for equal pods, unless it is long, or quotes the name of a token, in which they differ."""
        text = msgspec.json.encode((decision.evaluated, decision.changes))
        if len(text) > LONGEST_REMEMBERED or TOKEN_VOLUME.encode() in text:
            return
        if len(self.remembered) >= MOST_REMEMBERED:
            self.remembered.clear()
        self.remembered[key] = replace(decision, pod=None), nodes


class RulePass:
    """One pass of the rules of a policy over one object: the patch, and the findings so far. Raises OutOfTime."""

    def __init__(self, policy: EffectivePolicy, context: Context, pod: Pod, deadline: float = inf) -> None:
        self.policy, self.context = policy, context
        self.rules = policy.rules(context.now)
        self.patch = PodPatch(pod)
        self.evaluated: dict[Outcome, dict[Violation, None]] = {outcome: {} for outcome in Outcome}
        self.changes: list[Change] = []
        self._note: Change | None = None
        self._deadline = deadline

    def decision(self) -> Decision:
        return Decision(
            policy=self.policy,
            evaluated=tuple(each for found in self.evaluated.values() for each in found),
            changes=tuple(self.changes),
            pod=self.patch.pod,
            note=self._note,
            exemption=self.policy.exemption_in_force(self.context.now),
            paused_until=self.policy.paused(self.context.now),
        )

    def mutate_pod(self) -> None:
        """Inject what the rules add, and find what makes the pod unacceptable already.

        A pod that is denied here goes no further, so its author also learns what /validate would say.
        """
        for binding, mode in self.rules:
            if binding.rule.check_before_mutation:
                self._check(binding, mode)
        for binding, mode in self.rules:
            self._mutate(binding, mode)
        for binding, mode in self.rules if self.evaluated[Outcome.DENIED] else ():
            if not binding.rule.check_before_mutation:
                self._check(binding, mode)
        self._add_note()

    def validate_pod(self) -> None:
        """Find what is wrong with the final pod, and which injections did not survive other webhooks."""
        is_update = self.context.is_update
        for binding, mode in self.rules:
            if is_update and not binding.rule.on_update:
                continue
            self._check(binding, mode)
            if not is_update:
                self._report_missing(binding, mode)

    def check_template(self) -> None:
        """Find what would be wrong with pods of this template, and what they would get; the template is never changed."""
        for binding, mode in self.rules:
            self._check(binding, mode)
        for binding, mode in self.rules:
            self._mutate(binding, mode)

    def check_workload(self, workload: Workload) -> None:
        """Advise on the object as a whole: warnings, whatever the modes; while the policy is paused only logged."""
        mode = Mode.WARN if self.policy.paused(self.context.now) is None else Mode.AUDIT
        for binding, _ in self.rules:
            if binding.rule.check_workload is not None:
                for finding in binding.rule.check_workload(workload, binding.options, self.context):
                    self._evaluate(finding, mode)

    def check_claim_template(self, template: ResourceClaimTemplate) -> None:
        """Warn, whatever the modes, of a template whose claims could never be created."""
        for binding, _ in self.rules:
            if binding.rule.check_claim_template is not None:
                for finding in binding.rule.check_claim_template(template, self.context):
                    self._evaluate(finding, Mode.WARN)

    def _evaluate(self, finding: Finding, mode: Mode) -> None:
        violation = Violation.of(finding, mode, self.policy)
        found = self.evaluated[violation.outcome]
        if len(found) < MOST_FINDINGS:
            found[violation] = None

    def _advise(self, binding: Binding, reason: Reason, message: str, mode: Mode) -> None:
        rule_id = binding.rule.id
        self._evaluate(Finding(rule=rule_id, reason=reason, message=message, severity=Severity.WARNING), mode)

    def _check(self, binding: Binding, mode: Mode) -> None:
        if binding.rule.check is not None:
            OutOfTime.check(self._deadline)
            for finding in binding.rule.check(self.patch.pod, binding.options, self.context):
                self._evaluate(finding, mode)
                if len(self.evaluated[outcome_of(Severity.DENIAL, mode)]) >= MOST_FINDINGS:
                    break

    def _mutate(self, binding: Binding, mode: Mode) -> None:
        """Apply an enforced rule to the pod; of one that only warns or audits, report what it would have done."""
        for change in self._run_mutation(binding, mode, on_scratch=mode is not Mode.ENFORCE):
            if mode is Mode.ENFORCE:
                self.changes.append(replace(change, rule=binding.rule.id))
            else:
                would = f"would add {change.what}"
                self._advise(binding, Reason.WOULD_INJECT, would, mode)

    def _report_missing(self, binding: Binding, mode: Mode) -> None:
        """Report what an enforced rule would still add now: it was never injected, or a later webhook took it out."""
        for change in self._run_mutation(binding, mode, on_scratch=True):
            if mode is Mode.ENFORCE:
                missing = (
                    f"{change.what} is missing from the final pod: it was not injected, or a mutating webhook after "
                    "gpu-admission took it out"
                )
                self._advise(binding, Reason.INJECTION_MISSING, missing, mode)

    def _run_mutation(self, binding: Binding, mode: Mode, *, on_scratch: bool) -> list[Change]:
        if binding.rule.mutate is None:
            return []
        OutOfTime.check(self._deadline)
        patch = self.patch.fork() if on_scratch else self.patch
        before = len(patch.changes)
        for finding in binding.rule.mutate(patch, binding.options, self.context):
            self._evaluate(finding, mode)
        return patch.changes[before:]

    def _add_note(self) -> None:
        """Add the annotation that tells people what was injected, one line a rule."""
        if not self.changes:
            return
        by_rule: dict[str, list[str]] = {}
        for change in self.changes:
            by_rule.setdefault(change.rule, []).append(change.what)
        lines = [f"{rule}: {', '.join(whats)}" for rule, whats in by_rule.items()]
        if before := self.patch.pod.annotations.get(INJECTED):
            lines.insert(0, before)
        self.patch.set_annotation(INJECTED, "\n".join(lines))
        self._note = self.patch.changes[-1]


def outcome_of(severity: Severity, mode: Mode) -> Outcome:
    """Return what becomes of a finding of a rule in that mode."""
    if mode is Mode.AUDIT:
        return Outcome.AUDITED
    if mode is Mode.WARN or severity is Severity.WARNING:
        return Outcome.WARNED
    return Outcome.DENIED

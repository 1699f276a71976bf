"""Run the rules over a pod or a claim, and decide.

The result depends only on the arguments, such as the time, and on the deadline. There is no I/O. Every rule runs even after one
has denied the pod, so that its author sees all findings at once.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from enum import Enum
from math import inf
from time import monotonic
from typing import Self

import msgspec
from msgspec.structs import replace

from policies.finding import Finding, Reason, Severity
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
from policies.registry import RULES, fingerprints
from policies.rule import FETCHER_IMAGE, Context, Mode
from webhook.configuration.loader import Configuration

MAX_FINDINGS = 100
"""The most findings of one outcome. Without it, an object of 3 MiB could take minutes, and make an audit line of 30 MiB."""

MAX_DECISIONS, LONGEST_DECISION = 256, 16 * 1024
"""Cached decisions, and bytes of each as JSON: 4 MiB in all."""

MAX_DEMANDS, LONGEST_DEMAND_INPUT = 1_024, 2 * 1024
"""Keys of cached demands, and bytes of a `demand_input`. The second also limits the denials that a demand contains."""

POD = ("", "Pod")
RESOURCE_QUOTA = ("", "ResourceQuota")
CLAIM = ("resource.k8s.io", "ResourceClaim")
CLAIM_TEMPLATE = ("resource.k8s.io", "ResourceClaimTemplate")
ADVISED = frozenset({RESOURCE_QUOTA, CLAIM_TEMPLATE})
"""Kinds, with their API groups, that are always admitted, but may get a warning: their author would not see the effect."""


class Outcome(Enum):
    """The effect of a finding under the mode of its rule."""

    DENIED = "denied"
    WARNED = "warned"
    AUDITED = "audited"


class Violation(msgspec.Struct, frozen=True):
    """A finding with its outcome under the policy."""

    finding: Finding
    outcome: Outcome

    @classmethod
    def of(cls, finding: Finding, mode: Mode, policy: EffectivePolicy) -> Self:
        return cls(finding.with_contact(policy.contact), outcome_of(finding.severity, mode))

    @property
    def identity(self) -> tuple[str, str, str | None, str | None]:
        """Equal for the findings of /mutate and /validate on the same value. Their messages may differ once the pod is pinned."""
        finding = self.finding
        return finding.rule, finding.path or finding.message, finding.container, finding.value


class DeadlineExceeded(Exception):  # noqa: N818 - the name in gRPC and Go
    """The deadline passed before the decision. The API server will soon stop waiting."""

    @classmethod
    def check(cls, deadline: float) -> None:
        """Raise it if the deadline, a moment of `monotonic`, has passed."""
        if monotonic() >= deadline:
            raise cls


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The decision on one object. DENIED violations reject it, its author sees WARNED ones, AUDITED ones are only logged."""

    policy: EffectivePolicy
    violations: tuple[Violation, ...] = ()
    changes: tuple[Change, ...] = ()
    pod: Pod | None = None
    """The pod with the changes. None for an object without a pod, and for a cached decision, which was made on an equal pod."""
    note: Change | None = None
    """The change that sets the annotation `injected`. None if nothing was injected."""
    exemption: Exemption | None = None
    paused_until: datetime | None = None
    """The end of the pause. None if the policy was not paused at the decision."""
    request: QuotaRequest | None = None
    """The request to the quota."""
    reservation: ReservationOutcome | None = None
    """The answer of the quota. None without a request or an answer."""

    @classmethod
    def of_findings(cls, policy: EffectivePolicy, findings: Iterable[Finding], mode: Mode) -> Self:
        """Return the decision that only these findings make."""
        return cls(policy=policy, violations=tuple(Violation.of(each, mode, policy) for each in findings))

    def with_findings(self, findings: Iterable[Finding], mode: Mode) -> Self:
        more = self.of_findings(self.policy, findings, mode).violations
        if not more:
            return self
        added = dict.fromkeys([*self.violations, *more])
        by_outcome = [[each for each in added if each.outcome is outcome] for outcome in Outcome]
        limited = (each for found in by_outcome for each in found[:MAX_FINDINGS])
        return replace(self, violations=tuple(limited))

    @property
    def allowed(self) -> bool:
        return not any(each.outcome is Outcome.DENIED for each in self.violations)

    @property
    def operations(self) -> list[Operation]:
        changes = (*self.changes, self.note) if self.note else self.changes
        return [operation for change in changes for operation in change.operations]

    def located(self, path_of: Callable[[str], str]) -> Self:
        """Return the decision with paths in the object that contains the pod. `path_of` converts a path in the pod."""
        located = (Violation(each.finding.at(path_of), each.outcome) for each in self.violations)
        return replace(self, violations=tuple(located))

    def findings(self, outcome: Outcome) -> Iterator[Finding]:
        return (each.finding for each in self.violations if each.outcome is outcome)


class Engine:
    """A configuration, with a cache of decisions and demands under it."""

    def __init__(self, configuration: Configuration, fetcher_image: str = FETCHER_IMAGE) -> None:
        self.configuration = configuration
        self.fetcher_image = fetcher_image
        self.decisions: dict[tuple[object, ...], tuple[Decision, NodeFacts | None]] = {}
        self.fingerprints = fingerprints(RULES, configuration.resource_mapping)
        self._demands: dict[bytes, dict[CatalogueVersion, Demand]] = {}

    def demands(self, pod: Pod, fingerprint: bytes | None) -> dict[CatalogueVersion, Demand]:
        """Return the cached demands of pods with an equal `demand_input`, for the caller to add to: one takes 0.1 ms to compute.

        A pod that names nodes gets a new dict, because its demand depends on the nodes.
        """
        found = self._demands.get(fingerprint or b"")
        if found is not None:
            return found
        if named_nodes(pod):
            return {}
        text = demand_input(self.fingerprints.reduced(pod))
        found = self._demands.get(text, {})
        if len(text) <= LONGEST_DEMAND_INPUT:
            if len(self._demands) >= MAX_DEMANDS:
                self._demands.clear()
            self._demands |= {key: found for key in (text, fingerprint) if key}
        return found

    def cached_decision(
        self, key: tuple[object, ...], policy: EffectivePolicy, nodes: NodeFacts | None
    ) -> Decision | None:
        """Return the cached decision on an equal pod, without the pod, if policy and nodes are the same."""
        found = self.decisions.get(key)
        return found[0] if found and found[0].policy is policy and found[1] is nodes else None

    def cache_decision(self, key: tuple[object, ...], decision: Decision, nodes: NodeFacts | None) -> None:
        """Cache the decision for equal pods, unless it is long, or quotes the name of a token volume: that name differs."""
        text = msgspec.json.encode((decision.violations, decision.changes))
        if len(text) > LONGEST_DECISION or TOKEN_VOLUME.encode() in text:
            return
        if len(self.decisions) >= MAX_DECISIONS:
            self.decisions.clear()
        self.decisions[key] = replace(decision, pod=None), nodes


class RulePass:
    """One run of the rules of a policy over one object, with the patch and the violations so far. Raises DeadlineExceeded."""

    def __init__(self, policy: EffectivePolicy, context: Context, pod: Pod, deadline: float = inf) -> None:
        self.policy, self.context = policy, context
        self.rules = policy.rules(context.now)
        self.patch = PodPatch(pod)
        self.violations: dict[Outcome, dict[Violation, None]] = {outcome: {} for outcome in Outcome}
        self.changes: list[Change] = []
        self._note: Change | None = None
        self._deadline = deadline

    def decision(self) -> Decision:
        return Decision(
            policy=self.policy,
            violations=tuple(each for found in self.violations.values() for each in found),
            changes=tuple(self.changes),
            pod=self.patch.pod,
            note=self._note,
            exemption=self.policy.exemption_in_force(self.context.now),
            paused_until=self.policy.paused(self.context.now),
        )

    def mutate_pod(self) -> None:
        """Inject what the rules add, and run the checks that come before it.

        A pod that is denied here never reaches /validate. So the other checks run too, and the author sees all findings.
        """
        for binding, mode in self.rules:
            if binding.rule.check_before_mutation:
                self._check(binding, mode)
        for binding, mode in self.rules:
            self._mutate(binding, mode)
        for binding, mode in self.rules if self.violations[Outcome.DENIED] else ():
            if not binding.rule.check_before_mutation:
                self._check(binding, mode)
        self._add_note()

    def validate_pod(self) -> None:
        """Check the final pod, and report injected fields that other webhooks removed."""
        is_update = self.context.is_update
        for binding, mode in self.rules:
            if is_update and not binding.rule.on_update:
                continue
            self._check(binding, mode)
            if not is_update:
                self._report_missing(binding, mode)

    def check_template(self) -> None:
        """Check a pod of this template, and find what would be injected into it. The template itself is never changed."""
        for binding, mode in self.rules:
            self._check(binding, mode)
        for binding, mode in self.rules:
            self._mutate(binding, mode)

    def check_workload(self, workload: Workload) -> None:
        """Check the object as a whole. Findings are warnings in every mode, and only logged while the policy is paused."""
        mode = Mode.WARN if self.policy.paused(self.context.now) is None else Mode.AUDIT
        for binding, _ in self.rules:
            if binding.rule.check_workload is not None:
                self._record(binding.rule.check_workload(workload, binding.options, self.context), mode)

    def check_claim_template(self, template: ResourceClaimTemplate) -> None:
        """Warn, in every mode, of a template whose claims could never be created."""
        for binding, _ in self.rules:
            if binding.rule.check_claim_template is not None:
                self._record(binding.rule.check_claim_template(template, self.context), Mode.WARN)

    def _record(self, findings: Iterable[Finding], mode: Mode) -> None:
        for finding in findings:
            violation = Violation.of(finding, mode, self.policy)
            found = self.violations[violation.outcome]
            if len(found) < MAX_FINDINGS:
                found[violation] = None

    def _advise(self, binding: Binding, reason: Reason, message: str, mode: Mode) -> None:
        rule_id = binding.rule.id
        self._record([Finding(rule=rule_id, reason=reason, message=message, severity=Severity.WARNING)], mode)

    def _check(self, binding: Binding, mode: Mode) -> None:
        if binding.rule.check is not None:
            DeadlineExceeded.check(self._deadline)
            for finding in binding.rule.check(self.patch.pod, binding.options, self.context):
                self._record([finding], mode)
                if len(self.violations[outcome_of(Severity.DENIAL, mode)]) >= MAX_FINDINGS:
                    break

    def _mutate(self, binding: Binding, mode: Mode) -> None:
        """Apply a rule in mode `enforce` to the pod. In another mode, report what the rule would add."""
        for change in self._run_mutation(binding, mode, on_scratch=mode is not Mode.ENFORCE):
            if mode is Mode.ENFORCE:
                self.changes.append(replace(change, rule=binding.rule.id))
            else:
                self._advise(binding, Reason.WOULD_INJECT, f"would add {change.what}", mode)

    def _report_missing(self, binding: Binding, mode: Mode) -> None:
        """Report what a rule in mode `enforce` would still add: it was not injected, or a later webhook removed it."""
        for change in self._run_mutation(binding, mode, on_scratch=True):
            if mode is Mode.ENFORCE:
                why = "it was not injected, or a mutating webhook after gpu-admission took it out"
                missing = f"{change.what} is missing from the final pod: {why}"
                self._advise(binding, Reason.INJECTION_MISSING, missing, mode)

    def _run_mutation(self, binding: Binding, mode: Mode, *, on_scratch: bool) -> list[Change]:
        if binding.rule.mutate is None:
            return []
        DeadlineExceeded.check(self._deadline)
        patch = PodPatch(self.patch.pod) if on_scratch else self.patch
        before = len(patch.changes)
        self._record(binding.rule.mutate(patch, binding.options, self.context), mode)
        return patch.changes[before:]

    def _add_note(self) -> None:
        """Add the annotation `injected`, with one line for each rule."""
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
    """Return the outcome of a finding of a rule in this mode."""
    if mode is Mode.AUDIT:
        return Outcome.AUDITED
    if mode is Mode.WARN or severity is Severity.WARNING:
        return Outcome.WARNED
    return Outcome.DENIED

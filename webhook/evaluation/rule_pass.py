"""Runs the rules of a policy over one pod, workload or claim template.

The result depends only on the arguments, such as the time, and on the deadline. There is no I/O. Every rule runs even after one
has denied the pod, so that its author sees all findings at once.
"""

from collections.abc import Iterable
from math import inf

from msgspec.structs import replace

from policies.finding import Finding, Reason, Severity, warning
from policies.gpus.claimed_devices import ClaimSpec, ResourceClaimTemplate
from policies.placement.availability import NO_NODE
from policies.pods.annotations import INJECTED
from policies.pods.injected import INJECTION_MISSING, WOULD_INJECT
from policies.pods.patch import Change, PodPatch
from policies.pods.pod import Pod
from policies.pods.workload import Workload
from policies.policy import BoundRule, EffectivePolicy
from policies.rule import Context, Mode
from webhook.evaluation.decision import (
    MAX_FINDINGS,
    DeadlineExceeded,
    Decision,
    Outcome,
    Violation,
    outcome_of,
)


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
        # Beside a denial of an amount, nobody needs to know that no node has as much.
        denied = {violation.finding.path for violation in self.violations[Outcome.DENIED]}
        violations = (
            violation
            for of_outcome in self.violations.values()
            for violation in of_outcome
            if violation.outcome is Outcome.DENIED
            or violation.finding.reason is not NO_NODE
            or violation.finding.path in {"", "spec"}
            or violation.finding.path not in denied
        )
        return Decision(
            policy=self.policy,
            violations=tuple(violations),
            changes=tuple(self.changes),
            pod=self.patch.pod,
            note=self._note,
            exemption=self.policy.exemption_in_force(self.context.now),
            paused_until=self.policy.paused_until_at(self.context.now),
        )

    def mutate_pod(self) -> None:
        """Inject what the rules add, and run the checks that come before it.

        A pod that is denied here never reaches /validate. So the other checks run too, and the author sees all findings.
        """
        for bound, mode in self.rules:
            if bound.rule.check_before_mutation:
                self._check(bound, mode)
        for bound, mode in self.rules:
            self._mutate(bound, mode)
        for bound, mode in self.rules if self.violations[Outcome.DENIED] else ():
            if not bound.rule.check_before_mutation:
                self._check(bound, mode)
        self._add_note()

    def validate_pod(self) -> None:
        """Check the final pod, and report injected fields that other webhooks removed."""
        is_update = self.context.is_update
        for bound, mode in self.rules:
            if is_update and not bound.rule.checks_updates:
                continue
            self._check(bound, mode)
            if not is_update:
                self._report_missing(bound, mode)

    def check_template(self) -> None:
        """Check a pod of this template, and find what would be injected into it. The template itself is never changed."""
        for bound, mode in self.rules:
            self._check(bound, mode)
        for bound, mode in self.rules:
            self._mutate(bound, mode)

    def check_workload(self, workload: Workload) -> None:
        """Check the object as a whole. Findings are warnings in every mode, and only logged while the policy is paused."""
        mode = Mode.WARN if self.policy.paused_until_at(self.context.now) is None else Mode.AUDIT
        for bound, _ in self.rules:
            rule = bound.rule
            if rule.check_workload and rule.concerns(workload, self.context.resource_mapping):
                self._record(bound, rule.check_workload(workload, bound.options, self.context), mode)

    def check_claim(self, spec: ClaimSpec | None, path: str) -> None:
        """Check what a claim, or the claims of a template, request. path: of the spec in the object."""
        for bound, mode in self.rules:
            if bound.rule.check_claim is not None:
                self._record_some(
                    bound, bound.rule.check_claim(spec, path, bound.options, self.context), mode
                )

    def check_claim_template(self, template: ResourceClaimTemplate) -> None:
        """Warn, in every mode, of a template whose claims could never be created."""
        for bound, _ in self.rules:
            if bound.rule.check_claim_template is not None:
                findings = bound.rule.check_claim_template(template, self.context)
                self._record(bound, findings, Mode.WARN)

    def _record(self, bound: BoundRule, findings: Iterable[Finding], mode: Mode) -> None:
        for finding in findings:
            violation = Violation.of(finding, mode, self.policy, bound.rule.id)
            violations = self.violations[violation.outcome]
            if len(violations) < MAX_FINDINGS:
                violations[violation] = None

    def _advise(self, bound: BoundRule, reason: Reason, message: str, mode: Mode) -> None:
        self._record(bound, [warning(reason=reason, message=message)], mode)

    def _check(self, bound: BoundRule, mode: Mode) -> None:
        if bound.rule.check is not None:
            self._record_some(bound, bound.rule.check(self.patch.pod, bound.options, self.context), mode)

    def _record_some(self, bound: BoundRule, findings: Iterable[Finding], mode: Mode) -> None:
        """Record findings until there are enough denials: the rest is not computed."""
        DeadlineExceeded.check(self._deadline)
        for finding in findings:
            self._record(bound, [finding], mode)
            if len(self.violations[outcome_of(Severity.DENIAL, mode)]) >= MAX_FINDINGS:
                break

    def _mutate(self, bound: BoundRule, mode: Mode) -> None:
        """Apply a rule in mode `enforce` to the pod. In another mode, report what the rule would add."""
        for change in self._run_mutation(bound, mode, on_scratch=mode is not Mode.ENFORCE):
            if mode is Mode.ENFORCE:
                self.changes.append(replace(change, rule=bound.rule.id))
            else:
                self._advise(bound, WOULD_INJECT, f"would add {change.brief}", mode)

    def _report_missing(self, bound: BoundRule, mode: Mode) -> None:
        """Report what a rule in mode `enforce` would still add: it was not injected, or a later webhook removed it."""
        for change in self._run_mutation(bound, mode, on_scratch=True):
            if mode is Mode.ENFORCE:
                why = "it was not injected, or a mutating webhook after gpu-admission took it out"
                missing = f"{change.brief} is missing from the final pod: {why}"
                self._advise(bound, INJECTION_MISSING, missing, mode)

    def _run_mutation(self, bound: BoundRule, mode: Mode, *, on_scratch: bool) -> list[Change]:
        if bound.rule.mutate is None:
            return []
        DeadlineExceeded.check(self._deadline)
        patch = PodPatch(self.patch.pod) if on_scratch else self.patch
        before = len(patch.changes)
        self._record(bound, bound.rule.mutate(patch, bound.options, self.context), mode)
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

"""Run the rules over a pod or a claim, and decide.

Deterministic but for the deadline; the time is an argument, and there is no I/O. Every rule runs even after one has denied the
pod, so that its author sees everything at once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from enum import Enum
from itertools import islice
from math import inf
from time import monotonic
from typing import Any, Self

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from policies.finding import Finding, Severity
from policies.gpus.claims import DeviceClassNames, as_rules_see_it, decode_claim_template
from policies.placement.nodes import NodeFacts
from policies.pods.annotations import INJECTED
from policies.pods.fingerprint import TOKEN_VOLUME
from policies.pods.patch import Change, Operation, PodPatch
from policies.pods.pod import Pod
from policies.pods.restore import restore
from policies.pods.submission import injected_changes
from policies.pods.workload import Workload
from policies.policy import Binding, EffectivePolicy, Exemption
from policies.quota.amounts import Vector
from policies.quota.quota_request import QuotaGrant, QuotaRequest, ReservationOutcome
from policies.quota.spec import resource_quota_findings
from policies.rule import FETCHER_IMAGE, Context, Mode, Phase
from webhook.configuration.loader import Configuration

MOST_FINDINGS = 100
"""Findings of one outcome that are looked for, so that an object of 3 MiB neither takes minutes nor makes an audit line of 30."""

MOST_REMEMBERED, LONGEST_REMEMBERED = 256, 16 * 1024
"""Pods of which is remembered what the rules found, for those that are alike, and bytes of that as JSON: 4 MiB."""

MOST_DEMANDS = 1_024
"""Demands of pods with equal fingerprints that are remembered."""

MOST_KEYS = 1_000
"""Keys of a ResourceQuota that are read."""

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
    finding: Finding
    outcome: Outcome

    @property
    def about(self) -> tuple[str, str, str | None, str | None]:
        """What it is about: the sentence may differ once the pod is pinned."""
        finding = self.finding
        return finding.rule, finding.path or finding.message, finding.container, finding.value


class RuleChange(msgspec.Struct, frozen=True):
    """A change and the rule that wanted it."""

    rule: str
    change: Change


class OutOfTime(Exception):  # noqa: N818 - no bug
    """The deadline passed before the decision: the API server is about to stop waiting."""

    @classmethod
    def check(cls, deadline: float) -> None:
        """Raise it if the deadline, a moment of `monotonic`, has passed."""
        if monotonic() >= deadline:
            raise cls


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What is reviewed: a pod or pod template, or a claim, of which there is no pod; and what is known besides it."""

    policy: EffectivePolicy
    pod: Pod = Pod()
    claims: Mapping[str, DeviceClassNames] = {}
    """The DeviceClasses for which the pod's claims ask, by the claim's name in the pod, as far as they are known."""
    made_by_daemonset: bool = False
    is_update: bool = False
    nodes: NodeFacts | None = None
    grant: QuotaGrant | None = None
    """What the quota of the namespace grants, where a rule needs it."""
    fingerprint: bytes | None = None
    """`fingerprint_of` the pod. With it the findings and changes may be those of an equal pod, and the decision has no pod."""
    deadline: float = inf
    """A moment of `monotonic`, checked before each rule. Raises OutOfTime."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one object. What is DENIED rejects it, what is WARNED its author sees, what is AUDITED is only logged."""

    policy: EffectivePolicy
    evaluated: tuple[Violation, ...] = ()
    changes: tuple[RuleChange, ...] = ()
    pod: Pod | None = None
    """The pod with the changes, None where there is no pod, or a sibling was evaluated before."""
    note: Change | None = None
    """The annotation that tells people what was injected; there only if something was."""
    exemption: Exemption | None = None
    paused_until: datetime | None = None
    """There only if the policy was paused when this was decided."""
    request: QuotaRequest | None = None
    """What is asked of the quota."""
    reservation: ReservationOutcome | None = None
    """What the quota answered, None where it was not asked, or did not answer."""

    @classmethod
    def on(cls, policy: EffectivePolicy, findings: Iterable[Finding], mode: Mode) -> Self:
        """Return the verdict by findings alone."""
        evaluated = (
            Violation(each.with_contact(policy.contact), outcome_of(each.severity, mode)) for each in findings
        )
        return cls(policy=policy, evaluated=tuple(evaluated))

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
        return not any(evaluated.outcome is Outcome.DENIED for evaluated in self.evaluated)

    @property
    def operations(self) -> list[Operation]:
        changes = [change.change for change in self.changes] + ([self.note] if self.note else [])
        return [operation for change in changes for operation in change.operations]

    def located(self, path_of: Callable[[str], str]) -> Self:
        """Return the decision with every path in the pod replaced by what `path_of` says, for a pod inside another object."""
        found = ((replace(e.finding, path=path_of(e.finding.path)), e.outcome) for e in self.evaluated)
        return replace(self, evaluated=tuple(Violation(*each) for each in found))

    def findings(self, outcome: Outcome) -> Iterator[Finding]:
        return (evaluated.finding for evaluated in self.evaluated if evaluated.outcome is outcome)


class Engine:
    """The rules of one configuration, ready to be run on any pod of any namespace."""

    def __init__(self, configuration: Configuration, fetcher_image: str = FETCHER_IMAGE) -> None:
        self.configuration = configuration
        self.fetcher_image = fetcher_image
        self.remembered: dict[tuple[object, ...], _Found] = {}
        self._demands: dict[bytes, Vector] = {}

    def demand(self, request: QuotaRequest, fingerprint: bytes | None) -> Vector:
        """Return the demand of a request in a namespace without a quota. Equal pods share it: it takes up to 0.2 ms.

        `fingerprint` is that of a new pod whose demand depends on nothing else.
        """
        if fingerprint is None or request.is_free:
            return request.demand.vector
        found = self._demands.get(fingerprint)
        if found is None:
            if len(self._demands) >= MOST_DEMANDS:
                self._demands.clear()
            found = self._demands[fingerprint] = request.demand.vector
        return found

    def mutate(self, subject: Subject, now: datetime) -> Decision:
        """Return what is to be injected, and what makes the pod unacceptable already.

        A pod that is denied here goes no further, so its author also learns what /validate would say.
        """
        run = _Run(self, subject, Phase.MUTATE, now)
        if run.recall():
            return run.decision()
        for binding, mode in run.rules:
            if binding.rule.check_before_mutation:
                run.check(binding, mode)
        for binding, mode in run.rules:
            if binding.rule.mutate is not None:
                run.mutate(binding, mode)
        for binding, mode in run.rules if run.evaluated[Outcome.DENIED] else ():
            if not binding.rule.check_before_mutation:
                run.check(binding, mode)
        run.note()
        run.remember()
        return run.decision()

    def restore(self, subject: Subject, stored: Pod, before: Raw, after: Raw, now: datetime) -> Decision:
        """Return what an update of a stored pod lacks of what was injected into it, and would be today; nothing denies it.

        The pod of the subject is the one that is sent, as its author submitted it; `before` and `after` are the JSON of both.
        """
        named = injected_changes(stored)
        today = self.mutate(subject, now)
        wanted = {each.change.what: each.rule for each in today.changes if each.change.what in named}
        restored = restore(stored, before, after, wanted)
        return replace(
            today,
            evaluated=tuple(Violation(each, Outcome.WARNED) for each in restored.warnings),
            changes=tuple(RuleChange(rule, change) for rule, change in restored.changes),
            note=restored.note,
        )

    def validate(self, subject: Subject, now: datetime) -> Decision:
        """Return what is wrong with the final pod, and which injections did not survive other webhooks."""
        run = _Run(self, subject, Phase.VALIDATE, now)
        if not run.recall():
            for binding, mode in run.rules:
                if subject.is_update and not binding.rule.on_update:
                    continue
                run.check(binding, mode)
                if not subject.is_update and binding.rule.mutate is not None:
                    run.report_missing(binding, mode)
            run.remember()
        return run.decision()

    def check_template(self, subject: Subject, now: datetime) -> Decision:
        """Return what would be wrong with pods made from this template; a template itself is never changed."""
        run = _Run(self, subject, Phase.TEMPLATE, now)
        for binding, mode in run.rules:
            run.check(binding, mode)
        for binding, mode in run.rules:
            run.mutate(binding, mode)
        return run.decision()

    def check_workload(self, workload: Workload, subject: Subject, now: datetime) -> Decision:
        """Return what the rules advise on the object as a whole: warnings, whatever their modes; while paused only logged."""
        run = _Run(self, subject, Phase.TEMPLATE, now)
        mode = Mode.WARN if run.paused_until is None else Mode.AUDIT
        for binding, _ in run.rules:
            if binding.rule.check_workload is not None:
                for finding in binding.rule.check_workload(workload, binding.options, run.context):
                    run.evaluate(finding, mode)
        return run.decision()


class _Found(msgspec.Struct, frozen=True):
    """What a pass of the rules found, and by which policy and nodes; the rest is part of the key, or of the engine."""

    policy: EffectivePolicy
    nodes: NodeFacts | None
    evaluated: tuple[tuple[Outcome, Violation], ...]
    changes: tuple[RuleChange, ...]
    annotation: Change | None


class _Run:
    """One pass of the rules over one subject: the patch and what has been found so far."""

    def __init__(self, engine: Engine, subject: Subject, phase: Phase, now: datetime) -> None:
        self.policy = subject.policy
        self.paused_until = self.policy.paused(now)
        self.rules = self.policy.rules(now)
        self.exemption = self.policy.exemption_in_force(now)
        mapping = engine.configuration.resource_mapping
        pod, claimed = as_rules_see_it(subject.pod, subject.claims, mapping)
        self.patch = PodPatch(pod)
        self.evaluated: dict[Outcome, dict[Violation, None]] = {outcome: {} for outcome in Outcome}
        self.changes: list[RuleChange] = []
        self._annotation: Change | None = None
        self._pod_is_known = True
        self._remembered = engine.remembered
        # While the policy is paused or has exemptions, time decides which rules hold.
        is_timeless = self.paused_until is None and not self.policy.exemptions
        self._key = (
            (phase, subject.fingerprint, subject.made_by_daemonset, subject.is_update, self.policy.namespace)
            if subject.fingerprint and is_timeless
            else None
        )
        self._deadline = subject.deadline
        self.context = Context(
            phase=phase,
            namespace=self.policy.namespace,
            now=now,
            classes=engine.configuration.classes,
            resource_mapping=mapping,
            claimed=claimed,
            fetcher_image=engine.fetcher_image,
            made_by_daemonset=subject.made_by_daemonset,
            is_update=subject.is_update,
            nodes=subject.nodes,
            grant=subject.grant,
            options_of=self.policy.options_of,
        )

    def evaluate(self, finding: Finding, mode: Mode) -> None:
        evaluated = Violation(finding.with_contact(self.policy.contact), outcome_of(finding.severity, mode))
        found = self.evaluated[evaluated.outcome]
        if len(found) < MOST_FINDINGS:
            found[evaluated] = None

    def recall(self) -> bool:
        """Take what was found of a sibling, if that is remembered."""
        found = self._remembered.get(self._key) if self._key else None
        if found is None or found.policy is not self.policy or found.nodes is not self.context.nodes:
            return False
        for outcome, evaluated in found.evaluated:
            self.evaluated[outcome][evaluated] = None
        self.changes += found.changes
        self._annotation, self._pod_is_known = found.annotation, False
        return True

    def remember(self) -> None:
        """Keep what was found for pods that are alike, unless it is long, or quotes what they differ in."""
        if self._key is None:
            return
        evaluated = tuple((outcome, each) for outcome, found in self.evaluated.items() for each in found)
        said = msgspec.json.encode((evaluated, self.changes))
        if len(said) > LONGEST_REMEMBERED or TOKEN_VOLUME.encode() in said:
            return
        if len(self._remembered) >= MOST_REMEMBERED:
            self._remembered.clear()
        self._remembered[self._key] = _Found(
            self.policy, self.context.nodes, evaluated, tuple(self.changes), self._annotation
        )

    def decision(self) -> Decision:
        return Decision(
            policy=self.policy,
            evaluated=tuple(evaluated for found in self.evaluated.values() for evaluated in found),
            changes=tuple(self.changes),
            pod=self.patch.pod if self._pod_is_known else None,
            note=self._annotation,
            exemption=self.exemption,
            paused_until=self.paused_until,
        )

    def check(self, binding: Binding, mode: Mode) -> None:
        if binding.rule.check is not None:
            OutOfTime.check(self._deadline)
            for finding in binding.rule.check(self.patch.pod, binding.options, self.context):
                self.evaluate(finding, mode)
                if len(self.evaluated[outcome_of(Severity.DENIAL, mode)]) >= MOST_FINDINGS:
                    break

    def mutate(self, binding: Binding, mode: Mode) -> None:
        """Apply an enforced rule to the pod; of one that only warns or audits, report what it would have done."""
        rule_id, is_enforced = binding.rule.id, mode is Mode.ENFORCE
        for change in self._run_mutation(binding, mode, on_scratch=not is_enforced):
            if is_enforced:
                self.changes.append(RuleChange(rule_id, change))
            else:
                would = f"would add {change.what}"
                self.evaluate(Finding(rule=rule_id, message=would, severity=Severity.WARNING), mode)

    def report_missing(self, binding: Binding, mode: Mode) -> None:
        """Report what an enforced rule would still add now: it was never injected, or a later webhook took it out."""
        for change in self._run_mutation(binding, mode, on_scratch=True):
            if mode is Mode.ENFORCE:
                self.evaluate(_missing(binding.rule.id, change), mode)

    def _run_mutation(self, binding: Binding, mode: Mode, *, on_scratch: bool) -> list[Change]:
        if binding.rule.mutate is None:
            return []
        OutOfTime.check(self._deadline)
        patch = self.patch.fork() if on_scratch else self.patch
        before = len(patch.changes)
        for finding in binding.rule.mutate(patch, binding.options, self.context):
            self.evaluate(finding, mode)
        return patch.changes[before:]

    def note(self) -> None:
        """Add the annotation that tells people what was injected, one line a rule."""
        if not self.changes:
            return
        by_rule: dict[str, list[str]] = {}
        for change in self.changes:
            by_rule.setdefault(change.rule, []).append(change.change.what)
        lines = [f"{rule}: {', '.join(whats)}" for rule, whats in by_rule.items()]
        if before := self.patch.pod.annotations.get(INJECTED):
            lines.insert(0, before)
        self.patch.set_annotation(INJECTED, "\n".join(lines))
        self._annotation = self.patch.changes[-1]


class _Spec(msgspec.Struct):
    hard: Mapping[str, Any] | None = None


class _ResourceQuota(msgspec.Struct):
    spec: _Spec | None = None


_RESOURCE_QUOTA = msgspec.json.Decoder(_ResourceQuota)


def advise(
    kind: tuple[str, str], document: bytes | msgspec.Raw, subject: Subject, engine: Engine, now: datetime
) -> Decision:
    """Warn, whatever the mode, of keys that limit nothing, and of a template whose claims could never be created.

    An object that cannot be read is the API server's to reject.
    """
    try:
        template = decode_claim_template(document) if kind == CLAIM_TEMPLATE else None
        spec = None if template is not None else _RESOURCE_QUOTA.decode(document).spec
    except msgspec.ValidationError:
        return Decision(policy=subject.policy)
    if template is not None:
        run = _Run(engine, subject, Phase.TEMPLATE, now)
        for binding, _ in run.rules:
            if binding.rule.check_claim_template is not None:
                for finding in binding.rule.check_claim_template(template, run.context):
                    run.evaluate(finding, Mode.WARN)
        return run.decision()
    keys = islice((spec and spec.hard) or (), MOST_KEYS)
    findings = resource_quota_findings(keys, engine.configuration.resource_mapping)
    return Decision.on(subject.policy, findings, Mode.WARN)


def outcome_of(severity: Severity, mode: Mode) -> Outcome:
    """Return what becomes of a finding of a rule in that mode."""
    if mode is Mode.AUDIT:
        return Outcome.AUDITED
    if mode is Mode.WARN or severity is Severity.WARNING:
        return Outcome.WARNED
    return Outcome.DENIED


def _missing(rule_id: str, change: Change) -> Finding:
    return Finding(
        rule=rule_id,
        severity=Severity.WARNING,
        message=f"{change.what} is missing from the final pod: it was not injected, or a mutating webhook after gpu-admission "
        "took it out",
    )

"""The decision on one object: findings with their outcome under a policy, and changes."""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from enum import Enum
from time import monotonic
from typing import Self

import msgspec
from msgspec.structs import replace

from policies.finding import Finding, Severity
from policies.pods.patch import Change, Operation
from policies.pods.pod import Pod
from policies.policy import EffectivePolicy, Exemption
from policies.quota.quota_request import QuotaRequest, ReservationOutcome
from policies.rule import Mode

MAX_FINDINGS = 100
"""The most findings of one outcome. Without it, an object of 3 MiB could take minutes, and make an audit line of 30 MiB."""


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
    def of(cls, finding: Finding, mode: Mode, policy: EffectivePolicy, rule_id: str = "") -> Self:
        return cls(finding.with_origin(rule_id, policy.contact), outcome_of(finding.severity, mode))

    @property
    def finding_key(self) -> tuple[str, str, str | None, str | None]:
        """Equal for the findings of /mutate and /validate on the same value. Their messages may differ once the pod is pinned."""
        finding = self.finding
        return finding.rule, finding.path or finding.reason.name, finding.container, finding.value


def without_repeated(violations: Iterable[Violation], shown: Iterable[Violation]) -> list[Violation]:
    """Return the findings of a later phase without what earlier ones have shown; a denial is shown after a warning."""
    known = {violation.finding_key for violation in shown}
    denied = {violation.finding_key for violation in shown if violation.outcome is Outcome.DENIED}
    return [
        violation
        for violation in violations
        if violation.finding_key not in (denied if violation.outcome is Outcome.DENIED else known)
    ]


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
    def of_findings(
        cls, policy: EffectivePolicy, findings: Iterable[Finding], mode: Mode, rule_id: str = ""
    ) -> Self:
        """Return the decision that only these findings make, of a rule if they name none."""
        violations = (Violation.of(finding, mode, policy, rule_id) for finding in findings)
        return cls(policy=policy, violations=tuple(violations))

    def with_findings(self, findings: Iterable[Finding], mode: Mode, rule_id: str = "") -> Self:
        more = self.of_findings(self.policy, findings, mode, rule_id).violations
        if not more:
            return self
        added = dict.fromkeys([*self.violations, *more])
        by_outcome = [[each for each in added if each.outcome is outcome] for outcome in Outcome]
        limited = (violation for violations in by_outcome for violation in violations[:MAX_FINDINGS])
        return replace(self, violations=tuple(limited))

    @property
    def allowed(self) -> bool:
        return not any(violation.outcome is Outcome.DENIED for violation in self.violations)

    @property
    def operations(self) -> list[Operation]:
        changes = (*self.changes, self.note) if self.note else self.changes
        return [operation for change in changes for operation in change.operations]

    def located(self, path_of: Callable[[str], str], path_of_edit: Callable[[str], str]) -> Self:
        """Return the decision with paths in the object that contains the pod (`Finding.located`)."""
        located = (
            Violation(each.finding.located(path_of, path_of_edit), each.outcome) for each in self.violations
        )
        return replace(self, violations=tuple(located))

    def findings(self, outcome: Outcome) -> Iterator[Finding]:
        return (violation.finding for violation in self.violations if violation.outcome is outcome)


def outcome_of(severity: Severity, mode: Mode) -> Outcome:
    """Return the outcome of a finding of a rule in this mode."""
    if mode is Mode.AUDIT:
        return Outcome.AUDITED
    if mode is Mode.WARN or severity is Severity.WARNING:
        return Outcome.WARNED
    return Outcome.DENIED

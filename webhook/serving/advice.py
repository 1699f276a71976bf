"""Advice on what is always admitted: ResourceQuotas and ResourceClaimTemplates whose effect shows only later, out of sight.

An object that cannot be read is the API server's to reject.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from policies.quota.claims import decode_claim_template
from policies.quota.lint import resource_quota_findings
from webhook.serving.engine import Decision, Engine, EvaluatedFinding, Outcome, Subject


class _Spec(msgspec.Struct):
    hard: Mapping[str, Any] | None = None


class _ResourceQuota(msgspec.Struct):
    spec: _Spec | None = None


_RESOURCE_QUOTA = msgspec.json.Decoder(_ResourceQuota)


def _on_resource_quota(
    document: bytes | msgspec.Raw, subject: Subject, engine: Engine, _now: datetime
) -> Decision:
    """Warn of every key that limits nothing."""
    spec = _RESOURCE_QUOTA.decode(document).spec
    findings = resource_quota_findings((spec and spec.hard) or (), engine.configuration.resource_mapping)
    judged = tuple(EvaluatedFinding(finding, Outcome.WARNED) for finding in findings)
    return Decision(policy=subject.policy, judged=judged)


def _on_claim_template(
    document: bytes | msgspec.Raw, subject: Subject, engine: Engine, now: datetime
) -> Decision:
    """Warn if its claims could never be created: a controller creates them, whose errors nobody sees."""
    return engine.advise_on_claim_template(subject, decode_claim_template(document), now)


_ADVICE: Mapping[tuple[str, str], Callable[[bytes | msgspec.Raw, Subject, Engine, datetime], Decision]] = {
    ("", "ResourceQuota"): _on_resource_quota,
    ("resource.k8s.io", "ResourceClaimTemplate"): _on_claim_template,
}
"""By API group and kind."""


def is_advised(group: str, kind: str) -> bool:
    return (group, kind) in _ADVICE


def advise(
    group: str,
    kind: str,
    document: bytes | msgspec.Raw,
    subject: Subject,
    engine: Engine,
    now: datetime,
) -> Decision:
    """Return a decision that only warns, on an object in JSON of a kind that `is_advised`."""
    try:
        return _ADVICE[group, kind](document, subject, engine, now)
    except msgspec.ValidationError:
        return Decision(policy=subject.policy)

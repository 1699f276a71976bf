"""Advice on what is always admitted: ResourceQuotas and ResourceClaimTemplates whose effect shows only later, out of sight.

An object that cannot be read is the API server's to reject.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from policies.quota.claims import decode_claim_template
from policies.quota.spec import resource_quota_findings
from webhook.serving.engine import Decision, Engine, EvaluatedFinding, Outcome, Subject

RESOURCE_QUOTA = ("", "ResourceQuota")
CLAIM_TEMPLATE = ("resource.k8s.io", "ResourceClaimTemplate")
ADVISED = frozenset({RESOURCE_QUOTA, CLAIM_TEMPLATE})
"""Kinds, with their API groups."""


class _Spec(msgspec.Struct):
    hard: Mapping[str, Any] | None = None


class _ResourceQuota(msgspec.Struct):
    spec: _Spec | None = None


def advise(
    kind: tuple[str, str], document: bytes | msgspec.Raw, subject: Subject, engine: Engine, now: datetime
) -> Decision:
    """Warn of a ResourceQuota's keys that limit nothing, and of a template whose claims could never be created."""
    try:
        if kind == CLAIM_TEMPLATE:
            return engine.advise_on_claim_template(subject, decode_claim_template(document), now)
        spec = msgspec.json.decode(document, type=_ResourceQuota).spec
    except msgspec.ValidationError:
        return Decision(policy=subject.policy)
    findings = resource_quota_findings((spec and spec.hard) or (), engine.configuration.resource_mapping)
    judged = tuple(EvaluatedFinding(finding, Outcome.WARNED) for finding in findings)
    return Decision(policy=subject.policy, judged=judged)

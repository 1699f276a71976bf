"""The last step of a review: the quota of the namespace is asked for what no rule denies."""

from datetime import datetime
from math import inf
from typing import Any

from msgspec.structs import replace

from policies.policy import EffectivePolicy
from policies.quota.charge import RULE_ID
from policies.quota.charge_request import ChargeRequest, LedgerError, QuotaGrant
from policies.rules.gpu_quota import check_reservation
from webhook.quota.enforcer import NamespaceQuota
from webhook.serving.engine import Decision, OutOfTime


def reserve(
    decision: Decision,
    request: ChargeRequest,
    quota: NamespaceQuota | None,
    now: datetime,
    deadline: float = inf,
) -> Decision:
    """Return the decision with what the quota says of the request, which holds nothing where something denies.

    Raises OutOfTime, before the quota is asked.
    """
    if not decision.allowed:
        return decision
    OutOfTime.check(deadline)
    held = decision.policy.in_force(RULE_ID, now)
    if quota is None or held is None:
        return decision
    binding, mode = held
    options: Any = binding.options
    try:
        outcome = quota.reserve(request)
    except LedgerError as error:
        found = check_reservation(error, request, options, decision.policy.namespace, now)
        return decision.adding(found, mode)
    found = check_reservation(outcome, request, options, decision.policy.namespace, now)
    return replace(decision.adding(found, mode), reservation=outcome)


def grant_of(quota: NamespaceQuota | None, policy: EffectivePolicy, now: datetime) -> QuotaGrant | None:
    """Return what a quota grants, None where no rule looks at it."""
    return quota.grant() if quota is not None and policy.in_force(RULE_ID, now) else None

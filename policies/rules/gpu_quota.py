"""gpu-quota: a namespace never holds more GPUs than its GPUQuota grants.

Denies: a pod, a change of one, or a ResourceClaim for which `used + in flight + demand ≤ hard` does not hold; with `required`
every one that asks for a GPU in a namespace without a GPUQuota.

Looking only at the pod there is nothing to decide, so this rule has options and no function: what it costs is
`policies.quota.charge`, who may come in is `policies.quota.ledger`, and
`webhook.quota` asks at the very end, once nothing else refuses it.
In modes warn and audit demand is reserved where it fits, and what does not fit is only told.
"""

from enum import Enum

from policies.rule import Rule, RuleOptions


class OnLedgerError(Enum):
    """What becomes of a pod when its quota cannot be asked in time."""

    DENY = "deny"
    ALLOW = "allow"


class GPUQuotaOptions(RuleOptions, frozen=True, kw_only=True):
    """`required` refuses GPUs where there is no quota. With `onLedgerError: allow` a quota is no promise; a warning says so."""

    required: bool = False
    on_ledger_error: OnLedgerError = OnLedgerError.DENY


RULE = Rule(
    id="gpu-quota",
    summary="Refuses what does not fit into the namespace's GPUQuota.",
    options=GPUQuotaOptions,
)

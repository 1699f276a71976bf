"""The denial of a request on which its ledger cannot decide: until when, and what to do if it persists."""

from collections.abc import Mapping

from policies.finding import Finding, Reason, Wait
from policies.quota.ledger.decide import VerdictReason
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.team import team_title
from policies.quota.shortage_facts import RELEASE_SECONDS, quota_title

NOT_STORED = Reason("NotStored", "pods of the namespace were admitted lately, and never stored")
QUOTA_NOT_COUNTED = Reason("QuotaNotCounted", "the quota, or a dimension of it, has not been counted yet")
QUOTA_RECALCULATING = Reason("QuotaRecalculating", "the quota is being recalculated under a new catalogue")
LEDGER_UNREADABLE = Reason("LedgerUnreadable", "the ledger of the quota has reservations that cannot be read")
LEDGER_FULL = Reason("LedgerFull", "the ledger of the quota cannot hold more reservations")

_UNDECIDED: Mapping[VerdictReason, tuple[Reason, str, str, str]] = {
    VerdictReason.UNCOUNTED: (
        QUOTA_NOT_COUNTED,
        "has not been counted yet: it, or a dimension of it, is new",
        "try again in some seconds",
        "see its conditions and the log of `gpu-admission controller`",
    ),
    VerdictReason.OTHER_CATALOGUE: (
        QUOTA_RECALCULATING,
        "is being recalculated: this replica cannot read the GPUClasses or resource names by which it was counted",
        f"try again in some seconds, at most {RELEASE_SECONDS} while creations are in flight",
        "see its conditions and the log of `gpu-admission controller`, which publishes what replicas must read",
    ),
    VerdictReason.UNREADABLE: (
        LEDGER_UNREADABLE,
        "cannot be decided: its ledger has reservations that cannot be read",
        f"try again in {RELEASE_SECONDS} s, within which the controller drops them",
        "see its condition Ready and the log of `gpu-admission controller`",
    ),
    VerdictReason.FULL: (
        LEDGER_FULL,
        "cannot hold more reservations than it has now",
        f"try again in {RELEASE_SECONDS} s, within which each is counted or dropped",
        "`gpu-admission controller` is not running",
    ),
    VerdictReason.NOT_STORED: (
        NOT_STORED,
        "admitted some in the last 10 min that were never stored: now those in creation may take half of what is free",
        "request less, and find out what rejects pods of this namespace, such as a name that is taken, or a ResourceQuota",
        "see `gpu-admission doctor`",
    ),
}
"""For a ledger that cannot decide: reason, message, remedy, and what to do if it persists."""
_MOVING_TEAM = (
    QUOTA_NOT_COUNTED,
    "joins or leaves a ClusterGPUQuota, and has not been counted yet",
    "try again in some seconds",
    "see the log of `gpu-admission controller`",
)
"""Likewise for a ledger without a GPUQuota or a team. The controller will soon count it for a new team, or delete it."""


def undecided(namespace: str, ledger: QuotaLedger, reason: VerdictReason) -> Finding:
    """Return the denial of a request on which the ledger cannot decide."""
    title = quota_title(namespace, ledger)
    if reason is VerdictReason.UNCOUNTED and ledger.team_state is not None and not ledger.uncounted:
        title = team_title(ledger.team_state.team.name)  # only another namespace is not counted
    is_moving = ledger.team_state is None and not ledger.has_quota
    kind, message, remedy, if_it_persists = _MOVING_TEAM if is_moving else _UNDECIDED[reason]
    message = f"{title} {message}; if it persists, {if_it_persists}"
    return Finding(reason=kind, message=message, remedy=remedy, awaits=Wait(seconds=RELEASE_SECONDS))

"""What the author of a pod is told: which quota, what was asked, what is used, what is in flight and until when, what is free."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from math import ceil

from policies.finding import Finding, Severity
from policies.quota.amounts import CLASSES, GPUS, RESOURCES, format_amount
from policies.quota.charge import Charge
from policies.quota.ledger.bounds import EXPIRY_SECONDS
from policies.quota.ledger.decide import Reason, Shortfall, Verdict
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.spec import NAME
from policies.rules.gpu_quota import RULE
from webhook.quota.store import LedgerError

SETTLE_SECONDS = 10
"""Beyond its expiry, what a controller takes at most until its next count."""


def quota_findings(
    namespace: str, row: QuotaLedger, verdict: Verdict, charge: Charge, now: datetime
) -> Iterator[Finding]:
    """Yield what stands in the way of something that costs `charge`; nothing if it was let in."""
    if verdict.allowed:
        return
    quota = f"GPUQuota {namespace}/{NAME}"
    if verdict.reason is Reason.EXCEEDED:
        for shortfall in verdict.shortfalls:
            yield _exceeded(quota, row, shortfall, charge, now)
        return
    message, remedy = _OTHERWISE[verdict.reason]
    yield Finding(rule=RULE.id, message=f"{quota} {message}", remedy=remedy)


def no_quota(namespace: str) -> Finding:
    return Finding(
        rule=RULE.id,
        message=f"namespace {namespace} has no GPUQuota, and its policy requires one for whatever asks for a GPU",
        remedy=f"ask the platform team for a GPUQuota named {NAME}",
    )


def ledger_failed(error: LedgerError, *, refuse: bool) -> Finding:
    if refuse:
        return Finding(
            rule=RULE.id,
            message=f"the quota could not be asked: {error}",
            remedy="try again; if it lasts, tell the platform team",
        )
    return Finding(
        rule=RULE.id,
        severity=Severity.WARNING,
        message=f"let in without its quota, which could not be asked: {error}",
    )


_OTHERWISE: Mapping[Reason, tuple[str, str]] = {
    Reason.UNCOUNTED: (
        "is not counted yet: it, or a dimension of it, is new",
        "try again in some seconds; if it lasts, its conditions and the log of `gpu-admission controller` say why",
    ),
    Reason.OTHER_CATALOGUE: (
        "is to be counted anew: its spec.unpinned or the GPUClass documents have changed, or this replica has others",
        f"try again in some seconds, at most some {ceil(EXPIRY_SECONDS) + SETTLE_SECONDS} where creations are in flight; if "
        "it lasts, the replicas and `gpu-admission controller` differ in their configuration",
    ),
    Reason.FULL: (
        "has no space for more creations in flight than it has now",
        f"try again; each is counted, or given back after some {ceil(EXPIRY_SECONDS) + SETTLE_SECONDS} s; if it lasts, "
        "`gpu-admission controller` does not run",
    ),
}


def _exceeded(quota: str, row: QuotaLedger, shortfall: Shortfall, charge: Charge, now: datetime) -> Finding:
    key = shortfall.key
    message = (
        f"{quota} has no room: asked for {_amount(key, shortfall.asked)}, free {format_amount(shortfall.free)} of "
        f"{format_amount(shortfall.hard)}, used {format_amount(shortfall.used)}"
    )
    if shortfall.held:
        message += f", held by creations in flight {format_amount(shortfall.held)}{_until(row, now)}"
    holders = ", ".join(f"{holder.name} {holder.amount}" for holder in row.holders.get(key, ()))
    if holders:
        message += f"; largest holders: {holders}"
    if key.startswith(CLASSES) and charge.because:
        message += f"; charged to {_name(key)}: {charge.because}"
    return Finding(
        rule=RULE.id,
        message=message,
        remedy=f"wait until others finish, or ask the platform team for more ({_field(key)})",
    )


def _until(row: QuotaLedger, now: datetime) -> str:
    if not row.revisions.pods:  # no controller counts: without a cluster, entries are what exists
        return ""
    latest = now.astimezone(UTC) + timedelta(seconds=EXPIRY_SECONDS + SETTLE_SECONDS)
    return f" until {latest:%H:%M:%S} UTC at the latest"


def _amount(key: str, amount: Fraction) -> str:
    return f"{format_amount(amount)} {'GPUs' if key == GPUS else _name(key)}"


def _name(key: str) -> str:
    return key.removeprefix(CLASSES).removeprefix(RESOURCES)


def _field(key: str) -> str:
    group, _, name = key.partition("/")
    return f"spec.hard.{group}[{name}]" if name else f"spec.hard.{group}"

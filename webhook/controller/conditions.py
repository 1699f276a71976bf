"""The conditions of a GPUQuota: Ready (it is counted and enforced), Exceeded (by how much), Stale (the count may lag)."""

from datetime import datetime

import msgspec

from policies.quota.amounts import exceeds, format_amount
from policies.quota.ledger.quota_ledger import EXPIRY_SECONDS, Condition, QuotaLedger
from webhook.cluster.objects import CATALOGUES, timestamp

TRUE, FALSE = "True", "False"
COUNTED = "every stored pod and claim of the namespace is counted"
KEYS_SHOWN = 8
"""Dimensions in one message; the status has the amounts of all."""


def conditions(ledger: QuotaLedger, *, stale: str, now: datetime) -> tuple[Condition, ...]:
    """Return the conditions of a ledger; `stale` says why its count may lag, empty if it does not."""
    before = {condition.type: condition for condition in ledger.conditions}
    found = {"Ready": _ready(ledger), "Exceeded": _exceeded(ledger), "Stale": _stale(stale)}
    return tuple(
        with_transition_time(
            Condition(kind, status, reason, message, "", ledger.generation), before.get(kind), now
        )
        for kind, (status, reason, message) in found.items()
    )


def _ready(ledger: QuotaLedger) -> tuple[str, str, str]:
    if ledger.used is None or ledger.uncounted:
        return FALSE, "NotCounted", "pods and claims are not counted yet: requests are denied"
    if unreadable := ledger.reservations.unreadable:
        what = f"lines in status.reservations that cannot be read: {len(unreadable)}, the first {quoted(unreadable[0])}"
        until = f"until the controller has observed them for {EXPIRY_SECONDS:.0f} s and drops them, requests are denied"
        return FALSE, "Unreadable", f"{what}; {until}"
    if ledger.class_catalogue is None:
        why = (
            f"reservations were charged by a class catalogue that is not published in ConfigMap {CATALOGUES}"
        )
        return FALSE, "InFlight", f"{why}: until these are gone, requests are denied"
    if ledger.next_catalogue is not None:
        why = "GPUClasses, resource names or spec.unpinned changed: until what is in flight is counted, requests are charged by both"
        return TRUE, "Moving", f"{COUNTED}; {why}"
    return TRUE, "Counted", COUNTED


def _exceeded(ledger: QuotaLedger) -> tuple[str, str, str]:
    over = exceeds(ledger.used or {}, ledger.hard)
    if not over:
        return FALSE, "WithinQuota", "used is within spec.hard"
    parts = [
        f"{excess.key}: {format_amount(excess.amount)} used of {format_amount(excess.hard)}, "
        f"{format_amount(excess.over)} too many"
        for excess in over[:KEYS_SHOWN]
    ]
    more = f"; and {len(over) - KEYS_SHOWN} more" if len(over) > KEYS_SHOWN else ""
    return TRUE, "OverQuota", "; ".join(parts) + more


def _stale(why: str) -> tuple[str, str, str]:
    return (TRUE, "WatchSilent", why) if why else (FALSE, "UpToDate", "the controller receives every change")


def quoted(line: str) -> str:
    """Return the beginning of a line, without what a terminal would take for a command."""
    return ascii(line[:80])


def with_transition_time(condition: Condition, before: Condition | None, now: datetime) -> Condition:
    """Return the condition with the time of its last change of status; `before` is what was written last."""
    at = before.last_transition_time if before and before.status == condition.status else timestamp(now)
    return msgspec.structs.replace(condition, last_transition_time=at)

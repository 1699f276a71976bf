"""The conditions of a GPUQuota: Ready (it is counted and enforced), Exceeded (by how much), Stale (the count may lag), Uncharged.

Uncharged names what the cluster has that nothing charges.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from policies.quota.amounts import exceeds, format_amount
from policies.quota.ledger.quota_ledger import EXPIRY_SECONDS, Condition, QuotaLedger
from webhook.cluster.objects import CATALOGUES, timestamp

TRUE, FALSE = "True", "False"
EXCEEDED = "Exceeded"
NOT_COUNTED = "NotCounted"
"""Reason of Ready, also where only a dimension was never counted."""
COUNTED = "every stored pod and claim of the namespace is counted"
KEYS_SHOWN = 8
"""Dimensions in one message; the status has the amounts of all."""
_LONGEST_QUOTED = 80

_Verdict = tuple[str, str, str]
"""Status, reason and message."""


def conditions(
    ledger: QuotaLedger, *, stale: str, uncharged: Sequence[str] | None, now: datetime
) -> tuple[Condition, ...]:
    """Return the conditions of a ledger.

    stale: why its count may lag, empty if it does not.
    uncharged: DeviceClasses and resource names about which nothing says whether they are GPUs; None where this process has not
      looked yet, and the condition stays what it was.
    """
    before = {condition.type: condition for condition in ledger.conditions}
    others = {EXCEEDED: _exceeded(ledger), "Stale": _stale(stale)}
    found = {"Ready": _ready(ledger, others), **others}
    if uncharged is not None:
        found["Uncharged"] = _uncharged(uncharged)
    kept = (before["Uncharged"],) if uncharged is None and "Uncharged" in before else ()
    current = tuple(
        with_transition_time(
            Condition(kind, status, reason, message, "", ledger.generation), before.get(kind), now
        )
        for kind, (status, reason, message) in found.items()
    )
    return current + kept


def _ready(ledger: QuotaLedger, others: Mapping[str, _Verdict]) -> _Verdict:
    """Return the condition whose reason `kubectl get` shows as STATUS, so it names the others that hold."""
    if ledger.used is None or ledger.uncounted:
        return FALSE, NOT_COUNTED, "pods and claims are not counted yet: requests are denied"
    if unreadable := ledger.reservations.unreadable:
        why = f"status.reservations cannot be read in {quoted(unreadable)}"
        until = f"requests are denied until the controller has observed that for {EXPIRY_SECONDS:.0f} s and drops it"
        return FALSE, "Unreadable", f"{why}: {until}"
    if ledger.class_catalogue is None:
        why = (
            f"reservations were charged by a class catalogue that is not published in ConfigMap {CATALOGUES}"
        )
        return FALSE, "InFlight", f"{why}: until these are gone, requests are denied"
    for kind, (status, _, message) in others.items():
        if status == TRUE:
            return TRUE, kind, f"{COUNTED}; {message}"
    if ledger.next_catalogue is not None:
        why = "GPUClasses, resource names or spec.unpinned changed"
        return (
            TRUE,
            "Moving",
            f"{COUNTED}; {why}: until what is in flight is counted, requests are charged by both",
        )
    return TRUE, "Ready", COUNTED


def _exceeded(ledger: QuotaLedger) -> _Verdict:
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


def _stale(why: str) -> _Verdict:
    return (TRUE, "WatchSilent", why) if why else (FALSE, "UpToDate", "the controller receives every change")


def _uncharged(names: Sequence[str]) -> _Verdict:
    if not names:
        return (
            FALSE,
            "AllKnown",
            "a GPUResourceMapping knows the DeviceClasses and resource names of the cluster",
        )
    more = f" and {len(names) - KEYS_SHOWN} more" if len(names) > KEYS_SHOWN else ""
    shown = ", ".join(names[:KEYS_SHOWN])
    return TRUE, "Unknown", f"charged nothing, because no GPUResourceMapping names them: {shown}{more}"


def quoted(lines: Sequence[str]) -> str:
    """Return how many lines they are and the beginning of the first, without what a terminal would take for a command."""
    return f"{len(lines)} line{'s' if len(lines) > 1 else ''}, the first {lines[0][:_LONGEST_QUOTED]!a}"


def with_transition_time(condition: Condition, before: Condition | None, now: datetime) -> Condition:
    """Return the condition with the time of its last change of status; `before` is what was written last."""
    at = before.last_transition_time if before and before.status == condition.status else timestamp(now)
    return msgspec.structs.replace(condition, last_transition_time=at)

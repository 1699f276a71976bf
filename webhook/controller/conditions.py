"""The conditions of a GPUQuota.

Ready: the quota is counted and enforced. Exceeded: usage is above the quota. Stale: counts may lag. UnmappedResources: the
cluster has resources or DeviceClasses that no quota counts.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import msgspec

from policies.quota.amounts import exceeds, format_amount
from policies.quota.ledger.quota_ledger import EXPIRY_SECONDS, QuotaLedger
from webhook.cluster.objects import CATALOGUES, Condition, timestamp

TRUE, FALSE = "True", "False"
READY, EXCEEDED = "Ready", "Exceeded"
NOT_COUNTED, UNREADABLE = "NotCounted", "Unreadable"
"""Reasons of Ready. NotCounted is also for a ledger in which one dimension was never counted."""
COUNTED = "every stored pod and claim of the namespace is counted"
KEYS_SHOWN = 8
"""Dimensions or names in one message. The status has the amounts of all dimensions."""
_LONGEST_QUOTED = 80

_Verdict = tuple[str, str, str]
"""Status, reason and message."""


def conditions(
    ledger: QuotaLedger,
    before: Iterable[Condition],
    *,
    stale: str,
    unmapped_resources: Sequence[str] | None,
    now: datetime,
) -> tuple[Condition, ...]:
    """Return the conditions of a ledger.

    before: the conditions in the status.
    stale: why the count may lag, empty if it does not.
    unmapped_resources: DeviceClasses and resource names that no GPUResourceMapping names. None if this process has not looked
      yet; then the condition stays unchanged.
    """
    others = {EXCEEDED: _exceeded(ledger), "Stale": _stale(stale)}
    found = {READY: _ready(ledger, others), **others}
    if unmapped_resources is not None:
        found["UnmappedResources"] = _unmapped_resources(unmapped_resources)
    return _replaced(before, found, ledger.generation, now)


def unreadable(
    problem: str, before: Iterable[Condition], generation: int, now: datetime
) -> tuple[Condition, ...]:
    """Return the conditions of a quota whose ledger cannot be read. It is not Ready; the other conditions stay unchanged."""
    return _replaced(before, {READY: (FALSE, UNREADABLE, f"{problem}: requests are denied")}, generation, now)


def _replaced(
    before: Iterable[Condition], found: Mapping[str, _Verdict], generation: int, now: datetime
) -> tuple[Condition, ...]:
    written = {condition.type: condition for condition in before}
    current = (
        with_transition_time(Condition(kind, status, reason, message, "", generation), written.get(kind), now)
        for kind, (status, reason, message) in found.items()
    )
    return *current, *(each for kind, each in written.items() if kind not in found)


def _ready(ledger: QuotaLedger, others: Mapping[str, _Verdict]) -> _Verdict:
    """Return the condition Ready. `kubectl get` shows its reason as STATUS, so it names another condition that is True."""
    if ledger.used is None or ledger.uncounted:
        return FALSE, NOT_COUNTED, "pods and claims are not counted yet: requests are denied"
    if lines := ledger.reservations.unreadable:
        why = f"reservations of the ledger cannot be read: {quoted(lines)}"
        until = f"requests are denied until the controller has observed that for {EXPIRY_SECONDS:.0f} s and drops it"
        return FALSE, UNREADABLE, f"{why}: {until}"
    if ledger.class_catalogue is None:
        why = (
            f"reservations were counted by a class catalogue that is not published in ConfigMap {CATALOGUES}"
        )
        return FALSE, "InFlight", f"{why}: until these are gone, requests are denied"
    for kind, (status, _, message) in others.items():
        if status == TRUE:
            return TRUE, kind, f"{COUNTED}; {message}"
    if ledger.next_catalogue is not None:
        why = "GPUClasses, resource names or spec.unclassifiedPods changed"
        return (
            TRUE,
            "Migrating",
            f"{COUNTED}; {why}: until what is in flight is counted, requests count by both",
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


def _unmapped_resources(names: Sequence[str]) -> _Verdict:
    if not names:
        return (
            FALSE,
            "AllKnown",
            "a GPUResourceMapping knows the DeviceClasses and resource names of the cluster",
        )
    more = f" and {len(names) - KEYS_SHOWN} more" if len(names) > KEYS_SHOWN else ""
    shown = ", ".join(names[:KEYS_SHOWN])
    return TRUE, "Unknown", f"not counted, because no GPUResourceMapping names them: {shown}{more}"


def quoted(lines: Sequence[str]) -> str:
    """Return the number of lines and the beginning of the first. Control characters are escaped."""
    return f"{len(lines)} line{'s' if len(lines) > 1 else ''}, the first {lines[0][:_LONGEST_QUOTED]!a}"


def with_transition_time(condition: Condition, before: Condition | None, now: datetime) -> Condition:
    """Return the condition with the time of its last change of status. `before` is the one in the status."""
    at = before.last_transition_time if before and before.status == condition.status else timestamp(now)
    return msgspec.structs.replace(condition, last_transition_time=at)

"""How a quota stands, as conditions: Ready (it was counted and holds), Exceeded (by how much), Stale (the count may lag)."""

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from policies.quota.amounts import exceeds, shown
from policies.quota.ledger.quota_ledger import Condition, QuotaLedger

TRUE, FALSE = "True", "False"
KEYS_SHOWN = 8
"""Dimensions named in one message; the numbers of all of them stand in the status."""


def conditions(row: QuotaLedger, *, stale: str, now: datetime) -> tuple[Condition, ...]:
    """Return the conditions of a row; `stale` says why its count may lag, empty if it does not.

    A condition that says what it said before keeps its time.
    """
    before = {condition.type: condition for condition in row.conditions}
    return tuple(
        _at(condition, before.get(condition.type), now)
        for condition in (_ready(row), _exceeded(row), _stale(row, stale))
    )


def _ready(row: QuotaLedger) -> Condition:
    if row.used is None or row.uncounted:
        return _condition(
            row, "Ready", FALSE, "NotCounted", "what is stored has not been counted yet: denies"
        )
    if row.class_catalogue is None:
        return _condition(
            row,
            "Ready",
            FALSE,
            "InFlight",
            "what is in flight was charged by another catalogue or unpinned: denies",
        )
    return _condition(
        row, "Ready", TRUE, "Counted", "every pod and claim of the namespace that is stored is counted"
    )


def _exceeded(row: QuotaLedger) -> Condition:
    over = exceeds(row.used or {}, row.hard)
    if not over:
        return _condition(row, "Exceeded", FALSE, "WithinQuota", "no more is used than the quota grants")
    parts = [
        f"{excess.key}: {shown(excess.amount)} used of {shown(excess.hard)}, {shown(excess.over)} too many"
        for excess in over[:KEYS_SHOWN]
    ]
    more = f"; and {len(over) - KEYS_SHOWN} more" if len(over) > KEYS_SHOWN else ""
    return _condition(row, "Exceeded", TRUE, "OverQuota", "; ".join(parts) + more)


def _stale(row: QuotaLedger, why: str) -> Condition:
    if why:
        return _condition(row, "Stale", TRUE, "NotHeard", why)
    return _condition(row, "Stale", FALSE, "UpToDate", "the controller hears of every change")


def _condition(row: QuotaLedger, kind: str, status: str, reason: str, message: str) -> Condition:
    return Condition(kind, status, reason, message, "", row.generation)


def _at(condition: Condition, before: Condition | None, now: datetime) -> Condition:
    kept = before is not None and before.status == condition.status
    time = (
        before.last_transition_time if before and kept else now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    )
    return msgspec.structs.replace(condition, last_transition_time=time)


def described(found: Iterable[Condition]) -> dict[str, bool]:
    """Return which conditions hold, by type."""
    return {condition.type: condition.status == TRUE for condition in found}

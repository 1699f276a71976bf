"""The status of every GPUQuota, with its conditions, shows its ledger to people. The leader writes it. No decision depends on it.

Ready: the quota is counted and enforced. Exceeded: usage is above the quota. BudgetSpent, BudgetLow: of a budget of GPU-hours
nothing is left, or little. Stale: counts may lag. UnmappedResources: the cluster has resources or DeviceClasses that no quota
counts.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from policies.quota.amounts import GPUS, Vector, exceeds, format_amount
from policies.quota.budget import reached
from policies.quota.budget_findings import how_long, how_much, time_of
from policies.quota.ledger.quota_ledger import EXPIRY_SECONDS, QuotaLedger
from webhook.cluster.api import ApiClient
from webhook.cluster.events import EventQueue
from webhook.cluster.informer import STALE_SECONDS, Informer
from webhook.cluster.objects import CATALOGUES, FALSE, TRUE, Condition, with_transition_time
from webhook.configuration.documents import QUOTA
from webhook.controller.status_writer import StatusWriter
from webhook.quota.documents import (
    BUDGET_LOW,
    BUDGET_SPENT,
    EXCEEDED,
    NOT_COUNTED,
    READY,
    UNREADABLE,
    BudgetStatus,
    IdleGPUs,
    QuotaRecord,
    QuotaStatus,
    ShareStatus,
    WaitingPods,
    decimals,
    quota_path,
    quota_reference,
)
from webhook.quota.ledger_records import LedgerRecord, ledger_of

COUNTED = "every stored pod and claim of the namespace is counted"
KEYS_SHOWN = 8
"""Dimensions or names in one message. The status has the amounts of all dimensions."""
_LONGEST_QUOTED = 80

Verdict = tuple[str, str, str]
"""Status, reason and message."""


class QuotaStatusWriter(StatusWriter[QuotaRecord]):
    """`unmapped_resources` returns the argument of `conditions`.

    `waiting` returns what the status says of the pods that wait in a namespace, `idle` likewise of idle GPUs; None: their use is
    not measured.
    """

    kind = QUOTA
    with_event = (EXCEEDED, BUDGET_SPENT, BUDGET_LOW)

    def __init__(
        self,
        api: ApiClient,
        quotas: Informer[QuotaRecord],
        ledger_objects: Informer[LedgerRecord],
        *,
        leads: Callable[[], bool],
        stale: Callable[[], str],
        unmapped_resources: Callable[[], Sequence[str] | None],
        events: EventQueue,
        waiting: Callable[[str, QuotaLedger], WaitingPods | None],
        idle: Callable[[str], IdleGPUs | None] = lambda _namespace: None,
    ) -> None:
        super().__init__(
            api, quotas.namespaces, quota_path, quota_reference, leads=leads, stale=stale, events=events
        )
        self._quotas, self._ledger_objects = quotas, ledger_objects
        self._unmapped_resources, self._waiting, self._idle = unmapped_resources, waiting, idle

    def record(self, key: str) -> QuotaRecord | None:
        return next(iter(self._quotas.items(key)), None)

    def shown(self, record: QuotaRecord) -> QuotaStatus | None:
        """Return the status that the quota should have, None while the ledger belongs to a former quota."""
        namespace = record.namespace
        found = ledger_of(namespace, lambda name: next(iter(self._ledger_objects.items(name)), None))
        if found is None:
            return None
        before, ledger, now = record.status, found.ledger, datetime.now(UTC)
        if ledger is None:
            kept = unreadable(found.problem, before.conditions, before.observed_generation, now)
            return msgspec.structs.replace(before, conditions=kept)
        if ledger.quota_uid != record.uid:
            return None
        amounts = {"used": ledger.used or {}, "reserved": ledger.reserved_shown}
        idle = self._idle(namespace)
        if idle is not None and idle.gpus is not None:
            amounts["idle"] = {GPUS: idle.gpus}
        return QuotaStatus(
            hard=ledger.hard,
            used=ledger.used,
            reserved=amounts["reserved"],
            waiting=self._waiting(namespace, ledger),
            shown=decimals(amounts),
            holders=ledger.holders,
            budget=BudgetStatus.of(ledger),
            idle=idle,
            team=ShareStatus.of(ledger),
            conditions=conditions(
                ledger,
                before.conditions,
                stale=self.stale(),
                unmapped_resources=self._unmapped_resources(),
                now=now,
            ),
            observed_generation=ledger.generation,
        )


def staleness(informers: Mapping[str, Informer[Any]]) -> str:
    """Return why counts from these informers may lag, or an empty text."""
    silent = [
        f"no message about {name} for {informer.age:.0f} s"
        for name, informer in informers.items()
        if informer.age > STALE_SECONDS
    ]
    return "; ".join(silent)


def conditions(
    ledger: QuotaLedger,
    before: Iterable[Condition],
    *,
    stale: str,
    unmapped_resources: Sequence[str] | None,
    now: datetime,
) -> tuple[Condition, ...]:
    """Return the conditions of a ledger. `before` are those in the status, and `stale` says why the count may lag.

    `unmapped_resources`: DeviceClasses and resource names that no GPUResourceMapping names. None leaves the condition
    unchanged, because this process has not looked yet.
    """
    budget = _budget(ledger)
    spent = {kind: verdict for kind, verdict in budget.items() if kind == BUDGET_SPENT}
    others = {
        EXCEEDED: exceeded(ledger.used or {}, ledger.hard),
        **spent,
        "Stale": stale_verdict(stale),
        **budget,
    }
    found = {READY: _ready(ledger, others), **others}
    if unmapped_resources is not None:
        found["UnmappedResources"] = _unmapped_resources(unmapped_resources)
    kept = (each for each in before if each.type in found or each.type not in {BUDGET_SPENT, BUDGET_LOW})
    return replaced(kept, found, ledger.generation, now)


def unreadable(
    problem: str, before: Iterable[Condition], generation: int, now: datetime
) -> tuple[Condition, ...]:
    """Return the conditions of a quota whose ledger cannot be read. It is not Ready; the other conditions stay unchanged."""
    return replaced(before, {READY: (FALSE, UNREADABLE, f"{problem}: requests are denied")}, generation, now)


def replaced(
    before: Iterable[Condition], found: Mapping[str, Verdict], generation: int, now: datetime
) -> tuple[Condition, ...]:
    """Return `found` as conditions, and those of `before` that it does not name."""
    written = {condition.type: condition for condition in before}
    current = (
        with_transition_time(Condition(kind, status, reason, message, "", generation), written.get(kind), now)
        for kind, (status, reason, message) in found.items()
    )
    return *current, *(each for kind, each in written.items() if kind not in found)


def _ready(ledger: QuotaLedger, others: Mapping[str, Verdict]) -> Verdict:
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


def exceeded(used: Vector, hard: Vector, within: str = "used is within spec.hard") -> Verdict:
    """Return the condition Exceeded. `within`: its message if nothing is exceeded."""
    over = exceeds(used, hard)
    if not over:
        return FALSE, "WithinQuota", within
    parts = [
        f"{excess.key}: {format_amount(excess.amount)} used of {format_amount(excess.hard)}, "
        f"{format_amount(excess.over)} too many"
        for excess in over[:KEYS_SHOWN]
    ]
    more = f"; and {len(over) - KEYS_SHOWN} more" if len(over) > KEYS_SHOWN else ""
    return TRUE, "OverQuota", "; ".join(parts) + more


def _budget(ledger: QuotaLedger) -> dict[str, Verdict]:
    """Return the conditions of the budget. None without one, or before its first count."""
    budget, spending = ledger.budget, ledger.spending
    if budget is None or spending is None:
        return {}
    every = how_much(budget, spending, budget.granted)
    spent, low = reached(budget, spending), reached(budget, spending, budget.warn_at)
    found = {BUDGET_SPENT: (FALSE, "GPUHoursLeft", every), BUDGET_LOW: (FALSE, "GPUHoursLeft", every)}
    if spent:
        until = f"requests for them are denied until {time_of(spending.end)}"
        found[BUDGET_SPENT] = TRUE, "Spent", f"{how_much(budget, spending, spent)}: {until}"
    if low:
        left = how_long(budget, spending, low, ledger.used or {})
        found[BUDGET_LOW] = TRUE, "Low", f"{how_much(budget, spending, low)}, {left}"
    return found


def stale_verdict(why: str) -> Verdict:
    """Return the condition Stale."""
    return (TRUE, "WatchSilent", why) if why else (FALSE, "UpToDate", "the controller receives every change")


def _unmapped_resources(names: Sequence[str]) -> Verdict:
    if not names:
        return (
            FALSE,
            "AllKnown",
            "a GPUResourceMapping knows the DeviceClasses and resource names of the cluster",
        )
    return TRUE, "Unknown", f"not counted, because no GPUResourceMapping names them: {shown_names(names)}"


def shown_names(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - KEYS_SHOWN} more" if len(names) > KEYS_SHOWN else ""
    return ", ".join(names[:KEYS_SHOWN]) + more


def quoted(lines: Sequence[str]) -> str:
    """Return the number of lines and the beginning of the first. Control characters are escaped."""
    return f"{len(lines)} line{'s' if len(lines) > 1 else ''}, the first {lines[0][:_LONGEST_QUOTED]!a}"

"""The status of every GPUQuota, with its conditions, shows its ledger to people. The leader writes it. No decision depends on it.

Ready: the quota is counted and enforced. Exceeded: usage is above the quota. BudgetSpent, BudgetLow: nothing, or little, is
left of a budget of GPU-hours. Stale: counts may lag. UnmappedResources: the cluster has resources or DeviceClasses that no
quota counts.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from policies.printable import first_names
from policies.quota.amounts import GPUS, Amounts, exceeded_limits, format_amount
from policies.quota.budget import keys_reached
from policies.quota.budget_findings import outlook_text, spending_text, time_of
from policies.quota.ledger.quota_ledger import EXPIRY_SECONDS, QuotaLedger
from webhook.cluster.api import ApiClient
from webhook.cluster.collection import Subscribers
from webhook.cluster.events import EventQueue
from webhook.cluster.objects import CATALOGUES_CONFIG_MAP, FALSE, TRUE, Condition, with_transition_time
from webhook.configuration.documents import QUOTA
from webhook.configuration.dynamic_resources import unmapped_resources
from webhook.configuration.loader import Configuration
from webhook.controller.gpu_use import GPUUse
from webhook.controller.shared_informers import SharedInformers
from webhook.controller.status_writer import EVERY_SECONDS, StatusWriter
from webhook.controller.usage_cache import UsageCache
from webhook.controller.waiting_reports import WaitingReports
from webhook.quota.documents import (
    BUDGET_LOW,
    BUDGET_SPENT,
    EXCEEDED,
    NOT_COUNTED,
    READY,
    STALE,
    UNREADABLE,
    BudgetStatus,
    KeptQuota,
    QuotaRecord,
    QuotaStatus,
    TeamView,
    decimals,
    quota_path,
    quota_reference,
)
from webhook.quota.ledger_objects import LedgerRecord, is_team_object, ledger_of, ledgers_before

COUNTED = "every stored pod and claim of the namespace is counted"
MAX_KEYS = 8
"""Dimensions or names in one message. The status has the amounts of all dimensions."""
_LONGEST_QUOTED = 80
SHARE_SECONDS = 15.0
"""Within this time the status of a quota shows what other namespaces of its team use. 500 of them make 33 writes a second."""

ConditionVerdict = tuple[str, str, str]
"""Status, reason and message."""


@dataclass(eq=False)
class UnmappedResourcesWatch:
    """Looks through the nodes of our own counter for DeviceClasses and resources that no GPUResourceMapping names."""

    usage_cache: UsageCache
    configuration: Callable[[], Configuration]
    names: Sequence[str] | None = None
    """None until the nodes were listed."""
    PERIOD_SECONDS = 5.0
    """Seconds between two looks at the nodes that the controller watches."""

    def __post_init__(self) -> None:
        self.changed = Subscribers[[]]("unmapped resources")

    def sync(self) -> None:
        nodes, configuration = self.usage_cache.own_counter.nodes, self.configuration()
        if not nodes.synced:
            return
        extended = frozenset[str]().union(*(node.resources for node in nodes.all()))
        classes = (f"DeviceClass {name}" for name in configuration.unmapped_device_classes)
        names = (*classes, *sorted(unmapped_resources(extended, configuration.resource_mapping)))
        if names != self.names:
            self.names = names
            self.changed()


class QuotaStatusWriter(StatusWriter[QuotaRecord]):
    """Shows what other parts know of a namespace, too. `gpu_use`: None if the use of GPUs is not measured.

    Hears: quotas, ledger_objects, unmapped_resources.changed, reports.changed, gpu_use.holders_changed, gpu_use.outage_changed.
    """

    kind = QUOTA
    path, reference = staticmethod(quota_path), staticmethod(quota_reference)
    with_event = (EXCEEDED, BUDGET_SPENT, BUDGET_LOW)

    def __init__(
        self,
        api: ApiClient,
        informers: SharedInformers,
        unmapped_resources: UnmappedResourcesWatch,
        reports: WaitingReports,
        gpu_use: GPUUse | None,
        is_ready_leader: Callable[[], bool],
        events: EventQueue,
    ) -> None:
        quotas = informers.quotas
        super().__init__(api, quotas.namespaces, quotas.first, informers.why_stale, is_ready_leader, events)
        self._ledger_objects, self._usage = informers.ledger_objects, informers.usage
        self._unmapped_verdict, self._reports, self._gpu_use = unmapped_resources, reports, gpu_use
        quotas.subscribe(self._quota_changed)
        self._ledger_objects.subscribe(self._ledger_object_changed)
        unmapped_resources.changed.subscribe(self.all_changed)
        reports.changed.subscribe(self.changed)
        if gpu_use is not None:
            gpu_use.holders_changed.subscribe(self.changed)
            gpu_use.outage_changed.subscribe(self.all_changed)

    def _quota_changed(self, before: QuotaRecord | None, after: QuotaRecord | None) -> None:
        if changed := after or before:
            self.changed(changed.namespace)

    def _ledger_object_changed(self, before: LedgerRecord | None, after: LedgerRecord | None) -> None:
        if (changed := after or before) is None:
            return
        if not is_team_object(changed.namespace):
            self.changed(changed.namespace)
        elif after is not None and after.team is not None:
            ledgers = after.team.team_ledgers
            former = ledgers_before(before, ledgers.team)
            for namespace, ledger in ledgers.ledgers.items():
                # What others use changes what is free of the team here.
                self.changed(namespace, SHARE_SECONDS if former.get(namespace) is ledger else EVERY_SECONDS)
        elif before is not None and before.team is not None:
            for namespace in before.team.team_ledgers.ledgers:
                self.changed(namespace)

    def desired_status(self, record: QuotaRecord) -> QuotaStatus | None:
        """Return the status that the quota should have, None while the ledger belongs to a former quota."""
        namespace = record.namespace
        ledger_record = ledger_of(namespace, self._ledger_objects.first)
        if ledger_record is None:
            return None
        before, ledger, now = record.status, ledger_record.ledger, datetime.now(UTC)
        if ledger is None:
            verdicts = {READY: (FALSE, UNREADABLE, f"{ledger_record.problem}: requests are denied")}
            unchanged = replace_conditions(before.conditions, verdicts, before.observed_generation, now)
            return msgspec.structs.replace(before, conditions=unchanged)
        if ledger.quota_uid != record.uid:
            return None
        amounts = {"used": ledger.used or {}, "reserved": ledger.reserved_of_dimensions}
        idle = self._gpu_use.idle_status(namespace) if self._gpu_use else None
        if idle is not None and idle.gpus is not None:
            amounts["idle"] = {GPUS: idle.gpus}
        return QuotaStatus(
            hard=ledger.hard,
            used=ledger.used,
            reserved=amounts["reserved"],
            waiting=self._reports.waiting_status(namespace, ledger),
            shown=decimals(amounts),
            holders=ledger.holders,
            budget=BudgetStatus.of(ledger),
            idle=idle,
            kept=KeptQuota.of(ledger),
            team=TeamView.of(ledger),
            conditions=conditions(
                ledger,
                before.conditions,
                stale=self.stale(),
                unmapped_resources=self._unmapped_verdict.names,
                grown_claims=self._grown_claims(namespace, ledger),
                now=now,
            ),
            observed_generation=ledger.generation,
        )

    def _grown_claims(self, namespace: str, ledger: QuotaLedger) -> int:
        if not exceeded_limits(ledger.used or {}, ledger.hard):
            return 0
        return self._usage.own_counter.sums.grown_claims(namespace, ledger.unclassified_pods)


def conditions(
    ledger: QuotaLedger,
    before: Iterable[Condition],
    *,
    stale: str,
    unmapped_resources: Sequence[str] | None,
    grown_claims: int = 0,
    now: datetime,
) -> tuple[Condition, ...]:
    """Return the conditions of a ledger. `before` are those in the status, and `stale` says why the count may lag.

    `unmapped_resources`: DeviceClasses and resource names that no GPUResourceMapping names. None leaves the condition
    unchanged, because this process has not looked yet. `grown_claims`: the number of claims that count for more than they were
    admitted with.
    """
    budget = _budget_verdicts(ledger)
    spent = {kind: verdict for kind, verdict in budget.items() if kind == BUDGET_SPENT}
    other_verdicts = {
        EXCEEDED: exceeded_verdict(ledger.used or {}, ledger.hard, grown_claims=grown_claims),
        **spent,
        STALE: stale_verdict(stale),
        **budget,
    }
    verdicts = {READY: _ready_verdict(ledger, other_verdicts), **other_verdicts}
    if unmapped_resources is not None:
        verdicts["UnmappedResources"] = _unmapped_verdict(unmapped_resources)
    unchanged = (
        each for each in before if each.type in verdicts or each.type not in {BUDGET_SPENT, BUDGET_LOW}
    )
    return replace_conditions(unchanged, verdicts, ledger.generation, now)


def replace_conditions(
    before: Iterable[Condition], verdicts: Mapping[str, ConditionVerdict], generation: int, now: datetime
) -> tuple[Condition, ...]:
    """Return the verdicts as conditions, and those of `before` that they do not name."""
    written = {condition.type: condition for condition in before}
    current = (
        with_transition_time(Condition(kind, status, reason, message, "", generation), written.get(kind), now)
        for kind, (status, reason, message) in verdicts.items()
    )
    return *current, *(condition for kind, condition in written.items() if kind not in verdicts)


def _ready_verdict(ledger: QuotaLedger, other_verdicts: Mapping[str, ConditionVerdict]) -> ConditionVerdict:
    """Return the condition Ready. `kubectl get` shows its reason as STATUS, so it names another condition that is True."""
    if ledger.used is None or ledger.uncounted:
        return FALSE, NOT_COUNTED, "pods and claims are not counted yet: requests are denied"
    if lines := ledger.reservations.unreadable:
        why = f"reservations of the ledger cannot be read: {quoted(lines)}"
        until = f"requests are denied until the controller has observed that for {EXPIRY_SECONDS:.0f} s and drops it"
        return FALSE, UNREADABLE, f"{why}: {until}"
    if ledger.class_catalogue is None:
        why = f"reservations were counted by a class catalogue that is not published in ConfigMap {CATALOGUES_CONFIG_MAP}"
        return FALSE, "InFlight", f"{why}: until these are gone, requests are denied"
    for kind, (status, _, message) in other_verdicts.items():
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


def exceeded_verdict(
    used: Amounts, hard: Amounts, within: str = "used is within spec.hard", *, grown_claims: int = 0
) -> ConditionVerdict:
    """Return the condition Exceeded. `within`: its message if nothing is exceeded."""
    over = exceeded_limits(used, hard)
    if not over:
        return FALSE, "WithinQuota", within
    parts = [
        f"{excess.key}: {format_amount(excess.amount)} used of {format_amount(excess.hard)}, "
        f"{format_amount(excess.over)} too many"
        for excess in over[:MAX_KEYS]
    ]
    more = f"; and {len(over) - MAX_KEYS} more" if len(over) > MAX_KEYS else ""
    claims = f"{grown_claims} ResourceClaim{'s have' if grown_claims > 1 else ' has'}"
    grown = f"; ResourceSlices changed: {claims} larger devices than admitted" if grown_claims else ""
    return TRUE, "OverQuota", "; ".join(parts) + more + grown


def _budget_verdicts(ledger: QuotaLedger) -> dict[str, ConditionVerdict]:
    """Return the conditions of the budget. None without one, or before its first count."""
    budget, spending = ledger.budget, ledger.spending
    if budget is None or spending is None:
        return {}
    every = spending_text(budget, spending, budget.granted)
    spent, low = keys_reached(budget, spending), keys_reached(budget, spending, budget.warn_at)
    verdicts = {BUDGET_SPENT: (FALSE, "GPUHoursLeft", every), BUDGET_LOW: (FALSE, "GPUHoursLeft", every)}
    if spent:
        until = f"requests for them are denied until {time_of(spending.end)}"
        verdicts[BUDGET_SPENT] = TRUE, "Spent", f"{spending_text(budget, spending, spent)}: {until}"
    if low:
        what_is_left = outlook_text(budget, spending, low, ledger.used or {})
        verdicts[BUDGET_LOW] = TRUE, "Low", f"{spending_text(budget, spending, low)}, {what_is_left}"
    return verdicts


def stale_verdict(why: str) -> ConditionVerdict:
    """Return the condition Stale."""
    return (TRUE, "WatchSilent", why) if why else (FALSE, "UpToDate", "the controller receives every change")


def _unmapped_verdict(names: Sequence[str]) -> ConditionVerdict:
    if not names:
        return (
            FALSE,
            "AllKnown",
            "a GPUResourceMapping knows the DeviceClasses and resource names of the cluster",
        )
    why = "not counted, because no GPUResourceMapping names them"
    return TRUE, "Unknown", f"{why}: {first_names(names, MAX_KEYS)}"


def quoted(lines: Sequence[str]) -> str:
    """Return the number of lines and the beginning of the first. Control characters are escaped."""
    return f"{len(lines)} line{'s' if len(lines) > 1 else ''}, the first {lines[0][:_LONGEST_QUOTED]!a}"

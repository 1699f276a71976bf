"""GPUQuotas as the controller wrote their status, and the stored pods and claims that hold them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from fractions import Fraction

import msgspec

from policies.placement.nodes import NodeIndex
from policies.quota.amounts import GPUS, ZERO, Amounts, key_order, parse_amount, positive_difference, total
from policies.quota.budget import GPU_HOUR, Spending, milliseconds
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.quota_ledger import Holder, QuotaLedger
from policies.quota.ledger.team import Team, TeamState
from webhook.cluster.objects import TRUE, fields_of
from webhook.configuration.dynamic_resources import served_resource
from webhook.configuration.loader import Configuration
from webhook.quota.counted_records import PODS, CountedPod, RecordReader
from webhook.quota.documents import (
    BUDGET_LOW,
    BUDGET_SPENT,
    READY,
    LimitsRecord,
    QuotaRecord,
    QuotaStatus,
    TeamView,
)
from webhook.quota.enforcer import ReadOnlyQuota
from webhook.tools.json_struct import JsonStruct
from webhook.tools.pending_pods import PendingOwner, certain_demand
from webhook.tools.status import summaries
from webhook.tools.status.listed_capacity import AllocatedDeviceTypes, listed_demand
from webhook.tools.status.tolerant_reader import TolerantReader


def limit_rows(record: LimitsRecord, pending: Amounts | None = None) -> tuple[summaries.QuotaRow, ...]:
    """Return a row for each dimension that is limited. `pending`: the part of `used` that pending pods hold, if known."""
    status, hard = record.status, record.hard if record.spec else {}
    return tuple(
        summaries.QuotaRow(
            key=key,
            hard=hard[key],
            used=None if status.used is None else status.used.get(key),
            reserved=status.reserved.get(key, ZERO),
            pending=None if pending is None else pending.get(key, ZERO),
        )
        for key in sorted(hard, key=key_order)
    )


def quota_status(
    record: QuotaRecord,
    denials: Sequence[summaries.DeniedOwner] | None,
    pending: Sequence[PendingOwner] | None = None,
    held_up_before: datetime | None = None,
    *,
    is_stale: bool = False,
) -> summaries.QuotaSummary:
    """Return the status of a stored quota. `denials` and `pending`: of its namespace, None if unreadable.

    held_up_before: a pod that is pending since then is a problem. is_stale: no controller writes the status.
    """
    is_known = pending is not None and all(owner.gpus is not None for owner in pending)
    held = total(owner.held for owner in pending or ()) if is_known else None
    state, message = limits_state(record)
    return summaries.QuotaSummary(
        namespace=record.namespace,
        state=summaries.QuotaState.STALE if is_stale and state is summaries.QuotaState.READY else state,
        message=message,
        denied=None if denials is None else sum(denial.count for denial in denials),
        denied_since=min((denial.first for denial in denials or ()), default=None),
        rows=limit_rows(record, held),
        holders=_quota_holders(record.status.holders.items()) if record.spec else (),
        pending=tuple(pending or ()),
        waiting=record.status.waiting,
        team=record.status.team,
        idle=record.status.idle,
        budget=_budget_summary(record.status),
        is_held_up=any(held_up_before and owner.since < held_up_before for owner in pending or ()),
    )


def _budget_summary(status: QuotaStatus) -> summaries.BudgetSummary | None:
    budget = status.budget
    if budget is None:
        return None
    conditions = (status.condition_if_true(kind) for kind in (BUDGET_SPENT, BUDGET_LOW))
    used, unknown = _gpu_hours_of(budget.used), _gpu_hours_of(budget.unknown)
    return summaries.BudgetSummary(
        period=budget.period,
        start=datetime.fromisoformat(budget.start),
        end=datetime.fromisoformat(budget.end),
        until=datetime.fromisoformat(budget.until),
        rows=tuple(
            summaries.BudgetRow(
                key=key, granted=granted, used=used.get(key, ZERO), unknown=unknown.get(key, ZERO)
            )
            for key, granted in sorted(
                _gpu_hours_of(budget.granted).items(), key=lambda item: key_order(item[0])
            )
        ),
        message=next((condition.message for condition in conditions if condition), ""),
    )


def _gpu_hours_of(decimals: Mapping[str, str]) -> Amounts:
    """Return the GPU-hours that a status has for people: `4210.5`, `<0.01`."""
    return {key: parse_amount(text.removeprefix("<")) for key, text in decimals.items()}


def quota_ledger_from_status(record: QuotaRecord, now: datetime) -> QuotaLedger | None:
    """Return what a quota grants, and what its status says is used. None if its spec cannot be read."""
    status = record.status
    if record.spec is None:
        return None
    held = total((status.used or {}, status.reserved))
    ledger = msgspec.structs.replace(
        record.spec.ledger(record.uid, record.generation),
        hard=record.hard,
        waiting=status.waiting.pods if status.waiting else 0,
        spending=_present_spending(_budget_summary(status), now),
        team_state=_team_state(status.team, held),
        holders=status.holders,
    )
    return ledger if status.used is None else ledger.using(held)


def _team_state(status: TeamView | None, held: Amounts) -> TeamState | None:
    """Return what a namespace that holds so much sees of its team, as a status says it."""
    if status is None:
        return None
    namespaces, guaranteed = defaultdict[str, Amounts](dict), defaultdict[str, Amounts](dict)
    for key, largest in status.largest.items():
        for member in largest:
            amount = namespaces[member.name][key] = parse_amount(member.amount)
            if member.guaranteed:
                guaranteed[member.name][key] = amount
    return TeamState(
        team=Team(
            name=status.name,
            uid="",
            generation=0,
            hard=status.hard,
            guaranteed=guaranteed,
            contact=status.contact,
        ),
        taken_by_others={
            key: max(limit - status.free.get(key, ZERO) - held.get(key, ZERO), ZERO)
            for key, limit in status.hard.items()
        },
        guaranteed_to_others={key: status.guaranteed_to_others.get(key, ZERO) for key in status.hard},
        taken=namespaces,
    )


def _present_spending(budget: summaries.BudgetSummary | None, now: datetime) -> Spending | None:
    """Return what is spent in the present period; None after its end, when nobody knows."""
    if budget is None or now >= budget.end:
        return None
    start, end, until = map(milliseconds, (budget.start, budget.end, budget.until))
    spent = {row.key: round(row.used * GPU_HOUR) for row in budget.rows}
    return Spending(start=start, end=end, until=until, spent=spent)


def quota_from_status(
    ledger: QuotaLedger | None,
    configuration: Configuration,
    *,
    has_controller: bool,
    released: Amounts | None = None,
) -> ReadOnlyQuota | None:
    """Return a quota as statuses say it, since tenants read no ledger, without what was `released`. None without one."""
    if ledger and ledger.used and released:
        ledger = ledger.using(positive_difference(ledger.held, released))
    return ReadOnlyQuota(ledger, configuration, has_controller=has_controller) if ledger else None


def limits_state(record: LimitsRecord) -> tuple[summaries.QuotaState, str]:
    """Return the most urgent state of a GPUQuota or ClusterGPUQuota, and why it is not Ready."""
    if record.spec is None:
        return summaries.QuotaState.UNREADABLE, record.problem
    ready = record.status.condition(READY)
    if ready is None or ready.status != TRUE:
        is_unreadable = ready is not None and ready.reason == summaries.QuotaState.UNREADABLE.value
        state = summaries.QuotaState.UNREADABLE if is_unreadable else summaries.QuotaState.NOT_COUNTED
        return state, ready.message if ready else "not counted yet: GPU pods are denied"
    for state in (
        summaries.QuotaState.EXCEEDED,
        summaries.QuotaState.TOO_MANY_NAMESPACES,
        summaries.QuotaState.TOO_LARGE,
        summaries.QuotaState.STALE,
    ):
        if condition := record.status.condition_if_true(state.value):
            return state, condition.message
    return summaries.QuotaState.READY, ""


def _quota_holders(by_key: Iterable[tuple[str, Iterable[Holder]]]) -> tuple[summaries.QuotaHolder, ...]:
    held: dict[tuple[str, str], dict[str, Fraction]] = defaultdict(dict)
    for key, holders in by_key:
        for holder in holders:
            held[holder.name, holder.idle_since][key] = parse_amount(holder.amount)
    quota_holders = (
        summaries.QuotaHolder(
            name=name, held=amounts, idle_since=datetime.fromisoformat(idle_since) if idle_since else None
        )
        for (name, idle_since), amounts in held.items()
    )
    return tuple(sorted(quota_holders, key=lambda holder: holder.order))


class CountedObject(JsonStruct, frozen=True, kw_only=True):
    """A live pod or claim and its demand. `node` is empty if it is not bound; `pending_since` is None unless it is pending."""

    kind: str
    name: str
    node: str = ""
    demand: dict[str, Fraction]
    pending_since: datetime | None = None


def read_counted_objects(
    reader: TolerantReader,
    configuration: Configuration,
    namespace: str,
    unclassified_pods: UnclassifiedPods,
    nodes: NodeIndex | None,
) -> list[CountedObject]:
    """Return what holds the quota of a namespace, most GPUs first. Raises `errors.ApiError`."""
    records = RecordReader(configuration)
    counted: dict[str, tuple[CountedPod, Amounts]] = {}
    holders: list[CountedObject] = []

    def read(raw: msgspec.Raw) -> None:
        pod = records.read_pod(raw)
        if pod is None or not pod.holds_quota:
            return
        demand = certain_demand(records, pod, unclassified_pods, nodes)
        counted[pod.uid] = pod, demand
        is_pending = bytes(fields_of(raw, "status").get("phase", b"")) == b'"Pending"'
        since = datetime.fromisoformat(pod.since) if is_pending else None
        holders.append(
            CountedObject(kind="Pod", name=pod.name, node=pod.node_name, demand=demand, pending_since=since)
        )

    reader.api.list(PODS.path(namespace), read)
    resource = served_resource(reader.api, "resourceclaims")
    if resource is not None:
        claims = reader.api.list(resource.path(namespace), records.read_claim).items
        slices = reader.slices() if any(claim.devices for claim in claims) else None
        allocated = AllocatedDeviceTypes(slices, configuration.resource_mapping) if slices else None
        for claim in claims:
            demand = listed_demand(records, claim, unclassified_pods, counted, allocated)
            holders.append(CountedObject(kind="ResourceClaim", name=claim.name, demand=demand))
    holding = (holder for holder in holders if holder.demand)
    return sorted(holding, key=lambda each: (-each.demand.get(GPUS, ZERO), each.name))

"""Reads ClusterGPUQuotas, the quotas of teams, and the ledgers that their status describes."""

from collections.abc import Sequence
from datetime import datetime
from functools import partial

from msgspec.structs import replace

from policies.quota.amounts import ZERO, Amounts, positive_difference, total
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.team import Team, TeamState
from policies.quota.ledger.team_ledgers import TeamLedgers
from policies.quota.team_spec import Teams
from webhook.cluster import errors
from webhook.configuration.documents import GROUP
from webhook.quota.documents import QuotaRecord
from webhook.quota.ledger_objects import ledger_without_quota
from webhook.quota.team_documents import TEAM_PLURAL, TeamRecord, decode_team, team_path
from webhook.tools.status.quotas import limit_rows, limits_state, quota_ledger_from_status
from webhook.tools.status.summaries import QuotaHolder, TeamSummary
from webhook.tools.status.tolerant_reader import TolerantReader

OTHER_NAMESPACES = "other namespaces"
"""Pseudo-namespace: the sum of all namespaces that the status does not list."""
TEAM_RESOURCE = f"{TEAM_PLURAL}.{GROUP}"


def read_teams(reader: TolerantReader) -> Sequence[TeamRecord] | None:
    """Return all ClusterGPUQuotas by name, none where their kind is not installed; None where the caller may not list them."""
    try:
        listed = reader.attempt(f"list {TEAM_RESOURCE}", partial(reader.api.list, team_path(), decode_team))
    except errors.NotFound:
        return ()
    return None if listed is None else sorted(listed.items, key=lambda record: record.name)


def team_of_namespace(reader: TolerantReader, namespace: str) -> TeamRecord | None:
    """Return the ClusterGPUQuota of a namespace; None if it has none, or the caller may not read that."""
    records = read_teams(reader) or ()
    try:
        labels = reader.namespace_labels(namespace) if records else ()
    except errors.NotFound:
        labels = ()
    match = Teams(record.match for record in records).of(namespace, dict(labels or ()))
    return next((record for record in records if match and record.name == match.name), None)


def team_ledgers_from_status(record: TeamRecord) -> TeamLedgers | None:
    """Return the ledgers of a team as its status says them. None if its spec cannot be read.

    A status names the namespaces that use the most. The ledger OTHERS has what all other namespaces hold together.
    """
    team, status = record.team, record.status
    if team is None:
        return None
    members = status.namespaces.largest
    named = TeamLedgers(team, {member.name: uncounted_ledger(team, member.used or {}) for member in members})
    held = total((status.used or {}, status.reserved, status.guaranteed_idle))
    of_others = positive_difference(held, total(named.taken.values()))
    return named.with_ledger(OTHER_NAMESPACES, uncounted_ledger(team, of_others))


def uncounted_ledger(team: Team, used: Amounts) -> QuotaLedger:
    """Return the ledger of a namespace that holds so much, and has no GPUQuota."""
    counted = {**dict.fromkeys(team.hard, ZERO), **used}
    return replace(ledger_without_quota(team.unclassified_pods), used=counted)


def team_state_of(ledgers: TeamLedgers, namespace: str) -> TeamState:
    """Return the state of the team for a namespace, by the ledgers of a status."""
    team_state = ledgers.team_state(namespace)
    return replace(
        team_state,
        taken={name: taken for name, taken in team_state.taken.items() if name != OTHER_NAMESPACES},
    )


def namespace_ledger_from_status(record: TeamRecord, namespace: str) -> QuotaLedger | None:
    """Return what limits a namespace that has a team and no GPUQuota. None if the spec of the team cannot be read.

    What a namespace holds of its guarantee is unknown, if the status does not name it.
    """
    ledgers = team_ledgers_from_status(record)
    if ledgers is None:
        return None
    ledger = ledgers.ledgers.get(namespace) or uncounted_ledger(ledgers.team, {})
    used = None if record.status.used is None else ledger.used
    return replace(ledger, used=used, team_state=team_state_of(ledgers, namespace))


def effective_ledger(
    reader: TolerantReader, namespace: str, quota: QuotaRecord | None, now: datetime
) -> QuotaLedger | None:
    """Return what limits a namespace by the status of its GPUQuota or, if it has none, of its ClusterGPUQuota."""
    if quota is not None:
        return quota_ledger_from_status(quota, now)
    team = team_of_namespace(reader, namespace)
    return namespace_ledger_from_status(team, namespace) if team else None


def team_summary(record: TeamRecord) -> TeamSummary:
    """Return the status of a stored ClusterGPUQuota."""
    status, rows = record.status, limit_rows(record)
    state, message = limits_state(record)
    largest = []
    for member in status.namespaces.largest:
        used = member.used or {}
        held = {row.key: max(used.get(row.key, ZERO), member.guaranteed.get(row.key, ZERO)) for row in rows}
        if held := {key: amount for key, amount in held.items() if amount}:
            holder = QuotaHolder(name=member.name, held=held)
            key, amount = holder.main_amount
            largest.append(replace(holder, guaranteed=amount > used.get(key, ZERO)))
    return TeamSummary(
        name=record.name,
        state=state,
        message=message,
        rows=rows,
        namespaces=status.namespaces.count,
        largest=tuple(sorted(largest, key=lambda holder: holder.order)),
        granted=status.granted,
        guaranteed_idle={key: amount for key, amount in status.guaranteed_idle.items() if amount},
        contact=record.spec.contact if record.spec else "",
    )

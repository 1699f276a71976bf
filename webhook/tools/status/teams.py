"""ClusterGPUQuotas, the quotas of teams, as the controller wrote their status."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from fractions import Fraction
from functools import partial

from msgspec.structs import replace

from policies.quota.amounts import NOTHING, Vector, format_amount, positive_difference, total, unit
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.team import Team, TeamShare, team_title
from policies.quota.ledger.team_ledgers import TeamLedgers
from policies.quota.shortage_facts import amounts_in_words
from policies.quota.team_spec import Teams
from webhook.cluster import errors
from webhook.configuration.documents import GROUP
from webhook.quota.documents import QuotaRecord, ShareStatus
from webhook.quota.ledger_objects import ledger_without_quota
from webhook.quota.team_documents import TEAM_PLURAL, TeamRecord, decode_team, team_path
from webhook.tools.granted_text import granted_beyond, granted_in_sum, key_order
from webhook.tools.status.permitted import Permitted
from webhook.tools.status.quotas import quota_ledger_from_status, limit_rows, limits_state
from webhook.tools.status.summaries import QuotaHolder, TeamSummary

OTHERS = "other namespaces"
"""The name of the ledger of all namespaces that the status does not name."""
NAMED = 3
"""Namespaces that a sentence names."""
TEAM_RESOURCE = f"{TEAM_PLURAL}.{GROUP}"


def read_teams(reader: Permitted) -> Sequence[TeamRecord] | None:
    """Return all ClusterGPUQuotas by name, none where their kind is not installed; None where the caller may not list them."""
    try:
        listed = reader.attempt(f"list {TEAM_RESOURCE}", partial(reader.api.list, team_path(), decode_team))
    except errors.NotFound:
        return ()
    return None if listed is None else sorted(listed.items, key=lambda each: each.name)


def team_of_namespace(reader: Permitted, namespace: str) -> TeamRecord | None:
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
    known = TeamLedgers(team, {member.name: uncounted_ledger(team, member.used or {}) for member in members})
    held = total((status.used or {}, status.reserved, status.guaranteed_idle))
    rest = positive_difference(held, total(known.taken.values()))
    return known.with_ledger(OTHERS, uncounted_ledger(team, rest))


def uncounted_ledger(team: Team, used: Vector) -> QuotaLedger:
    """Return the ledger of a namespace that holds so much, and has no GPUQuota."""
    counted = {**dict.fromkeys(team.hard, NOTHING), **used}
    return replace(ledger_without_quota(team.unclassified_pods), used=counted)


def share_of(ledgers: TeamLedgers, namespace: str) -> TeamShare:
    """Return the share of a namespace in the team, by the ledgers of a status."""
    share = ledgers.share(namespace)
    return replace(share, taken={name: taken for name, taken in share.taken.items() if name != OTHERS})


def namespace_ledger_from_status(record: TeamRecord, namespace: str) -> QuotaLedger | None:
    """Return what limits a namespace that has a team and no GPUQuota. None if the spec of the team cannot be read.

    What a namespace holds of its guarantee is unknown, if the status does not name it.
    """
    ledgers = team_ledgers_from_status(record)
    if ledgers is None:
        return None
    own = ledgers.ledgers.get(namespace) or uncounted_ledger(ledgers.team, {})
    used = None if record.status.used is None else own.used
    return replace(own, used=used, share=share_of(ledgers, namespace))


def effective_ledger(
    reader: Permitted, namespace: str, quota: QuotaRecord | None, now: datetime
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
    held: dict[str, Vector] = defaultdict(dict)
    for member in status.namespaces.largest:
        for row in rows:
            key = row.key
            amount = max((member.used or {}).get(key, NOTHING), member.guaranteed.get(key, NOTHING))
            if amount:
                held[member.name][key] = amount
    return TeamSummary(
        name=record.name,
        state=state,
        message=message,
        rows=rows,
        namespaces=status.namespaces.count,
        largest=tuple(
            sorted(
                (QuotaHolder(name=name, held=amounts) for name, amounts in held.items()),
                key=lambda each: each.order,
            )
        ),
        granted=status.granted,
        guaranteed_idle={key: amount for key, amount in status.guaranteed_idle.items() if amount},
        contact=record.spec.contact if record.spec else "",
    )


def team_share(team: ShareStatus) -> str:
    """Return what a namespace sees of its team: `ClusterGPUQuota team-vision has 2 of 64 GPUs free; largest: vision-prod 40`."""
    keys = sorted(team.hard, key=key_order)
    free = (
        f"{format_amount(team.free.get(key, NOTHING))} of {format_amount(team.hard[key])} {unit(key)} free"
        for key in keys
    )
    named = next((each for key in keys if (each := team.largest.get(key))), ())
    largest = ", ".join(f"{each.name} {format_amount(Fraction(each.amount))}" for each in named[:NAMED])
    more = f"; largest: {largest}" if largest else ""
    contact = f"; contact: {team.contact}" if team.contact else ""
    return f"{team_title(team.name)} has {', '.join(free)}{more}{contact}"


def is_short(team: ShareStatus) -> bool:
    """Whether nothing is free of a dimension."""
    return any(team.free.get(key, NOTHING) <= 0 < hard for key, hard in team.hard.items())


def team_notes(team: TeamSummary, *, in_full: bool = False) -> list[str]:
    """Return what is guaranteed and not used, and whether the quotas of its namespaces grant more than the team.

    in_full: also what they grant if it is not more.
    """
    hard = {row.key: row.hard for row in team.rows}
    idle = f"{amounts_in_words(team.guaranteed_idle)} guaranteed and not used" if team.guaranteed_idle else ""
    granted = granted_in_sum(team.granted, hard) if in_full else granted_beyond(team.granted, hard)
    return [each for each in (idle, granted) if each]

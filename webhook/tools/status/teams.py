"""ClusterGPUQuotas, the quotas of teams, as the controller wrote their status."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import partial

from policies.quota.amounts import NOTHING, Vector, format_amount, unit
from policies.quota.ledger.team import team_title
from policies.quota.shortage import amounts_in_words
from policies.quota.team_spec import Teams
from webhook.cluster import errors
from webhook.configuration.documents import GROUP
from webhook.quota.documents import ShareStatus
from webhook.quota.team_documents import TEAM_PLURAL, TeamRecord, decode_team, team_path
from webhook.tools.status.permitted import Permitted
from webhook.tools.status.quotas import key_order, limit_rows, limits_state
from webhook.tools.status.summaries import QuotaHolder, TeamSummary

NAMED = 3
"""Namespaces that a sentence names."""
TEAM_KIND = f"{TEAM_PLURAL}.{GROUP}"


def read_teams(reader: Permitted) -> Sequence[TeamRecord] | None:
    """Return all ClusterGPUQuotas by name, none where their kind is not installed; None where the caller may not list them."""
    try:
        found = reader.attempt(f"list {TEAM_KIND}", partial(reader.api.list, team_path(), decode_team))
    except errors.NotFound:
        return ()
    return None if found is None else sorted(found.items, key=lambda each: each.name)


def team_of_namespace(reader: Permitted, namespace: str) -> TeamRecord | None:
    """Return the ClusterGPUQuota of a namespace; None if it has none, or the caller may not read that."""
    records = read_teams(reader) or ()
    try:
        labels = (
            reader.attempt(f"get namespaces/{namespace}", partial(reader.labels_of, namespace))
            if records
            else ()
        )
    except errors.NotFound:
        labels = ()
    found = Teams(each.match for each in records).of(namespace, dict(labels or ()))
    return next((each for each in records if found and each.name == found.name), None)


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


def team_notes(team: TeamSummary) -> list[str]:
    """Return what is guaranteed and not used, and whether the quotas of its namespaces grant more than the team."""
    hard = {row.key: row.hard for row in team.rows}
    idle = f"{amounts_in_words(team.guaranteed_idle)} guaranteed and not used" if team.guaranteed_idle else ""
    return [each for each in (idle, granted_beyond(team.granted, hard)) if each]


def granted_beyond(granted: Mapping[str, Fraction], hard: Mapping[str, Fraction]) -> str:
    """Return that the quotas of the namespaces grant more than the team: `its namespaces are granted 120 of 64 GPUs`."""
    beyond = [key for key in sorted(hard, key=key_order) if granted.get(key, NOTHING) > hard[key]]
    amounts = (f"{format_amount(granted[key])} of {format_amount(hard[key])} {unit(key)}" for key in beyond)
    return f"its namespaces are granted {', '.join(amounts)}: first come, first served" if beyond else ""

"""ClusterGPUQuotas, the quotas of teams, as the controller wrote their status."""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial

from policies.quota.amounts import NOTHING, Vector
from webhook.cluster import errors
from webhook.configuration.documents import GROUP
from webhook.quota.team_documents import TEAM_PLURAL, TeamRecord, decode_team, team_path
from webhook.tools.status.permitted import Permitted
from webhook.tools.status.quotas import key_order, limits_state
from webhook.tools.status.report import QuotaHolder, QuotaRow, TeamSummary

TEAM_KIND = f"{TEAM_PLURAL}.{GROUP}"


def read_teams(reader: Permitted) -> Sequence[TeamRecord] | None:
    """Return all ClusterGPUQuotas by name, none where their kind is not installed; None where the caller may not list them."""
    try:
        found = reader.attempt(f"list {TEAM_KIND}", partial(reader.api.list, team_path(), decode_team))
    except errors.NotFound:
        return ()
    return None if found is None else sorted(found.items, key=lambda each: each.name)


def team_summary(record: TeamRecord) -> TeamSummary:
    """Return the status of a stored ClusterGPUQuota."""
    status, hard = record.status, record.hard if record.spec else {}
    state, message = limits_state(record)
    held: dict[str, Vector] = defaultdict(dict)
    for member in status.namespaces.largest:
        for key in hard:
            amount = max((member.used or {}).get(key, NOTHING), member.guaranteed.get(key, NOTHING))
            if amount:
                held[member.name][key] = amount
    return TeamSummary(
        name=record.name,
        state=state,
        message=message,
        rows=tuple(
            QuotaRow(
                key=key,
                hard=hard[key],
                used=None if status.used is None else status.used.get(key),
                reserved=status.reserved.get(key, NOTHING),
            )
            for key in sorted(hard, key=key_order)
        ),
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

"""Sentences about the quotas of teams."""

from fractions import Fraction

from policies.quota.amounts import ZERO, format_amount, key_order, unit_name
from policies.quota.ledger.team import team_title
from policies.quota.shortage_facts import amounts_in_words, namespace_title
from webhook.quota.documents import TeamView
from webhook.tools.granted_text import granted_sum_text, overcommitted_text
from webhook.tools.status.summaries import TeamSummary

MAX_NAMES = 3
"""Namespaces that a sentence lists."""


def team_view_text(team: TeamView) -> str:
    """Return what a namespace sees of its team: `ClusterGPUQuota team-vision has 2 of 64 GPUs free; largest: vision-prod 40`."""
    keys = sorted(team.hard, key=key_order)
    free = (
        f"{format_amount(team.free.get(key, ZERO))} of {format_amount(team.hard[key])} {unit_name(key)} free"
        for key in keys
    )
    holders = next((each for key in keys if (each := team.largest.get(key))), ())
    largest = ", ".join(
        namespace_title(each.name, Fraction(each.amount), each.guaranteed) for each in holders[:MAX_NAMES]
    )
    more = f"; largest: {largest}" if largest else ""
    contact = f"; contact: {team.contact}" if team.contact else ""
    return f"{team_title(team.name)} has {', '.join(free)}{more}{contact}"


def is_exhausted(team: TeamView) -> bool:
    """Whether some limit has nothing free."""
    return any(team.free.get(key, ZERO) <= 0 < hard for key, hard in team.hard.items())


def team_notes(team: TeamSummary, *, in_full: bool = False) -> list[str]:
    """Return what is guaranteed and not used, and whether the quotas of its namespaces grant more than the team.

    in_full: also what they grant if it is not more.
    """
    hard = {row.key: row.hard for row in team.rows}
    unused = (
        f"{amounts_in_words(team.guaranteed_idle)} guaranteed and not used" if team.guaranteed_idle else ""
    )
    granted = granted_sum_text(team.granted, hard) if in_full else overcommitted_text(team.granted, hard)
    return [each for each in (unused, granted) if each]

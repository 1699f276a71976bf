"""ClusterGPUQuotas in the text of `quota` and `status`."""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from policies.quota.amounts import GPUS, NOTHING, format_amount, unit
from policies.quota.ledger.team import team_title
from policies.quota.shortage import amounts_in_words
from webhook.commands.output import Screen, counted
from webhook.quota.documents import ShareStatus
from webhook.tools.status.quotas import key_order
from webhook.tools.status.report import QuotaRow, TeamSummary

MAX_TEAMS = 20
MAX_NAMED = 3


def team_share(team: ShareStatus) -> str:
    """Return what a namespace sees of its team: `ClusterGPUQuota team-vision has 2 of 64 GPUs free; largest: vision-prod 40`."""
    keys = sorted(team.hard, key=key_order)
    free = (
        f"{format_amount(team.free.get(key, NOTHING))} of {format_amount(team.hard[key])} {unit(key)} free"
        for key in keys
    )
    named = next((largest for key in keys if (largest := team.largest.get(key))), ())
    largest = ", ".join(f"{each.name} {format_amount(Fraction(each.amount))}" for each in named[:MAX_NAMED])
    more = f"; largest: {largest}" if largest else ""
    contact = f"; contact: {team.contact}" if team.contact else ""
    return f"{team_title(team.name)} has {', '.join(free)}{more}{contact}"


def print_team_share(screen: Screen, team: ShareStatus | None, indent: int) -> None:
    """Print what a namespace sees of its team, if it has one."""
    if team is not None:
        screen.paragraph(team_share(team), indent=indent, style="yellow" if is_short(team) else "dim")


def is_short(team: ShareStatus) -> bool:
    """Whether nothing is free of a dimension."""
    return any(team.free.get(key, NOTHING) <= 0 < hard for key, hard in team.hard.items())


def print_teams(
    screen: Screen,
    teams: Sequence[TeamSummary],
    row: Callable[[QuotaRow], None],
    style: Callable[[TeamSummary], str],
) -> None:
    """Print the teams, those with problems first. `row` prints the bar of a dimension."""
    ordered = sorted(teams, key=lambda each: each.urgency)
    for team in ordered[:MAX_TEAMS]:
        namespaces = counted(team.namespaces, "namespace")
        screen.line(f"  {team.name}  {team.state.value}, {namespaces}", style(team))
        if team.message:
            screen.paragraph(team.message, indent=4, style=style(team))
        for each in team.rows:
            row(each)
        if text := "; ".join(filter(None, (_held(team), *_notes(team)))):
            screen.paragraph(text, indent=4, style="dim")
    if len(ordered) > MAX_TEAMS:
        screen.line(f"  and {counted(len(ordered) - MAX_TEAMS, 'team')} more; -o json has all")


def _held(team: TeamSummary) -> str:
    shown = (f"{each.name} {_most(each.most)}" for each in team.largest[:MAX_NAMED])
    more = team.namespaces - MAX_NAMED if len(team.largest) > MAX_NAMED else 0
    named = ", ".join(shown)
    return f"largest: {named}{f' and {more} more' if more > 0 else ''}" if named else ""


def _most(held: tuple[str, Fraction]) -> str:
    key, amount = held
    return f"{format_amount(amount)}{'' if key == GPUS else f' {unit(key)}'}"


def _notes(team: TeamSummary) -> Sequence[str]:
    hard = {row.key: row.hard for row in team.rows}
    idle = f"{amounts_in_words(team.guaranteed_idle)} guaranteed and not used" if team.guaranteed_idle else ""
    return idle, granted_beyond(team.granted, hard)


def granted_beyond(granted: Mapping[str, Fraction], hard: Mapping[str, Fraction]) -> str:
    """Return that the quotas of the namespaces grant more than the team: `its namespaces are granted 120 of 64 GPUs`."""
    beyond = [key for key in sorted(hard, key=key_order) if granted.get(key, NOTHING) > hard[key]]
    amounts = (f"{format_amount(granted[key])} of {format_amount(hard[key])} {unit(key)}" for key in beyond)
    return f"its namespaces are granted {', '.join(amounts)}: first come, first served" if beyond else ""

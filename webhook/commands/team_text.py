"""ClusterGPUQuotas in the text of `quota` and `status`."""

from collections.abc import Callable, Sequence

from policies.quota.amounts import format_amount, unit
from policies.quota.ledger.team import team_title
from webhook.commands.output import Screen, amount_or_unknown, counted
from webhook.quota.documents import ShareStatus
from webhook.tools.status.summaries import QuotaRow, TeamSummary
from webhook.tools.status.teams import NAMED, is_short, team_notes, team_share

MAX_TEAMS = 20


def print_team_share(screen: Screen, team: ShareStatus | None, indent: int) -> None:
    """Print what a namespace sees of its team, if it has one."""
    if team is not None:
        screen.paragraph(team_share(team), indent=indent, style="yellow" if is_short(team) else "dim")


def team_limits(team: TeamSummary) -> str:
    """Return what limits a namespace without a GPUQuota: `ClusterGPUQuota team-vision limits it: 62 of 64 GPUs used`."""
    used = (
        f"{amount_or_unknown(row.used)} of {format_amount(row.hard)} {unit(row.key)} used"
        for row in team.rows
    )
    return f"{team_title(team.name)} limits it: {', '.join(used)}"


def print_teams(
    screen: Screen,
    teams: Sequence[TeamSummary],
    row: Callable[[QuotaRow], None],
    style: Callable[[TeamSummary], str],
    indent: int,
) -> None:
    """Print the teams, those with problems first. `row` prints the bar of a dimension, `indent` + 2 from the left."""
    below = indent + 2
    ordered = sorted(teams, key=lambda each: each.urgency)
    for team in ordered[:MAX_TEAMS]:
        namespaces = counted(team.namespaces, "namespace")
        screen.line(f"{' ' * indent}{team.name}  {team.state.value}, {namespaces}", style(team))
        if team.message:
            screen.paragraph(team.message, indent=below, style=style(team))
        for each in team.rows:
            row(each)
        if text := "; ".join(filter(None, (_held(team), *team_notes(team)))):
            screen.paragraph(text, indent=below, style="dim")
    if len(ordered) > MAX_TEAMS:
        screen.line(f"{' ' * indent}and {counted(len(ordered) - MAX_TEAMS, 'team')} more; -o json has all")


def _held(team: TeamSummary) -> str:
    shown = (f"{each.name} {each.amount}" for each in team.largest[:NAMED])
    more = team.namespaces - NAMED if len(team.largest) > NAMED else 0
    named = ", ".join(shown)
    return f"largest: {named}{f' and {more} more' if more > 0 else ''}" if named else ""

"""GPUQuotas and ClusterGPUQuotas in the text of `quota`, `status` and `why`."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from fractions import Fraction

from policies.finding import truncate
from policies.quota.amounts import GPUS, ZERO, format_amount, format_gpu_hours, unit_name
from policies.quota.ledger.team import team_title
from webhook.commands.output import Screen, amount_or_unknown, counted, since
from webhook.quota.documents import TeamView, WaitingPods
from webhook.tools.status.kueue import QueueState
from webhook.tools.status.summaries import (
    BudgetSummary,
    IdleOwner,
    QuotaRow,
    QuotaState,
    QuotaSummary,
    TeamSummary,
)
from webhook.tools.status.team_text import MAX_NAMES, is_exhausted, team_notes, team_view_text

BAR = 24
USED, PENDING, RESERVED, FREE = "█", "▄", "▒", "·"
LEGEND = f"{PENDING} pending {RESERVED} reserved"
STATES = {**dict.fromkeys(QuotaState, "red"), QuotaState.READY: "green", QuotaState.STALE: "yellow"}

MAX_TEAMS = 20
MAX_QUEUES = 10


def omitted_line(quotas: Sequence[QuotaSummary]) -> str:
    wrong = sum(quota.has_problem for quota in quotas)
    what = f"{wrong} with problems (--problems shows them)" if wrong else "none with problems"
    return f"and {counted(len(quotas), 'namespace')} more, {what}; -n shows one, -o json all"


def row_style(row: QuotaRow) -> str:
    return "red" if (row.used or ZERO) > row.hard else "yellow" if row.held >= row.hard else ""


def bar_and_amounts(row: QuotaRow, cells: int = BAR) -> str:
    """Return the bar of a dimension and its amounts. What is used is unknown before the first count."""
    shown = amount_or_unknown(row.used)
    pending = f", {format_amount(row.pending)} pending" if row.pending else ""
    amounts = f"{shown} + {format_amount(row.reserved)} of {format_amount(row.hard)}{pending}"
    return f"{bar(row.used or ZERO, row.reserved, row.hard, cells, row.pending or ZERO)} {amounts}"


def bar(
    used: Fraction, reserved: Fraction, hard: Fraction, cells: int = BAR, pending: Fraction = ZERO
) -> str:
    """Return a bar of `cells` characters. The smallest use is visible, and only a full quota looks full."""
    if hard <= ZERO:
        return (USED if used else RESERVED if reserved else FREE) * cells
    full = _filled_cells(used, hard, cells)
    held = max(_filled_cells(used + reserved, hard, cells) - full, int(reserved > ZERO and full < cells))
    waiting = (
        full if pending >= used else min(_filled_cells(pending, hard, cells), full - 1) if pending else 0
    )
    return (USED * (full - waiting) + PENDING * waiting + RESERVED * held).ljust(cells, FREE)


def _filled_cells(amount: Fraction, hard: Fraction, cells: int) -> int:
    if amount >= hard:
        return cells
    return min(max(int(amount / hard * cells), int(amount > ZERO)), cells - 1)


def print_budget(
    screen: Screen, budget: BudgetSummary | None, now: datetime, *, indent: int, column: int, cells: int = BAR
) -> None:
    """Print the GPU-hours of a budget, a line for each key, and that it is spent or will be soon."""
    if budget is None:
        return
    style = "red" if budget.spent(now) else "yellow" if budget.message else ""
    for row, fact in zip(budget.rows, budget_facts(budget, now), strict=True):
        shown = bar(row.used, ZERO, row.granted, cells)
        text = fact.removeprefix(f"{row.name}: ")
        screen.line(f"{'':{indent}}{truncate(row.name, column):<{column}} {shown} {text}", style)
    for text in filter(None, (budget.message, budget.unknown())):
        screen.paragraph(text, indent=indent, style=style)


def budget_facts(budget: BudgetSummary, now: datetime) -> Iterator[str]:
    """Yield what is used of each key: `GPU-hours: 4210.5 of 5000 this month`."""
    for row in budget.rows:
        amounts = f"{format_amount(row.used)} of {format_amount(row.granted)}"
        yield f"{row.name}: {amounts} {budget.when(now)}"


def idle_text(owner: IdleOwner, now: datetime) -> str:
    """Return what an owner holds and does not use: `Notebook/ana, 2 GPUs idle since 07:13 UTC, 3 GPU-hours lost`."""
    amount = f"{format_amount(owner.gpus)} {unit_name(GPUS, owner.gpus)}"
    return f"{owner.owner}, {amount} idle{since(owner.since, now)}, {format_gpu_hours(owner.lost(now))} lost"


def waiting_text(waiting: WaitingPods, now: datetime) -> str:
    """Return how many pods wait, for what, and since when the first one: `2 pods wait in line for 9 GPUs since 07:13 UTC`."""
    waits = "waits" if waiting.pods == 1 else "wait"
    gpus = waiting.demand.get(GPUS, ZERO)
    needs = f" for {format_amount(gpus)} {unit_name(GPUS, gpus)}" if gpus else ""
    return f"{counted(waiting.pods, 'pod')} {waits} in line{needs}{since_text(waiting.since, now)}"


def since_text(moment: str, now: datetime) -> str:
    return since(datetime.fromisoformat(moment) if moment else None, now)


def print_team_view(screen: Screen, team: TeamView | None, indent: int) -> None:
    """Print what a namespace sees of its team, if it has one."""
    if team is not None:
        screen.paragraph(team_view_text(team), indent=indent, style="yellow" if is_exhausted(team) else "dim")


def team_limits(team: TeamSummary) -> str:
    """Return what limits a namespace without a GPUQuota: `ClusterGPUQuota team-vision limits it: 62 of 64 GPUs used`."""
    used = (
        f"{amount_or_unknown(row.used)} of {format_amount(row.hard)} {unit_name(row.key)} used"
        for row in team.rows
    )
    return f"{team_title(team.name)} limits it: {', '.join(used)}"


def print_queues(
    screen: Screen, queues: Sequence[QueueState], now: datetime, *, of_namespaces: bool = False
) -> None:
    """Print LocalQueues of Kueue with their objects. `of_namespaces`: with the namespace of each."""
    for queue in queues[:MAX_QUEUES]:
        where = queue.namespace if of_namespaces else "Kueue:"
        screen.paragraph(f"{where} {queue.in_words}", indent=2)
        for line in queue.lines(now):
            screen.paragraph(line, indent=4, style="dim")
    screen.rest(len(queues) - MAX_QUEUES, "queue")


def print_teams(
    screen: Screen, teams: Sequence[TeamSummary], row: Callable[[QuotaRow], None], indent: int
) -> None:
    """Print the teams, those with problems first. `row` prints the bar of a dimension, `indent` + 2 from the left."""
    below = indent + 2
    ordered = sorted(teams, key=lambda summary: summary.urgency)
    for team in ordered[:MAX_TEAMS]:
        namespaces, style = counted(team.namespaces, "namespace"), STATES[team.state]
        screen.line(f"{' ' * indent}{team.name}  {team.state.value}, {namespaces}", style)
        if team.message:
            screen.paragraph(team.message, indent=below, style=style)
        for quota_row in team.rows:
            row(quota_row)
        if text := "; ".join(filter(None, (_largest_text(team), *team_notes(team)))):
            screen.paragraph(text, indent=below, style="dim")
    screen.rest(len(ordered) - MAX_TEAMS, "team", indent=indent)


def _largest_text(team: TeamSummary) -> str:
    shown = (f"{member.name} {member.amount}" for member in team.largest[:MAX_NAMES])
    more = team.namespaces - MAX_NAMES if len(team.largest) > MAX_NAMES else 0
    largest = ", ".join(shown)
    return f"largest: {largest}{f' and {more} more' if more > 0 else ''}" if largest else ""

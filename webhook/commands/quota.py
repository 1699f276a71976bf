"""`gpu-admission quota`: the granted, used and reserved GPUs of each namespace, and the pods and claims that use them."""

import re
from collections.abc import Container, Iterable, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from policies.finding import truncate
from policies.quota.amounts import GPUS, ZERO, amount_texts, format_amount, key_order, unit_name
from policies.quota.shortage_facts import amounts_in_words
from webhook.cluster import errors
from webhook.cluster.nodes import readable_node_index
from webhook.cluster.objects import TRUE, InstallationNames
from webhook.commands import options, quota_text
from webhook.commands.options import ClusterChoice
from webhook.commands.output import STRUCTURED, Screen, amount_or_unknown, counted, fail, print_value, since
from webhook.configuration.loader import Configuration
from webhook.quota.documents import (
    BUDGET_LOW,
    BUDGET_SPENT,
    QUOTAS,
    READY,
    KeptQuota,
    QuotaRecord,
    WaitingPods,
    decode_quota,
)
from webhook.tools.status.freshness import stale_figures
from webhook.tools.status.kueue import QueueState, read_queues
from webhook.tools.status.quotas import CountedObject, read_counted_objects
from webhook.tools.status.reading import read_summaries
from webhook.tools.status.report import quota_totals
from webhook.tools.status.summaries import QuotaRow, QuotaSummary, TeamSummary, idle_gpus
from webhook.tools.status.teams import read_teams, team_of_namespace, team_summary
from webhook.tools.status.tolerant_reader import TolerantReader

NAMESPACE_COLUMN = 20
CELLS = (("USED", 7), ("WAITING", 9), ("PENDING", 9), ("RESERVED", 9), ("HARD", 8))
"""Columns of GPUs, with their widths."""
IDLE_CELL = ("IDLE", 6)
"""The column after them, where the use of GPUs is measured."""
NAME_COLUMN = 30
MAX_QUOTAS = 40
"""Lines of the table: a screen."""
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
"""Where a word begins in the type of a condition."""


class QuotaReport(NamedTuple):
    """A quota, its summary, and the objects that hold it; None for all namespaces, or where quota or objects cannot be read."""

    record: QuotaRecord
    summary: QuotaSummary
    objects: list[CountedObject] | None


class QuotaReports(NamedTuple):
    """Quotas by namespace. `until`: since when no controller writes their status, if none does. `omitted`: missing rights.

    `teams`: all ClusterGPUQuotas; for one namespace without a GPUQuota, the one that limits it. `queues`: of one namespace,
    Kueue's LocalQueues.
    """

    reports: Sequence[QuotaReport]
    until: datetime | None
    omitted: Sequence[str]
    teams: Sequence[TeamSummary] = ()
    queues: Sequence[QueueState] = ()


@click.command()
@options.namespace_options(
    f"{options.READABLE_NAMESPACES}; of one, also the pods and claims that hold its quota"
)
@options.verbose_option
@click.option("--problems", is_flag=True, help="Show every quota with a problem, and no other.")
@options.install_namespace_option
@options.output_option()
@options.config_option("the cluster's documents")
@options.cluster_options
def quota(
    *,
    namespace: str | None,
    all_namespaces: bool,
    output: str,
    config: Path | None,
    install_namespace: str,
    cluster: ClusterChoice,
    problems: bool,
) -> None:
    """Show used, reserved and granted GPUs per namespace.

    Of a namespace without a GPUQuota it shows the ClusterGPUQuota.

    Exit codes: 0; 2 if there is neither, or the cluster or the documents cannot be used.
    """
    home, names, now = cluster.namespace(), InstallationNames(namespace=install_namespace), datetime.now(UTC)
    with cluster.client() as api:
        reader = TolerantReader(api)
        configuration = reader.configuration(config)
        try:
            reports = _read_reports(reader, configuration, namespace or "", names, now)
        except errors.Forbidden:
            if namespace or all_namespaces:
                raise
            namespace = home
            reports = _read_reports(reader, configuration, namespace, names, now)
    if not reports.reports and not reports.teams:
        fail(f"there is no GPUQuota{f' in namespace {namespace}' if namespace else ''}")
    shown = [report for report in reports.reports if report.summary.has_problem or not problems]
    if output in STRUCTURED:
        print_value(output, document(reports._replace(reports=shown)))
    elif namespace:
        print_text(Screen(), reports, now)
    else:
        print_table(Screen(), reports, [cell.summary for cell in shown], now, problems=problems)


def _read_reports(
    reader: TolerantReader,
    configuration: Configuration,
    namespace: str,
    names: InstallationNames,
    now: datetime,
) -> QuotaReports:
    try:
        records = reader.api.list(QUOTAS.path(namespace), decode_quota).items
    except errors.NotFound:
        raise errors.NotFound("this cluster has no GPUQuotas: their kind is not installed") from None
    records.sort(key=lambda record: record.namespace)
    nodes, reports = readable_node_index(reader.api, configuration.classes.label_keys), []
    summaries, until = read_summaries(
        reader, configuration, [namespace] if namespace else [], records, nodes, names, now, {}
    )
    for record, summary in zip(records, summaries, strict=True):
        objects = None
        if namespace and record.spec is not None:
            counts_as = record.spec.unclassified_pods
            held = partial(read_counted_objects, reader, configuration, namespace, counts_as, nodes)
            objects = reader.attempt_list("pods and claims", namespace, held)
        reports.append(QuotaReport(record, summary, objects))
    teams = () if namespace else read_teams(reader) or ()
    if namespace and not records and (team := team_of_namespace(reader, namespace)):
        teams = (team,)
    queues = read_queues(reader, namespace, configuration.resource_mapping) if namespace else ()
    return QuotaReports(reports, until, reader.omitted, tuple(map(team_summary, teams)), queues or ())


def print_table(
    screen: Screen, reports: QuotaReports, shown: Sequence[QuotaSummary], now: datetime, *, problems: bool
) -> None:
    if reports.until is not None:
        screen.paragraph(stale_figures(reports.until, now), style="red")
    quotas = sorted(shown, key=lambda summary: summary.urgency)
    lines_shown = len(quotas) if problems else MAX_QUOTAS
    width = max([NAMESPACE_COLUMN, *(len(summary.namespace) for summary in quotas[:lines_shown])])
    measured = [summary for summary in quotas if summary.idle is not None]
    columns = [*CELLS, IDLE_CELL] if measured else CELLS
    line = partial(_table_line, width, [column for _, column in columns])
    screen.line(line("NAMESPACE", "STATUS", [name for name, _ in columns], "FULL"), "bold")
    for summary in quotas[:lines_shown]:
        spent = [row.name for row in summary.budget.spent(now)] if summary.budget else []
        full = ", ".join([*(unit_name(row.key) for row in summary.rows if row.held >= row.hard), *spent])
        cells = (*_cells(summary.row, summary.waiting_gpus), amount_or_unknown(summary.idle_gpus))
        screen.line(
            line(summary.namespace, summary.state.value, cells, full), quota_text.STATES[summary.state]
        )
    if rest := quotas[lines_shown:]:
        screen.paragraph(quota_text.omitted_line(rest))
    totals = quota_totals(report.summary for report in reports.reports)
    waiting = sum((report.summary.waiting_gpus for report in reports.reports), ZERO)
    idle = idle_gpus(report.summary for report in reports.reports)
    cells = (*_cells(totals.row, waiting), amount_or_unknown(idle))
    screen.line(line(f"all {len(reports.reports)}", "", cells), "bold")
    if teams := [team for team in reports.teams if team.has_problem or not problems]:
        _print_teams(screen, teams)
    screen.print_omissions(reports.omitted)


def _print_teams(screen: Screen, teams: Sequence[TeamSummary]) -> None:
    screen.heading(
        f"{'teams':<{NAME_COLUMN + 2}} {quota_text.LEGEND:<{quota_text.BAR}} used + reserved of hard"
    )
    quota_text.print_teams(screen, teams, partial(_print_row, screen), indent=0)


def _cells(row: QuotaRow | None, waiting: Fraction) -> tuple[str, ...]:
    """Return the cells of a row of GPUs, of a quota that does not limit them `-`. `waiting`: what pods in line need."""
    if row is None:
        return ("-",) * len(CELLS)
    amounts = (row.used, waiting, None if row.used is None else row.pending, row.reserved, row.hard)
    return tuple(amount_or_unknown(amount) for amount in amounts)


def _table_line(
    width: int, columns: Sequence[int], name: str, state: str, cells: Sequence[str], full: str = ""
) -> str:
    """Return a line of the table. Cells beyond the columns are left out."""
    shown = zip(cells[: len(columns)], columns, strict=True)
    amounts = "".join(f"{cell:>{column}}" for cell, column in shown)
    return f"{name:<{width}} {state:<10} {amounts}  {full}".rstrip()


def print_text(screen: Screen, reports: QuotaReports, now: datetime) -> None:
    _print_team_limits(screen, reports.teams)
    for record, summary, objects in reports.reports:
        if record.spec is None:
            screen.line(record.namespace, "bold")
            screen.paragraph(f"error: {record.problem}", indent=2, style="red")
            continue
        denies = ": every GPU pod is denied" if summary.state.denies else ""
        screen.line(f"{record.namespace}  {summary.state.value}{denies}", "bold")
        warn = partial(screen.paragraph, indent=2, style="yellow")
        if reports.until is not None:
            screen.paragraph(stale_figures(reports.until, now), indent=2, style="red")
        screen.line(
            f"  {'':<{NAME_COLUMN}} {quota_text.LEGEND:<{quota_text.BAR}} used + reserved of hard", "dim"
        )
        for row in summary.rows:
            _print_row(screen, row)
        quota_text.print_team_view(screen, record.status.team, indent=2)
        if record.is_pending:
            warn("spec was changed, and no controller has put it in force yet")
        for condition in record.status.conditions:
            is_wrong = (condition.status == TRUE) != (condition.type == READY)
            if is_wrong and condition.type not in {BUDGET_SPENT, BUDGET_LOW}:  # print_budget says them
                warn(f"{_CAPITAL.sub(' ', condition.type).lower()}: {condition.message}")
        if summary.waiting is not None:
            _print_waiting(screen, summary.waiting, now)
        _print_kept(screen, record.status.kept)
        quota_text.print_budget(screen, summary.budget, now, indent=2, column=NAME_COLUMN)
        _print_idle(screen, summary, now)
        if objects is not None:
            _print_objects(screen, objects, {*record.hard, GPUS}, now)
    quota_text.print_queues(screen, reports.queues, now)
    screen.print_omissions(reports.omitted)


def _print_team_limits(screen: Screen, teams: Sequence[TeamSummary]) -> None:
    """Print the team of a namespace without a GPUQuota, if it has one."""
    for team in teams:
        screen.paragraph(f"there is no GPUQuota; {quota_text.team_limits(team)}")
        _print_teams(screen, [team])


def _print_row(screen: Screen, row: QuotaRow) -> None:
    name = truncate(row.key, NAME_COLUMN)
    screen.line(
        f"  {name:<{NAME_COLUMN}} {quota_text.bar_and_amounts(row)}", quota_text.row_style(row) or "green"
    )


def _print_waiting(screen: Screen, waiting: WaitingPods, now: datetime) -> None:
    screen.line(f"  {quota_text.waiting_text(waiting, now)}:", "yellow")
    for place in waiting.next:
        needs = f"needs {amounts_in_words(place.demand)}" if place.place > 1 else place.message
        text = f"{place.place or '-':>2}  {place.title}{quota_text.since_text(place.since, now)}: {needs}"
        screen.paragraph(text, indent=4, hanging=4)
    screen.rest(waiting.pods - sum(place.pods for place in waiting.next), "pod", "", indent=8)


def _print_kept(screen: Screen, kept: Iterable[KeptQuota]) -> None:
    for kept_quota in kept:
        text = f"kept for {kept_quota.object}, whose pods are replaced: {amounts_in_words(kept_quota.demand)}"
        screen.paragraph(text, indent=2)


def _print_idle(screen: Screen, quota: QuotaSummary, now: datetime) -> None:
    """Print who holds idle GPUs, or why that is not measured."""
    if quota.idle is not None and quota.idle.measured:
        screen.paragraph(f"idle GPUs are not measured: {quota.idle.measured}", indent=2, style="yellow")
    for idle_owner in quota.idle_owners:
        screen.paragraph(quota_text.idle_text(idle_owner, now), indent=2, style="yellow")


def _print_objects(
    screen: Screen, objects: Sequence[CountedObject], keys: Container[str], now: datetime
) -> None:
    """Print what each object holds of the limited dimensions, or its resources if its GPUs are unknown."""
    pending = [held for held in objects if held.pending_since]
    placed = [held for held in objects if held.pending_since is None]
    if pending:
        screen.line(f"  held by {counted(len(pending), 'pending pod')}, the longest first:")
    for held in sorted(pending, key=lambda counted_object: str(counted_object.pending_since)):
        _print_object(screen, held, keys, now)
    if placed or not pending:
        screen.line(f"  held by {counted(len(placed), 'object')}{':' if placed else ''}")
    for counted_object in placed:
        _print_object(screen, counted_object, keys, now)


def _print_object(screen: Screen, held: CountedObject, keys: Container[str], now: datetime) -> None:
    place = f" on {held.node}" if held.node else ""
    shown = (key for key in held.demand if key in keys or GPUS not in held.demand)
    amounts = (f"{key} {format_amount(held.demand[key])}" for key in sorted(shown, key=key_order))
    when = since(held.pending_since, now)
    screen.paragraph(f"{held.kind} {held.name}{place}{when}: {', '.join(amounts)}", indent=4)


def document(reports: QuotaReports) -> dict[str, Any]:
    """Return what `-o json` prints.

    `quotas[]`: namespace, problem ("" if it could be read), unclassifiedPods; used, reserved, hard (amounts as text, "2/7";
    used is null before the first count), conditions[], holders (largest, by dimension), pending[] (owner, pods, held, since),
    waiting, idle and kept (as in the status of the GPUQuota; null if nobody waits, or the use of GPUs is not measured), and, of
    one requested namespace, objects[] (kind, name, node, demand, pendingSince). `figuresUntil`: since when no controller writes
    the status, null while one does. `omitted`: missing rights. budget: GPU-hours by key, null without one or before its first
    count. team: what the namespace sees of its team (name, hard, free, guaranteedToOthers, largest, contact); null without one.
    `teams[]`: the ClusterGPUQuotas; of one requested namespace its own, if it has no GPUQuota. `queues[]`: of one requested
    namespace, Kueue's LocalQueues (name, clusterQueue, pending, admitted, isStopped, reserved of GPUs by flavor).
    """
    return {
        "quotas": [_quota_document(report) for report in reports.reports],
        "teams": reports.teams,
        "queues": reports.queues,
        "figuresUntil": reports.until,
        "omitted": reports.omitted,
    }


def _quota_document(report: QuotaReport) -> dict[str, Any]:
    record, objects = report.record, report.objects
    document: dict[str, Any] = {"namespace": record.namespace, "problem": record.problem}
    status = record.status
    if record.spec is not None:
        document |= {
            "unclassifiedPods": record.spec.unclassified_pods.value,
            "used": None if status.used is None else amount_texts(status.used),
            "reserved": amount_texts(status.reserved),
            "hard": amount_texts(record.hard),
            "conditions": status.conditions,
            "holders": status.holders,
            "pending": report.summary.pending,
            "waiting": status.waiting,
            "idle": status.idle,
            "kept": status.kept,
            "budget": report.summary.budget,
            "team": status.team,
        }
    if objects is not None:
        # Deterministic, so that amounts are sorted.
        document["objects"] = msgspec.to_builtins(objects, enc_hook=str, order="deterministic")
    return document

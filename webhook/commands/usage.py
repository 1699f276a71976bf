"""`gpu-admission usage`: GPU-hours by namespace, owner, class or author, from audit logs, with prices."""

import csv
import io
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click

from policies.pods.field_paths import field_path
from policies.printable import printable
from policies.quota.amounts import ZERO, format_amount, total
from webhook.cluster.objects import timestamp
from webhook.commands import options
from webhook.commands.options import now, output_option, prices_option, prometheus_options
from webhook.commands.output import (
    FAILED,
    STRUCTURED,
    Screen,
    counted,
    echo_document,
    fail,
    fail_with,
    print_errors,
    print_value,
    progress,
)
from webhook.configuration.loader import load_directory
from webhook.prometheus.client import Prometheus
from webhook.tools import gpu_hours
from webhook.tools.prices import Prices, in_cents, money, read_prices
from webhook.tools.recorded_use import read_use, use_of

WIDEST_NAME = 56
MAX_SHOWN = 40
"""Groups in the text; owners may be thousands."""
FORMULA_STARTS = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
"""Characters, and their full-width forms, with which a cell begins that a spreadsheet would evaluate."""
MAX_GAPS = 5
TAKE_OVER_SECONDS = 60.0
"""A gap of this length is normal: a leader was killed, and another one has not taken over yet."""
MICROHOURS = 10**6
USE_COLUMNS = ("gpuHoursUsed", "gpuHoursIdle", "gpuHoursUnknown")
"""Columns of `Row.use`."""


class Row(NamedTuple):
    """One line of the table. use: GPU-hours that were used, idle, and not measured. cents: 0 without prices.

    held: when objects of a group held something; None of a sum.
    """

    names: tuple[str, ...]
    hours: Fraction
    use: tuple[float, ...]
    objects: int
    cents: int
    held: gpu_hours.Interval | None = None


class Columns(NamedTuple):
    """What the table has besides GPU-hours."""

    prices: Prices | None
    has_use: bool


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE|-]...")
@click.option(
    "--by",
    type=click.Choice([group_by.value for group_by in gpu_hours.GroupBy]),
    multiple=True,
    default=(gpu_hours.GroupBy.NAMESPACE.value,),
    help="How GPU-hours are grouped; several times: by each combination.",
)
@click.option(
    "--since",
    type=options.SINCE,
    help="Count from then on: 24h, 7d, a date (it begins at 00:00 UTC) or a time. Default: all of it.",
)
@click.option("--until", type=options.SINCE, help="Count up to then. Default: all of it.")
@prices_option
@prometheus_options("Tell used GPU-hours from idle ones")
@output_option("csv")
def usage(
    files: tuple[str, ...],
    by: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    prices: Path | None,
    prometheus: Prometheus | None,
    output: str,
) -> None:
    """Add up GPU-hours from the audit logs of both processes.

    A FILE may be compressed (gzip); without any, standard input is read. A pod counts as long as it holds its quota: from its
    creation, or from its start if it waited in line, to its end.

    Exit codes: 0; 1 if no line counts a pod, or a FILE has no line of an audit log, or is truncated; 2 if a FILE, the prices or
    Prometheus cannot be read, or a class has no price.
    """
    if since and until and until <= since:
        raise click.UsageError("--until must be later than --since")
    if prometheus and not since:
        raise click.UsageError("--prometheus-url requires --since: from then on, use is read")
    by = tuple(dict.fromkeys(by))
    priced = read_prices(prices) if prices else None
    use = _use_reader(prometheus, since, until) if prometheus and since else None
    summed = gpu_hours.Usage([gpu_hours.GroupBy(each) for each in by], since=since, until=until, use=use)
    lines = _read_logs(files or (gpu_hours.STDIN,), summed)
    groups = summed.groups()
    if priced and (missing := priced.missing(gpu_class for group in groups for gpu_class in group.by_class)):
        fail_with([f"{prices}: {each}" for each in _without_price(missing, groups)], "; no amount is printed")
    cents = in_cents([priced.cost(group.by_class) if priced else ZERO for group in groups])
    rows = [
        Row(each.group, each.hours, each.use, each.objects, cost, gpu_hours.Interval(each.first, each.last))
        for each, cost in zip(groups, cents, strict=True)
    ]
    columns = Columns(priced, use is not None)
    if output in STRUCTURED:
        print_value(output, _document(by, rows, columns, lines, summed))
    elif output == "csv":
        echo_document(_csv(by, rows, columns, summed.coverage))
    elif summed.usage_lines:
        _print_table(Screen(), by, rows, columns)
    screen = Screen(stderr=True)
    for note in (
        (*_default_prices(priced, groups), *_note_sentences(lines, summed))
        if output not in STRUCTURED
        else ()
    ):
        screen.paragraph(note, hanging=0)
    _exit_if_incomplete(lines, summed)


def _exit_if_incomplete(lines: gpu_hours.Counts, usage: gpu_hours.Usage) -> None:
    """End with an error if a total may be low, or zero, because something was not understood."""
    none = [] if usage.usage_lines else [f"{lines.lines:,} lines read, none counts a pod"]
    if problems := [*lines.problems, *none]:
        print_errors(problems)
        sys.exit(FAILED)


def _read_logs(files: Sequence[str], usage: gpu_hours.Usage) -> gpu_hours.Counts:
    lines = gpu_hours.Counts()
    try:
        # Only lines of the controller (`counted`, `counting`) and of /validate count.
        wanted = gpu_hours.audit_lines(files, lines, lambda raw: b"count" in raw or b"validate" in raw)
        with progress("reading audit logs"):
            usage.read(wanted)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}")
    usage.finish(now().timestamp())
    return lines


def _use_reader(
    prometheus: Prometheus, since: datetime, until: datetime | None
) -> Callable[[gpu_hours.AuditLine], float | None]:
    """Return a function: audit line → measured utilization of its object. Raises PrometheusError."""
    pods = read_use(prometheus, since, min(until or now(), now()))
    return partial(use_of, pods=pods, resource_mapping=load_directory(None).resource_mapping)


def _without_price(missing: Sequence[str], groups: Iterable[gpu_hours.GroupUsage]) -> Iterator[str]:
    """Yield a sentence for each class that neither `classes` nor `default` has a price for."""
    held = total(group.by_class for group in groups)
    for name in missing:
        hours = format_amount(held[name])
        if name == gpu_hours.UNKNOWN_CLASS:
            yield f"default: Required value: {hours} GPU-hours are of pods whose class is not known"
        else:
            yield f"{field_path(('classes', name))}: Required value, or default: {hours} GPU-hours are of this class"


def _document(
    by: Sequence[str],
    rows: Sequence[Row],
    columns: Columns,
    lines: gpu_hours.Counts,
    usage: gpu_hours.Usage,
) -> dict[str, object]:
    """Return what `-o json` prints: GPU-hours as a number, and exactly as text, `3/2`; money as text, `12.50`."""
    return {
        "by": by,
        "groups": [
            {
                **dict(zip(by, row.names, strict=True)),
                **_since_until(row.held),
                **_figures_document(row, columns),
                "objects": row.objects,
            }
            for row in rows
        ],
        **_figures_document(_sum_row("total", rows), columns),
        **({"currency": columns.prices.currency} if columns.prices else {}),
        "lines": lines.lines,
        "unreadableLines": lines.unreadable + usage.unreadable,
        "openEnded": usage.open_ended,
        "onlyAdmitted": usage.admitted_without_usage,
        "usageLines": usage.usage_lines,
        "fileProblems": lines.problems,
        "log": _since_until(usage.coverage.log) or None,
        "gaps": [*map(_since_until, usage.coverage.gaps)],
        "gapHours": usage.coverage.gap_seconds / 3600,
    }


def _figures_document(row: Row, columns: Columns) -> dict[str, object]:
    return {
        "gpuHours": float(row.hours),
        "gpuHoursExact": str(row.hours),
        **(dict(zip(USE_COLUMNS, row.use, strict=True)) if columns.has_use else {}),
        **({"amount": money(row.cents)} if columns.prices else {}),
    }


def _since_until(interval: gpu_hours.Interval | None) -> dict[str, str]:
    """Return both moments; nothing of no interval."""
    moments = [timestamp(datetime.fromtimestamp(seconds, UTC)) for seconds in interval or ()]
    return dict(zip(("since", "until"), moments, strict=False))


def _csv(by: Sequence[str], rows: Sequence[Row], columns: Columns, coverage: gpu_hours.Coverage) -> str:
    """Return a table by RFC 4180, a row for each group: no sum, so that a spreadsheet may add up the columns."""
    prices, text = columns.prices, io.StringIO()
    writer = csv.writer(text)
    use, costs = USE_COLUMNS if columns.has_use else (), ("amount", "currency") if prices else ()
    log = "/".join(_since_until(coverage.log).values())
    gaps = " ".join("/".join(_since_until(gap).values()) for gap in coverage.gaps)
    writer.writerow([*by, "since", "until", "gpuHours", *use, "objects", *costs, "log", "gaps"])
    for row in rows:
        hours = (row.hours, *map(Fraction, row.use if columns.has_use else ()))
        costs = (money(row.cents), prices.currency) if prices else ()
        cells = [*map(_csv_cell, row.names), *_since_until(row.held).values(), *map(_decimal_text, hours)]
        writer.writerow([*cells, row.objects, *costs, log, gaps])
    return text.getvalue()


def _csv_cell(name: str) -> str:
    """Return a name that no spreadsheet takes for a formula: users, and owners in a log, have names that somebody chose.

    Some locales separate cells by semicolons, so a semicolon could start a cell with a formula.
    """
    text = printable(name).replace(";", ",")
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def _decimal_text(hours: Fraction) -> str:
    whole, parts = divmod(int(hours * MICROHOURS + Fraction(1, 2)), MICROHOURS)
    return f"{whole}.{parts:06}"


def _print_table(screen: Screen, by: Sequence[str], rows: Sequence[Row], columns: Columns) -> None:
    shown, rest = list(rows[:MAX_SHOWN]), rows[MAX_SHOWN:]
    if rest:
        shown.append(_sum_row(f"… and {len(rest)} more (-o json has all)", rest))
    shown.append(_sum_row("total", rows))
    groups = [[grouping.upper() for grouping in by], *(row.names for row in shown)]
    # The name of a sum, which is one text, may stand over all columns.
    widths = [
        min(max(len(group[at]) for group in groups if len(group) == len(by)), WIDEST_NAME)
        for at in range(len(by))
    ]

    def line(group: Sequence[str], *cells: str) -> str:
        names = "  ".join(f"{name:<{width}}" for name, width in zip(group, widths, strict=False))
        return "  ".join((f"{names:<{sum(widths) + 2 * len(widths) - 2}}", *cells))

    def cells(hours: Sequence[str], objects: str, cost: str) -> list[str]:
        costs = [f"{cost:>12}"] if columns.prices else []
        return [*(f"{hour:>10}" for hour in hours[: 4 if columns.has_use else 1]), f"{objects:>7}", *costs]

    currency = columns.prices.currency if columns.prices else ""
    screen.line(
        line(groups[0], *cells(("GPU-HOURS", "USED", "IDLE", "UNKNOWN"), "OBJECTS", currency)), "bold"
    )
    for row in shown:
        hours = [f"{number:.2f}" for number in (float(row.hours), *row.use)]
        screen.line(line(row.names, *cells(hours, str(row.objects), money(row.cents))))


def _sum_row(name: str, rows: Sequence[Row]) -> Row:
    return Row(
        (name,),
        sum((row.hours for row in rows), ZERO),
        tuple(sum(row.use[at] for row in rows) for at in range(len(USE_COLUMNS))),
        sum(row.objects for row in rows),
        sum(row.cents for row in rows),
    )


def _default_prices(prices: Prices | None, groups: Sequence[gpu_hours.GroupUsage]) -> Iterator[str]:
    """Yield a note on classes that got the default price: a misspelt class shows here."""
    hours = total(group.by_class for group in groups)
    unnamed = sorted(hours.keys() - prices.classes.keys()) if prices and prices.classes else []
    if unnamed:
        amount = format_amount(sum((hours[gpu_class] for gpu_class in unnamed), ZERO))
        yield f"{amount} GPU-hours have the default price, since the prices do not name their classes: {', '.join(unnamed)}."


def _note_sentences(lines: gpu_hours.Counts, usage: gpu_hours.Usage) -> Iterator[str]:
    if usage.open_ended:
        pods = counted(usage.open_ended, "pod or claim", "pods and claims")
        yield (
            f"{pods} without a line that says when it ended: each counts as long as the controller that wrote its last line "
            "has further lines."
        )
    if usage.admitted_without_usage:
        pods = counted(usage.admitted_without_usage, "pod or claim was", "pods and claims were")
        why = "never stored, or no controller led meanwhile"
        yield f"{pods} admitted, but in no line of the controller, and not counted: {why}."
    if unreadable := lines.unreadable + usage.unreadable:
        yield f"{unreadable} of {counted(lines.lines, 'line')} left out: they cannot be read as lines of an audit log."
    coverage = usage.coverage
    if coverage.log and coverage.gaps:
        yield "The log begins at {} and ends at {}.".format(*_since_until(coverage.log).values())
    if coverage.gap_seconds > TAKE_OVER_SECONDS:
        yield (
            f"No controller wrote for {coverage.gap_seconds / 3600:.1f} h: {_gaps_text(coverage.gaps)}. What began and ended "
            "then is not in the total, and what ended then counts to its last line: how many GPU-hours are missing is not known."
        )


def _gaps_text(intervals: Sequence[gpu_hours.Interval]) -> str:
    longest = sorted(intervals, key=lambda interval: interval.since - interval.until)[:MAX_GAPS]
    shown = ", ".join(" to ".join(_since_until(interval).values()) for interval in sorted(longest))
    return shown + (f" and {len(intervals) - MAX_GAPS} more" if len(intervals) > MAX_GAPS else "")

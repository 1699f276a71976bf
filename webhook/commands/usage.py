"""`gpu-admission usage`: GPU-hours by namespace, owner, class or author, from audit logs."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from fractions import Fraction

import click

from policies.quota.amounts import NOTHING
from webhook.commands.options import Since, output_option
from webhook.commands.output import Screen, counted, fail, print_as
from webhook.tools.audit import STDIN, By, Counts, Total, Usage, audit_lines

WIDEST_NAME = 56
MAX_SHOWN = 40
"""Groups in the text; owners may be thousands."""


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE|-]...")
@click.option(
    "--by",
    type=click.Choice([each.value for each in By]),
    multiple=True,
    default=(By.NAMESPACE.value,),
    help="How GPU-hours are grouped; several times: by each combination.",
)
@click.option(
    "--since",
    type=Since(),
    help="Count from then on: 24h, 7d, a date (it begins at 00:00 UTC) or a time. Left out: all of it.",
)
@click.option("--until", type=Since(), help="Count up to then. Left out: all of it.")
@output_option("text", "json")
def usage(
    files: tuple[str, ...], by: tuple[str, ...], since: datetime | None, until: datetime | None, output: str
) -> None:
    """Add up GPU-hours from the audit logs of both processes.

    A FILE may end in .gz; without any, standard input is read. A pod counts as long as it holds its quota: from its creation, or
    from its start if it waited in line, to its end.

    Exit codes: 0, or 2 if a FILE cannot be read.
    """
    if since and until and until <= since:
        raise click.UsageError("--until must be later than --since")
    by = tuple(dict.fromkeys(by))
    lines, found = Counts(), Usage([By(each) for each in by], since=since, until=until)
    try:
        # Most lines are of /mutate, and need no decoding.
        wanted = audit_lines(files or (STDIN,), lines, lambda each: b"count" in each or b"validate" in each)
        found.read(wanted)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}")
    found.finish()
    totals = found.totals()
    print_as(output, _document(by, totals, lines, found), lambda screen: _print(screen, by, totals))
    for note in _notes(lines, found) if output == "text" else ():
        Screen(stderr=True).paragraph(note, hanging=0)


def _document(by: Sequence[str], totals: list[Total], lines: Counts, found: Usage) -> dict[str, object]:
    """Return what `-o json` prints: GPU-hours as a number, and exactly as text, `3/2`."""
    return {
        "by": by,
        "groups": [
            {**dict(zip(by, group, strict=True)), **_hours(hours), "objects": objects}
            for group, hours, objects in totals
        ],
        **_hours(sum((hours for _, hours, _ in totals), NOTHING)),
        "lines": lines.lines,
        "unreadableLines": lines.unreadable + found.unreadable,
        "openEnded": found.open_ended,
        "onlyAdmitted": found.only_admitted,
    }


def _hours(hours: Fraction) -> dict[str, object]:
    return {"gpuHours": float(hours), "gpuHoursExact": str(hours)}


def _print(screen: Screen, by: Sequence[str], totals: list[Total]) -> None:
    rows, others = totals[:MAX_SHOWN], totals[MAX_SHOWN:]
    if others:
        rows.append(_sum(f"… and {len(others)} more (-o json has all)", others))
    rows.append(_sum("total", totals))
    groups = [[each.upper() for each in by], *(group for group, _, _ in rows)]
    # The name of a sum, which is one text, may stand over all columns.
    widths = [
        min(max(len(group[at]) for group in groups if len(group) == len(by)), WIDEST_NAME)
        for at in range(len(by))
    ]

    def line(group: Sequence[str], *cells: str) -> str:
        names = "  ".join(f"{name:<{width}}" for name, width in zip(group, widths, strict=False))
        return "  ".join((f"{names:<{sum(widths) + 2 * len(widths) - 2}}", *cells))

    screen.line(line(groups[0], f"{'GPU-HOURS':>10}", f"{'PODS':>7}"), "bold")
    for group, hours, objects in rows:
        screen.line(line(group, f"{float(hours):>10.2f}", f"{objects:>7}"))


def _sum(name: str, totals: list[Total]) -> Total:
    return (name,), sum((hours for _, hours, _ in totals), NOTHING), sum(objects for _, _, objects in totals)


def _notes(lines: Counts, found: Usage) -> Iterator[str]:
    if found.open_ended:
        pods = counted(found.open_ended, "pod or claim", "pods and claims")
        yield (
            f"{pods} without a line that says when it ended: each counts as long as the controller that wrote its last line "
            "has further lines."
        )
    if found.only_admitted:
        pods = counted(found.only_admitted, "pod or claim was", "pods and claims were")
        why = "never stored, or no controller led meanwhile"
        yield f"{pods} admitted, but in no line of the controller, and not counted: {why}."
    if unreadable := lines.unreadable + found.unreadable:
        total = counted(lines.lines, "line")
        yield f"{unreadable} of {total} left out: they cannot be read as lines of an audit log."

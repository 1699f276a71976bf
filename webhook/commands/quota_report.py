"""What `gpu-admission quota` prints: bars for people, JSON for programs."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import click
import msgspec

from policies.quota.amounts import CLASSES, GPUS, NOTHING, Vector, format_amount, texts
from policies.quota.ledger.quota_ledger import QuotaLedger
from webhook.commands.output import Screen, counted
from webhook.controller.conditions import described

NAME_COLUMN = 30
BAR = 24
USED, RESERVED, FREE = "█", "▒", "·"


class HolderOfQuota(msgspec.Struct, frozen=True):
    """A live pod or claim and what it is charged; `node` is empty where it is bound to none."""

    kind: str
    name: str
    node: str
    demand: Vector


class QuotaReport(msgspec.Struct, frozen=True):
    """A namespace's quota; `row` is None where it cannot be read, and `problem` says why. `objects` is None if not asked for."""

    namespace: str
    row: QuotaLedger | None
    problem: str = ""
    objects: tuple[HolderOfQuota, ...] | None = None


def print_text(reports: Sequence[QuotaReport]) -> None:
    screen = Screen()
    for index, report in enumerate(reports):
        if index:
            screen.line()
        _report_text(screen, report)


def _report_text(screen: Screen, report: QuotaReport) -> None:
    row = report.row
    if row is None:
        screen.line(report.namespace, "bold")
        screen.paragraph(f"error: {report.problem}", indent=2, style="red")
        return
    screen.line(f"{report.namespace}  {_state(row)}", "bold")
    screen.line(f"  {'':<{NAME_COLUMN}} {'':<{BAR}} used + reserved of hard", "dim")
    for key in sorted(row.hard, key=_order):
        screen.line(f"  {_dimension(row, key)}", _style(row, key))
    for condition in row.conditions:
        # Only what is not as it should be.
        if (condition.status == "True") != (condition.type == "Ready"):
            screen.paragraph(f"{condition.type.lower()}: {condition.message}", indent=2, style="yellow")
    if report.objects is None:
        _largest(screen, row)
    else:
        _objects(screen, report.objects)


def _state(row: QuotaLedger) -> str:
    holds = described(row.conditions)
    if row.used is None or row.uncounted:
        return "not counted yet: every GPU pod is refused"
    words = [word for kind, word in (("Exceeded", "exceeded"), ("Stale", "stale")) if holds.get(kind)]
    return ", ".join(words) or "ready"


def _dimension(row: QuotaLedger, key: str) -> str:
    used, reserved, hard = _amounts(row, key)
    name = key if len(key) <= NAME_COLUMN else f"{key[: NAME_COLUMN - 1]}…"
    amounts = f"{format_amount(used)} + {format_amount(reserved)} of {format_amount(hard)}"
    return f"{name:<{NAME_COLUMN}} {bar(used, reserved, hard)} {amounts}"


def bar(used: Fraction, reserved: Fraction, hard: Fraction) -> str:
    """Return a bar of BAR characters. Whatever is used shows, and only what is full looks full."""
    if hard <= NOTHING:
        return (USED if used else RESERVED if reserved else FREE) * BAR
    full = _cells(used, hard)
    held = max(_cells(used + reserved, hard) - full, int(reserved > NOTHING and full < BAR))
    return (USED * full + RESERVED * held).ljust(BAR, FREE)


def _cells(amount: Fraction, hard: Fraction) -> int:
    if amount >= hard:
        return BAR
    return min(max(int(amount / hard * BAR), int(amount > NOTHING)), BAR - 1)


def _amounts(row: QuotaLedger, key: str) -> tuple[Fraction, Fraction, Fraction]:
    return (row.used or {}).get(key, NOTHING), row.reservations.demand.get(key, NOTHING), row.hard[key]


def _style(row: QuotaLedger, key: str) -> str:
    used, reserved, hard = _amounts(row, key)
    if used > hard:
        return "red"
    return "yellow" if used + reserved >= hard else "green"


def _order(key: str) -> tuple[int, str]:
    return (0 if key == GPUS else 1 if key.startswith(CLASSES) else 2), key


def _largest(screen: Screen, row: QuotaLedger) -> None:
    for key in sorted(row.holders, key=_order):
        told = ", ".join(f"{holder.name} {holder.amount}" for holder in row.holders[key])
        if told:
            screen.paragraph(f"most of {key}: {told}", indent=2)


def _objects(screen: Screen, objects: Sequence[HolderOfQuota]) -> None:
    screen.line(f"  held by {counted(len(objects), 'object')}{':' if objects else ''}")
    for held in objects:
        place = f" on {held.node}" if held.node else ""
        amounts = ", ".join(
            f"{key} {format_amount(held.demand[key])}" for key in sorted(held.demand, key=_order)
        )
        screen.paragraph(f"{held.kind} {held.name}{place}: {amounts}", indent=4)


def print_json(reports: Sequence[QuotaReport]) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(document(reports)), indent=2))


def document(reports: Sequence[QuotaReport]) -> dict[str, Any]:
    """Return what `-o json` prints.

    `quotas[]`: namespace, problem ("" if it could be read), and of one that could: unpinned; used, reserved, hard (amounts
    as text, "2/7"; used is null before it was counted), reservations (their number), conditions[], holders (largest, by
    dimension), and, of one namespace asked for, objects[] (kind, name, node, demand).
    """
    return {"quotas": [dict(_document(report)) for report in reports]}


def _document(report: QuotaReport) -> Iterator[tuple[str, Any]]:
    yield "namespace", report.namespace
    yield "problem", report.problem
    row = report.row
    if row is not None:
        yield "unpinned", row.unpinned.value
        yield "used", None if row.used is None else texts(row.used)
        yield "reserved", texts(row.reservations.demand)
        yield "hard", texts(row.hard)
        yield "reservations", len(row.reservations)
        yield "conditions", row.conditions
        yield "holders", row.holders
    if report.objects is not None:
        yield (
            "objects",
            [
                {"kind": each.kind, "name": each.name, "node": each.node, "demand": texts(each.demand)}
                for each in report.objects
            ],
        )

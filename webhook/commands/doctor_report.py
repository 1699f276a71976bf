"""What `gpu-admission doctor` prints: findings for people, JSON for programs."""

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from webhook.commands.output import Screen, counted
from webhook.tools.doctor.check import Finding, Result, Severity

STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow"}
INDENT = 9
"""The width of `warning` and two blanks."""


def print_text(results: Sequence[Result]) -> None:
    screen = Screen()
    findings = [finding for result in results for finding in result.findings]
    for finding in sorted(findings, key=lambda each: each.severity is not Severity.ERROR):
        _print_finding(screen, finding)
    for result in results:
        for note in result.notes:
            screen.paragraph(f"note     {note.text} ({result.check.id})", hanging=INDENT, style="dim")
        for missed in result.not_checked:
            screen.paragraph(
                f"not checked: {result.check.title}: {missed.why} ({result.check.id})", style="yellow"
            )
    screen.line(summary(results), "green" if is_healthy(results) else "")


def _print_finding(screen: Screen, finding: Finding) -> None:
    screen.paragraph(
        f"{finding.severity.value:<7}  {finding.object} {finding.message} [{finding.id}]",
        hanging=INDENT,
        style=STYLES[finding.severity],
    )
    screen.paragraph(f"to mend: {finding.remedy}", indent=INDENT)


def summary(results: Sequence[Result]) -> str:
    findings = sum(len(result.findings) for result in results)
    missed = sum(bool(result.not_checked) for result in results)
    parts = [counted(len(results), "check"), counted(findings, "finding") if findings else "no findings"]
    if missed:
        parts.append(f"{missed} not checked, or not in full")
    return ", ".join(parts)


def is_healthy(results: Sequence[Result]) -> bool:
    """Whether everything was looked at and nothing found: what could not be checked is not fine."""
    return not any(result.findings or result.not_checked for result in results)


def print_json(results: Sequence[Result]) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(document(results)), indent=2))


def document(results: Sequence[Result]) -> dict[str, Any]:
    """Return what `-o json` prints.

    `healthy`; `checks[]`: id, title, findings[] (id, severity, object, message, remedy), notChecked[] and notes[] as text.
    """
    return {
        "healthy": is_healthy(results),
        "checks": [
            {
                "id": result.check.id,
                "title": result.check.title,
                "findings": result.findings,
                "notChecked": [each.why for each in result.not_checked],
                "notes": [each.text for each in result.notes],
            }
            for result in results
        ],
    }

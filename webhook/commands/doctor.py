"""`gpu-admission doctor`: what is wrong with an installation, and how to fix it."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from webhook.cluster.objects import InstallationNames, decode_version
from webhook.commands import options
from webhook.commands.options import ClusterChoice
from webhook.commands.output import FAILED, Screen, counted, print_as, progress
from webhook.tools.doctor.check import CheckResult, DoctorFinding, DoctorSeverity
from webhook.tools.doctor.checks import CHECKS, run_checks
from webhook.tools.installed_cluster import InstalledCluster

DEFAULTS = InstallationNames()
STYLES = {DoctorSeverity.ERROR: "red", DoctorSeverity.WARNING: "yellow"}
MAX_ALIKE = 3
"""Findings that only differ in the object and are printed one by one; -o json has all."""
INDENT = 9
"""The width of `warning` and two blanks."""


@click.command()
@options.cluster_options
@options.install_namespace_option
@click.option(
    "--canary-namespace", default=DEFAULTS.canary_namespace, help="Where a GPU pod is created on a dry run."
)
@click.option(
    "--certificate-secret", "secret", default=DEFAULTS.secret, help="The Secret of the certificate."
)
@options.config_option("the cluster's documents")
@options.output_option()
def doctor(
    cluster: ClusterChoice, config: Path | None, output: str, install_namespace: str, **names: str
) -> None:
    """Check an installation from end to end.

    Configurations, certificate, rights, nodes, quotas, and a GPU pod on a dry run.

    Nothing is changed.

    Exit codes: 0 all was checked and nothing found; 1 if anything was found or not checked; 2 if the cluster cannot be reached.
    """
    with cluster.client() as api:
        decode_version(api.get("/version"))
    installed = InstalledCluster(
        api, InstallationNames(namespace=install_namespace, **names), config=config, now=datetime.now(UTC)
    )
    with progress("check ") as shown:
        results = list(run_checks(installed, lambda number, title: shown(f"{number}/{len(CHECKS)} {title}")))
    print_as(output, document(results), lambda screen: print_text(screen, results))
    if not is_healthy(results):
        sys.exit(FAILED)


def print_text(screen: Screen, results: Sequence[CheckResult]) -> None:
    findings = [finding for result in results for finding in result.findings]
    findings.sort(key=lambda finding: finding.severity is not DoctorSeverity.ERROR)
    for remedy, fixed in groupby(findings, key=lambda finding: finding.remedy):
        for each, further in _merge_alike(fixed):
            more = f" (and {further} more)" if further else ""
            text = f"{each.severity.value:<7}  {each.object}{more} {each.message} [{each.id}]"
            screen.paragraph(text, hanging=INDENT, style=STYLES[each.severity])
        screen.paragraph(f"fix: {remedy}", indent=INDENT)
    for result in results:
        check = result.check
        for note in result.notes:
            screen.paragraph(f"note     {note} ({check.id})", hanging=INDENT, style="dim")
        for missed in result.not_checked:
            if not missed.for_administrators:
                screen.paragraph(f"not checked: {check.title}: {missed.why} ({check.id})", style="yellow")
    if forbidden := sum(any(each.for_administrators for each in result.not_checked) for result in results):
        need = "needs" if forbidden == 1 else "need"
        text = f"not checked: {counted(forbidden, 'check')} {need} rights of an administrator (-o json says which)"
        screen.paragraph(text, style="yellow")
    screen.line(summary(results), "green" if is_healthy(results) else "")


def _merge_alike(findings: Iterable[DoctorFinding]) -> Iterator[tuple[DoctorFinding, int]]:
    """Yield each finding with 0; of many that only differ in the object the first, with the number of the others."""
    for _, alike in groupby(findings, key=lambda finding: (finding.id, finding.message)):
        first, *further = alike
        if len(further) < MAX_ALIKE:
            yield from ((finding, 0) for finding in (first, *further))
        else:
            yield first, len(further)


def summary(results: Sequence[CheckResult]) -> str:
    findings = sum(len(result.findings) for result in results)
    missed = sum(bool(result.not_checked) for result in results)
    parts = [counted(len(results), "check"), counted(findings, "finding") if findings else "no findings"]
    if missed:
        parts.append(f"{missed} not checked, or not in full")
    return ", ".join(parts)


def is_healthy(results: Iterable[CheckResult]) -> bool:
    """Whether everything was checked, without findings."""
    return not any(result.findings or result.not_checked for result in results)


def document(results: Sequence[CheckResult]) -> dict[str, Any]:
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
                "notChecked": [missed.why for missed in result.not_checked],
                "notes": result.notes,
            }
            for result in results
        ],
    }

"""`gpu-admission check`: the webhook's own engine on manifests, without a cluster.

Prints text for people, a diff, YAML for kubectl or JSON for programs.
"""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from difflib import unified_diff
from itertools import groupby
from pathlib import Path
from typing import Any

import click
import msgspec

from policies.pods.field_paths import path_parts
from policies.policy import TemplateMode
from webhook.commands.cluster_options import BAD_INPUT, end_with
from webhook.commands.output import Screen, counted, print_json
from webhook.commands.parameters import config_option, now_option, output_option
from webhook.configuration.documents import LocatedProblem
from webhook.configuration.loader import ConfigurationError, load_directory
from webhook.configuration.yaml_documents import dump_document
from webhook.serving.engine import Engine, EvaluatedFinding, Outcome
from webhook.tools.check.manifests import Manifest, read_manifests
from webhook.tools.check.offline import ManifestResult, ManifestVerdict, Run

REFUSED = 1
STYLES = {
    ManifestVerdict.REFUSED: "bold red",
    ManifestVerdict.CHANGED: "bold cyan",
    ManifestVerdict.ACCEPTED: "green",
    ManifestVerdict.SKIPPED: "dim",
}
OUTCOME_STYLES = {Outcome.DENIED: "red", Outcome.WARNED: "yellow", Outcome.AUDITED: "dim"}
PREFIXES = {Outcome.DENIED: "", Outcome.WARNED: "warning: ", Outcome.AUDITED: "audit only: "}
DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}
SUMMARY = {
    ManifestVerdict.REFUSED: "refused",
    ManifestVerdict.CHANGED: "would change",
    ManifestVerdict.ACCEPTED: "ok",
}
COLUMN = max(len(verdict.value) for verdict in ManifestVerdict) + 2


@click.command()
@click.option(
    "-f",
    "--filename",
    "sources",
    multiple=True,
    required=True,
    help='File, directory, or "-" for stdin; repeatable.',
)
@click.option("-R", "--recursive", is_flag=True, help="Read directories recursively.")
@config_option("the built-in defaults")
@click.option(
    "-n", "--namespace", default="default", show_default=True, help="Namespace of objects that name none."
)
@output_option("text", "yaml", "json", "diff")
@now_option("Answer for this time, when exemptions and pauses may have ended")
def check(
    *,
    sources: tuple[str, ...],
    recursive: bool,
    config: Path | None,
    namespace: str,
    output: str,
    now: datetime,
) -> None:
    """Show what the webhook would inject into manifests and what it would deny, where and why.

    Exit codes: 0 everything would be admitted, 1 something would be denied, 2 something could not be read.
    """
    try:
        engine = Engine(load_directory(config))
    except ConfigurationError as error:
        end_with(error.problems, " in the configuration; nothing was checked")
    kinds = engine.configuration.workload_kinds
    found = read_manifests(sources, recursive=recursive, namespace=namespace, kinds=kinds)
    results = Run(found.manifests, engine, now).results()
    PRINTERS[output](results, found.problems)
    if found.problems:
        sys.exit(BAD_INPUT)
    if any(result.verdict is ManifestVerdict.REFUSED for result in results):
        sys.exit(REFUSED)


def print_text(results: Sequence[ManifestResult], problems: Sequence[LocatedProblem]) -> None:
    screen = Screen()
    for result in results:
        _print_object(screen, result)
    if results:
        screen.line()
    _print_problems(problems)
    screen.paragraph(_summary(results, problems), hanging=0, style="bold")


def _print_object(screen: Screen, result: ManifestResult) -> None:
    manifest, verdict = result.manifest, result.verdict
    screen.line(f"{verdict.value:<{COLUMN}}{_place(manifest)}  {_title(manifest)}", STYLES[verdict])
    for found in result.findings():
        line = f"{_place(manifest, found)}: {PREFIXES[found.outcome]}{found.finding.sentence()}"
        screen.paragraph(line, indent=COLUMN, style=OUTCOME_STYLES[found.outcome])
    if verdict is ManifestVerdict.REFUSED and not manifest.is_pod:
        screen.paragraph(_consequence(result), indent=COLUMN)
    for pod in result.pods:
        if pod.exemption is not None:
            screen.paragraph(f"exempted by policy {pod.policy.name}: {pod.exemption.reason}", indent=COLUMN)
        if pod.changes and not pod.refused:
            if not manifest.is_pod:
                screen.line(" " * COLUMN + f"pods of {pod.place.path} would get:")
            for rule, changes in groupby(pod.changes, key=lambda change: change.rule):
                what = "; ".join(change.change.what for change in changes)
                screen.paragraph(f"{rule}: {what}", indent=COLUMN + 2)


def _consequence(result: ManifestResult) -> str:
    """Return what happens to a workload whose pods would be denied, which depends on the policy."""
    if any(pod.refused and pod.policy.templates is TemplateMode.ENFORCE for pod in result.pods):
        return f"the {result.manifest.kind} itself is denied (policy: templates: enforce)"
    return f"the {result.manifest.kind} itself is admitted with a warning; its pods are denied"


def _summary(results: Sequence[ManifestResult], problems: Sequence[LocatedProblem]) -> str:
    """Return the last line, e.g. `12 objects: 2 refused, 5 would change, 4 ok, 1 skipped (…: Service)`."""
    number = Counter(result.verdict for result in results)
    parts = [f"{number[verdict]} {word}" for verdict, word in SUMMARY.items()]
    if number[ManifestVerdict.SKIPPED]:
        skipped = _skipped_kinds(results).items()
        kinds = ", ".join(f"{kind} ×{count}" if count > 1 else kind for kind, count in skipped)
        parts.append(f"{number[ManifestVerdict.SKIPPED]} skipped (not known to have pods: {kinds})")
    text = f"{counted(len(results), 'object')}: {', '.join(parts)}"
    return f"{text}; {counted(len(problems), 'problem')} in the input" if problems else text


def _skipped_kinds(results: Sequence[ManifestResult]) -> dict[str, int]:
    """Return the number of objects by kind, as kubectl names kinds (`Job.batch.volcano.sh`)."""
    skipped = (result.manifest for result in results if result.verdict is ManifestVerdict.SKIPPED)
    kinds = Counter(".".join(filter(None, (each.kind, each.group))) for each in skipped)
    return dict(sorted(kinds.items()))


def _print_problems(problems: Sequence[LocatedProblem]) -> None:
    screen = Screen(stderr=True)
    for problem in problems:
        screen.paragraph(f"error: {problem}", style="red")


def print_diff(results: Sequence[ManifestResult], problems: Sequence[LocatedProblem]) -> None:
    """Print unified diffs of the objects as /mutate sees them and as they (or their pods) would be admitted."""
    screen = Screen()
    for result in results:
        if result.verdict is not ManifestVerdict.CHANGED:
            continue
        of_pod = result.manifest.is_pod
        remark = "as admitted" if of_pod else "as its pods would be; the object itself is not changed"
        name = f"{_place(result.manifest)} {_title(result.manifest)}"
        before = dump_document(result.submitted()).splitlines()
        after = dump_document(result.admitted()).splitlines()
        for line in unified_diff(before, after, name, f"{name} ({remark})", lineterm=""):
            screen.line(line, DIFF_STYLES.get(line[:1], ""))
    _print_left_out(results, problems)


def print_yaml(results: Sequence[ManifestResult], problems: Sequence[LocatedProblem]) -> None:
    for result in results:
        if result.verdict is ManifestVerdict.REFUSED:
            continue
        click.echo("---")
        if result.verdict is ManifestVerdict.CHANGED and not result.manifest.is_pod:
            click.echo("# The pod template is shown as its pods would be; the object itself is not changed.")
        click.echo(dump_document(result.admitted()), nl=False)
    _print_left_out(results, problems)


def _print_left_out(results: Sequence[ManifestResult], problems: Sequence[LocatedProblem]) -> None:
    screen = Screen(stderr=True)
    for result in results:
        if result.verdict is ManifestVerdict.REFUSED:
            manifest = result.manifest
            screen.line(f"refused: {_place(manifest)} {_title(manifest)}", "red")
            for found in result.findings():
                if found.outcome is Outcome.DENIED:
                    screen.paragraph(f"{_place(manifest, found)}: {found.finding.sentence()}", indent=2)
    _print_problems(problems)


def document(results: Sequence[ManifestResult], problems: Sequence[LocatedProblem]) -> dict[str, Any]:
    """Return the content of `-o json`, which docs/check.md describes."""
    number = Counter(result.verdict for result in results)
    return {
        "objects": [_object_document(result) for result in results],
        "problems": [
            {"file": each.file, "line": each.line, "path": each.path, "message": each.message}
            for each in problems
        ],
        "summary": {
            "objects": len(results),
            **{verdict.value: number[verdict] for verdict in ManifestVerdict},
            "problems": len(problems),
            "skippedKinds": _skipped_kinds(results),
        },
    }


def _object_document(result: ManifestResult) -> dict[str, Any]:
    manifest = result.manifest
    return {
        "file": manifest.file,
        "line": manifest.line_of(),
        "apiVersion": manifest.api_version,
        "kind": manifest.kind,
        "namespace": manifest.namespace,
        "name": manifest.name,
        "verdict": result.verdict,
        "findings": [_finding_document(manifest, warning) for warning in result.warnings],
        "pods": [
            {
                "path": pod.place.path,
                "policy": {
                    name: getattr(pod.policy, name) for name in ("name", "version", "why", "templates")
                },
                "exemption": pod.exemption and {"reason": pod.exemption.reason, "until": pod.exemption.until},
                "findings": [_finding_document(manifest, found) for found in pod.findings],
                "changes": [
                    {"rule": each.rule, **msgspec.structs.asdict(each.change)} for each in pod.changes
                ],
            }
            for pod in result.pods
        ],
    }


def _finding_document(manifest: Manifest, found: EvaluatedFinding) -> dict[str, Any]:
    finding = found.finding
    return {
        "outcome": found.outcome,
        "rule": finding.rule,
        "path": finding.path,
        "line": manifest.line_of(path_parts(finding.path)),
        "container": finding.container,
        "value": finding.value,
        "message": finding.message,
        "remedy": finding.remedy,
    }


def _place(manifest: Manifest, found: EvaluatedFinding | None = None) -> str:
    return f"{manifest.file}:{manifest.line_of(path_parts(found.finding.path) if found else ())}"


def _title(manifest: Manifest) -> str:
    name = manifest.name or "(no name)"
    # Unknown kinds may be cluster-scoped.
    return f"{manifest.kind} {manifest.namespace}/{name}" if manifest.is_known else f"{manifest.kind} {name}"


PRINTERS: dict[str, Callable[[Sequence[ManifestResult], Sequence[LocatedProblem]], None]] = {
    "text": print_text,
    "yaml": print_yaml,
    "json": lambda results, problems: print_json(document(results, problems)),
    "diff": print_diff,
}

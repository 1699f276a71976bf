"""`gpu-admission check`: the webhook's own engine on manifests, without a cluster."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from difflib import unified_diff
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import track as rich_track

from policies.pods.field_paths import path_parts
from policies.policy import TemplateMode
from webhook.commands.cluster_options import BAD_INPUT, end_with
from webhook.commands.output import Screen, counted, echo, print_json
from webhook.commands.parameters import config_option, now_option, output_option
from webhook.configuration.documents import LocatedProblem
from webhook.configuration.loader import ConfigurationError, load_directory
from webhook.configuration.yaml_documents import dump_document
from webhook.serving.engine import Engine, Outcome, Violation
from webhook.tools.check.manifests import Manifest, Manifests, read_manifests
from webhook.tools.check.offline import ManifestResult, ManifestVerdict, Run
from webhook.tools.check.reports import LEVELS, junit_report, sarif_log
from webhook.tools.check.run_context import device_classes
from webhook.tools.check.sources import sentences

T = TypeVar("T")

REFUSED = 1
STYLES = {
    ManifestVerdict.REFUSED: "bold red",
    ManifestVerdict.CHANGED: "bold cyan",
    ManifestVerdict.ACCEPTED: "green",
    ManifestVerdict.UNKNOWN: "yellow",
    ManifestVerdict.SKIPPED: "dim",
}
OUTCOME_STYLES = {Outcome.DENIED: "red", Outcome.WARNED: "yellow", Outcome.AUDITED: "dim", None: ""}
PREFIXES = {Outcome.DENIED: "", Outcome.WARNED: "warning: ", Outcome.AUDITED: "audit only: ", None: ""}
DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}
SUMMARY = {
    ManifestVerdict.REFUSED: "refused",
    ManifestVerdict.CHANGED: "would change",
    ManifestVerdict.ACCEPTED: "ok",
}
LARGE = 100
"""Files or objects from which on a terminal shows how far it is."""
LEFT_OUT = (ManifestVerdict.REFUSED, ManifestVerdict.UNKNOWN)
"""What `-o yaml` and `-o diff` list on stderr."""
COLUMN = max(len(verdict.value) for verdict in ManifestVerdict) + 2


@click.command()
@click.option(
    "-f",
    "--filename",
    "named",
    multiple=True,
    metavar="FILE",
    help='File, directory, or "-" for stdin; repeatable, or without -f at the end.',
)
@click.argument("files", nargs=-1)
@click.option("-R", "--recursive", is_flag=True, help="Read directories recursively.")
@click.option(
    "--ignore",
    multiple=True,
    metavar="GLOB",
    help="Leave out files and directories, by name or by path in the directory that is read; repeatable.",
)
@config_option("the built-in defaults")
@click.option(
    "-n", "--namespace", default="default", show_default=True, help="Namespace of objects that name none."
)
@output_option("text", "lines", "yaml", "json", "diff", "sarif", "junit")
@click.option("--strict", is_flag=True, help="Exit with 1 also where something is warned about.")
@now_option("Answer for this time, when exemptions and pauses may have ended")
def check(
    *,
    named: tuple[str, ...],
    files: tuple[str, ...],
    recursive: bool,
    ignore: tuple[str, ...],
    config: Path | None,
    namespace: str,
    output: str,
    strict: bool,
    now: datetime,
) -> None:
    """Show what the webhook would do to manifests, where and why.

    Exit codes: 0 nothing would be denied (--strict: or warned about), 1 something would be, 2 something could not be read.
    """
    if not (named or files):
        raise click.UsageError("Missing option '-f' / '--filename', or a file")
    try:
        configuration = load_directory(config)
        found = read_manifests(
            (*named, *files),
            recursive=recursive,
            namespace=namespace,
            kinds=configuration.workload_kinds,
            ignore=ignore,
            is_whole=output == "yaml",
            track=track,
        )
        if classes := device_classes(found.manifests):
            configuration = load_directory(config, device_classes=classes)
    except ConfigurationError as error:
        end_with(error.problems, " in the configuration; nothing was checked")
    run = Run(found.manifests, Engine(configuration), now)
    results = run.results(lambda items: track(items, "checking"))
    PRINTERS[output](results, found)
    if found.problems:
        sys.exit(BAD_INPUT)
    if any(result.verdict is ManifestVerdict.REFUSED for result in results):
        sys.exit(REFUSED)
    warned = any(each.outcome is Outcome.WARNED for result in results for each in result.findings())
    if strict and (found.warnings or warned):
        sys.exit(REFUSED)


def track(items: Sequence[T], doing: str, console: Console | None = None) -> Iterable[T]:
    """Pass the items through; for many of them a terminal shows how far it is."""
    console = console or Console(stderr=True)
    if len(items) < LARGE or not console.is_terminal:
        return items
    return rich_track(items, doing, console=console, transient=True)


def print_lines(results: Sequence[ManifestResult], found: Manifests) -> None:
    """Print each finding and problem as compilers do, `FILE:LINE: error: …`, which editors and CI systems read."""
    screen = Screen()
    for problems, level, style in (found.problems, "error", "red"), (found.warnings, "warning", "yellow"):
        for problem in problems:
            subject = f"{problem.path}: " if problem.path else ""
            place = f"{problem.file}:{problem.line or 1}"
            screen.line(f"{place}: {level}: {subject}{problem.message}", style)
    for result in results:
        for _, outcome, path, sentence in result.remarks():
            place = _place(result.manifest, path)
            screen.line(f"{place}: {LEVELS[outcome]}: {sentence}", OUTCOME_STYLES[outcome])
    for unrendered in found.to_render:
        what = f"{unrendered.renderer.noun}: {unrendered.renderer.remedy}"
        screen.line(f"{unrendered.file}:{unrendered.line or 1}: note: {what}")


def print_text(results: Sequence[ManifestResult], found: Manifests) -> None:
    screen = Screen()
    for result in results:
        _print_object(screen, result)
    if results:
        screen.line()
    _print_input(found)
    screen.paragraph(_summary(results, found), hanging=0, style="bold")


def _print_object(screen: Screen, result: ManifestResult) -> None:
    manifest, verdict = result.manifest, result.verdict
    screen.line(f"{verdict.value:<{COLUMN}}{_place(manifest)}  {manifest.title}", STYLES[verdict])
    for _, outcome, path, sentence in result.remarks():
        line = f"{_place(manifest, path)}: {PREFIXES[outcome]}{sentence}"
        screen.paragraph(line, indent=COLUMN, style=OUTCOME_STYLES[outcome])
    if verdict is ManifestVerdict.REFUSED and not manifest.is_pod:
        what = f"the {manifest.kind} itself is admitted with a warning; its pods are denied"
        if any(pod.refused and pod.policy.templates is TemplateMode.ENFORCE for pod in result.pods):
            what = f"the {manifest.kind} itself is denied (policy: templates: enforce)"
        screen.paragraph(what, indent=COLUMN)
    for pod in result.pods:
        if pod.exemption is not None:
            screen.paragraph(f"exempted by policy {pod.policy.name}: {pod.exemption.reason}", indent=COLUMN)
        if pod.changes and not pod.refused and verdict is not ManifestVerdict.UNKNOWN:
            if not manifest.is_pod:
                screen.line(" " * COLUMN + f"pods of {pod.place.path} would get:")
            for rule, changes in groupby(pod.changes, key=lambda change: change.rule):
                what = "; ".join(change.what for change in changes)
                screen.paragraph(f"{rule}: {what}", indent=COLUMN + 2)


def _summary(results: Sequence[ManifestResult], found: Manifests) -> str:
    """Return the last line, e.g. `12 objects: 2 refused, 5 would change, 4 ok, 1 skipped (…: Service)`."""
    number = Counter(result.verdict for result in results)
    parts = [f"{number[verdict]} {word}" for verdict, word in SUMMARY.items()]
    if number[ManifestVerdict.UNKNOWN]:
        parts.append(f"{number[ManifestVerdict.UNKNOWN]} unknown (render first)")
    if number[ManifestVerdict.SKIPPED]:
        skipped = _skipped_kinds(results).items()
        kinds = ", ".join(f"{kind} ×{count}" if count > 1 else kind for kind, count in skipped)
        parts.append(f"{number[ManifestVerdict.SKIPPED]} skipped (not known to have pods: {kinds})")
    texts = [f"{counted(len(results), 'object')}: {', '.join(parts)}"]
    if found.others:
        texts.append(f"{counted(found.others, 'other document')} without apiVersion and kind")
    if found.problems:
        texts.append(f"{counted(len(found.problems), 'problem')} in the input")
    return "; ".join(texts)


def _skipped_kinds(results: Sequence[ManifestResult]) -> dict[str, int]:
    """Return the number of objects by kind, as kubectl names kinds (`Job.batch.volcano.sh`)."""
    skipped = (result.manifest for result in results if result.verdict is ManifestVerdict.SKIPPED)
    kinds = Counter(".".join(filter(None, (each.kind, each.group))) for each in skipped)
    return dict(sorted(kinds.items()))


def _print_input(found: Manifests) -> None:
    screen = Screen(stderr=True)
    for problem in found.problems:
        screen.paragraph(f"error: {problem}", style="red")
    for warning in found.warnings:
        screen.paragraph(f"warning: {warning}", style="yellow")
    for sentence in sentences(found.to_render):
        screen.paragraph(f"note: {sentence}")


def print_diff(results: Sequence[ManifestResult], found: Manifests) -> None:
    """Print unified diffs of the objects as /mutate sees them and as they (or their pods) would be admitted."""
    screen = Screen()
    for result in results:
        if result.verdict is not ManifestVerdict.CHANGED:
            continue
        of_pod = result.manifest.is_pod
        remark = "as admitted" if of_pod else "as its pods would be; the object itself is not changed"
        name = f"{_place(result.manifest)} {result.manifest.title}"
        before = dump_document(result.submitted()).splitlines()
        after = dump_document(result.admitted()).splitlines()
        for line in unified_diff(before, after, name, f"{name} ({remark})", lineterm=""):
            screen.line(line, DIFF_STYLES.get(line[:1], ""))
    _print_left_out(results, found)


def print_yaml(results: Sequence[ManifestResult], found: Manifests) -> None:
    for result in results:
        if result.verdict in LEFT_OUT:
            continue
        echo("---")
        if result.verdict is ManifestVerdict.CHANGED and not result.manifest.is_pod:
            echo("# The pod template is shown as its pods would be; the object itself is not changed.")
        echo(dump_document(result.admitted()), nl=False)
    _print_left_out(results, found)


def _print_left_out(results: Sequence[ManifestResult], found: Manifests) -> None:
    screen = Screen(stderr=True)
    for result in results:
        manifest, verdict = result.manifest, result.verdict
        if verdict in LEFT_OUT:
            screen.line(f"{verdict.value}: {_place(manifest)} {manifest.title}", STYLES[verdict])
            for _, outcome, path, sentence in result.remarks():
                if outcome in {Outcome.DENIED, None}:
                    screen.paragraph(f"{_place(manifest, path)}: {sentence}", indent=2)
    _print_input(found)


def document(results: Sequence[ManifestResult], found: Manifests) -> dict[str, Any]:
    """Return the content of `-o json`, which docs/check.md describes."""
    number = Counter(result.verdict for result in results)
    return {
        "objects": [_object_document(result) for result in results],
        "problems": [_problem_document(each) for each in found.problems],
        "warnings": [_problem_document(each) for each in found.warnings],
        "toRender": [
            {"file": each.file, "line": each.line, "what": each.renderer.noun, "remedy": each.renderer.remedy}
            for each in found.to_render
        ],
        "summary": {
            "objects": len(results),
            **{verdict.value: number[verdict] for verdict in ManifestVerdict},
            "problems": len(found.problems),
            "otherDocuments": found.others,
            "skippedKinds": _skipped_kinds(results),
        },
    }


def _problem_document(problem: LocatedProblem) -> dict[str, Any]:
    return {name: getattr(problem, name) for name in ("file", "line", "column", "path", "message")}


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
        "placeholders": [
            {"path": each.path, **_position(manifest, each.path), "value": each.value}
            for each in result.placeholders
        ],
        "pods": [
            {
                "path": pod.place.path,
                "policy": {
                    name: getattr(pod.policy, name) for name in ("name", "version", "why", "templates")
                },
                "exemption": pod.exemption and {"reason": pod.exemption.reason, "until": pod.exemption.until},
                "findings": [_finding_document(manifest, found) for found in pod.findings],
                "changes": [
                    {"rule": each.rule, "what": each.what, "operations": each.operations}
                    for each in pod.changes
                ],
            }
            for pod in result.pods
        ],
    }


def _finding_document(manifest: Manifest, found: Violation) -> dict[str, Any]:
    finding = found.finding
    return {
        "outcome": found.outcome,
        "rule": finding.rule,
        "path": finding.path,
        **_position(manifest, finding.path),
        "container": finding.container,
        "value": finding.value,
        "message": finding.message,
        "remedy": finding.remedy,
        "ask": finding.escalation,
    }


def _position(manifest: Manifest, path: str) -> dict[str, int]:
    return dict(zip(("line", "column"), manifest.position_of(path_parts(path)), strict=True))


def _place(manifest: Manifest, path: str = "") -> str:
    return f"{manifest.file}:{manifest.line_of(path_parts(path))}"


PRINTERS: dict[str, Callable[[Sequence[ManifestResult], Manifests], None]] = {
    "text": print_text,
    "lines": print_lines,
    "yaml": print_yaml,
    "json": lambda results, found: print_json(document(results, found)),
    "diff": print_diff,
    "sarif": lambda results, found: print_json(sarif_log(results, found, version("gpu-admission"))),
    "junit": lambda results, found: echo(junit_report(results, found)),
}

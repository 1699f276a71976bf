"""`gpu-admission check`: evaluates manifests as the webhook does. It needs no cluster."""

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from difflib import unified_diff
from functools import cache, partial
from importlib.metadata import version
from itertools import groupby
from pathlib import Path

import click
import msgspec

from policies.finding import VALUE_LENGTH, choices_text, truncate
from policies.gpus.amount import FRACTIONAL_GPU, INVALID_QUANTITY
from policies.gpus.device_classes import NO_DEVICES
from policies.pods.field_paths import path_parts
from policies.policy import TemplateMode
from policies.rules.gpu_requests import MISSING_LIMIT, REQUEST_NOT_LIMIT
from webhook.commands import options
from webhook.commands.options import ClusterChoice
from webhook.commands.output import (
    BAD_INPUT,
    FAILED,
    Screen,
    counted,
    echo,
    echo_document,
    fail,
    missing_rights_text,
    print_value,
    progress,
)
from webhook.configuration.files import Source, replace_file
from webhook.configuration.loader import load_directory
from webhook.configuration.yaml_documents import dump_document
from webhook.evaluation.decision import Outcome
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.kinds import API_VALIDATED_KINDS, CLAIM, CLAIM_TEMPLATE
from webhook.tools.check import fixing
from webhook.tools.check.fixing import Fixes
from webhook.tools.check.manifests import Manifest, Manifests, read_manifests
from webhook.tools.check.reports import LEVELS, json_document, junit_report, sarif_log, skipped_kinds
from webhook.tools.check.run import ManifestResult, ManifestVerdict, Run
from webhook.tools.check.run_context import CheckedCluster, devices_in, wrong_paths
from webhook.tools.check.run_quotas import is_quota
from webhook.tools.check.sources import read_stdin, render_sentences

STYLES = {
    ManifestVerdict.DENIED: "bold red",
    ManifestVerdict.CHANGED: "bold cyan",
    ManifestVerdict.WARNED: "yellow",
    ManifestVerdict.ACCEPTED: "green",
    ManifestVerdict.UNKNOWN: "yellow",
    ManifestVerdict.SKIPPED: "dim",
}
OUTCOME_STYLES = {Outcome.DENIED: "red", Outcome.WARNED: "yellow", Outcome.AUDITED: "dim", None: ""}
PREFIXES = {Outcome.DENIED: "", Outcome.WARNED: "warning: ", Outcome.AUDITED: "audit only: ", None: ""}
DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}
BUILT_IN_GROUPS = frozenset({"", "apps", "batch"})
"""Groups of workloads of Kubernetes itself: the kind itself says where their pods are, and how many."""
SUMMARY = {
    ManifestVerdict.DENIED: "denied",
    ManifestVerdict.CHANGED: "would change",
    ManifestVerdict.ACCEPTED: "ok",
}
NOT_PRINTED = (ManifestVerdict.DENIED, ManifestVerdict.UNKNOWN)
"""Verdicts of objects that `-o yaml` and `-o diff` do not print, but list on stderr."""
COLUMN = max(len(verdict.value) for verdict in ManifestVerdict) + 2


class _FixTakesOnlyEquals(click.Command):
    """A command whose `--fix` has a value only after `=`, so that a file may follow it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, ["--fix=" if arg == "--fix" else arg for arg in args])


@click.command(cls=_FixTakesOnlyEquals)
@click.option(
    "-f",
    "--filename",
    "filenames",
    multiple=True,
    metavar="FILE",
    help='File, directory, or "-" for stdin. Can be repeated, or given without -f.',
)
@click.argument("files", nargs=-1)
@click.option("-R", "--recursive", is_flag=True, help="Read directories recursively.")
@click.option(
    "--ignore",
    multiple=True,
    metavar="GLOB",
    help="Ignore files and directories by name, or by path relative to the directory. Can be repeated.",
)
@options.config_option("the cluster's documents, or the built-in defaults")
@options.named_cluster_options
@options.namespace_option(
    "Namespace of objects without one. Default: the namespace of the context; without a cluster, `default`."
)
@options.output_option("lines", "diff", "sarif", "junit")
@click.option(
    "--fix",
    "chosen",
    multiple=True,
    metavar="[=FINDING:CHOICE]",
    help="Show a diff that fixes the findings, and write it after you confirm. Of several choices it takes none, but lists "
    "them: --fix=1:2 takes the second of finding 1. Can be repeated.",
)
@click.option(
    "--yes",
    is_flag=True,
    help="With --fix: write without asking; of stdin print the fixed documents instead of the diff.",
)
@options.verbose_option
@click.option("--strict", is_flag=True, help="Exit with 1 also if there are warnings.")
@options.now_option("Evaluate exemptions and pauses as of this time")
def check(
    *,
    filenames: tuple[str, ...],
    files: tuple[str, ...],
    recursive: bool,
    ignore: tuple[str, ...],
    config: Path | None,
    cluster: ClusterChoice,
    namespace: str | None,
    output: str,
    chosen: tuple[str, ...],
    yes: bool,
    strict: bool,
    now: datetime,
) -> None:
    """Show what the webhook would do to manifests, and why.

    With a cluster, uses its policies, classes, nodes, quotas and namespace labels.

    Exit codes: 0 nothing would be denied (--strict: and there are no warnings), 1 otherwise, 2 something could not be read.
    """
    if not (filenames or files):
        raise click.UsageError("Missing option '-f' / '--filename', or a file")
    taken = _parse_choices(chosen)
    if chosen and output != "text":
        raise click.UsageError(f"--fix cannot be used with -o {output}")
    if yes and not chosen:
        raise click.UsageError("--yes requires --fix")
    reading = partial(
        read_manifests,
        (*filenames, *files),
        recursive=recursive,
        namespace=namespace or (cluster.namespace() if cluster.is_named else "default"),
        ignore=ignore,
        with_crd_specs=output == "yaml",
        stdin=cache(read_stdin),
    )
    with progress("checking manifests"), cluster.client() if cluster.is_named else nullcontext() as api:
        checking = partial(_check, reading, CheckedCluster(api, config) if api else None, config, now)
        results, manifests = checking()
        try:
            fixes = fixing.fix((results, manifests), checking, taken) if chosen else None
        except LookupError as error:
            raise click.UsageError(str(error)) from None
    if fixes is None:
        PRINTERS[output](results, manifests)
    elif _write_fixes(fixes, yes=yes):
        results, manifests = list(fixes.results), fixes.checked_manifests
    is_warned = strict and (manifests.warnings or any(result.number_of_warnings for result in results))
    if manifests.problems or any(result.unknown for result in results):
        sys.exit(BAD_INPUT)
    if is_warned or any(result.verdict is ManifestVerdict.DENIED for result in results):
        sys.exit(FAILED)


def _check(
    reading: Callable[..., Manifests],
    cluster: CheckedCluster | None,
    config: Path | None,
    now: datetime,
    texts: Mapping[str, str] | None = None,
) -> tuple[list[ManifestResult], Manifests]:
    load = cluster.configuration if cluster else partial(load_directory, config)
    configuration = load()
    if cluster and cluster.unread_documents:
        rights = ", ".join(cluster.unread_documents)
        advice = "use --config, or ask the platform team for the chart's tenants.readPolicies"
        fail(f"{advice}: you may not {rights}, by which manifests are evaluated")
    manifests = reading(kinds=configuration.workload_kinds, texts=texts)
    devices = devices_in(manifests.manifests, configuration.resource_mapping)
    if devices != NO_DEVICES:
        configuration = load(devices=devices)
    run = Run(manifests.manifests, DecisionCache(configuration), now, cluster)
    results = run.results()
    manifests.warnings += wrong_paths(manifests.manifests, configuration, cluster)
    if cluster:
        missing = cluster.missing_rights
        manifests.notes += [missing_rights_text(missing, "evaluated")] if missing else []
        manifests.notes += cluster.notes()
    return results, manifests


def _parse_choices(texts: Sequence[str]) -> dict[int, int]:
    """Return the choice that the user takes for each finding, by its number. An empty text takes none."""
    taken: dict[int, int] = {}
    for text in filter(None, texts):
        finding, _, choice = text.partition(":")
        if not (finding.isdecimal() and choice.isdecimal() and int(choice)):
            raise click.UsageError(f"--fix={text} must be FINDING:CHOICE, two numbers such as --fix=1:2")
        taken[int(finding)] = int(choice)
    return taken


def _write_fixes(fixes: Fixes, *, yes: bool) -> bool:
    """Print the diff on stdout and the fixed and remaining findings on stderr. Write the files if the user agrees.

    With `yes`, stdout is for the documents of stdin, changed or not, and the diff goes to stderr, too.
    Return False if there are fixes that were not written.
    """
    stream = next((each.manifest for each in fixes.results if each.manifest.is_stdin), None) if yes else None
    screen, remarks = Screen(stderr=stream is not None), Screen(stderr=True)
    for file, text in fixes.texts.items():
        before, after = fixes.originals[file].splitlines(), text.splitlines()
        for line in unified_diff(before, after, file, file, lineterm=""):
            screen.line(line, DIFF_STYLES.get(line[:1], ""))
    for repair in fixes.repaired:
        # Of the file as the user knows it, which edits before this one have moved.
        place = _location(fixes.manifests[repair.position], repair.violation.finding.path)
        taken = (repair.chosen or repair.violation.finding.fix,)
        finding = msgspec.structs.replace(repair.violation.finding, remedy="", choices=taken)
        remarks.paragraph(f"fix: {place}: {finding.brief(VALUE_LENGTH)}", style="green")
    _print_unfixed(remarks, fixes, written=yes)
    _print_input(fixes.checked_manifests)
    remarks.paragraph(_summary_of_fixes(fixes), hanging=0, style="bold")
    texts = dict(fixes.texts)
    if stream is not None:
        echo_document(texts.pop(stream.file, stream.text))
    files = counted(len(texts), "file")
    if not texts:
        return True
    if not yes and not (sys.stdin.isatty() and sys.stdout.isatty()):
        remarks.paragraph("nothing is written: add --yes", hanging=0)
        return False
    if not yes and not click.confirm(f"Write {files}?", err=True):
        return False
    _write_files(texts, fixes)
    remarks.paragraph(f"{files} written", hanging=0)
    return True


def _print_unfixed(remarks: Screen, fixes: Fixes, *, written: bool) -> None:
    for repair, why in fixes.unfixed():
        finding = repair.violation.finding
        manifest = repair.manifest if written else fixes.manifests[repair.position]
        line = f"left: {_location(manifest, finding.path)}: {why}: {finding.sentence()}"
        remarks.paragraph(line, style=OUTCOME_STYLES[repair.violation.outcome])
        if number := fixes.open_choices.get(repair.key):
            for index, edits in enumerate(finding.choices, 1):
                remarks.line(f"  --fix={number}:{index}  {truncate(choices_text((edits,)))}")


def _write_files(texts: Mapping[str, str], fixes: Fixes) -> None:
    written: set[tuple[Source, str]] = set()
    for file, text in texts.items():
        source = fixes.sources[file]
        try:
            if (source, text) not in written:  # by another name
                replace_file(source, fixes.originals[file], text)
            written.add((source, text))
        except OSError as error:
            fail(f"{file}: {error.strerror or error}")


def _summary_of_fixes(fixes: Fixes) -> str:
    left = [repair for repair, _ in fixes.unfixed() if repair.violation.outcome is Outcome.DENIED]
    repaired = (
        f"{counted(len(fixes.repaired), 'finding')} can be fixed in {counted(len(fixes.texts), 'file')}"
    )
    return f"{repaired if fixes.repaired else 'nothing to fix'}, {counted(len(left), 'denial')} left"


def print_lines(results: Sequence[ManifestResult], manifests: Manifests) -> None:
    """Print each finding and problem as `FILE:LINE: error: …`, the format of compilers, which editors and CI systems parse."""
    screen = Screen()
    errors, warnings = (manifests.problems, "error", "red"), (manifests.warnings, "warning", "yellow")
    for problems, level, style in (errors, warnings):
        for problem in problems:
            subject = f"{problem.path}: " if problem.path else ""
            place = f"{problem.file}:{problem.line or 1}"
            screen.line(f"{place}: {level}: {subject}{problem.message}", style)
    for result in results:
        for outcome, path, sentence in result.remarks():
            place = _location(result.manifest, path)
            screen.line(f"{place}: {LEVELS[outcome]}: {sentence}", OUTCOME_STYLES[outcome])
    _print_notes(manifests)
    for unrendered in manifests.to_render:
        what = f"{unrendered.renderer.noun}: {unrendered.renderer.remedy}"
        screen.line(f"{unrendered.file}:{unrendered.line or 1}: note: {what}")


VALIDATED = frozenset({FRACTIONAL_GPU, MISSING_LIMIT, REQUEST_NOT_LIMIT, INVALID_QUANTITY})
"""What validation of extended resources refuses in every pod template (`ValidatePodTemplateSpec` in `pkg/apis/core`, v1.37)."""


def print_text(results: Sequence[ManifestResult], manifests: Manifests) -> None:
    screen = Screen()
    for result in results:
        _print_object(screen, result)
    if results:
        screen.line()
    _print_input(manifests)
    screen.paragraph(_summary(results, manifests), hanging=0, style="bold")


def _print_object(screen: Screen, result: ManifestResult) -> None:
    manifest, verdict = result.manifest, result.verdict
    screen.line(f"{verdict.value:<{COLUMN}}{_location(manifest)}  {manifest.title}", STYLES[verdict])
    for outcome, path, sentence in result.remarks():
        line = f"{_location(manifest, path)}: {PREFIXES[outcome]}{sentence}"
        screen.paragraph(line, indent=COLUMN, style=OUTCOME_STYLES[outcome])
    if verdict is ManifestVerdict.DENIED and not manifest.is_pod:
        screen.paragraph(_what_becomes_of(result), indent=COLUMN)
    for pod in result.pods:
        if manifest.group not in BUILT_IN_GROUPS:
            number = pod.place.count.running
            count = "an unknown number of pods" if number is None else counted(number, "pod")
            screen.line(" " * COLUMN + f"{count} at {pod.place.path}", "dim")
        if pod.exemption is not None:
            screen.paragraph(f"exempted by policy {pod.policy.name}: {pod.exemption.reason}", indent=COLUMN)
        if pod.changes and not pod.is_denied and verdict is not ManifestVerdict.UNKNOWN:
            if not manifest.is_pod:
                screen.line(" " * COLUMN + f"pods of {pod.place.path} would get:")
            for rule, changes in groupby(pod.changes, key=lambda change: change.rule):
                what = "; ".join(change.brief for change in changes)
                screen.paragraph(f"{rule}: {what}", indent=COLUMN + 2)


def _what_becomes_of(result: ManifestResult) -> str:
    """Return what happens to a denied object itself when it is applied."""
    kind = result.manifest.kind
    if is_quota(result.manifest):
        return f"the API server rejects the {kind}: by its schema, or because the webhook denies it"
    if result.manifest.group_kind in {CLAIM, CLAIM_TEMPLATE}:
        return f"the {kind} itself is denied"
    if any(violation.finding.path == "apiVersion" for violation in result.warnings):
        return f"the API server rejects the {kind} itself: {result.manifest.api_version} has no such kind"
    if any(pod.is_denied and pod.policy.templates is TemplateMode.ENFORCE for pod in result.pods):
        return f"the {kind} itself is denied (policy: templates: enforce)"
    reasons = {violation.finding.reason for pod in result.pods for violation in pod.violations}
    is_validated = result.manifest.group in BUILT_IN_GROUPS and not reasons.isdisjoint(VALIDATED)
    if is_validated or result.manifest.group_kind in API_VALIDATED_KINDS:
        return f"the API server rejects the {kind} itself, in its own words"
    return f"the {kind} itself is admitted with a warning; its pods are denied"


def _summary(results: Sequence[ManifestResult], manifests: Manifests) -> str:
    """Return the last line, e.g. `12 objects: 2 denied, 5 would change, 4 ok, 1 skipped (…: Service); 3 warnings`."""
    number = Counter(result.verdict for result in results)
    parts = [f"{number[verdict]} {word}" for verdict, word in SUMMARY.items()]
    if number[ManifestVerdict.WARNED]:
        parts.append(f"{number[ManifestVerdict.WARNED]} warned about")
    if unknown := number[ManifestVerdict.UNKNOWN]:
        is_read = not any(result.unknown for result in results)
        parts.append(f"{unknown} unknown{' (render first)' if is_read else ''}")
    if number[ManifestVerdict.SKIPPED]:
        skipped = skipped_kinds(results).items()
        kinds = ", ".join(f"{kind} ×{count}" if count > 1 else kind for kind, count in skipped)
        parts.append(f"{number[ManifestVerdict.SKIPPED]} skipped (not known to have pods: {kinds})")
    texts = [f"{counted(len(results), 'object')}: {', '.join(parts)}"]
    if warnings := sum(result.number_of_warnings for result in results):
        texts.append(counted(warnings, "warning"))
    if manifests.other_documents:
        texts.append(f"{counted(manifests.other_documents, 'other document')} without apiVersion and kind")
    if manifests.problems:
        texts.append(f"{counted(len(manifests.problems), 'problem')} in the input")
    return "; ".join(texts)


def _print_input(manifests: Manifests) -> None:
    screen = Screen(stderr=True)
    for problem in manifests.problems:
        screen.paragraph(f"error: {problem}", style="red")
    for warning in manifests.warnings:
        screen.paragraph(f"warning: {warning}", style="yellow")
    for sentence in render_sentences(manifests.to_render):
        screen.paragraph(f"note: {sentence}")
    _print_notes(manifests)


def _print_notes(manifests: Manifests) -> None:
    screen = Screen(stderr=True)
    for note in manifests.notes:
        screen.paragraph(f"note: {note}", style="yellow")


def print_diff(results: Sequence[ManifestResult], manifests: Manifests) -> None:
    """Print a unified diff of each object: as /mutate receives it, and as the API server would store it or its pods."""
    screen = Screen()
    for result in results:
        if result.verdict is not ManifestVerdict.CHANGED:
            continue
        of_pod = result.manifest.is_pod
        remark = "as admitted" if of_pod else "as its pods would be; the object itself is not changed"
        name = f"{_location(result.manifest)} {result.manifest.title}"
        before = dump_document(result.submitted()).splitlines()
        after = dump_document(result.admitted()).splitlines()
        for line in unified_diff(before, after, name, f"{name} ({remark})", lineterm=""):
            screen.line(line, DIFF_STYLES.get(line[:1], ""))
    _print_not_printed(results, manifests)


def print_yaml(results: Sequence[ManifestResult], manifests: Manifests) -> None:
    for result in results:
        if result.verdict in NOT_PRINTED:
            continue
        echo("---")
        if result.verdict is ManifestVerdict.CHANGED and not result.manifest.is_pod:
            echo("# The pod template is shown as its pods would be; the object itself is not changed.")
        echo(dump_document(result.admitted()), nl=False)
    _print_not_printed(results, manifests)


def _print_not_printed(results: Sequence[ManifestResult], manifests: Manifests) -> None:
    screen = Screen(stderr=True)
    for result in results:
        manifest, verdict = result.manifest, result.verdict
        if verdict in NOT_PRINTED:
            screen.line(f"{verdict.value}: {_location(manifest)} {manifest.title}", STYLES[verdict])
            for outcome, path, sentence in result.remarks():
                if outcome in {Outcome.DENIED, None}:
                    screen.paragraph(f"{_location(manifest, path)}: {sentence}", indent=2)
    _print_input(manifests)


def _location(manifest: Manifest, path: str = "") -> str:
    return f"{manifest.file}:{manifest.line_of(path_parts(path))}"


PRINTERS: dict[str, Callable[[Sequence[ManifestResult], Manifests], None]] = {
    "text": print_text,
    "lines": print_lines,
    "yaml": print_yaml,
    "json": lambda results, manifests: print_value("json", json_document(results, manifests)),
    "diff": print_diff,
    "sarif": lambda results, manifests: print_value(
        "json", sarif_log(results, manifests, version("gpu-admission"))
    ),
    "junit": lambda results, manifests: echo(junit_report(results, manifests)),
}

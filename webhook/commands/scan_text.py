"""The text of `gpu-admission scan`."""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from policies.printable import first_names
from policies.quota.amounts import format_amount
from webhook.commands.output import Screen, counted
from webhook.tools.rightsize.workloads import SizeReport
from webhook.tools.scan.report import (
    Effect,
    Effects,
    FoundProblem,
    PlannedChange,
    Proposal,
    Remark,
    ScanReport,
    by_sentence,
)

NAME_COLUMN = 24
NUMBER_COLUMN = 9
MAX_SENTENCES = 20
"""Printed findings of one effect."""
MAX_OWNERS = 4
"""Printed owners of one finding."""
MORE_HINT = "see -o html or -o json"
MAX_NAMESPACES = 20
MAX_QUOTAS = 8
MAX_SIZES = 5
STYLES = {Effect.DENIED: "red", Effect.CHANGED: "", Effect.WARNED: "yellow", Effect.LOGGED: "dim"}
TITLES = {
    Effect.DENIED: "Would be denied",
    Effect.WARNED: "Would be warned about",
    Effect.LOGGED: "Would only be logged",
}
SHOWN_EFFECTS = (Effect.DENIED, Effect.CHANGED, Effect.WARNED)
"""Columns of namespaces."""


def print_text(screen: Screen, report: ScanReport, directory: Path | None) -> None:
    _print_overview(screen, report)
    for effect in TITLES:
        _print_problems(screen, effect, [problem for problem in report.problems if problem.effect is effect])
        if effect is Effect.DENIED:
            _print_changes(screen, report.changes)
    _print_namespaces(screen, report)
    _print_classes(screen, report)
    _print_remarks(screen, "Unknown to rules or quotas", report.unread)
    _print_remarks(screen, "GPU nodes", report.nodes)
    _print_remarks(screen, "LimitRanges that give GPUs", report.limit_ranges)
    _print_sizes(screen, report.right_size)
    _print_proposal(screen, report.proposal, directory)
    screen.print_omissions(report.omitted)
    if report.left_out:
        more = counted(report.left_out, "more finding or change", "more findings and changes")
        screen.paragraph(f"not shown: {more}", style="yellow")


def _print_overview(screen: Screen, report: ScanReport) -> None:
    enforced = ", every rule enforced" if report.is_enforced else ""
    screen.paragraph(
        f"{counted(report.pods, 'pod')} ({report.gpu_pods} with GPUs) and {counted(report.workloads, 'workload')}, "
        f"evaluated by {report.source}{enforced}"
    )
    screen.line()
    _print_row(screen, "", [effect.value for effect in Effect], "dim")
    _print_effects(screen, "pods", report.pod_effects)
    _print_effects(screen, "workloads", report.workload_effects)
    if report.rules:
        screen.heading("Pods by rule")
        for rule, effects in report.rules.items():
            _print_effects(screen, rule, effects)


def _print_problems(screen: Screen, effect: Effect, problems: Sequence[FoundProblem]) -> None:
    if not problems:
        return
    screen.heading(TITLES[effect])
    sentences = by_sentence(problems)
    for sentence, objects in islice(sentences.items(), MAX_SENTENCES):
        screen.paragraph(sentence, indent=2, style=STYLES[effect])
        owners = [
            f"{problem.namespace} {problem.owner}"
            + ("" if problem.owner.startswith("Pod/") else f" ({counted(problem.pods, 'pod')})")
            for problem in objects[:MAX_OWNERS]
        ]
        if len(objects) > MAX_OWNERS:
            owners.append(f"{len(objects) - MAX_OWNERS} more")
        screen.paragraph(f"in {', '.join(owners)}", indent=4)
    if len(sentences) > MAX_SENTENCES:
        screen.line(f"  and {len(sentences) - MAX_SENTENCES} other findings: {MORE_HINT}")


def _print_changes(screen: Screen, changes: Sequence[PlannedChange]) -> None:
    if not changes:
        return
    screen.heading("Would be changed")
    pods_by_change: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for planned_change in changes:
        pods_by_change[planned_change.rule, planned_change.change].append(planned_change.pods)
    for (rule, change), pods in sorted(pods_by_change.items(), key=lambda item: -sum(item[1]))[
        :MAX_SENTENCES
    ]:
        what = f"{change} [{rule}]: {counted(sum(pods), 'pod')} of {counted(len(pods), 'owner')}"
        screen.paragraph(what, indent=2)
    if len(pods_by_change) > MAX_SENTENCES:
        screen.line(f"  and {len(pods_by_change) - MAX_SENTENCES} other changes: {MORE_HINT}")


def _print_namespaces(screen: Screen, report: ScanReport) -> None:
    namespaces = [use for use in report.namespaces if use.gpus or use.gpu_pods or use.effects]
    if not namespaces:
        return
    screen.heading("Namespaces")
    _print_row(screen, "", ["GPUs", "GPU pods", "pods", *(effect.value for effect in SHOWN_EFFECTS)], "dim")
    for use in namespaces[:MAX_NAMESPACES]:
        numbers = [format_amount(use.gpus), use.gpu_pods, use.pods]
        numbers += [use.effects.get(effect, 0) for effect in SHOWN_EFFECTS]
        _print_row(screen, use.namespace, numbers, "")
        held = (*use.classes.items(), *use.resources.items())
        if held:
            amounts = ", ".join(f"{name} {format_amount(amount)}" for name, amount in held)
            screen.paragraph(amounts, indent=4, style="dim")
    screen.rest(len(namespaces) - MAX_NAMESPACES, hint=f": {MORE_HINT}")


def _print_classes(screen: Screen, report: ScanReport) -> None:
    if not report.classes:
        return
    screen.heading("GPU nodes by class")
    _print_row(screen, "", ["nodes", "GPUs"], "dim")
    for name, capacity in report.classes.items():
        _print_row(screen, name or "of no known class", [capacity.nodes, format_amount(capacity.gpus)], "")


def _print_remarks(screen: Screen, title: str, remarks: Sequence[Remark]) -> None:
    if remarks:
        screen.heading(title)
    for remark in remarks:
        screen.paragraph(f"{remark.subject} {remark.message}", indent=2)
        if remark.remedy:
            screen.paragraph(f"fix: {remark.remedy}", indent=4)


def _print_sizes(screen: Screen, sizes: SizeReport | None) -> None:
    if sizes is None:
        return
    screen.heading("Right size")
    for workload in sizes.workloads[:MAX_SIZES]:
        screen.paragraph(f"{workload.title}: {workload.advice()}", indent=2)
    screen.rest(len(sizes.workloads) - MAX_SIZES, hint=": see gpu-admission rightsize")
    for note in sizes.notes():
        screen.paragraph(note, indent=2)


def _print_proposal(screen: Screen, proposal: Proposal, directory: Path | None) -> None:
    if not proposal.files and directory is None:
        return
    screen.heading("To begin with")
    paragraph = partial(screen.paragraph, indent=2)
    if not proposal.files:
        paragraph(f"{directory} is not written: nothing is missing in policy, classes and quotas")
        return
    for rule in proposal.relaxed:
        paragraph(f"rule {rule} in mode warn: it would deny pods of the cluster")
    for namespace, rules in proposal.exemptions.items():
        paragraph(f"exemption of {namespace} from {', '.join(rules)}: device plugins or exporters run there")
    if proposal.classes:
        paragraph(
            f"{counted(len(proposal.classes), 'GPUClass', 'GPUClasses')}: {', '.join(proposal.classes)}"
        )
    if proposal.quotas:
        listed = [f"{name} {format_amount(gpus)}" for name, gpus in proposal.quotas.items()]
        paragraph(f"{counted(len(proposal.quotas), 'GPUQuota')}: {first_names(listed, MAX_QUOTAS)}")
    if proposal.teams:
        listed = [f"{name} {format_amount(gpus)}" for name, gpus in proposal.teams.items()]
        paragraph(f"{counted(len(proposal.teams), 'ClusterGPUQuota')}: {first_names(listed, MAX_QUOTAS)}")
    if directory is None:
        paragraph("--propose DIRECTORY writes these documents, once they were tried on the pods")
        return
    tried = f"{proposal.denied or 'none'} of the pods would be denied"
    style = "red" if proposal.denied else "green"
    paragraph(f"written to {directory}: {', '.join(proposal.files)}; {tried}", style=style)


def _print_effects(screen: Screen, name: str, effects: Effects) -> None:
    _print_row(screen, name, [effects.get(effect, 0) for effect in Effect], "")


def _print_row(screen: Screen, name: str, cells: Sequence[object], style: str) -> None:
    """Print a line of numbers, zeros as dots; a long name has a line of its own."""
    texts = "".join(f"{'·' if cell == 0 else cell!s:>{NUMBER_COLUMN}}" for cell in cells)
    if len(name) > NAME_COLUMN:
        screen.line(f"  {name}", style)
        name = ""
    screen.line(f"  {name:<{NAME_COLUMN}}{texts}".rstrip(), style)

"""`gpu-admission scan`: what a cluster has, evaluated as if it were created now, and a configuration to begin with."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path

import click
import msgspec

from policies.quota.amounts import format_amount
from webhook.commands import options
from webhook.commands.options import ClusterChoice
from webhook.commands.output import Screen, counted, echo, end_with, fail, print_json, progress
from webhook.configuration.loader import ConfigurationError
from webhook.prometheus.client import Prometheus
from webhook.tools.rightsize.workloads import SizeReport, read_sizes
from webhook.tools.scan.proposal import write
from webhook.tools.scan.report import (
    Effect,
    Effects,
    FoundProblem,
    PlannedChange,
    Proposal,
    Remark,
    ScanReport,
    by_sentence,
    page,
)
from webhook.tools.scan.scanning import Scan

NAME_COLUMN = 24
NUMBER_COLUMN = 9
MAX_SENTENCES = 20
"""Printed findings of one effect."""
MAX_OWNERS = 4
"""Printed owners of one finding."""
SEE = "see -o html or -o json"
MAX_NAMESPACES = 20
MAX_QUOTAS = 8
MAX_SIZES = 5
STYLES = {Effect.REFUSED: "red", Effect.CHANGED: "", Effect.WARNED: "yellow", Effect.LOGGED: "dim"}
TITLES = {
    Effect.REFUSED: "Would be refused",
    Effect.WARNED: "Would be warned about",
    Effect.LOGGED: "Would only be logged",
}


@click.command()
@options.config_option("the cluster's documents, or the built-in ones")
@click.option("--enforce", is_flag=True, help="Take rules in the modes warn and audit as enforced.")
@click.option(
    "--propose",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIRECTORY",
    help="Write a configuration to begin with into this directory, which must be empty, once it was tried on the pods.",
)
@click.option("-n", "--namespace", default="", show_default=False, help="Scan one namespace.")
@options.output_option("text", "json", "html")
@options.prometheus_options("Also find workloads with more GPUs than they need")
@options.cluster_options
@options.now_option("Evaluate at this time")
def scan(
    *,
    config: Path | None,
    enforce: bool,
    propose: Path | None,
    namespace: str,
    output: str,
    prometheus: Prometheus | None,
    cluster: ClusterChoice,
    now: datetime,
) -> None:
    """Evaluate the pods and workloads of a cluster as if created now.

    Nothing needs to be installed, and nothing in the cluster is changed. Shows what would be refused, changed and warned about,
    who holds which GPUs, and what no rule can read; it proposes GPUClasses, GPUQuotas, ClusterGPUQuotas and exemptions.

    Exits with 0 once it has scanned, 2 if the cluster or the documents cannot be used.
    """
    with cluster.client() as api, progress("reading ") as shown:
        try:
            scanning = Scan(
                api, now=now, config=config, namespace=namespace, is_enforced=enforce, progress=shown
            )
            report = scanning.report(with_trial=propose is not None)
            if prometheus is not None:
                chosen = (namespace,) if namespace else ()
                sizes = read_sizes(api, prometheus, now, namespaces=chosen, config=config)
                report = msgspec.structs.replace(report, right_size=sizes)
        except ConfigurationError as error:
            end_with(error.problems, "; nothing was scanned")
    if propose is not None:
        try:
            write(report.proposal, propose)
        except OSError as error:
            fail(error)
    if output == "json":
        print_json(msgspec.to_builtins(report, enc_hook=str))
    elif output == "html":
        echo(page(report))
    else:
        print_text(report, propose)


def print_text(report: ScanReport, directory: Path | None) -> None:
    screen = Screen()
    _overview(screen, report)
    for effect in TITLES:
        _problems(screen, effect, [problem for problem in report.problems if problem.effect is effect])
        if effect is Effect.REFUSED:
            _changes(screen, report.changes)
    _namespaces(screen, report)
    _classes(screen, report)
    _remarks(screen, "No rule reads, or no quota counts", report.unread)
    _remarks(screen, "GPU nodes", report.nodes)
    _sizes(screen, report.right_size)
    _proposal(screen, report.proposal, directory)
    for right in report.omitted:
        screen.paragraph(f"left out: you may not {right}", style="yellow")
    if report.left_out:
        more = counted(report.left_out, "more finding or change", "more findings and changes")
        screen.paragraph(f"left out: {more}", style="yellow")


def _overview(screen: Screen, report: ScanReport) -> None:
    how = ", every rule enforced" if report.is_enforced else ""
    screen.paragraph(
        f"{counted(report.pods, 'pod')} ({report.gpu_pods} with GPUs) and {counted(report.workloads, 'workload')}, "
        f"evaluated by {report.source}{how}"
    )
    screen.line()
    _row(screen, "", [each.value for each in Effect], "dim")
    _effects(screen, "pods", report.pod_effects)
    _effects(screen, "workloads", report.workload_effects)
    if report.rules:
        screen.heading("Pods by rule")
        for rule, effects in report.rules.items():
            _effects(screen, rule, effects)


def _problems(screen: Screen, effect: Effect, problems: Sequence[FoundProblem]) -> None:
    if not problems:
        return
    screen.heading(TITLES[effect])
    sentences = by_sentence(problems)
    for sentence, found in islice(sentences.items(), MAX_SENTENCES):
        screen.paragraph(sentence, indent=2, style=STYLES[effect])
        owners = [
            f"{each.namespace} {each.owner}"
            + ("" if each.owner.startswith("Pod/") else f" ({counted(each.pods, 'pod')})")
            for each in found[:MAX_OWNERS]
        ]
        if len(found) > MAX_OWNERS:
            owners.append(f"{len(found) - MAX_OWNERS} more")
        screen.paragraph(f"in {', '.join(owners)}", indent=4)
    if len(sentences) > MAX_SENTENCES:
        screen.line(f"  and {len(sentences) - MAX_SENTENCES} other findings: {SEE}")


def _changes(screen: Screen, changes: Sequence[PlannedChange]) -> None:
    if not changes:
        return
    screen.heading("Would be changed")
    owners: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for each in changes:
        owners[each.rule, each.change].append(each.pods)
    for (rule, change), pods in sorted(owners.items(), key=lambda item: -sum(item[1]))[:MAX_SENTENCES]:
        what = f"{change} [{rule}]: {counted(sum(pods), 'pod')} of {counted(len(pods), 'owner')}"
        screen.paragraph(what, indent=2)
    if len(owners) > MAX_SENTENCES:
        screen.line(f"  and {len(owners) - MAX_SENTENCES} other changes: {SEE}")


def _namespaces(screen: Screen, report: ScanReport) -> None:
    shown = [each for each in report.namespaces if each.gpus or each.gpu_pods or each.effects]
    if not shown:
        return
    screen.heading("Namespaces")
    _row(screen, "", ["GPUs", "GPU pods", "pods", *(each.value for each in Effect)][:6], "dim")
    for use in shown[:MAX_NAMESPACES]:
        numbers = [format_amount(use.gpus), use.gpu_pods, use.pods]
        numbers += [use.effects.get(effect, 0) for effect in (Effect.REFUSED, Effect.CHANGED, Effect.WARNED)]
        _row(screen, use.namespace, numbers, "")
        held = (*use.classes.items(), *use.resources.items())
        if held:
            amounts = ", ".join(f"{name} {format_amount(amount)}" for name, amount in held)
            screen.paragraph(amounts, indent=4, style="dim")
    if len(shown) > MAX_NAMESPACES:
        screen.line(f"  and {len(shown) - MAX_NAMESPACES} more: {SEE}")


def _classes(screen: Screen, report: ScanReport) -> None:
    if not report.classes:
        return
    screen.heading("GPU nodes by class")
    _row(screen, "", ["nodes", "GPUs"], "dim")
    for name, capacity in report.classes.items():
        _row(screen, name or "of no known class", [capacity.nodes, format_amount(capacity.gpus)], "")


def _remarks(screen: Screen, title: str, remarks: Sequence[Remark]) -> None:
    if remarks:
        screen.heading(title)
    for remark in remarks:
        screen.paragraph(f"{remark.subject} {remark.message}", indent=2)
        if remark.remedy:
            screen.paragraph(f"fix: {remark.remedy}", indent=4)


def _sizes(screen: Screen, sizes: SizeReport | None) -> None:
    if sizes is None:
        return
    screen.heading("Right size")
    for workload in sizes.workloads[:MAX_SIZES]:
        screen.paragraph(f"{workload.title}: {workload.advice()}", indent=2)
    if len(sizes.workloads) > MAX_SIZES:
        screen.line(f"  and {len(sizes.workloads) - MAX_SIZES} more: see gpu-admission rightsize")
    for note in sizes.notes():
        screen.paragraph(note, indent=2)


def _proposal(screen: Screen, proposal: Proposal, directory: Path | None) -> None:
    if not proposal.files and directory is None:
        return
    screen.heading("To begin with")
    say = partial(screen.paragraph, indent=2)
    if not proposal.files:
        say(f"{directory} is not written: nothing is missing in policy, classes and quotas")
        return
    for rule in proposal.relaxed:
        say(f"rule {rule} in mode warn: it would refuse pods of the cluster")
    for namespace, rules in proposal.exemptions.items():
        say(f"exemption of {namespace} from {', '.join(rules)}: its GPU stack needs it")
    if proposal.classes:
        say(f"{counted(len(proposal.classes), 'GPUClass', 'GPUClasses')}: {', '.join(proposal.classes)}")
    if proposal.quotas:
        listed = [f"{name} {format_amount(gpus)}" for name, gpus in proposal.quotas.items()]
        say(f"{counted(len(proposal.quotas), 'GPUQuota')}: {_first(listed)}")
    if proposal.teams:
        listed = [f"{name} {format_amount(gpus)}" for name, gpus in proposal.teams.items()]
        say(f"{counted(len(proposal.teams), 'ClusterGPUQuota')}: {_first(listed)}")
    if directory is None:
        say("--propose DIRECTORY writes these documents, once they were tried on the pods")
        return
    tried = f"{proposal.refused or 'none'} of the pods would be refused"
    style = "red" if proposal.refused else "green"
    say(f"written to {directory}: {', '.join(proposal.files)}; {tried}", style=style)


def _first(listed: list[str]) -> str:
    """Return the first names, and how many more there are."""
    more = [f"{len(listed) - MAX_QUOTAS} more"] if len(listed) > MAX_QUOTAS else []
    return ", ".join([*listed[:MAX_QUOTAS], *more])


def _effects(screen: Screen, name: str, effects: Effects) -> None:
    _row(screen, name, [effects.get(effect, 0) for effect in Effect], "")


def _row(screen: Screen, name: str, cells: Sequence[object], style: str) -> None:
    """Print a line of numbers, zeros as dots; a long name has a line of its own."""
    texts = "".join(f"{'·' if cell == 0 else cell!s:>{NUMBER_COLUMN}}" for cell in cells)
    if len(name) > NAME_COLUMN:
        screen.line(f"  {name}", style)
        name = ""
    screen.line(f"  {name:<{NAME_COLUMN}}{texts}".rstrip(), style)

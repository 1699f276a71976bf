"""`gpu-admission why`: explains why a pod or the pods of a workload are denied or do not run, and how to fix it."""

import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import click

from policies.finding import truncate
from policies.quota.amounts import format_amount
from policies.times import utc
from webhook.cluster import errors
from webhook.cluster.events import FAILED_UPDATE
from webhook.commands import options
from webhook.commands.options import ClusterChoice, completed_by
from webhook.commands.output import BAD_INPUT, FAILED, Screen, amount_or_unknown, counted, fail, print_as
from webhook.commands.quota_text import budget_facts, idle_text
from webhook.tools.status.freshness import stale_figures
from webhook.tools.status.kueue import KueueState
from webhook.tools.status.team_text import team_view_text
from webhook.tools.why.discovery import ServedKinds, UnknownKindError
from webhook.tools.why.explaining import explain
from webhook.tools.why.explanation import Answer, Explanation, NodeFit, QuotaFit, Source
from webhook.tools.why.fit import format_requests
from webhook.tools.why.problems import OwnerProblem, OwnerProblems, read_problems

SUCCESSFUL = frozenset({Answer.RUNNING, Answer.ENDED, Answer.STOPPED})
"""Answers that let the command exit with 0."""
STYLES = {
    Answer.DENIED: "red",
    **dict.fromkeys((Answer.PENDING, Answer.GATED, Answer.WAITING, Answer.UNKNOWN), "yellow"),
}
OBSTACLES = frozenset({Source.POLICY, Source.QUOTA, Source.NODES})
"""A pod must pass these in their order, and a remedy removes only one of them."""
COLUMN = 11
"""Width of the names on the left."""
MAX_PROBLEMS = 50
"""Problems that `-A` prints; `-o json` has all."""
MAX_NODES = 10
"""Nodes that are printed; `-o json` has all."""
NOT_STORED = (
    "if its creation was denied, nothing was stored, and only the client that created it got the message"
)


@click.command()
@click.argument(
    "subject",
    nargs=-1,
    metavar="[KIND/NAME | KIND NAME]",
    shell_complete=completed_by(lambda api: ServedKinds(api).plurals),
)
@options.namespace_options("the context's")
@options.config_option("the cluster's documents")
@options.output_option()
@options.verbose_option
@options.cluster_options
def why(
    *,
    subject: tuple[str, ...],
    namespace: str | None,
    all_namespaces: bool,
    config: Path | None,
    output: str,
    cluster: ClusterChoice,
) -> None:
    """Explain why the pods of an object are denied or pending.

    Without a name, list every object in the namespace, or with -A in all, whose pods are denied or pending.

    KIND is Pod or a kind that creates pods, as in kubectl: pod/train-0, deploy/chat, pytorchjobs.kubeflow.org/llama.

    Exit codes: 0 the pods run, have ended, or are stopped (suspended, scaled to zero), or nothing is listed, 1 otherwise, 2 the
    object does not exist, the cluster cannot be used, or nothing is listed and not everything could be read.
    """
    if all_namespaces and subject:
        raise click.UsageError("-A lists all namespaces: omit the name")
    where = "" if all_namespaces else namespace or cluster.namespace()
    if not subject:
        with cluster.client() as api:
            problems = read_problems(api, where, datetime.now(UTC))
        print_as(output, problems, lambda screen: show_problems(screen, problems))
        sys.exit(FAILED if problems.problems else BAD_INPUT if problems.omitted else 0)
    kind, name = _parse_subject(subject)
    with cluster.client() as api:
        try:
            explained = explain(api, kind, name, where, datetime.now(UTC), config=config)
        except errors.NotFound as error:
            fail(f"{error} in namespace {where}; {NOT_STORED}")
        except UnknownKindError as error:
            fail(error)
    print_as(output, explained, lambda screen: show(screen, explained))
    sys.exit(0 if explained.answer in SUCCESSFUL else FAILED)


def _parse_subject(subject: tuple[str, ...]) -> tuple[str, str]:
    words = subject[0].split("/") if len(subject) == 1 else list(subject)
    match words:
        case [kind, name] if kind and name:
            return kind, name
    raise click.UsageError("name one object as KIND/NAME or KIND NAME, such as job/train")


def show_problems(screen: Screen, listing: OwnerProblems) -> None:
    """Print the problems, whole: what each is about, how often and since when, and the message."""
    where, problems = listing.namespace or "all namespaces", listing.problems
    if not problems:
        what = "nothing that could be read" if listing.omitted else "nothing"
        screen.paragraph(f"{where}: {what} is denied, or pending for longer than a minute")
    else:
        since = f", denials seen since {utc(listing.since, listing.at)}" if listing.since else ""
        screen.paragraph(f"{where}: {counted(len(problems), 'problem')}{since}")
    shown = problems if listing.namespace else problems[:MAX_PROBLEMS]
    for problem in shown:
        screen.line()
        owner = problem.owner if listing.namespace else f"{problem.namespace} {problem.owner}"
        screen.paragraph(
            f"{owner}: {_extent_text(problem, listing.at)}", indent=2, style=STYLES[problem.answer]
        )
        screen.paragraph(_one_line(problem.message), indent=4, hanging=0)
    if len(shown) < len(problems):
        screen.line()
        more = counted(len(problems) - len(shown), "more problem")
        screen.paragraph(f"{more}: -n NAMESPACE lists all of a namespace, -o json all", indent=2)
    screen.print_omissions(listing.omitted)


def _extent_text(problem: OwnerProblem, now: datetime) -> str:
    if problem.answer is not Answer.DENIED:
        return f"{counted(problem.count, 'pod')} {problem.answer.value} since {utc(problem.first, now)}"
    if not problem.count:
        return f"denied since {utc(problem.first, now)}"
    times = "once" if problem.count == 1 else f"{problem.count} times"
    if problem.first == problem.last:
        return f"denied {times}, at {utc(problem.last, now)}"
    return f"denied {times}, from {utc(problem.first, now)} to {utc(problem.last, now)}"


def show(screen: Screen, explained: Explanation) -> None:
    screen.line(
        f"{explained.kind}/{explained.name} in {explained.namespace}: {explained.answer.value}",
        STYLES.get(explained.answer, "green"),
    )
    if explained.headline:
        screen.paragraph(explained.headline, indent=2)
    obstacles = [reason for reason in explained.reasons if reason.source in OBSTACLES and reason.remedy]
    for reason in explained.reasons:
        _print_entry(screen, reason.source.value, reason.message)
        if reason.remedy:
            fix = "fix"
            if len(obstacles) > 1 and reason in obstacles:
                fix = "fix first" if reason is obstacles[0] else "then fix"
            # "did you mean nvidia-a100?" reads without a label, unless the order matters.
            label = "" if fix == "fix" and reason.remedy.endswith("?") else f"{fix}: "
            screen.paragraph(label + reason.remedy, indent=COLUMN + 2)
        for detail in reason.details:
            screen.paragraph(detail, indent=COLUMN + 2)
    _print_details(screen, explained)
    screen.print_omissions(explained.omitted, explained.nodes_from)


def _print_entry(screen: Screen, name: str, text: str) -> None:
    screen.paragraph(f"{name:<{COLUMN}}{_one_line(text)}", indent=2, hanging=COLUMN)


def _one_line(text: str) -> str:
    """Return the text on one line. Messages of other programs can have several lines."""
    return " ".join(text.split())


def _print_details(screen: Screen, explained: Explanation) -> None:
    screen.heading("what is known")
    where = f", on {' or '.join(explained.classes)}" if explained.classes else ""
    _print_entries(
        screen, "requests", [(format_requests(explained.requested) or "no GPU resource of a node") + where]
    )
    _print_entries(screen, "policy", _policy_facts(explained))
    _print_entries(screen, "quota", quota_facts(explained.quota, explained.at) if explained.quota else ())
    if explained.figures_until is not None:
        _print_entry(screen, "", stale_figures(explained.figures_until, explained.at))
    _print_entries(screen, "budget", budget_facts(explained.budget, explained.at) if explained.budget else ())
    _print_entries(screen, "kueue", kueue_facts(explained.kueue, explained.at) if explained.kueue else ())
    _print_entries(screen, "use", [idle_text(explained.idle, explained.at)] if explained.idle else ())
    _print_entries(screen, "nodes", _node_facts(explained.nodes) if explained.nodes is not None else ())
    _print_entries(screen, "pods", _pod_facts(explained))
    if explained.pods_total > len(explained.pods):
        _print_entry(screen, "", f"and {explained.pods_total - len(explained.pods)} more")
    for index, text in enumerate(_event_facts(explained)):  # -o json has them whole
        screen.line(truncate(f"  {'' if index else 'events':<{COLUMN}}{_one_line(text)}", screen.width))


def _print_entries(screen: Screen, name: str, texts: Iterable[str]) -> None:
    for index, text in enumerate(texts):
        _print_entry(screen, "" if index else name, text)


def _policy_facts(explained: Explanation) -> Iterator[str]:
    denied = sum(verdict.outcome == "denied" for verdict in explained.verdicts)
    is_change = any(event.reason == FAILED_UPDATE for event in explained.events)
    allowed = f"no rule denies the pod{' as it is now' if is_change else ''}"
    what = f"denies the pod, for {counted(denied, 'reason')}" if denied else allowed
    yield f"{explained.policy}: {what}" if explained.policy else "not known"
    shown = {reason.reason for reason in explained.reasons}
    for verdict in explained.verdicts:
        if not verdict.reason or verdict.reason not in shown:
            yield f"{verdict.outcome}: {verdict.sentence}"


def quota_facts(quota: QuotaFit, now: datetime) -> Iterator[str]:
    """Yield what the pod needs of the quota, and what there is."""
    if not quota.rows and quota.state is not None:
        yield f"{quota.state.value}; the pod itself requests nothing that it limits"
    for row in quota.rows:
        creating = f" and {format_amount(row.reserved)} being created" if row.reserved else ""
        requested = format_amount(row.requested)
        by_pod = f", {requested} by this pod" if quota.is_held else f"; the pod requests {requested}"
        yield f"{row.key}: {amount_or_unknown(row.used)} of {format_amount(row.hard)} used{creating}{by_pod}"
    if quota.team is not None:
        yield team_view_text(quota.team)
    if quota.unbound_since:
        yield f"held without a node since {utc(quota.unbound_since, now)}: nobody else gets it until the pod is deleted"


def kueue_facts(kueue: KueueState, now: datetime) -> Iterator[str]:
    yield kueue.in_words(now)
    if kueue.amounts:
        yield kueue.amounts


def _node_facts(nodes: tuple[NodeFit, ...]) -> Iterator[str]:
    if not nodes:
        yield "no node has one of these classes"
    for node in nodes[:MAX_NODES]:
        free = ", ".join(
            f"{'?' if node.free is None else format_amount(node.free[name])} of {format_amount(has)} {name} free"
            for name, has in node.allocatable.items()
            if has
        )
        against = ", and ".join(node.against)
        name, kind = node.name, node.kind or "unknown class"
        where = f"{name} ({kind})" if name else f"{counted(node.number, 'node')} of {kind}, at most"
        yield (
            f"{where} {against}".rstrip() if free in against else f"{where} {free}{against and ': '}{against}"
        )
    if len(nodes) > MAX_NODES:
        yield f"and {counted(len(nodes) - MAX_NODES, 'node')} more"


def _pod_facts(explained: Explanation) -> Iterator[str]:
    for pod in explained.pods:
        place = f" on {pod.node}" if pod.node else ""
        reason = f": {pod.reason}" if pod.reason and not explained.says(pod.reason) else ""
        yield f"{pod.name} {pod.phase}{place}{reason}"


def _event_facts(explained: Explanation) -> Iterator[str]:
    for event in explained.events:
        last = f"{utc(event.last, explained.at)} " if event.last else ""
        message = "" if explained.says(event.message) else f": {event.message}"
        yield f"{last}{event.about} {event.reason}, {counted(event.count, 'time')}{message}"

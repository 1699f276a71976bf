"""`gpu-admission why`: why a pod, or the pods of a workload, are refused or do not run, and what to do."""

import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import click

from policies.quota.amounts import format_amount
from webhook.cluster import errors
from webhook.commands.cluster_options import ClusterChoice, cluster_options, fail
from webhook.commands.output import Screen, counted, one_line, print_json, print_omitted
from webhook.commands.parameters import config_option, output_option
from webhook.tools.status.report import plain
from webhook.tools.why.discovery import UnknownKindError
from webhook.tools.why.explaining import explain
from webhook.tools.why.explanation import Answer, Explanation, NodeFit, QuotaDemand, QuotaFit, Source

DOES_NOT_RUN = 1
WELL = frozenset({Answer.RUNNING, Answer.ENDED, Answer.STOPPED})
STYLES = {Answer.REFUSED: "red", Answer.PENDING: "yellow", Answer.GATED: "yellow", Answer.UNKNOWN: "yellow"}
COLUMN = 11
MOST_NODES = 10
DENIED = "denied"
NOT_STORED = "of an object that was denied at its creation nothing is stored: its denial is in the answer to whoever created it"


@click.command()
@click.argument("subject", nargs=-1, required=True, metavar="KIND/NAME | KIND NAME")
@click.option("-n", "--namespace", help="Its namespace; left out: the context's.")
@config_option("the cluster's documents")
@output_option("text", "json")
@cluster_options
def why(
    *,
    subject: tuple[str, ...],
    namespace: str | None,
    config: Path | None,
    output: str,
    cluster: ClusterChoice,
) -> None:
    """Explain why an object's pods are refused, or pending.

    KIND is any that makes pods, by any of its names: pod/train-0, deploy/chat, pytorchjobs.kubeflow.org/llama. Exits with 0 if
    its pods run, have ended, or are not to run now; 1 otherwise; 2 if there is no such object, or the cluster cannot be used.
    """
    kind, name = _parsed(subject)
    where = namespace or cluster.namespace()
    with cluster.client() as api:
        try:
            found = explain(api, kind, name, where, datetime.now(UTC), config=config)
        except errors.NotFound as error:
            fail(f"{error} in namespace {where}; {NOT_STORED}")
        except UnknownKindError as error:
            fail(error)
    if output == "json":
        print_json(plain(found))
    else:
        show(Screen(), found)
    if found.answer not in WELL:
        sys.exit(DOES_NOT_RUN)


def _parsed(subject: tuple[str, ...]) -> tuple[str, str]:
    words = subject[0].split("/") if len(subject) == 1 else list(subject)
    match words:
        case [kind, name] if kind and name:
            return kind, name
    raise click.UsageError("name one object as KIND/NAME or KIND NAME, such as job/train")


def show(screen: Screen, found: Explanation) -> None:
    screen.line(
        f"{found.kind}/{found.name} in {found.namespace}: {found.answer.value}",
        STYLES.get(found.answer, "green"),
    )
    if not found.reasons:
        screen.paragraph(found.summary, indent=2)
    elif found.pods_wanted != 1:
        screen.paragraph(found.summary.partition(":")[0], indent=2)
    for reason in found.reasons:
        _entry(screen, reason.source.value, reason.message)
        if reason.remedy:
            screen.paragraph(f"fix: {reason.remedy}", indent=COLUMN + 2)
    _details(screen, found)
    print_omitted(screen, found.omitted)


def _entry(screen: Screen, name: str, text: str) -> None:
    screen.paragraph(f"{name:<{COLUMN}}{_flat(text)}", indent=2, hanging=COLUMN)


def _flat(text: str) -> str:
    """Return the text on one line: messages of others may have several."""
    return " ".join(text.split())


def _details(screen: Screen, found: Explanation) -> None:
    screen.heading("what is known")
    requested = ", ".join(f"{format_amount(amount)} {name}" for name, amount in found.requested.items())
    where = f", on {' or '.join(found.classes)}" if found.classes else ""
    _entry(screen, "asks", (requested or "for no GPU by a resource of nodes") + where)
    _policy(screen, found)
    if found.quota is not None:
        _quota(screen, found.quota)
    if found.nodes is not None:
        _nodes(screen, found.nodes)
    pods = []
    for pod in found.pods:
        place, reason = f" on {pod.node}" if pod.node else "", f": {pod.reason}" if pod.reason else ""
        pods.append(f"{pod.name} {pod.phase}{place}{reason}")
    _lines(screen, "pods", pods)
    if found.pods_total > len(found.pods):
        _entry(screen, "", f"and {found.pods_total - len(found.pods)} more")
    events = []
    for event in found.events:
        last = f", last at {event.last:%H:%M:%S} UTC" if event.last else ""
        times = counted(event.count, "time")
        events.append(f"{event.about} {event.reason}, {times}{last}: {event.message}")
    _lines(screen, "events", events)


def _lines(screen: Screen, name: str, texts: Iterable[str]) -> None:
    """Print one line of each text, cut to the width: `-o json` has all of it."""
    for index, text in enumerate(texts):
        screen.line(one_line(f"  {'' if index else name:<{COLUMN}}{_flat(text)}", screen.width))


def _policy(screen: Screen, found: Explanation) -> None:
    denied = [verdict for verdict in found.verdicts if verdict.outcome == DENIED]
    others = [verdict for verdict in found.verdicts if verdict.outcome != DENIED]
    what = "its rules deny nothing of it"
    if denied:
        what = f"would deny it now, for {counted(len(denied), 'reason')}"
    _entry(screen, "policy", f"{found.policy}: {what}" if found.policy else "not known")
    # What it is refused for stands above.
    is_said = any(reason.source is Source.POLICY for reason in found.reasons)
    for verdict in others if is_said else (*denied, *others):
        _entry(screen, "", f"{verdict.outcome}: {verdict.sentence}")


def _quota(screen: Screen, quota: QuotaFit) -> None:
    if not quota.rows:
        _entry(screen, "quota", f"{quota.state.value}; it asks nothing of it")
    for index, row in enumerate(quota.rows):
        _entry(screen, "" if index else "quota", _demand(row, is_held=quota.is_held))


def _demand(row: QuotaDemand, *, is_held: bool) -> str:
    used = "?" if row.used is None else format_amount(row.used)
    amounts = f"{used} + {format_amount(row.reserved)} of {format_amount(row.hard)}"
    if is_held:
        return f"{row.key}: {amounts} held, {format_amount(row.requested)} by this pod"
    verdict = "fits" if row.fits else "can never fit" if row.never else "does not fit"
    return f"{row.key}: {amounts} held, {format_amount(row.requested)} asked: {verdict}"


def _nodes(screen: Screen, nodes: tuple[NodeFit, ...]) -> None:
    if not nodes:
        _entry(screen, "nodes", "none of its classes")
    for index, node in enumerate(nodes[:MOST_NODES]):
        free = ", ".join(
            f"{'?' if node.free is None else format_amount(node.free[name])} of {format_amount(has)} {name} free"
            for name, has in node.allocatable.items()
        )
        against = f": {', and '.join(node.against)}" if node.against else ""
        text = f"{node.name} ({node.kind or 'unknown class'}) {free}{against}"
        _entry(screen, "" if index else "nodes", text)
    if len(nodes) > MOST_NODES:
        _entry(screen, "", f"and {counted(len(nodes) - MOST_NODES, 'node')} more")

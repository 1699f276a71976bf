"""`gpu-admission replay`: new pods of an audit log, evaluated again under other documents."""

import sys
from collections.abc import Mapping
from pathlib import Path

import click
import msgspec

from policies.policy import Labels
from webhook.cluster.objects import PartialObject
from webhook.commands.cluster_options import fail
from webhook.commands.output import Screen, counted, print_json
from webhook.commands.parameters import config_option, now, output_option
from webhook.configuration.loader import ConfigurationError, load_directory
from webhook.serving.engine import Engine
from webhook.tools.audit.reading import STDIN, Counts, audit_lines
from webhook.tools.audit.replay import Hit, Replay

NEWLY_DENIED = 1
MOST_SHOWN = 20


class _Namespaces(msgspec.Struct):
    items: tuple[PartialObject, ...] = ()


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE|-]...")
@config_option("the built-in ones")
@click.option(
    "--namespaces",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Labels of namespaces, where policies select by them: kubectl get namespaces -o json.",
)
@output_option("text", "json")
def replay(files: tuple[str, ...], config: Path | None, namespaces: Path | None, output: str) -> None:
    """Judge the pods of an audit log again by other policies.

    A FILE may end in .gz; without any, standard input is read. Lines need the pods that `serve --audit-pods` writes. Quotas are
    not replayed.

    Exit codes: 0 nobody more would be denied, 1 somebody would, 2 bad input.
    """
    lines = Counts()
    try:
        engine = Engine(load_directory(config))
        found = Replay(engine, _labels(namespaces), now())
        found.read(audit_lines(files or (STDIN,), lines, _is_wanted))
    except ConfigurationError as error:
        fail(error)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}")
    found.finish()
    if output == "json":
        print_json(_document(found, lines))
    else:
        _print(Screen(), found)
        for note in _notes(lines, found):
            Screen(stderr=True).paragraph(note, hanging=0)
    sys.exit(NEWLY_DENIED if found.newly_denied else 0)


def _is_wanted(line: bytes) -> bool:
    return b'"CREATE"' in line and b'"Pod"' in line


def _labels(namespaces: Path | None) -> Mapping[str, Labels]:
    if namespaces is None:
        return {}
    try:
        read = msgspec.json.decode(namespaces.read_bytes(), type=_Namespaces)
    except msgspec.MsgspecError as error:
        fail(f"{namespaces}: must be what kubectl get namespaces -o json prints: {error}")
    return {each.metadata.name: each.metadata.sorted_labels for each in read.items}


def _document(found: Replay, lines: Counts) -> dict[str, object]:
    return {
        "pods": found.pods,
        "newlyDenied": found.newly_denied,
        "noLongerDenied": found.no_longer_denied,
        "deniedAsBefore": found.denied_as_before,
        "newly": found.newly,
        "noLonger": found.no_longer,
        "withoutPod": found.without_pod,
        "notEvaluated": found.not_evaluated,
        "lines": lines.lines,
        "unreadableLines": lines.unreadable,
        "first": found.first,
        "last": found.last,
    }


def _print(screen: Screen, found: Replay) -> None:
    when = f", created from {found.first} to {found.last}" if found.pods else ""
    screen.paragraph(f"{counted(found.pods, 'new pod')} evaluated again{when}.", hanging=0)
    rows = (
        (found.newly_denied, "would be denied and was not", "would be denied and were not"),
        (found.no_longer_denied, "would not be denied any more", "would not be denied any more"),
        (found.denied_as_before, "would be denied as before", "would be denied as before"),
    )
    for number, one, several in rows:
        screen.line(f"{number:>8}  {one if number == 1 else several}")
    _print_hits(screen, "Would be denied", found.newly)
    _print_hits(screen, "Would not be denied any more", found.no_longer)


def _print_hits(screen: Screen, title: str, hits: list[Hit]) -> None:
    if not hits:
        return
    screen.line()
    screen.line(title, "bold")
    for hit in hits[:MOST_SHOWN]:
        whose = f"{hit.namespace}/{hit.owner}" if hit.owner else hit.namespace
        screen.line(f"  {whose}  {counted(hit.pods, 'pod')}  {hit.rule}")
        if hit.message:
            screen.paragraph(hit.message, indent=4, hanging=0)
    if len(hits) > MOST_SHOWN:
        screen.line(f"  … and {len(hits) - MOST_SHOWN} more (-o json has all)")


def _notes(lines: Counts, found: Replay) -> list[str]:
    notes = []
    if found.without_pod:
        pods = counted(found.without_pod, "new pod")
        notes.append(f"{pods} without what rules read of it: run serve with --audit-pods.")
    if found.not_evaluated:
        pods = counted(sum(found.not_evaluated.values()), "pod")
        names = ", ".join(sorted(found.not_evaluated)[:5])
        notes.append(
            f"{pods} not evaluated: the policy depends on labels that are not known; give --namespaces. In: {names}."
        )
    if lines.unreadable:
        notes.append(f"{lines.unreadable} of {counted(lines.lines, 'line')} could not be read.")
    return notes

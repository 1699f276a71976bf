"""`gpu-admission check`: the webhook's own engine on manifests, without a cluster."""

from datetime import datetime
from pathlib import Path

import click

from webhook.commands import reports
from webhook.commands.output import counted
from webhook.commands.parameters import Moment
from webhook.commands.parameters import now as current_time
from webhook.configuration.loader import ConfigurationError, load_directory
from webhook.serving.engine import Engine
from webhook.tools.check.manifests import read_manifests
from webhook.tools.check.offline import Verdict, answer, labels_by_namespace

REFUSED = 1
BAD_INPUT = 2

REPORTS = {
    "text": reports.print_text,
    "yaml": reports.print_yaml,
    "json": reports.print_json,
    "diff": reports.print_diff,
}


@click.command()
@click.option(
    "-f",
    "--filename",
    "sources",
    multiple=True,
    required=True,
    help='File, directory, or "-" for stdin; repeatable.',
)
@click.option("-R", "--recursive", is_flag=True, help="Read the directories below a directory, too.")
@click.option("--config", type=click.Path(path_type=Path), help="Directory of GPUPolicy and other documents.")
@click.option(
    "-n", "--namespace", default="default", show_default=True, help="Where objects belong that name none."
)
@click.option("-o", "--output", type=click.Choice(list(REPORTS)), default="text", show_default=True)
@click.option(
    "--now", type=Moment(), default=current_time, help="Answer for this time: exemptions end, pauses end."
)
@click.pass_context
def check(
    context: click.Context,
    *,
    sources: tuple[str, ...],
    recursive: bool,
    config: Path | None,
    namespace: str,
    output: str,
    now: datetime,
) -> None:
    """Say what the webhook would do to manifests: what it would inject, and what it would refuse, where and why.

    Exits with 0 if everything would be admitted, 1 if anything would be refused, 2 if anything could not be read.
    """
    try:
        engine = Engine(load_directory(config))
    except ConfigurationError as error:
        for problem in error.problems:
            click.echo(f"error: {problem}", err=True)
        click.echo(
            f"{counted(len(error.problems), 'problem')} in the configuration; nothing was checked", err=True
        )
        context.exit(BAD_INPUT)
    found = read_manifests(sources, recursive=recursive, namespace=namespace)
    labels = labels_by_namespace(found.manifests)
    answers = [answer(manifest, engine, now, labels) for manifest in found.manifests]
    REPORTS[output](answers, found.problems)
    if found.problems:
        context.exit(BAD_INPUT)
    if any(each.verdict is Verdict.REFUSED for each in answers):
        context.exit(REFUSED)

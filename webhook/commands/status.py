"""`gpu-admission status`: the installation, policies, quotas, GPU classes and what was denied, at one moment or as it changes."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path

import click
import msgspec

from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.objects import InstallationNames
from webhook.commands import options
from webhook.commands.options import ClusterChoice
from webhook.commands.output import STRUCTURED, Screen, counted, echo, fail, fail_with, print_value
from webhook.commands.status_text import show
from webhook.tools.gpu_hours import Counts
from webhook.tools.status.denials import LoggedPods, pods_in_logs
from webhook.tools.status.reading import read_status, status_reader
from webhook.tools.status.report import ClusterStatus, only_problems

EVERY_SECONDS = 5.0
NEVER = datetime.min.replace(tzinfo=UTC)


@click.command()
@options.namespace_options(several=True)
@options.verbose_option
@click.option("--problems", is_flag=True, help="Leave out what works; show every quota with a problem.")
@click.option("-w", "--watch", is_flag=True, help="Show it again whenever it changes, until Ctrl-C.")
@click.option(
    "--interval",
    type=click.FloatRange(min=1.0),
    default=EVERY_SECONDS,
    help="With --watch: seconds between reads.",
)
@click.option(
    "--audit-log",
    "logs",
    multiple=True,
    metavar="FILE",
    help="Count denials by this audit log, not by Events, and what only audited; several times, also .gz.",
)
@options.install_namespace_option
@options.config_option("the cluster's documents")
@options.output_option()
@options.cluster_options
def status(
    *,
    namespaces: tuple[str, ...],
    all_namespaces: bool,
    problems: bool,
    watch: bool,
    interval: float,
    logs: tuple[str, ...],
    install_namespace: str,
    config: Path | None,
    output: str,
    cluster: ClusterChoice,
) -> None:
    """Show policies, quotas, GPU classes and denials.

    Parts that you may not read are left out, and named at the end.

    Exit codes: 0; 2 if the cluster or the documents cannot be used.
    """
    home = "" if all_namespaces else cluster.namespace()
    names = InstallationNames(namespace=install_namespace)
    logged = cache(lambda: _read_logs(logs, namespaces, datetime.now(UTC)))  # read once, also with --watch

    def read(api: ApiClient, before: ClusterStatus | None) -> ClusterStatus:
        return read_status(
            api,
            now=datetime.now(UTC),
            namespaces=namespaces,
            home=home,
            names=names,
            config=config,
            installation=before.installation if before else None,
            logged=logged(),
        )

    with cluster.client() as api:
        if not watch:
            _print_status(read(api, None), output, problems=problems)
            return
        statuses = readings(status_reader(partial(read, api)), interval)
        with suppress(KeyboardInterrupt):
            if output == "text" and sys.stdout.isatty():
                redraw(statuses, problems=problems)
            else:
                for change in changes(statuses):
                    _print_status(change, output, indent=0, problems=problems)


def _print_status(status: ClusterStatus, output: str, *, indent: int = 2, problems: bool) -> None:
    """Print a status. `indent` is 0 if more follow: JSON then takes one line, YAML a document, text ends with an empty line."""
    if output in STRUCTURED:
        print_value(output, only_problems(status) if problems else status, indent=indent)
        return
    show(Screen(), status, problems=problems)
    if not indent:
        echo()


def _read_logs(logs: Sequence[str], namespaces: Sequence[str], moment: datetime) -> LoggedPods | None:
    """Return the pods of audit logs; None without logs. End the command if a log cannot be read."""
    lines = Counts()
    try:
        pods = pods_in_logs(logs, namespaces, moment, lines) if logs else None
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}")
    if lines.problems:
        fail_with(lines.problems)
    if lines.unreadable:
        echo(f"{counted(lines.unreadable, 'line')} of the audit logs could not be read", err=True)
    return pods


def readings(read: Callable[[], ClusterStatus], interval: float) -> Iterator[ClusterStatus]:
    """Yield the status again and again; print the error of a read, but raise that of the first one."""
    yield read()
    while True:
        time.sleep(interval)
        try:
            yield read()
        except errors.ApiError as error:
            echo(f"error: {error}", err=True)


def changes(statuses: Iterable[ClusterStatus]) -> Iterator[ClusterStatus]:
    """Yield each status that differs from the one before in more than its time."""
    before = None
    for cluster_status in statuses:
        if (now := msgspec.structs.replace(cluster_status, at=NEVER)) != before:
            before = now
            yield cluster_status


def redraw(statuses: Iterable[ClusterStatus], *, problems: bool = False) -> None:
    """Print each status in place of the one before."""
    for cluster_status in statuses:
        click.clear()
        show(Screen(), cluster_status, problems=problems)

"""Which cluster a command works with: `--kubeconfig` and `--context`, with one meaning in every command.

Without them a command takes the service account of its pod, and outside a pod what kubectl would use. Commands that also work
without a cluster do so only with `--standalone`, never because of what they happen to find.
"""

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

import click

from webhook.cluster import errors
from webhook.cluster.access import Access, AccessError, context_namespace, load_access
from webhook.cluster.api import ApiClient
from webhook.commands.output import counted, echo, print_errors
from webhook.configuration.loader import ConfigurationError

BAD_INPUT = 2
"""The exit status of every command with wrong usage, or with a cluster or documents that cannot be used."""


class ClusterChoice(NamedTuple):
    """The named cluster; both fields are None if no cluster was named."""

    kubeconfig: str | None
    context: str | None

    @property
    def is_named(self) -> bool:
        return self != ClusterChoice(None, None)

    def access(self) -> Access:
        """Return the credentials for the cluster. Raises AccessError."""
        return load_access(self.kubeconfig, self.context)

    def namespace(self) -> str:
        """Return the namespace of kubectl. Without a usable kubeconfig the command ends."""
        try:
            return context_namespace(self.kubeconfig, self.context)
        except AccessError as error:
            fail(error)

    @contextmanager
    def client(self) -> Iterator[ApiClient]:
        """Give a client of the cluster. If it, or its documents, cannot be used, the command ends with exit status 2."""
        try:
            yield ApiClient(self.access())
        except (AccessError, errors.ApiError, ConfigurationError) as error:
            fail(error)


def fail(error: object, status: int = BAD_INPUT) -> NoReturn:
    echo(f"error: {error}", err=True)
    sys.exit(status)


def end_with(problems: Sequence[object], consequence: str = "") -> NoReturn:
    """Print the problems, then their number with the consequence if one is stated, and end the command."""
    print_errors(problems)
    if consequence:
        echo(f"{counted(len(problems), 'problem')}{consequence}", err=True)
    sys.exit(BAD_INPUT)


Command = Callable[..., Any]


def _options(kubeconfig_help: str, context_help: str) -> Callable[[Command], Command]:
    """Return what adds `--kubeconfig` and `--context`; the command gets them as `cluster`, a ClusterChoice."""

    def added(command: Command) -> Command:
        @click.option("--kubeconfig", metavar="FILE", help=kubeconfig_help)
        @click.option("--context", metavar="NAME", help=context_help)
        @functools.wraps(command)
        def packed(kubeconfig: str | None, context: str | None, **given: Any) -> Any:
            return command(cluster=ClusterChoice(kubeconfig, context), **given)

        return packed

    return added


cluster_options = _options(
    "Work with the cluster that this file names; left out: the pod's service account, else what kubectl would use.",
    "Context of the kubeconfig; left out: its current one.",
)
named_cluster_options = _options(
    "Evaluate by the cluster that this file names; left out, and --context too: without a cluster.",
    "Evaluate by the cluster of this context of the kubeconfig.",
)
"""For a command that works without a cluster unless one is named."""


def optional_cluster_options(command: Command) -> Command:
    """Add `--standalone` too; then `cluster` is None."""

    @click.option(
        "--standalone",
        is_flag=True,
        help="Work without a cluster: documents come from --config or are the built-in ones.",
    )
    @cluster_options
    @functools.wraps(command)
    def chosen(cluster: ClusterChoice, *, standalone: bool, **given: Any) -> Any:
        if standalone and cluster.is_named:
            raise click.UsageError(
                "--standalone works without a cluster: omit it, or --kubeconfig and --context"
            )
        return command(cluster=None if standalone else cluster, **given)

    return chosen

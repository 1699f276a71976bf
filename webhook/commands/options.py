"""Options that several commands have, with one wording, and the types of options.

`--kubeconfig` and `--context` name the cluster. Without them a command takes the service account of its pod, and outside a pod
what kubectl would use. Commands that also work without a cluster do so only with `--standalone`, never because of what they
happen to find.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click
import msgspec

from webhook.cluster import errors
from webhook.cluster.access import AccessError, Kubeconfig, context_namespace, load_access
from webhook.cluster.api import METADATA_LIST, ApiClient
from webhook.cluster.objects import NAMESPACE, decode_metadata
from webhook.commands.output import STRUCTURED, progress
from webhook.prometheus.client import Prometheus, PrometheusError
from webhook.serving.deadline import parse_duration

HOURS_OF_YEAR = 365 * 24

Command = Callable[..., Any]
F = TypeVar("F", bound=Command)


class ClusterChoice(NamedTuple):
    """The named cluster; both fields are None if no cluster was named."""

    kubeconfig: str | None
    context: str | None

    @property
    def is_named(self) -> bool:
        return self != ClusterChoice(None, None)

    def namespace(self) -> str:
        """Return the namespace of kubectl. Raises AccessError."""
        return context_namespace(*self)

    @contextmanager
    def client(self) -> Iterator[ApiClient]:
        """Give a client of the cluster, and say meanwhile that it is read. Raises AccessError; Unreachable names the server."""
        access = load_access(*self)
        with progress(f"reading {access.url}"):
            try:
                yield ApiClient(access)
            except errors.Unreachable as error:
                raise errors.Unreachable(f"{access.url}: {error}") from None


def _options(kubeconfig_help: str, context_help: str) -> Callable[[Command], Command]:
    """Return what adds `--kubeconfig` and `--context`; the command gets them as `cluster`, a ClusterChoice."""

    def added(command: Command) -> Command:
        @click.option("--kubeconfig", metavar="FILE", help=kubeconfig_help)
        @click.option("--context", metavar="NAME", help=context_help, shell_complete=_contexts)
        @functools.wraps(command)
        def packed(kubeconfig: str | None, context: str | None, **given: Any) -> Any:
            return command(cluster=ClusterChoice(kubeconfig, context), **given)

        return packed

    return added


cluster_options = _options(
    "Work with the cluster that this file names. Default: the pod's service account, else what kubectl would use.",
    "Context of the kubeconfig. Default: its current one.",
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


def config_option(left_out: str) -> Callable[[F], F]:
    """Return `--config`; `left_out` names the documents that are used without it."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="PATH",
        help=f"Directory or file of GPUPolicy, GPUClass and other documents. Default: {left_out}.",
    )


def output_option(*more: str) -> Callable[[F], F]:
    """Return `-o`: text, which is the default, JSON, YAML, and more."""
    formats = ("text", *STRUCTURED, *more)
    return click.option("-o", "--output", type=click.Choice(formats), default="text", help="Output format.")


READABLE = "all that you may read, else the context's"


def namespace_option(help_text: str, *, several: bool = False, **more: Any) -> Callable[[F], F]:
    """Return `-n`, which names one namespace, or `several`; the command gets them as `namespaces`."""
    name = "namespaces" if several else "namespace"
    text = f"{help_text} Can be repeated." if several else help_text
    return click.option(
        "-n",
        "--namespace",
        name,
        metavar="NAME",
        multiple=several,
        help=text,
        shell_complete=_namespaces,
        **more,
    )


def namespace_options(
    left_out: str = READABLE, *names_of_all: str, several: bool = False
) -> Callable[[Command], Command]:
    """Return `-n` and `-A`; the command gets `all_namespaces`, too.

    left_out: the namespaces without either. names_of_all: further names of `-A`.
    """

    def added(command: Command) -> Command:
        @namespace_option(f"Namespace. Default: {left_out}.", several=several)
        @click.option("-A", "--all-namespaces", *names_of_all, is_flag=True, help="All namespaces.")
        @functools.wraps(command)
        def checked(*, all_namespaces: bool, **given: Any) -> Any:
            if all_namespaces and (given.get("namespace") or given.get("namespaces")):
                raise click.UsageError("-A means all namespaces: omit -n")
            return command(all_namespaces=all_namespaces, **given)

        return checked

    return added


Completed = Callable[[click.Context, click.Parameter, str], list[str]]


def completed(read: Callable[[ApiClient], Iterable[str]]) -> Completed:
    """Return a completion by names that are read from the cluster; where they cannot be read there are none."""

    def complete(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
        given = context.params
        try:
            access = load_access(given.get("kubeconfig"), given.get("context"))
            return [name for name in read(ApiClient(access, read_seconds=2.0)) if name.startswith(begun)]
        except errors.ApiError:  # AccessError is one
            return []

    return complete


_namespaces = completed(lambda api: object_names(api, "/api/v1/namespaces"))


def object_names(api: ApiClient, path: str) -> list[str]:
    return [decode_metadata(raw).name for raw in api.list(path, msgspec.Raw, accept=METADATA_LIST).items]


def _contexts(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    try:
        names = Kubeconfig(context.params.get("kubeconfig")).contexts
    except AccessError:
        return []
    return [name for name in names if name.startswith(begun)]


verbose_option = click.option(
    "--verbose", is_flag=True, expose_value=False, help="List the rights that you lack one by one."
)
"""`output.lacking` looks whether it is given."""


def prometheus_options(purpose: str) -> Callable[[Command], Command]:
    """Return the options of a Prometheus; the command gets them as `prometheus`, None without an address."""

    def added(command: Command) -> Command:
        @click.option(
            "--prometheus-url",
            metavar="URL",
            help=f"{purpose}: the address of Prometheus, such as https://prometheus.monitoring:9090. Default: no use is read.",
        )
        @click.option(
            "--prometheus-token-file",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="File with the bearer token for Prometheus, read again for each query.",
        )
        @click.option(
            "--prometheus-ca-file",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="File with the authorities (PEM) of Prometheus. Default: those of the system.",
        )
        @functools.wraps(command)
        def packed(
            prometheus_url: str | None,
            prometheus_token_file: Path | None,
            prometheus_ca_file: Path | None,
            **given: Any,
        ) -> Any:
            if prometheus_url is None:
                if prometheus_token_file or prometheus_ca_file:
                    raise click.UsageError(
                        "--prometheus-token-file and --prometheus-ca-file need --prometheus-url"
                    )
                return command(prometheus=None, **given)
            try:
                prometheus = Prometheus(prometheus_url, prometheus_token_file, prometheus_ca_file)
            except PrometheusError as error:
                raise click.BadParameter(str(error), param_hint="--prometheus-url") from None
            return command(prometheus=prometheus, **given)

        return packed

    return added


def now_option(purpose: str) -> Callable[[F], F]:
    return click.option("--now", type=Moment(), default=now, help=f"{purpose}. Default: now.")


class Moment(click.ParamType[datetime]):
    """A point in time, ISO 8601 with its time zone."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            moment = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f'"{value}" is not a valid time: write it as 2027-01-31T18:00:00Z.', param, ctx)
        if moment.tzinfo is None:
            self.fail(f'"{value}" must have a time zone: write it as 2027-01-31T18:00:00Z.', param, ctx)
        return moment.astimezone(UTC)


class Since(Moment):
    """A point in time, a date, which is its first moment in UTC, or how long ago: `24h`, `7d`."""

    name = "TIME|DATE|DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        text = str(value)
        if re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
            text = value = f"{text}T00:00:00Z"
        if isinstance(value, datetime) or "T" in text or "-" in text:
            return super().convert(value, param, ctx)
        days, unit, rest = text.partition("d")
        try:
            ago = timedelta(days=int(days) if unit else 0)
            return now() - ago - (parse_duration(rest if unit else text) if rest or not unit else timedelta())
        except (ValueError, OverflowError):
            problem = "write how long ago, 24h or 7d, a date, 2027-01-31, or a time, 2027-01-31T18:00:00Z"
            self.fail(f'"{text[:40]}" is not valid: {problem}.', param, ctx)


class Window(click.ParamType[int]):
    """A time until now, in hours: `14d`, `36h`; at most a year."""

    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = re.fullmatch("([0-9]{1,4})([dh])", str(value))
        hours = int(match[1]) * (24 if match[2] == "d" else 1) if match else 0
        if not 1 <= hours <= HOURS_OF_YEAR:
            self.fail(
                f'"{str(value)[:40]}" is not valid: write days or hours, 14d or 36h, at most 365d.',
                param,
                ctx,
            )
        return hours


class Duration(click.ParamType[timedelta]):
    """A duration of at least a second, as Go writes it."""

    name = "DURATION"

    def __init__(self, at_most: str = "") -> None:
        self._at_most = at_most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        try:
            duration = value if isinstance(value, timedelta) else parse_duration(str(value))
        except (ValueError, OverflowError):
            self.fail(f'"{str(value)[:40]}" is not a valid duration: write 30m or 1h30m.', param, ctx)
        if duration < timedelta(seconds=1):
            self.fail(f'"{value}" must be at least 1s.', param, ctx)
        if self._at_most and duration > parse_duration(self._at_most):
            self.fail(f'"{value}" must be at most {self._at_most}.', param, ctx)
        return duration


def now() -> datetime:
    return datetime.now(UTC)


install_namespace_option = click.option(
    "--install-namespace", default=NAMESPACE, help="Where gpu-admission is installed."
)

prices_option = click.option(
    "--prices",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="YAML with a currency and prices of GPU-hours: of classes, and a default.",
)

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
from webhook.cluster.access import Kubeconfig, context_namespace, load_access
from webhook.cluster.api import METADATA_LIST, ApiClient
from webhook.cluster.objects import NAMESPACE, decode_metadata
from webhook.commands.output import STRUCTURED, progress
from webhook.prometheus.client import Prometheus, PrometheusError
from webhook.serving.deadline import parse_duration

HOURS_OF_YEAR = 365 * 24

Command = Callable[..., Any]
F = TypeVar("F", bound=Command)

Completed = Callable[[click.Context, click.Parameter, str], list[str]]


def completed(names: Callable[[click.Context], Iterable[str]]) -> Completed:
    """Return a completion by these names; where they cannot be read there are none."""

    def complete(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
        try:
            return [name for name in names(context) if name.startswith(begun)]
        except (errors.ApiError, msgspec.MsgspecError):  # AccessError is an ApiError
            return []

    return complete


def completed_by(read: Callable[[ApiClient], Iterable[str]]) -> Completed:
    """Return a completion by names that are read from the cluster."""

    def names(context: click.Context) -> Iterable[str]:
        given = (context.params.get(name) for name in ("kubeconfig", "context"))
        return read(ApiClient(load_access(*given), read_seconds=2.0))

    return completed(names)


def object_names(api: ApiClient, path: str) -> list[str]:
    return [decode_metadata(raw).name for raw in api.list(path, msgspec.Raw, accept=METADATA_LIST).items]


_namespaces = completed_by(functools.partial(object_names, path="/api/v1/namespaces"))
_contexts = completed(lambda context: Kubeconfig(context.params.get("kubeconfig")).contexts)


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
        with progress("reading the cluster"):
            access = load_access(*self)
            try:
                yield ApiClient(access)
            except errors.Unreachable as error:
                raise errors.Unreachable(f"{access.url}: {error}") from None
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise errors.ApiError(f"{access.url}: {errors.UNREADABLE}") from error


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
    def chosen(cluster: ClusterChoice, *, standalone: bool, **options: Any) -> Any:
        if standalone and cluster.is_named:
            raise click.UsageError(
                "--standalone works without a cluster: omit it, or --kubeconfig and --context"
            )
        return command(cluster=None if standalone else cluster, **options)

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


READABLE_NAMESPACES = "all that you may read, else the context's"


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
    left_out: str = READABLE_NAMESPACES, *names_of_all: str, several: bool = False
) -> Callable[[Command], Command]:
    """Return `-n` and `-A`; the command gets `all_namespaces`, too.

    left_out: the namespaces without either. names_of_all: further names of `-A`.
    """

    def added(command: Command) -> Command:
        @namespace_option(f"Namespace. Default: {left_out}.", several=several)
        @click.option("-A", "--all-namespaces", *names_of_all, is_flag=True, help="All namespaces.")
        @functools.wraps(command)
        def checked(*, all_namespaces: bool, **options: Any) -> Any:
            if all_namespaces and (options.get("namespace") or options.get("namespaces")):
                raise click.UsageError("-A means all namespaces: omit -n")
            return command(all_namespaces=all_namespaces, **options)

        return checked

    return added


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


class Parsed(click.ParamType[Any]):
    """A type of what `parse` makes of a text. It raises ValueError with the words of the error."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


def moment(text: str) -> datetime:
    """Return a point in time, ISO 8601 with its time zone."""
    example = "write it as 2027-01-31T18:00:00Z"
    try:
        parsed = datetime.fromisoformat(text)
        time = parsed.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(f'"{text}" is not a valid time: {example}') from None
    if parsed.tzinfo is None:
        raise ValueError(f'"{text}" must have a time zone: {example}')
    return time


def since(text: str) -> datetime:
    """Return a point in time, a date, which is its first moment in UTC, or how long ago: `24h`, `7d`."""
    if re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        text = f"{text}T00:00:00Z"
    if "T" in text or "-" in text:
        return moment(text)
    days, unit, rest = text.partition("d")
    try:
        ago = timedelta(days=int(days) if unit else 0)
        return now() - ago - (parse_duration(rest if unit else text) if rest or not unit else timedelta())
    except (ValueError, OverflowError):
        problem = "write how long ago, 24h or 7d, a date, 2027-01-31, or a time, 2027-01-31T18:00:00Z"
        raise ValueError(f'"{text[:40]}" is not valid: {problem}') from None


def window(text: str) -> int:
    """Return a time until now, in hours: `14d`, `36h`; at most a year."""
    match = re.fullmatch("([0-9]{1,4})([dh])", text)
    hours = int(match[1]) * (24 if match[2] == "d" else 1) if match else 0
    if not 1 <= hours <= HOURS_OF_YEAR:
        raise ValueError(f'"{text[:40]}" is not valid: write days or hours, 14d or 36h, at most 365d')
    return hours


def duration(text: str, at_most: str = "") -> timedelta:
    """Return a duration of at least a second, as Go writes it."""
    try:
        parsed = parse_duration(text)
    except (ValueError, OverflowError):
        raise ValueError(f'"{text[:40]}" is not a valid duration: write 30m or 1h30m') from None
    if parsed < timedelta(seconds=1):
        raise ValueError(f'"{text}" must be at least 1s')
    if at_most and parsed > parse_duration(at_most):
        raise ValueError(f'"{text}" must be at most {at_most}')
    return parsed


SINCE = Parsed("TIME|DATE|DURATION", since)
DURATION = Parsed("DURATION", duration)


def now_option(purpose: str) -> Callable[[F], F]:
    time = Parsed("TIME", moment)
    return click.option("--now", type=time, default=now, help=f"{purpose}. Default: now.")


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

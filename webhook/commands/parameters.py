"""Options that several commands have, with one wording, and the types of options."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import click

from webhook.cluster.objects import NAMESPACE
from webhook.serving.deadline import parse_duration

F = TypeVar("F", bound=Callable[..., Any])


def config_option(left_out: str) -> Callable[[F], F]:
    """Return `--config`; `left_out` names the documents that are used without it."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="PATH",
        help=f"Directory or file of GPUPolicy, GPUClass and other documents; left out: {left_out}.",
    )


def output_option(*formats: str) -> Callable[[F], F]:
    """Return `-o`; the first format is the default."""
    return click.option(
        "-o", "--output", type=click.Choice(formats), default=formats[0], help="Output format."
    )


def now_option(purpose: str) -> Callable[[F], F]:
    return click.option("--now", type=Moment(), default=now, help=f"{purpose}; left out: now.")


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


def now() -> datetime:
    return datetime.now(UTC)


install_namespace_option = click.option(
    "--install-namespace", default=NAMESPACE, show_default=True, help="Where gpu-admission is installed."
)

namespaces_option = click.option(
    "-n",
    "--namespace",
    "namespaces",
    multiple=True,
    help="A namespace, also several times; left out: all that you may read, else the context's.",
)

"""Options of `serve` and `controller` for their log on standard error, and its two formats."""

import functools
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from webhook.cluster.objects import timestamp

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")


def log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--log-format` and `--log-level`, and set the log up before the command runs."""

    @click.option(
        "--log-format",
        type=click.Choice(FORMATS),
        default=FORMATS[0],
        show_default=True,
        help="Format of the log on stderr: a line of text, or of JSON.",
    )
    @click.option(
        "--log-level",
        type=click.Choice(LEVELS),
        default="info",
        show_default=True,
        help="Least severe lines of the log that are written.",
    )
    @functools.wraps(command)
    def logged(log_format: str, log_level: str, **given: Any) -> Any:
        set_up_log(log_format, log_level)
        return command(**given)

    return logged


def set_up_log(log_format: str, level: str) -> None:
    """Write what this process logs to standard error, gunicorn's lines too, in one of FORMATS from one of LEVELS on."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    logging.basicConfig(handlers=[handler], level=level.upper())
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # it warns about every connection beyond its pool


class TextLines(logging.Formatter):
    """`2026-11-22T07:40:00.123Z INFO gpu_admission.controller: started`; a traceback follows on lines of its own."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, _format: str | None = None) -> str:  # noqa: N802 - logging's name
        return _time(record)


class JsonLines(logging.Formatter):
    """One object a line: `time`, `level`, `logger`, `message` and, of an exception, `exception` with its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def _time(record: logging.LogRecord) -> str:
    """Return when it was logged, as the audit log has it."""
    return timestamp(datetime.fromtimestamp(record.created, UTC), "milliseconds")

"""Options of `serve` and `controller` for the audit log, and for the log on standard error with its two formats."""

import atexit
import functools
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from math import inf
from time import monotonic
from traceback import walk_tb
from typing import Any, TextIO

import click
import msgspec

from policies.finding import truncate
from policies.printable import printable_lines
from webhook.cluster.objects import timestamp
from webhook.server.settings import StartupError
from webhook.serving.audit import AuditLog

FORMATS = ("text", "json")
LONGEST_MESSAGE, LONGEST_TRACE = 4_096, 10_000
"""Characters of a message, and of a traceback, which is cut in the middle: at 4 bytes each, a line has less than 64 KiB."""
LEVELS = ("debug", "info", "warning", "error")

NO_AUDIT = "none"

audit_log_option = click.option(
    "--audit-log", default="-", help='File for the audit log; "-" is stdout, "none" is none.'
)


def open_audit_log(target: str, lost: Callable[[int], object]) -> AuditLog | None:
    """Start and return the log, None for no log; at exit it is flushed. Raises StartupError."""
    if target == NO_AUDIT:
        return None
    try:
        audit = AuditLog.to(target, lost)
    except OSError as error:
        raise StartupError(f"the audit log {target} cannot be written: {error.strerror}") from None
    audit.start()
    atexit.register(audit.stop)
    return audit


def log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--log-format` and `--log-level`, and set the log up before the command runs."""

    @click.option(
        "--log-format",
        type=click.Choice(FORMATS),
        default=FORMATS[0],
        help="Format of the log on stderr: a line of text, or of JSON.",
    )
    @click.option(
        "--log-level",
        type=click.Choice(LEVELS),
        default="info",
        help="Least severe lines of the log that are written.",
    )
    @functools.wraps(command)
    def logged(log_format: str, log_level: str, **options: Any) -> Any:
        set_up_log(log_format, log_level)
        return command(**options)

    return logged


def set_up_log(log_format: str, level: str) -> None:
    """Write what this process logs to standard error, gunicorn's lines too, in one of FORMATS from one of LEVELS on."""
    handler = LimitedHandler()
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    logging.basicConfig(handlers=[handler], level=level.upper())
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # it warns about every connection beyond its pool


class TextLines(logging.Formatter):
    """`2026-11-22T07:40:00.123Z INFO gpu_admission.controller: started`; further lines, as of a traceback, are indented."""

    def format(self, record: logging.LogRecord) -> str:
        time, *lines = _record_parts(record)
        text = "\n".join(filter(None, lines)).replace("\n", "\n  ")
        return f"{time} {record.levelname} {record.name}: {text}"


class JsonLines(logging.Formatter):
    """One object a line: `time`, `level`, `logger`, `message` and, of an exception, `exception` with its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        time, message, trace = _record_parts(record)
        line = {"time": time, "level": record.levelname, "logger": record.name, "message": message}
        return msgspec.json.encode(line | ({"exception": trace} if trace else {})).decode()


def _record_parts(record: logging.LogRecord) -> tuple[str, str, str]:
    """Return the time as in the audit log, the message, and the traceback or "", each short and printable."""
    time = timestamp(datetime.fromtimestamp(record.created, UTC), "milliseconds")
    trace = logging.Formatter().formatException(record.exc_info) if record.exc_info else ""
    if len(trace) > LONGEST_TRACE:
        trace = f"{trace[: LONGEST_TRACE // 2]}…\n…{trace[-LONGEST_TRACE // 2 :]}"
    left_out = getattr(record, "left_out", 0)
    more = f" (and {left_out} more such lines since the one before)" if left_out else ""
    message = truncate(record.getMessage(), LONGEST_MESSAGE) + more
    return time, printable_lines(message), printable_lines(trace)


WINDOW_SECONDS = 60.0
MAX_SOURCES = 1_000
"""Sources with a subject at one time; further subjects share a line. It bounds the lines of a minute."""
DENIALS_LOGGER = "gpu_admission.denials"
"""The logger of `DenialReports`, which limits its lines by owner itself."""


class _Window(msgspec.Struct):
    """The minute after a line: how many further lines came in it (`left_out`), and the `last` of them."""

    began: float
    left_out: int = 0
    last: logging.LogRecord | None = None


class LimitedHandler(logging.StreamHandler[TextIO]):
    """Writes the first line of a source at once, and after a minute the last line since, with the number of lines left out.

    The last line is written with the next line of any source, or when the process ends. So a tenant that repeats a mistake hides
    no line about another namespace, and no different error. Lines for debugging are not limited.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self._windows: dict[tuple[object, ...], _Window] = {}
        """By source, the oldest first."""

    def emit(self, record: logging.LogRecord) -> None:
        self._write_ended(monotonic() - WINDOW_SECONDS)
        source = _source_of(record)
        if len(self._windows) >= MAX_SOURCES and source not in self._windows:
            source = source[:-1]
        if window := self._windows.get(source):
            window.left_out, window.last = window.left_out + 1, record
        else:
            if record.levelno > logging.DEBUG and record.name != DENIALS_LOGGER:
                self._windows[source] = _Window(monotonic())
            super().emit(record)

    def close(self) -> None:
        self._write_ended(inf)
        super().close()

    def _write_ended(self, latest: float) -> None:
        while (source := next(iter(self._windows), None)) and self._windows[source].began <= latest:
            window = self._windows.pop(source)
            if window.last is not None:
                self._windows[source] = _Window(monotonic())
                window.last.left_out = window.left_out - 1
                super().emit(window.last)


def _source_of(record: logging.LogRecord) -> tuple[object, ...]:
    """Return the place in the code, the kind and place of an exception, and last the namespace or kind that the line is about."""
    raised = list(walk_tb(record.exc_info[2]))[-1:] if record.exc_info else ()
    error = tuple((record.exc_info and record.exc_info[0], frame.f_code, line) for frame, line in raised)
    subject = ""
    if isinstance(record.args, tuple) and str(record.msg).startswith(("%s: ", "%s/%s: ")):
        subject = str(record.args[0])
    return record.name, record.levelno, record.pathname, record.lineno, error, subject

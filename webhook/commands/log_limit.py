"""Limits the log on standard error to one line a minute of each source, with the number of lines left out."""

import logging
from math import inf
from time import monotonic
from traceback import walk_tb
from typing import TextIO

import msgspec

SECONDS = 60.0
MAX_SOURCES = 1_000
"""Sources with a subject at one time; further subjects share a line. It bounds the lines of a minute."""
GATHERED = "gpu_admission.denials"
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
        self._write_ended(monotonic() - SECONDS)
        source = _source(record)
        if len(self._windows) >= MAX_SOURCES and source not in self._windows:
            source = source[:-1]
        if window := self._windows.get(source):
            window.left_out, window.last = window.left_out + 1, record
        else:
            if record.levelno > logging.DEBUG and record.name != GATHERED:
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


def _source(record: logging.LogRecord) -> tuple[object, ...]:
    """Return the place in the code, the kind and place of an exception, and last the namespace or kind that the line is about."""
    raised = list(walk_tb(record.exc_info[2]))[-1:] if record.exc_info else ()
    error = tuple((record.exc_info and record.exc_info[0], frame.f_code, line) for frame, line in raised)
    subject = ""
    if isinstance(record.args, tuple) and str(record.msg).startswith(("%s: ", "%s/%s: ")):
        subject = str(record.args[0])
    return record.name, record.levelno, record.pathname, record.lineno, error, subject

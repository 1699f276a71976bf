"""Records every review: in the metrics, and as one JSON line in the audit log, which is standard output or a file.

A review only queues its line. Every tenth of a second, a thread writes all queued lines. So neither a slow pipe nor a full disk
can delay or change a decision. Lines that cannot be written are counted. A killed process loses the lines of a tenth of a second.
"""

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from policies.printable import printable_json
from webhook.serving.audit_line import audit_line
from webhook.serving.denials import DenialReports, denial_of
from webhook.serving.handling import Review, ReviewResult
from webhook.serving.metrics import Metrics
from webhook.serving.review import FORBIDDEN, INVALID, TIMEOUT, UNAVAILABLE, AdmissionResponse

QUEUE_LINES, QUEUE_BYTES = 10_000, 16 * 1024 * 1024
"""The most that is queued. A line usually has 1 KiB. While a disk is stuck, the lines being written take as much memory again."""

LONGEST_LINE = 64 * 1024
"""Bytes. A longer line loses its longest fields, and `omitted` names them."""

WRITE_INTERVAL = 0.1
"""Seconds between two writes."""

VERDICTS = {
    FORBIDDEN: "denied",
    INVALID: "denied",
    UNAVAILABLE: "unavailable",
    TIMEOUT: "unavailable",
}
"""The name of a rejection in the audit log and the metrics, by its status code."""


class AuditLog:
    """Writes lines to a file descriptor in its own thread. Calls `lost` with the number of lines that it cannot write."""

    def __init__(self, descriptor: int, lost: Callable[[int], object]) -> None:
        self._descriptor = descriptor
        self._lost = lost
        self._queued: deque[bytes] = deque()
        self._queued_bytes = 0
        self._queue_lock = threading.Lock()
        self._mid_line = False
        self._stopping = threading.Event()
        self._write_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="audit-log", daemon=True)

    @classmethod
    def to(cls, target: str, lost: Callable[[int], object]) -> "AuditLog":
        """Open `target`, which is a path, or `-` for standard output. Raises `OSError`."""
        if target == "-":
            return cls(sys.stdout.fileno(), lost)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        return cls(os.open(Path(target), flags, 0o640), lost)

    def start(self) -> None:
        self._thread.start()

    def write(self, record: dict[str, Any]) -> None:
        """Queue one record. Never blocks. A record that finds the queue full is lost, without an exception."""
        line = _line(record)
        with self._queue_lock:
            has_room = len(self._queued) < QUEUE_LINES and self._queued_bytes + len(line) <= QUEUE_BYTES
            if has_room:
                self._queued.append(line)
                self._queued_bytes += len(line)
        if not has_room:
            self._lost(1)

    def stop(self) -> None:
        """Write the queued lines, and end the thread."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self._flush()

    def _run(self) -> None:
        while not self._stopping.wait(WRITE_INTERVAL):
            self._flush()

    def _flush(self) -> None:
        with self._write_lock:
            with self._queue_lock:
                queued, self._queued, self._queued_bytes = self._queued, deque(), 0
            lines, written = b"".join(queued), 0
            # A full disk may have cut the last line. End it, so that the next record starts on a new line.
            data = b"\n" + lines if lines and self._mid_line else lines
            with contextlib.suppress(OSError):
                while written < len(data):
                    written += os.write(self._descriptor, data[written:])
            if lost := data[written:].count(b"\n"):
                self._lost(lost)
            if written:
                self._mid_line = data[written - 1 : written] != b"\n"


class Recorder:
    """Counts every review, writes it to the audit log if there is one, and reports denials, except those of dry runs.

    `replica` names this process in every line.
    """

    def __init__(
        self,
        metrics: Metrics,
        audit: AuditLog | None = None,
        denials: DenialReports | None = None,
        *,
        replica: str = "",
    ) -> None:
        self._metrics = metrics
        self._audit = audit
        self._denials = denials
        self._replica = replica

    def record(self, review: Review, result: ReviewResult, seconds: float) -> None:
        verdict, dry_run = verdict_of(result.response), bool(review.request.dry_run)
        self._metrics.record(review.phase.value, verdict, seconds, result.decisions, dry_run=dry_run)
        if self._audit is not None:
            line = audit_line(review, result, verdict=verdict, seconds=seconds, replica=self._replica)
            self._audit.write(line)
        if self._denials is not None and not result.response.allowed and not dry_run:
            self._denials.add(denial_of(review, result))


def _line(record: dict[str, Any]) -> bytes:
    """Return the line with its newline. If it is too long, the longest fields are left out, so names stay."""
    kept, omitted = dict(record), []
    line = _encoded(kept)
    while len(line) >= LONGEST_LINE:
        longest = max(kept, key=lambda key: len(_encoded(kept[key])))
        del kept[longest]
        omitted.append(longest)
        line = _encoded(kept | {"omitted": omitted})
    return line + b"\n"


def _encoded(value: Any) -> bytes:
    """Return the value in JSON that is safe on a terminal, where `kubectl logs` prints it."""
    text = msgspec.json.encode(value)
    return text if text.isascii() and b"\x7f" not in text else printable_json(text.decode()).encode()


def verdict_of(response: AdmissionResponse) -> str:
    """Return the name of the response in the metrics and the audit log."""
    if not response.allowed:
        return VERDICTS.get(response.status.code if response.status else 0, "unreadable")
    if response.patch is not None:
        return "patched"
    return "warned" if response.warnings else "allowed"

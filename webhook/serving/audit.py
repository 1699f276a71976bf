"""The record of every review: its metrics, and the audit log, one JSON line each to standard output or to a file.

Requests only hand their line over; a thread of its own writes whatever has gathered in one go, every tenth of a second. So
neither a slow pipe nor a full disk can delay or change a decision: what could not be written is counted instead. A process
that is killed outright loses at most that tenth of a second of lines.
"""

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from policies.finding import truncate
from webhook.cluster.objects import timestamp
from webhook.serving import review
from webhook.serving.engine import Decision, EvaluatedFinding
from webhook.serving.metrics import Metrics
from webhook.serving.review import AdmissionRequest, AdmissionResponse

QUEUE_LIMIT = 10_000
"""Lines that may wait. A line is some 1 to 20 KiB, so a stuck disk costs at most some 200 MiB, commonly 10."""

WRITE_INTERVAL = 0.1
"""Seconds between two writes."""

VERDICTS = {
    review.FORBIDDEN: "denied",
    review.INVALID: "denied",
    review.UNAVAILABLE: "unavailable",
    review.TIMEOUT: "unavailable",
}
"""What a rejection is called in the audit log and the metrics, by its code."""


class AuditLog:
    """Writes lines to a file descriptor from a thread of its own. `lost` is called with the number of lines not written."""

    def __init__(self, descriptor: int, lost: Callable[[int], object]) -> None:
        self._descriptor = descriptor
        self._lost = lost
        self._waiting: deque[bytes] = deque()
        self._mid_line = False
        self._stopping = threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="audit-log", daemon=True)

    @classmethod
    def to(cls, target: str, lost: Callable[[int], object]) -> "AuditLog":
        """Open `target`, a path or `-` for standard output; `OSError` if that cannot be done."""
        if target == "-":
            return cls(sys.stdout.fileno(), lost)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        return cls(os.open(Path(target), flags, 0o640), lost)

    def start(self) -> None:
        self._thread.start()

    def write(self, record: dict[str, Any]) -> None:
        """Take one record; it is written soon after. Never blocks, never raises for want of space."""
        if len(self._waiting) >= QUEUE_LIMIT:
            self._lost(1)
        else:
            self._waiting.append(msgspec.json.encode(record) + b"\n")

    def stop(self) -> None:
        """Write what is waiting and end the thread."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self._flush()

    def _run(self) -> None:
        while not self._stopping.wait(WRITE_INTERVAL):
            self._flush()

    def _flush(self) -> None:
        with self._writing:
            lines, written = b"".join(self._waiting.popleft() for _ in range(len(self._waiting))), 0
            # After a line that was cut short by a full disk, the next one starts on a line of its own.
            data = b"\n" + lines if lines and self._mid_line else lines
            with contextlib.suppress(OSError):
                while written < len(data):
                    written += os.write(self._descriptor, data[written:])
            if lost := data[written:].count(b"\n"):
                self._lost(lost)
            if written:
                self._mid_line = data[written - 1 : written] != b"\n"


class Recorder:
    """Counts every answered review, and logs it where there is an audit log."""

    def __init__(self, metrics: Metrics, audit: AuditLog | None = None) -> None:
        self._metrics = metrics
        self._audit = audit

    def record(
        self,
        request: AdmissionRequest,
        response: AdmissionResponse,
        *,
        phase: str,
        started: datetime,
        seconds: float,
        name: str,
        decisions: list[Decision],
    ) -> None:
        verdict = verdict_of(response)
        self._metrics.record(phase, verdict, seconds, decisions)
        if self._audit is None:
            return
        record: dict[str, Any] = {
            "time": timestamp(started, "milliseconds"),
            "uid": request.uid,
            "phase": phase,
            "operation": request.operation,
            "kind": request.kind.kind,
            "namespace": request.namespace,
            "name": name,
            "user": request.user_info.username,
            "dryRun": bool(request.dry_run),
            "verdict": verdict,
            "durationMs": round(seconds * 1000, 3),
        }
        if findings := [_finding(judged) for decision in decisions for judged in decision.judged]:
            record["findings"] = findings
        if decisions:
            record |= _decision(decisions[0], is_patched=verdict == "patched")
        self._audit.write(record)


def verdict_of(response: AdmissionResponse) -> str:
    """Return what the metrics and the audit log call the response."""
    if not response.allowed:
        return VERDICTS.get(response.status.code if response.status else 0, "unreadable")
    if response.patch is not None:
        return "patched"
    return "warned" if response.warnings else "allowed"


def _decision(decision: Decision, *, is_patched: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {"policy": {"name": decision.policy.name, "version": decision.policy.version}}
    if decision.paused_until is not None:
        fields["policy"]["pausedUntil"] = decision.paused_until
    if decision.exemption is not None:
        fields["exemption"] = {"reason": decision.exemption.reason}
    if decision.changes and is_patched:
        fields["operations"] = decision.operations
        fields["injected"] = [{"rule": c.rule, "what": c.change.what} for c in decision.changes]
    return fields


def _finding(judged: EvaluatedFinding) -> dict[str, Any]:
    finding = judged.finding
    fields = {
        "rule": finding.rule,
        "outcome": judged.outcome.value,
        "path": finding.path,
        "container": finding.container,
        "value": None if finding.value is None else truncate(finding.value),
        "message": finding.message,
        "remedy": finding.remedy,
    }
    return {key: value for key, value in fields.items() if value}

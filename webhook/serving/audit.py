"""Records every review: in the metrics, and as one JSON line in the audit log, which is standard output or a file.

A review only queues its line. Every tenth of a second, a thread writes all queued lines. So neither a slow pipe nor a full disk
can delay or change a decision. Lines that cannot be written are counted. A killed process loses the lines of a tenth of a second.
docs/operate/audit-log.md explains each field of a line. Fields that authors can make long are cut or left out.
"""

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from policies.finding import Severity, truncate
from policies.pods.fingerprint import TOKEN_VOLUME
from policies.pods.pod import Metadata, Pod
from policies.printable import printable_json
from policies.quota.amounts import ZERO, Amounts, amount_texts, total
from policies.quota.quota_request import QuotaRequest
from webhook.cluster.objects import timestamp
from webhook.evaluation.decision import Decision, Outcome, Violation
from webhook.quota.counted_records import demand_fields
from webhook.serving.admission_review import (
    FORBIDDEN,
    INVALID,
    TIMEOUT,
    UNAVAILABLE,
    AdmissionResponse,
    object_name,
)
from webhook.serving.denials import DenialReports, denial_of
from webhook.serving.handler import Review, ReviewResult
from webhook.serving.metrics import Metrics
from webhook.threads import every, thread

QUEUE_LINES, QUEUE_BYTES = 10_000, 16 * 1024 * 1024
"""Limits of the queue. A line usually has 1 KiB. While a disk is stuck, the lines being written take as much memory again."""
LONGEST_LINE = 64 * 1024
"""Bytes. A longer line loses its longest fields, and `omitted` names them."""
LONGEST_FIELD = 256
"""Characters of a field that the request sets. No name in Kubernetes is longer."""
LONGEST_TEXT = 2048
"""Characters of a message, remedy, path or contact of a finding."""
WRITE_INTERVAL = 0.1
"""Seconds between two writes."""

VERDICTS = {FORBIDDEN: "denied", INVALID: "denied", UNAVAILABLE: "unavailable", TIMEOUT: "unavailable"}
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
        self._thread = thread("audit-log", every(WRITE_INTERVAL, self._flush), self._stopping)

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


class Recorder(msgspec.Struct, frozen=True):
    """Counts every review, writes it to the audit log if there is one, and reports denials, except of dry runs."""

    metrics: Metrics
    audit: AuditLog | None = None
    denials: DenialReports | None = None
    replica: str = ""
    """Names this process in every line."""

    def record(self, review: Review, result: ReviewResult, seconds: float) -> None:
        verdict, dry_run = verdict_of(result.response), bool(review.request.dry_run)
        self.metrics.record(review.phase.value, verdict, seconds, result.decisions, dry_run=dry_run)
        if self.audit is not None:
            line = audit_line(review, result, verdict=verdict, seconds=seconds, replica=self.replica)
            self.audit.write(line)
        if self.denials is not None and not result.response.allowed and not dry_run:
            self.denials.add(denial_of(review, result))


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


def audit_line(
    review: Review, result: ReviewResult, *, verdict: str, seconds: float, replica: str
) -> dict[str, Any]:
    request, metadata = review.request, result.metadata
    name = object_name(request) if result.name is None else result.name
    texts_of_request = {
        "uid": request.uid,
        "phase": review.phase.value,
        "operation": request.operation,
        "kind": request.kind.kind,
        "namespace": request.namespace,
        "name": name,
        "user": request.user_info.username,
    }
    line: dict[str, Any] = {
        "time": timestamp(review.evaluator.now, "milliseconds"),
        **{key: truncate(text, LONGEST_FIELD) for key, text in texts_of_request.items()},
        "dryRun": bool(request.dry_run),
        "verdict": verdict,
        "durationMs": round(seconds * 1000, 3),
    }
    if replica:
        line["replica"] = replica
    if metadata is not None:
        fields = {"objectUid": truncate(metadata.uid or "", LONGEST_FIELD), "owner": metadata.controlled_by}
        line |= {key: text for key, text in fields.items() if text}
    if request.operation == "CREATE" and (creation := creation_id(request.namespace, name, result.pod)):
        line["creation"] = creation
    if result.decisions and (request_of_quota := result.decisions[0].request) is not None:
        line |= _quota_fields(review, result, result.decisions[0], request_of_quota)
    violations = (violation for decision in result.decisions for violation in decision.violations)
    if findings := list(map(_finding_fields, violations)):
        line["findings"] = findings
    if result.decisions:
        line |= _decision_fields(result.decisions[0], is_patched=verdict == "patched")
    return line


def creation_id(namespace: str, name: str, pod: Pod | None) -> str:
    """Return an id that the reviews of both phases (/mutate, /validate) of the creation of one pod share.

    It is a digest of the random name of the volume with the pod's token, or else of the pod's name. "" if `generateName` leaves
    the name open.
    """
    if pod is None:
        return ""
    metadata = pod.metadata or Metadata()
    token_volumes = (volume.name for volume in pod.spec.volumes or () if volume.name.startswith(TOKEN_VOLUME))
    own_name = next(token_volumes, "") or (name if not metadata.generate_name else "")
    return blake2b(f"{namespace}/{own_name}".encode(), digest_size=8).hexdigest() if own_name else ""


def _quota_fields(
    review: Review, result: ReviewResult, decision: Decision, request: QuotaRequest
) -> dict[str, Any]:
    """Return the demand of a request that was allowed, or compared with a ledger; and the quota after the decision."""
    outcome = decision.reservation
    ledger = outcome.ledger if outcome else None
    if not result.response.allowed and ledger is None:
        return {}
    reserved = outcome.request if outcome else None
    demand = reserved.demand if reserved else request.demand.vector
    fields = demand_fields(demand, review.evaluator.configuration.classes)
    if outcome is not None and ledger is not None and ledger.used is not None:
        amounts = total((ledger.used, outcome.verdict.reserved if outcome.verdict else ledger.reserved))
        held: Amounts = {key: amounts.get(key, ZERO) for key in ledger.dimensions}
        fields["quota"] = {"held": amount_texts(held), "hard": amount_texts(ledger.hard)}
    return fields


def _decision_fields(decision: Decision, *, is_patched: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {"policy": {"name": decision.policy.name, "version": decision.policy.version}}
    if decision.paused_until is not None:
        fields["policy"]["pausedUntil"] = decision.paused_until
    if decision.exemption is not None:
        fields["exemption"] = {"reason": decision.exemption.reason}
    if decision.changes and is_patched:
        fields["operations"] = decision.operations
        fields["injected"] = [{"rule": c.rule, "what": c.what} for c in decision.changes]
    return fields


def _never_denies(violation: Violation) -> bool:
    """Whether the finding is only audited, and would be a warning if its rule were enforced."""
    return violation.outcome is Outcome.AUDITED and violation.finding.severity is Severity.WARNING


def _finding_fields(violation: Violation) -> dict[str, Any]:
    finding = violation.finding
    fields = {
        "rule": finding.rule,
        "reason": finding.reason.name,
        "outcome": violation.outcome.value,
        "severity": "warning" if _never_denies(violation) else "",
        "path": truncate(finding.path, LONGEST_TEXT),
        "container": None if finding.container is None else truncate(finding.container, LONGEST_FIELD),
        "value": None if finding.value is None else truncate(finding.value),
        "message": truncate(finding.message, LONGEST_TEXT),
        "remedy": truncate(finding.advice, LONGEST_TEXT),
        "ask": truncate(finding.escalation, LONGEST_TEXT),
        "details": [truncate(detail, LONGEST_TEXT) for detail in finding.details],
    }
    return {key: value for key, value in fields.items() if value}

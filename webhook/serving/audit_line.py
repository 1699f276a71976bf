"""The audit line of a review, as plain data. docs/audit-log.md explains each field.

It is made only if there is an audit log, and after the answer. Fields that authors can make long are cut or left out.
"""

from hashlib import blake2b
from typing import Any

from policies.finding import truncate
from policies.gpus.classes import ClassCatalogue
from policies.pods.fingerprint import TOKEN_VOLUME
from policies.pods.pod import Metadata, Pod
from policies.quota.amounts import CLASSES, NOTHING, Vector, texts, total
from policies.quota.quota_request import QuotaRequest
from webhook.cluster.objects import timestamp
from webhook.serving.engine import Decision, Violation
from webhook.serving.handling import Review, ReviewResult
from webhook.serving.review import object_name

LONGEST_FIELD = 256
"""Most characters of a field that the request sets. No name in Kubernetes is longer."""
LONGEST_TEXT = 2048
"""Most characters of a message, remedy, path or contact of a finding."""


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
        line |= _object_fields(metadata)
    if request.operation == "CREATE" and (creation := creation_id(request.namespace, name, result.pod)):
        line["creation"] = creation
    if result.decisions and (request_of_quota := result.decisions[0].request) is not None:
        line |= _quota_fields(review, result, result.decisions[0], request_of_quota)
    if findings := [
        _finding_fields(violation) for decision in result.decisions for violation in decision.violations
    ]:
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


def demand_fields(vector: Vector, catalogue: ClassCatalogue) -> dict[str, Any]:
    """Return the fields `demand` and `class` (class or family) of a line. No `class` if several classes are possible."""
    names = [key.removeprefix(CLASSES) for key in vector if key.startswith(CLASSES)]
    classes = [name for name in names if catalogue.get(name) is not None] or names
    fields: dict[str, Any] = {"demand": texts(vector)} if vector else {}
    if len(classes) == 1:
        fields["class"] = classes[0]
    return fields


def _object_fields(metadata: Metadata) -> dict[str, str]:
    fields = {"objectUid": truncate(metadata.uid or "", LONGEST_FIELD), "owner": metadata.controlled_by}
    return {key: text for key, text in fields.items() if text}


def _quota_fields(
    review: Review, result: ReviewResult, decision: Decision, request: QuotaRequest
) -> dict[str, Any]:
    """Return the demand of a request that was allowed, or compared with a ledger; and the quota after the decision."""
    outcome = decision.reservation
    ledger = outcome.ledger if outcome else None
    if not result.response.allowed and ledger is None:
        return {}
    engine = review.evaluator.engine
    reserved = outcome.request if outcome else None
    demand = reserved.demand if reserved else request.demand.vector
    fields = demand_fields(demand, engine.configuration.classes)
    if outcome is not None and ledger is not None and ledger.used is not None:
        amounts = total((ledger.used, outcome.verdict.reserved if outcome.verdict else ledger.reserved))
        held: Vector = {key: amounts.get(key, NOTHING) for key in ledger.dimensions}
        fields["quota"] = {"held": texts(held), "hard": texts(ledger.hard)}
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


def _finding_fields(violation: Violation) -> dict[str, Any]:
    finding = violation.finding
    fields = {
        "rule": finding.rule,
        "reason": finding.reason,
        "outcome": violation.outcome.value,
        "path": truncate(finding.path, LONGEST_TEXT),
        "container": None if finding.container is None else truncate(finding.container, LONGEST_FIELD),
        "value": None if finding.value is None else truncate(finding.value),
        "message": truncate(finding.message, LONGEST_TEXT),
        "remedy": truncate(finding.advice, LONGEST_TEXT),
        "ask": truncate(finding.escalation, LONGEST_TEXT),
        "details": [truncate(detail, LONGEST_TEXT) for detail in finding.details],
    }
    return {key: value for key, value in fields.items() if value}

"""The audit line of a review, as plain data; docs/audit-log.md says what each field holds.

Only called where there is an audit log, after the answer was made. What its author can make long is cut or left out.
"""

from hashlib import blake2b
from typing import Any

from policies.finding import truncate
from policies.gpus.classes import ClassCatalogue
from policies.placement.pinning import named_nodes
from policies.pods.fingerprint import TOKEN_VOLUME
from policies.pods.pod import Metadata, Pod
from policies.quota.amounts import CLASSES, NOTHING, Vector, add, texts
from policies.quota.catalogue import catalogue_digest
from policies.quota.charge import Charge
from policies.quota.charge_request import ChargeRequest, charge_input
from policies.rule import Phase
from webhook.cluster.objects import timestamp
from webhook.configuration.loader import Configuration
from webhook.serving import review
from webhook.serving.engine import Decision, EvaluatedFinding
from webhook.serving.handling import Answered, Review
from webhook.serving.replayable import without_secrets

LONGEST_FIELD = 256
"""Characters of what a request says of itself; no name of Kubernetes is longer."""
LONGEST_TEXT = 2048
"""Characters of a text of a finding."""

CHARGES_REMEMBERED = 1024

_CHARGES: dict[tuple[str, bytes], Charge] = {}
"""Of pods that are alike and name no node, by catalogue."""


def audit_line(
    requested: Review, answered: Answered, *, verdict: str, seconds: float, replica: str, with_pods: bool
) -> dict[str, Any]:
    """Return the line; `with_pods`: with what `gpu-admission replay` needs of a new pod."""
    request, metadata = requested.request, answered.metadata
    name = review.object_name(request) if answered.name is None else answered.name
    said = {
        "uid": request.uid,
        "phase": requested.phase.value,
        "operation": request.operation,
        "kind": request.kind.kind,
        "namespace": request.namespace,
        "name": name,
        "user": request.user_info.username,
    }
    line: dict[str, Any] = {
        "time": timestamp(requested.now, "milliseconds"),
        **{key: truncate(text, LONGEST_FIELD) for key, text in said.items()},
        "dryRun": bool(request.dry_run),
        "verdict": verdict,
        "durationMs": round(seconds * 1000, 3),
    }
    if replica:
        line["replica"] = replica
    if metadata is not None:
        line |= _object(metadata)
    if request.operation == "CREATE" and (creation := creation_id(request.namespace, name, answered.pod)):
        line["creation"] = creation
    if answered.charge_request is not None:
        line |= _charged(requested, answered, answered.charge_request)
    if findings := [
        _finding(evaluated) for decision in answered.decisions for evaluated in decision.evaluated
    ]:
        line["findings"] = findings
    if answered.decisions:
        line |= _decision(answered.decisions[0], is_patched=verdict == "patched")
    if with_pods and answered.pod and requested.phase is Phase.MUTATE and not request.dry_run:
        mapping = requested.engine.configuration.resource_mapping
        if (replayable := without_secrets(answered.pod, mapping)) is not None:
            line["pod"] = replayable
        if answered.claims:
            line["claims"] = {key: sorted(names) for key, names in answered.claims.items()}
    return line


def creation_id(namespace: str, name: str, pod: Pod | None) -> str:
    """Return what both phases of the creation of a pod share, "" where nothing that they share tells it from its siblings.

    Of a pod without a name only the name of its token's volume does.
    """
    if pod is None:
        return ""
    metadata = pod.metadata or Metadata()
    volumes = (volume.name for volume in pod.body.volumes or () if volume.name.startswith(TOKEN_VOLUME))
    own = next(volumes, "") or (name if not metadata.generate_name else "")
    return blake2b(f"{namespace}/{own}".encode(), digest_size=8).hexdigest() if own else ""


def charged(vector: Vector, catalogue: ClassCatalogue) -> dict[str, Any]:
    """Return the charge as a line has it, and its class, or the family where that is all; no class where it could be several."""
    names = [key.removeprefix(CLASSES) for key in vector if key.startswith(CLASSES)]
    classes = [name for name in names if catalogue.get(name) is not None] or names
    fields: dict[str, Any] = {"charge": texts(vector)} if vector else {}
    if len(classes) == 1:
        fields["class"] = classes[0]
    return fields


def _object(metadata: Metadata) -> dict[str, str]:
    said = {"objectUid": truncate(metadata.uid or "", LONGEST_FIELD), "owner": metadata.controlled_by}
    return {key: text for key, text in said.items() if text}


def _charged(requested: Review, answered: Answered, request: ChargeRequest) -> dict[str, Any]:
    """Return what is charged if it is allowed, and the quota as it is afterwards."""
    outcome = request.outcome
    if not answered.response.allowed and (outcome is None or outcome.ledger is None):
        return {}
    configuration = requested.engine.configuration
    fields = charged(_cost(answered, request, configuration).vector, configuration.classes)
    if outcome is not None and (ledger := outcome.ledger) is not None and ledger.used is not None:
        held = add(ledger.used, outcome.verdict.reserved if outcome.verdict else ledger.reserved)
        shown: Vector = {key: held.get(key, NOTHING) for key in ledger.dimensions}
        fields["quota"] = {"held": texts(shown), "hard": texts(ledger.hard)}
    return fields


def _cost(answered: Answered, request: ChargeRequest, configuration: Configuration) -> Charge:
    """Return the charge. Without a quota nothing has worked it out: that takes up to 0.2 ms, so siblings share it."""
    pod, outcome = answered.pod, request.outcome
    if request.is_free or (outcome and outcome.ledger) or pod is None or named_nodes(pod):
        return request.cost
    key = catalogue_digest(configuration), blake2b(charge_input(pod), digest_size=16).digest()
    found = _CHARGES.get(key)
    if found is None:
        if len(_CHARGES) >= CHARGES_REMEMBERED:
            _CHARGES.clear()
        found = _CHARGES[key] = request.cost
    return found


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


def _finding(evaluated: EvaluatedFinding) -> dict[str, Any]:
    finding = evaluated.finding
    fields = {
        "rule": finding.rule,
        "outcome": evaluated.outcome.value,
        "path": truncate(finding.path, LONGEST_TEXT),
        "container": None if finding.container is None else truncate(finding.container, LONGEST_FIELD),
        "value": None if finding.value is None else truncate(finding.value),
        "message": truncate(finding.message, LONGEST_TEXT),
        "remedy": truncate(finding.remedy, LONGEST_TEXT),
        "ask": truncate(finding.whom_to_ask, LONGEST_TEXT),
    }
    return {key: value for key, value in fields.items() if value}

"""Reviews as an API server sends them, and what answers them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from tests.builders import JSON, uid
from webhook.configuration.loader import load_directory
from webhook.serving.admission import Admission
from webhook.serving.audit import AuditLog, Recorder
from webhook.serving.engine import Engine
from webhook.serving.handling import ClusterState
from webhook.serving.metrics import Metrics
from webhook.serving.review import AdmissionRequest, decode_request

POD = {"group": "", "version": "v1", "kind": "Pod"}
DEPLOYMENT = {"group": "apps", "version": "v1", "kind": "Deployment"}


def review(document: JSON | None, **tweaks: Any) -> JSON:
    """Return the AdmissionReview that the API server sends when `document` is created."""
    fields = {
        "uid": uid("review"),
        "kind": POD,
        "operation": "CREATE",
        "namespace": "ml-training",
        "userInfo": {"username": "ada"},
        "object": document,
        **tweaks,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": fields}


def request(document: JSON | None, **tweaks: Any) -> AdmissionRequest:
    return decode_request(msgspec.json.encode(review(document, **tweaks)))


def admission(by: Path | Engine | None = None, **cluster: Any) -> Admission:
    """Return what answers reviews by an engine, or by the documents of a directory; without either by the built-in ones."""
    engine = by if isinstance(by, Engine) else Engine(load_directory(by))
    return Admission(lambda: engine, Recorder(Metrics(CollectorRegistry())), ClusterState(**cluster))


def lines_of(
    folder: Path,
    ask: Callable[[Admission], object],
    by: Path | Engine | None = None,
    replica: str = "",
    **cluster: Any,
) -> list[JSON]:
    """Return the lines of the audit log that come from what `ask` has reviewed."""
    path = folder / "audit.jsonl"
    path.unlink(missing_ok=True)
    log = AuditLog.to(str(path), lambda lines: lines)
    engine = by if isinstance(by, Engine) else Engine(load_directory(by))
    recorder = Recorder(Metrics(CollectorRegistry()), log, replica=replica)
    ask(Admission(lambda: engine, recorder, ClusterState(**cluster)))
    log.stop()
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]

"""Reviews as an API server sends them, and what answers them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from tests.builders import JSON, uid
from webhook.configuration.documents import Document
from webhook.configuration.loader import load_directory, load_objects
from webhook.evaluation.decision_cache import DecisionCache
from webhook.serving.admission_review import AdmissionRequest, decode_request
from webhook.serving.audit import AuditLog, Recorder
from webhook.serving.dispatch import Admission
from webhook.serving.handler import ClusterState
from webhook.serving.metrics import Metrics

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


def cache_of(*documents: Document) -> DecisionCache:
    """Return a cache that decides by these documents, without any by the built-in ones."""
    return DecisionCache(load_objects(documents) if documents else load_directory(None))


def admission(*by: Document, **cluster: Any) -> Admission:
    cache = cache_of(*by)
    return Admission(lambda: cache, Recorder(Metrics(CollectorRegistry())), ClusterState(**cluster))


def lines_of(
    folder: Path, ask: Callable[[Admission], object], *by: Document, replica: str = "", **cluster: Any
) -> list[JSON]:
    """Return the lines of the audit log that come from what `ask` has reviewed."""
    path = folder / "audit.jsonl"
    path.unlink(missing_ok=True)
    log = AuditLog.to(str(path), lambda lines: lines)
    cache = cache_of(*by)
    recorder = Recorder(Metrics(CollectorRegistry()), log, replica=replica)
    ask(Admission(lambda: cache, recorder, ClusterState(**cluster)))
    log.stop()
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]

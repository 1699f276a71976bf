"""The HTTP face: health, readiness, and in front of them the two admission endpoints. webhook/README lists every error."""

from typing import Protocol

import msgspec
from flask import Flask, Response

from webhook.serving.admission import Admission
from webhook.serving.endpoints import AdmissionEndpoints
from webhook.serving.metrics import Metrics


class Readiness(Protocol):
    """Whether this process should get traffic, and details for people."""

    def __call__(self) -> tuple[bool, dict[str, object]]: ...


def create_app(admission: Admission, metrics: Metrics, readiness: Readiness) -> AdmissionEndpoints:
    """Return what answers every request: the endpoints around `admission`, and Flask for the pages."""
    app = Flask("gpu_admission", static_folder=None)

    @app.get("/healthz")
    def healthz() -> Response:
        return Response("ok\n", mimetype="text/plain")

    @app.get("/readyz")
    def readyz() -> Response:
        ready, detail = readiness()
        body = msgspec.json.encode({"ready": ready, **detail}) + b"\n"
        return Response(body, status=200 if ready else 503, mimetype="application/json")

    return AdmissionEndpoints(app, admission, metrics)

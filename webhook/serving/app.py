"""The HTTP face: limits, errors, and the two admission endpoints.

========================================  =========================================================
what went wrong                           answer
========================================  =========================================================
not POST                                  405
no Content-Length                         411
body over 8 MiB                           413
not application/json                      415
no JSON, no AdmissionReview v1, no uid    400, plain text
the object is not what its kind says      200, allowed=false, code 400, with the field's path
a rule says no                            200, allowed=false, code 403, all findings at once
a defect of ours                          200, uid echoed, allowed=false, code 500; counted
========================================  =========================================================
"""

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

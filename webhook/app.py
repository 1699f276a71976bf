"""The HTTP face: limits, errors, and the two admission endpoints.

========================================  =========================================================
what went wrong                           answer
========================================  =========================================================
no Content-Length                         411
body over 8 MiB                           413
not application/json                      415
no JSON, no AdmissionReview v1, no uid    400, plain text
the object is not what its kind says      200, allowed=false, code 400, with the field's path
a rule says no                            200, allowed=false, code 403, all findings at once
a defect of ours                          200, uid echoed, allowed=false, code 500; counted
========================================  =========================================================
"""

import logging
import sys
from collections.abc import Callable
from traceback import extract_tb
from typing import Protocol

import msgspec
from flask import Flask, Response, request

from webhook import review
from webhook.admission import Admission
from webhook.deadline import deadline_of
from webhook.metrics import Metrics
from webhook.review import AdmissionRequest, AdmissionResponse, BadReviewError

BODY_LIMIT = 8 * 1024 * 1024
"""Bytes. The API server takes objects of up to 3 MiB and sends two of them on an update; JSON adds some."""

log = logging.getLogger("gpu_admission.app")


class Readiness(Protocol):
    """Whether this process should get traffic, and details for people."""

    def __call__(self) -> tuple[bool, dict[str, object]]: ...


def create_app(admission: Admission, metrics: Metrics, readiness: Readiness) -> Flask:
    """Return the WSGI app around `admission`."""
    app = Flask("gpu_admission", static_folder=None)

    @app.post("/mutate")
    def mutate() -> Response:
        return _review(admission.mutate, metrics)

    @app.post("/validate")
    def validate() -> Response:
        deadline = deadline_of(request.args.get("timeout"))
        return _review(lambda review_of: admission.validate(review_of, deadline), metrics)

    @app.get("/healthz")
    def healthz() -> Response:
        return Response("ok\n", mimetype="text/plain")

    @app.get("/readyz")
    def readyz() -> Response:
        ready, detail = readiness()
        body = msgspec.json.encode({"ready": ready, **detail}) + b"\n"
        return Response(body, status=200 if ready else 503, mimetype="application/json")

    return app


def _review(answer: Callable[[AdmissionRequest], AdmissionResponse], metrics: Metrics) -> Response:
    try:
        admission_request = review.decode_request(_body())
    except _RefusedError as refused:
        return _plain_error(refused.code, str(refused), metrics)
    except BadReviewError as error:
        return _plain_error(400, str(error), metrics)
    try:
        response = answer(admission_request)
    except Exception as error:  # noqa: BLE001 - the one boundary: whatever fails, the API server gets its answer
        _log_defect(error, admission_request.uid)
        metrics.errors.inc()
        response = review.internal_error(admission_request.uid)
    return Response(review.encode_response(response), mimetype="application/json")


class _RefusedError(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def _body() -> bytes:
    # Without a Content-Length werkzeug would cut a chunked body at the limit without a word, so it is required.
    length = request.content_length
    if length is None:
        raise _RefusedError(411, "the request needs a Content-Length header")
    if length > BODY_LIMIT:
        raise _RefusedError(413, f"the body has {length} bytes; the limit is {BODY_LIMIT}")
    if request.mimetype != "application/json":
        got = request.mimetype[:100] or "no content type"
        raise _RefusedError(415, f"the body must be application/json, not {got}")
    body = request.get_data(cache=False)
    if len(body) != length:
        raise _RefusedError(400, f"the body ended after {len(body)} of {length} bytes")
    return body


def _plain_error(code: int, message: str, metrics: Metrics) -> Response:
    metrics.bad_requests.labels(str(code)).inc()
    return Response(message + "\n", status=code, mimetype="text/plain")


def _log_defect(error: Exception, uid: str) -> None:
    # Neither the exception's text nor local variables: both may quote the object.
    frames = extract_tb(sys.exc_info()[2])
    where = " < ".join(
        f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}" for frame in reversed(frames)
    )
    log.error("request %s failed: %s at %s", ascii(uid[:64]), type(error).__name__, where)

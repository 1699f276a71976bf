"""The HTTP endpoints: health and readiness by Flask, and the two of admission, which the server calls directly.

They are the hot path: with Flask's routing, request and response objects around them, some 70 µs more a request were
measured, a fifth of everything that the server does for a pod, and 84 µs with gunicorn's. What is wrong with a request and
what is answered: webhook/README, Errors.
"""

import logging
import sys
from collections.abc import Callable
from functools import lru_cache
from traceback import extract_tb
from urllib.parse import parse_qs
from wsgiref.types import WSGIApplication

import flask
import msgspec

from webhook.server.http import JSON, Request, Response, call_wsgi, text
from webhook.serving import admission_review
from webhook.serving.admission_review import BadReviewError
from webhook.serving.deadline import deadline_of
from webhook.serving.dispatch import Admission
from webhook.serving.metrics import Metrics

MEDIA_TYPE = "application/json"
INTERNAL_ERROR = "internal error of gpu-admission"

Readiness = Callable[[], tuple[bool, dict[str, object]]]
"""Returns whether this process should get traffic, and details for people."""

log = logging.getLogger("gpu_admission.app")


def create_app(admission: Admission, metrics: Metrics, readiness: Readiness) -> "AdmissionEndpoints":
    """Return what answers every request: the endpoints around `admission`, and Flask for the pages."""
    app = flask.Flask("gpu_admission", static_folder=None)

    @app.get("/healthz")
    def healthz() -> flask.Response:
        return flask.Response("ok\n", mimetype="text/plain")

    @app.get("/readyz")
    def readyz() -> flask.Response:
        ready, detail = readiness()
        body = msgspec.json.encode({"ready": ready, **detail}) + b"\n"
        return flask.Response(body, status=200 if ready else 503, mimetype=MEDIA_TYPE)

    return AdmissionEndpoints(app, admission, metrics)


class AdmissionEndpoints:
    """Answers /mutate and /validate, and leaves everything else to `pages`.

    The rest of the path, as in /mutate/gpu-pods-are-refused-while…, is for people: if the webhook cannot be reached, the
    message of the API server quotes the path, and nothing else of ours.
    """

    def __init__(self, pages: WSGIApplication, admission: Admission, metrics: Metrics) -> None:
        self._pages = pages
        self._answers = {"/mutate": admission.mutate, "/validate": admission.validate}
        self._metrics = metrics

    def __call__(self, request: Request) -> Response:
        answer = self._answers.get(endpoint_of(request.path))
        if answer is None:
            return call_wsgi(self._pages, request)
        deadline = deadline_of(_timeout(request.query), request.began)
        if objection := _objection(request):
            return self._refused(*objection)
        try:
            reviewed = admission_review.decode_request(request.body)
        except BadReviewError as error:
            return self._refused(400, str(error))
        try:
            response = answer(reviewed, deadline)
        except Exception as error:  # noqa: BLE001 - the one boundary: whatever fails, the API server gets its answer
            _log_defect(error, reviewed.uid)
            self._metrics.errors.inc()
            if answer == self._answers["/mutate"] and reviewed.operation == "UPDATE":
                # An answer would refuse the update; failurePolicy Ignore lets it pass after a call that failed.
                return text(500, INTERNAL_ERROR)
            # Details go to the log by uid, never to the user: they could quote the object.
            remedy = f"report it to the platform team; see its log for request uid {reviewed.uid}"
            response = admission_review.rejected_response(
                reviewed.uid, 500, "InternalError", f"{INTERNAL_ERROR}: {remedy}"
            )
        return Response(200, JSON, admission_review.encode_response(response))

    def _refused(self, code: int, message: str) -> Response:
        self._metrics.bad_requests.labels(str(code)).inc()
        return text(code, message)


def endpoint_of(path: str) -> str:
    """Return the first step of a path: `/mutate` of `/mutate/for-people`."""
    return path[:1] + path[1:].partition("/")[0]


@lru_cache  # the same few of all API servers
def _timeout(query: str) -> str | None:
    values = parse_qs(query).get("timeout")
    return values[0] if values else None


def _objection(request: Request) -> tuple[int, str] | None:
    """Return code and reason if this could not be a review. The HTTP server has refused too large a body already."""
    if request.method != "POST":
        return 405, "this endpoint takes POST"
    if "content-length" not in request.headers:
        return 411, "the request needs a Content-Length header"
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == MEDIA_TYPE:
        return None
    received = ascii(media_type[:100]) if media_type else "nothing"
    return 415, f"the body must be {MEDIA_TYPE}, not {received}"


def _log_defect(error: Exception, uid: str) -> None:
    # Neither the exception's text nor local variables: both may quote the object.
    frames = extract_tb(sys.exc_info()[2])
    where = " < ".join(
        f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}" for frame in reversed(frames)
    )
    log.error("%s: request %s failed", f"{type(error).__name__} at {where}", ascii(uid[:64]))

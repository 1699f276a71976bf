"""The two admission endpoints, as WSGI in front of the Flask app.

They are the hot path: with Flask's routing, request and response objects around them, some 70 µs more a request were
measured, a fifth of everything that the server does for a pod. What is wrong with a request and what is answered stands in
the table in `webhook.serving.app`.
"""

import logging
import sys
from collections.abc import Callable, Iterable
from traceback import extract_tb
from typing import NamedTuple
from urllib.parse import parse_qs
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from webhook.serving import review
from webhook.serving.admission import Admission
from webhook.serving.deadline import deadline_of
from webhook.serving.metrics import Metrics
from webhook.serving.review import AdmissionRequest, AdmissionResponse, BadReviewError

BODY_LIMIT = 8 * 1024 * 1024
"""Bytes. The API server takes objects of up to 3 MiB and sends two of them on an update; JSON adds some."""

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
REASONS = {
    400: "Bad Request",
    405: "Method Not Allowed",
    411: "Length Required",
    413: "Content Too Large",
    415: "Unsupported Media Type",
}

log = logging.getLogger("gpu_admission.app")


class Refusal(Exception):  # noqa: N818 - not an error of ours
    """The HTTP request is not one that could be an admission review; the text says why."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Reply(NamedTuple):
    status: str
    content_type: str
    body: bytes


class AdmissionEndpoints:
    """Answers /mutate and /validate, and leaves everything else to `app`.

    What follows in the path, as in /mutate/gpu-pods-are-refused-while…, is for people: of a webhook that cannot be reached
    the API server's message shows no text of ours but this one.
    """

    def __init__(self, app: WSGIApplication, admission: Admission, metrics: Metrics) -> None:
        self._app = app
        self._answers = {"/mutate": admission.mutate, "/validate": admission.validate}
        self._metrics = metrics

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        answer = self._answers.get(endpoint_of(environ.get("PATH_INFO", "")))
        if answer is None:
            return self._app(environ, start_response)
        deadline = deadline_of(_timeout(environ.get("QUERY_STRING", "")))
        reply = self._reply(environ, lambda request: answer(request, deadline))
        headers = [("Content-Type", reply.content_type), ("Content-Length", str(len(reply.body)))]
        start_response(reply.status, headers)
        return [reply.body]

    def _reply(
        self, environ: WSGIEnvironment, answer: Callable[[AdmissionRequest], AdmissionResponse]
    ) -> Reply:
        try:
            request = review.decode_request(_body(environ))
        except Refusal as refusal:
            return self._refused(refusal.code, str(refusal))
        except BadReviewError as error:
            return self._refused(400, str(error))
        try:
            response = answer(request)
        except Exception as error:  # noqa: BLE001 - the one boundary: whatever fails, the API server gets its answer
            _log_defect(error, request.uid)
            self._metrics.errors.inc()
            response = review.internal_error(request.uid)
        return Reply("200 OK", JSON, review.encode_response(response))

    def _refused(self, code: int, message: str) -> Reply:
        self._metrics.bad_requests.labels(str(code)).inc()
        return Reply(f"{code} {REASONS[code]}", TEXT, f"{message}\n".encode(errors="replace"))


def endpoint_of(path: str) -> str:
    """Return the first step of a path: `/mutate` of `/mutate/for-people`."""
    end = path.find("/", 1)
    return path if end < 0 else path[:end]


def _timeout(query: str) -> str | None:
    values = parse_qs(query).get("timeout") if query else None
    return values[0] if values else None


def _body(environ: WSGIEnvironment) -> bytes:
    if environ["REQUEST_METHOD"] != "POST":
        raise Refusal(405, "this endpoint takes POST")
    # Required: what comes in chunks has an end that two parsers may see at different places.
    length = environ.get("CONTENT_LENGTH", "")
    if not (length.isascii() and length.isdigit()):
        raise Refusal(411, "the request needs a Content-Length header")
    size = int(length) if len(length) <= len(str(BODY_LIMIT)) else BODY_LIMIT + 1
    if size > BODY_LIMIT:
        raise Refusal(413, f"the body has {length[:20]} bytes; the limit is {BODY_LIMIT}")
    media_type = environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()
    if media_type != JSON:
        raise Refusal(
            415, f"the body must be {JSON}, not {ascii(media_type[:100]) if media_type else 'nothing'}"
        )
    body: bytes = environ["wsgi.input"].read(size)
    if len(body) != size:
        raise Refusal(400, f"the body ended after {len(body)} of {size} bytes")
    return body


def _log_defect(error: Exception, uid: str) -> None:
    # Neither the exception's text nor local variables: both may quote the object.
    frames = extract_tb(sys.exc_info()[2])
    where = " < ".join(
        f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}" for frame in reversed(frames)
    )
    log.error("request %s failed: %s at %s", ascii(uid[:64]), type(error).__name__, where)

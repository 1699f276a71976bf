"""Errors of calls to the API server. The message of an error is that of the API server, or says what became of the call."""
# ruff: noqa: N818  # named for the reasons of the API (NotFound, Conflict), as every Kubernetes client names them

import http.client
import os
import socket
import ssl
from collections.abc import Iterator
from http import HTTPStatus

import msgspec
from urllib3 import exceptions as failures

from policies.printable import printable_lines


class ApiError(Exception):
    """A call failed."""


class Unreachable(ApiError):
    """No response: connection refused, cut or timed out. If the call was a write, the API server may have done it."""


class Silent(Unreachable):
    """An open stream delivered nothing until the read timed out."""


class Unauthorized(ApiError):
    """401: the credentials are unknown or have expired."""


class Forbidden(ApiError):
    """403: RBAC or admission denied the request."""


class NotFound(ApiError):
    """404: the object or the API does not exist."""


class Conflict(ApiError):
    """409: the object has a newer resourceVersion than the write was made for."""


class AlreadyExists(ApiError):
    """409 of a POST: an object of that name exists."""


class Invalid(ApiError):
    """422: a test of a JSON patch failed, or validation refused the object."""


class Gone(ApiError):
    """410: the resourceVersion or the continue token has expired."""


class Unavailable(ApiError):
    """429 or 5xx: the API server is overloaded, starting, or failing."""


class _Status(msgspec.Struct):
    message: str = ""
    reason: str = ""
    code: int = HTTPStatus.INTERNAL_SERVER_ERROR


_STATUS = msgspec.json.Decoder(_Status)

_BY_CODE: dict[int, type[ApiError]] = {
    HTTPStatus.UNAUTHORIZED: Unauthorized,
    HTTPStatus.FORBIDDEN: Forbidden,
    HTTPStatus.NOT_FOUND: NotFound,
    HTTPStatus.CONFLICT: Conflict,
    HTTPStatus.UNPROCESSABLE_ENTITY: Invalid,
    HTTPStatus.GONE: Gone,
}


def of_response(code: int, body: bytes) -> ApiError:
    """Return the error for a response with this code. `body` is a Status object, unless a proxy wrote it."""
    try:
        status = _STATUS.decode(body)
    except msgspec.MsgspecError:  # a proxy's page, an aggregated API's plain text
        text = body[:200].decode(errors="replace").strip()
        status = _Status(message="" if text.startswith("<") else text)
    message = printable_lines(status.message) or f"HTTP {code}"
    if code == HTTPStatus.TOO_MANY_REQUESTS or code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Unavailable(message)
    error_type = _BY_CODE.get(code, ApiError)
    if error_type is Conflict and status.reason == "AlreadyExists":
        error_type = AlreadyExists
    return error_type(message)


def of_status(body: bytes) -> ApiError:
    """Return the error in a Status object, for example of a watch. Raises msgspec.MsgspecError if `body` is not one."""
    return of_response(_STATUS.decode(body).code, body)


_CERTIFICATES = {9: "it is not valid yet", 10: "it has expired", 62: "it is for another name"}
_CERTIFICATES[64] = _CERTIFICATES[62]
"""By OpenSSL's `X509_V_ERR_…`, 64 of an address; all others are about the authority, or the form."""
_UNTRUSTED = "its authority is not the one that is trusted here"

_UNREADABLE = "sent an answer that cannot be read"
UNREADABLE = f"the API server {_UNREADABLE}"
"""Of an answer that cannot be decoded."""

_FAILURES: tuple[tuple[type[BaseException], str], ...] = (
    (failures.ProxyError, "cannot be reached through its proxy"),
    (ssl.SSLError, "does not agree on TLS"),
    (socket.gaierror, "has a name that cannot be resolved"),
    (ConnectionRefusedError, "refused the connection"),
    (ConnectionError, "closed the connection"),
    (TimeoutError, "did not answer in time"),
    (OSError, "cannot be reached"),
    (http.client.IncompleteRead, "cut its answer short"),
    (http.client.HTTPException, "did not answer as HTTP does"),
    (failures.SSLError, "does not agree on TLS"),
    (failures.TimeoutError, "did not answer in time"),
    (failures.ProtocolError, "cut its answer short"),
    (failures.HTTPError, _UNREADABLE),
)
"""What became of a call: the first row that is among the causes."""


def failure_text(failure: BaseException) -> str:
    """Return what a server did that gave no answer, as the rest of a sentence.

    The texts of urllib3 and of the socket below it name hosts, ports and classes of Python: they are never shown.
    """
    causes = list(_causes(failure))
    words = next((words for kind, words in _FAILURES if any(isinstance(cause, kind) for cause in causes)), "")
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return (
                f"has a certificate that is not accepted: {_CERTIFICATES.get(cause.verify_code, _UNTRUSTED)}"
            )
        if isinstance(cause, OSError) and cause.errno and words == "cannot be reached":
            return f"{words}: {os.strerror(cause.errno).lower()}"
    return words or "did not answer"


def _causes(failure: BaseException) -> Iterator[BaseException]:
    """Yield the failure and what is below it: urllib3 has causes in arguments. `__context__` may be a call before it."""
    yield failure
    for cause in (*failure.args, failure.__cause__):
        if isinstance(cause, BaseException):
            yield from _causes(cause)

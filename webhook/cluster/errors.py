"""Errors of calls to the API server. The message is that of the API server."""
# ruff: noqa: N818  # named for the reasons of the API (NotFound, Conflict), as every Kubernetes client names them

from http import HTTPStatus

import msgspec


class ApiError(Exception):
    """`code` is the HTTP status, 0 if there was no response."""

    def __init__(self, message: str, *, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class Unreachable(ApiError):
    """No response: connection refused, cut or timed out. The API server may have done the write."""


class Silent(Unreachable):
    """Nothing came on an open stream for as long as its reader waits."""


class Unauthorized(ApiError):
    """401: the credentials are unknown or have expired."""


class Forbidden(ApiError):
    """403: RBAC or admission denied the request."""


class NotFound(ApiError):
    """404: the object or the API does not exist."""


class Conflict(ApiError):
    """409: the object does not have the resourceVersion in the write any more."""


class AlreadyExists(ApiError):
    """409 of a POST: an object of that name exists."""


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
    HTTPStatus.GONE: Gone,
}


def of_response(code: int, body: bytes) -> ApiError:
    """Return the error for a response with this code. `body` is a Status if the API server wrote it."""
    try:
        status = _STATUS.decode(body)
    except msgspec.MsgspecError:  # a proxy's page, an aggregated API's plain text
        status = _Status(message=body[:200].decode(errors="replace").strip())
    message = status.message or f"HTTP {code}"
    if code == HTTPStatus.TOO_MANY_REQUESTS or code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Unavailable(message, code=code)
    kind = _BY_CODE.get(code, ApiError)
    if kind is Conflict and status.reason == "AlreadyExists":
        kind = AlreadyExists
    return kind(message, code=code)


def of_status(body: bytes) -> ApiError:
    """Return the error that a Status says, for example in a watch. Raises msgspec.MsgspecError."""
    return of_response(_STATUS.decode(body).code, body)

"""Errors of calls to the API server. The message of an error is the message of the API server."""
# ruff: noqa: N818  # named for the reasons of the API (NotFound, Conflict), as every Kubernetes client names them

from http import HTTPStatus

import msgspec


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
        status = _Status(message=body[:200].decode(errors="replace").strip())
    message = status.message or f"HTTP {code}"
    if code == HTTPStatus.TOO_MANY_REQUESTS or code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Unavailable(message)
    error_type = _BY_CODE.get(code, ApiError)
    if error_type is Conflict and status.reason == "AlreadyExists":
        error_type = AlreadyExists
    return error_type(message)


def of_status(body: bytes) -> ApiError:
    """Return the error in a Status object, for example of a watch. Raises msgspec.MsgspecError if `body` is not one."""
    return of_response(_STATUS.decode(body).code, body)

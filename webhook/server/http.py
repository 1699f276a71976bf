# ruff: noqa: A005 - imports are absolute
"""HTTP/1.1 as API servers, kubelets and scrapers speak it: strict heads in, answers made in memory out.

One expression reads a head, once, so that no second parser can read it in another way (RFC 9112). A head that it does not
match is refused, and so is one that leaves open where its body ends; what follows a refused head on the same connection is
never taken for a request.
"""

import dataclasses
import io
import re
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes
from wsgiref.types import WSGIApplication, WSGIEnvironment

# The heads of kube-apiserver have some 300 bytes, and 2 KiB with the token of a service account.
HEAD_LIMIT = 8 * 1024
TARGET_LIMIT = 4096
FIELDS_LIMIT = 100

Fields = tuple[tuple[str, str], ...]

TEXT: Fields = (("Content-Type", "text/plain; charset=utf-8"),)
JSON: Fields = (("Content-Type", "application/json"),)
# kube-apiserver repeats a call on 429 and 5xx, and only if the answer says when, as a whole number of seconds
# (client-go with_retry.go).
RETRY: Fields = (*TEXT, ("Retry-After", "1"))
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclasses.dataclass(slots=True)
class Request:
    """A request whose head is whole, and in the end its body.

    `path` and `query` are as they were sent, with their percent signs. `headers` have names in small letters; values of a
    repeated one are joined by commas. Sizes are in bytes, that of the head with its blank line.
    """

    method: str
    path: str
    query: str
    headers: dict[str, str]
    keep_alive: bool
    expects_continue: bool
    head_size: int
    body_size: int
    body: bytes = b""
    began: float = dataclasses.field(default_factory=time.monotonic)
    """When its first byte came (monotonic): who sent it waits since then."""


class Response(NamedTuple):
    """An answer; `headers` without Content-Length and Connection, which `encode` adds."""

    status: int
    headers: Fields
    body: bytes

    def encode(self, *, close: bool, body: bool = True) -> bytes:
        """Return the bytes to send; `body=False` leaves the body out, as an answer to HEAD must."""
        front = _head(self.status, self.headers, close)
        return b"%b%d\r\n\r\n%b" % (front, len(self.body), self.body if body else b"")


Handler = Callable[[Request], Response]


@lru_cache(maxsize=64)
def _head(status: int, headers: Fields, close: bool) -> bytes:
    """Return a head up to the length: a server has a handful of them."""
    fields = "".join(f"{name}: {value}\r\n" for name, value in headers)
    kept = "close" if close else "keep-alive"
    line = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"
    return f"{line}\r\n{fields}Connection: {kept}\r\nContent-Length: ".encode("latin-1")


def text(status: int, message: str, headers: Fields = TEXT) -> Response:
    return Response(status, headers, f"{message}\n".encode(errors="replace"))


BAD_HEAD = text(400, "the head of the request is not valid HTTP/1.1")
BAD_LENGTH = text(400, "the request must have one Content-Length, a number, and no Transfer-Encoding")
NO_LENGTH = text(411, "say how long the body is: Content-Length is required")
BODY_TOO_LONG = text(413, "the body is longer than this server accepts")
TARGET_TOO_LONG = text(414, "the path of the request is longer than this server accepts")
HEAD_TOO_LONG = text(431, "the head of the request is longer than this server accepts")
FAILED = text(500, "the server failed to answer this request")
UNKNOWN_CODING = text(501, "this server knows no such Transfer-Encoding")
TOO_MANY_BYTES = text(503, "too many bytes of unfinished requests; try again", RETRY)
TOO_MANY_REQUESTS = text(503, "too many requests at once; try again", RETRY)
STOPPING = text(503, "this replica of gpu-admission is stopping; try again", RETRY)


class RefusedError(Exception):
    """The request must not be answered by an application, nor its connection be used again."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.body.decode().rstrip())
        self.response = response


# RFC 9110 sections 5.6.2 (token) and 5.5 (field-value), RFC 3986 section 2 without the fragment. A line ends with CRLF, and a
# folded one (RFC 9112 section 5.2) begins with what no name contains. Possessive where nothing is to be gained by going back.
_NAME, _VALUE = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]++", r"[\t -~\x80-\xff]*+"
_PATH, _QUERY = r"/[!\"$->@-~]*+", r"[!\"$-~]*+"
_HEAD = re.compile(rf"([A-Z]+) ({_PATH})(?:\?({_QUERY}))? HTTP/1\.([01])\r\n((?:{_NAME}:{_VALUE}\r\n)*)\r\n")
_FIELD = re.compile(rf"({_NAME}):[ \t]*({_VALUE})\r\n")
# Twice, they leave open what the request is (RFC 9110 section 5.3).
_SINGLE_FIELDS = {"host", "content-length", "content-type", "expect"}
# No length that fits 64 bits has more digits, and int() of an endless run of digits takes time.
_MAX_DIGITS = 19
_CODINGS = re.compile(r"(?:chunked|compress|deflate|gzip|identity|[, \t])*", re.IGNORECASE)


def find_request(received: bytearray) -> Request | None:
    """Return the request whose head is at the start of `received`, None while that is incomplete. Raises RefusedError."""
    end = received.find(b"\r\n\r\n")
    if end > HEAD_LIMIT or (end < 0 and len(received) > HEAD_LIMIT):
        raise RefusedError(HEAD_TOO_LONG)
    return None if end < 0 else _parse(received[: end + 4].decode("latin-1"))


def _parse(head: str) -> Request:
    match = _HEAD.fullmatch(head)
    if match is None:
        raise RefusedError(BAD_HEAD)
    method, path, query, minor, lines = match.groups()
    if match.start(4) - match.start(2) > TARGET_LIMIT:
        raise RefusedError(TARGET_TOO_LONG)
    fields = _FIELD.findall(lines)
    if len(fields) > FIELDS_LIMIT:
        raise RefusedError(HEAD_TOO_LONG)
    headers: dict[str, str] = {}
    for cased, value in fields:
        name = cased.lower()
        if name in headers and name in _SINGLE_FIELDS:
            raise RefusedError(BAD_HEAD)
        headers[name] = (f"{headers[name]}, {value}" if name in headers else value).rstrip(" \t")
    connection = headers.get("connection", "").lower()
    return Request(
        method=method,
        path=path,
        query=query or "",
        headers=headers,
        keep_alive="close" not in connection if minor == "1" else connection == "keep-alive",
        expects_continue=minor == "1" and headers.get("expect", "").lower() == "100-continue",
        head_size=len(head),
        body_size=_body_size(headers),
    )


def _body_size(headers: dict[str, str]) -> int:
    length, coding = headers.get("content-length"), headers.get("transfer-encoding")
    if coding is not None:
        # Where a body in pieces ends is for its own parser to say: there is none here.
        if length is None and coding.lower() == "chunked":
            raise RefusedError(NO_LENGTH)
        understood = length is not None or _CODINGS.fullmatch(coding)
        raise RefusedError(BAD_LENGTH if understood else UNKNOWN_CODING)
    if length is None:
        return 0
    if not (length.isascii() and length.isdigit()):
        raise RefusedError(BAD_LENGTH)
    return int(length) if len(length) <= _MAX_DIGITS else sys.maxsize


_EVERY_ENVIRON = {
    "SCRIPT_NAME": "",
    "SERVER_NAME": "localhost",  # for who sends no Host
    "SERVER_PORT": "443",
    "SERVER_PROTOCOL": "HTTP/1.1",
    "wsgi.version": (1, 0),
    "wsgi.url_scheme": "https",
    "wsgi.errors": sys.stderr,
    "wsgi.multithread": True,
    "wsgi.multiprocess": False,
    "wsgi.run_once": False,
}


def call_wsgi(application: WSGIApplication, request: Request) -> Response:
    """Run an application on a request; its answer is collected whole, so that one that fails half-way is never sent."""
    started: list[Any] = []
    written: list[bytes] = []

    def start_response(status: str, headers: list[tuple[str, str]], _error: Any = None) -> Any:
        started[:] = int(status[:3]), headers
        return written.append

    parts = application(_environ(request), start_response)
    try:
        written.extend(parts)
    finally:
        getattr(parts, "close", int)()
    status, headers = started
    kept = tuple(field for field in headers if field[0].lower() not in ("content-length", "connection"))
    return Response(status, kept, b"".join(written))


def _environ(request: Request) -> WSGIEnvironment:
    headers = request.headers
    # A name with an underscore would become that of another field.
    variables = {
        f"HTTP_{name.upper().replace('-', '_')}": headers[name] for name in headers if "_" not in name
    }
    return {
        **variables,
        "REQUEST_METHOD": request.method.replace("HEAD", "GET"),  # `encode` leaves the body out
        "PATH_INFO": unquote_to_bytes(request.path).decode("latin-1"),
        "QUERY_STRING": request.query,
        "CONTENT_TYPE": headers.get("content-type", ""),
        "CONTENT_LENGTH": str(len(request.body)),
        "wsgi.input": io.BytesIO(request.body),
        **_EVERY_ENVIRON,
    }

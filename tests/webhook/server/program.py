"""A server to be tested, in a process of its own: `python -m tests.webhook.server.program SETTINGS`."""

import hashlib
import json
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

from webhook.server.dispatcher import Application
from webhook.server.http import Request, Response, call_wsgi
from webhook.server.server import run
from webhook.server.settings import ServerSettings, StartupError
from webhook.server.tls import ServingCertificate


def make_app(_serving: ServingCertificate, draining: Callable[[], bool]) -> Application:
    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return respond(environ, start_response, draining=draining())

    def answer(request: Request) -> Response:
        return call_wsgi(application, request)

    return Application(
        answer, only_computes=lambda request: request.path == "/at-once", probes=frozenset({"/healthz"})
    )


def respond(environ: WSGIEnvironment, start_response: StartResponse, *, draining: bool) -> Iterable[bytes]:
    path, argument = environ["PATH_INFO"], environ["QUERY_STRING"]
    match path:
        case "/body":
            body = environ["wsgi.input"].read()
            answer: dict[str, Any] = {"length": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        case "/sleep" | "/at-once" | "/waits":
            stay(argument)
            answer = {"slept": argument}
        case "/healthz":
            answer = {}
        case "/state":
            answer = {"draining": draining, "scheme": environ["wsgi.url_scheme"]}
        case "/large":
            start_response("200 OK", [("Content-Length", argument)])
            return [b"x" * int(argument)]
        case "/bad-header":
            start_response("200 OK", [("X", "\N{SNOWMAN}")])
            return [b"whole"]
        case "/fails-half-way":
            start_response("200 OK", [("Content-Type", "text/plain")])
            return _half()
        case _:
            raise LookupError(path)
    content = json.dumps(answer).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(content)))])
    return [content]


def stay(argument: str) -> None:
    """Stay for so many seconds, or until the file of that path is there."""
    if not argument.startswith("/"):
        time.sleep(float(argument))
    else:
        while not Path(argument).exists():
            time.sleep(0.01)


def _half() -> Iterator[bytes]:
    yield b"half"
    raise LookupError("the other half")


def refuse_to_start(_serving: ServingCertificate, _draining: Callable[[], bool]) -> Application:
    raise StartupError("policies.yaml: spec.rules: unknown rule")


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    factory = refuse_to_start if given.pop("refuse", False) else make_app
    paths = {name: Path(given[name]) for name in ("certificate", "key", "client_ca") if name in given}
    logging.basicConfig(level=logging.INFO)
    run(factory, ServerSettings(**given | paths))

"""A server to be tested, in a process of its own: `python -m tests.webhook.server.program SETTINGS`."""

import hashlib
import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from webhook.server.dispatcher import Site
from webhook.server.http import JSON, Request, Response
from webhook.server.server import run
from webhook.server.settings import ServerSettings, StartupError
from webhook.server.tls import ServingCertificate


def make_site(serving: ServingCertificate, draining: Callable[[], bool]) -> Site:
    def answer(request: Request) -> Response:
        return respond(request, serving, draining=draining())

    return Site(answer, at_once=lambda request: request.path == "/at-once", probes=frozenset({"/healthz"}))


def respond(request: Request, serving: ServingCertificate, *, draining: bool) -> Response:
    path, argument = request.path, request.query
    match path:
        case "/body":
            body = request.body
            answer: dict[str, Any] = {"length": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        case "/sleep" | "/at-once" | "/waits":
            stay(argument)
            answer = {"slept": argument}
        case "/healthz":
            answer = {}
        case "/state":
            answer = {
                "draining": draining,
                "last_error": serving.state.last_error,
                "failures": serving.state.failures,
                "client_ca": serving.client_ca and serving.client_ca.last_error,
            }
        case "/large":
            return Response(200, (), b"x" * int(argument))
        case "/bad-header":
            return Response(200, (("X", "\N{SNOWMAN}"),), b"whole")
        case _:
            raise LookupError(path)
    return Response(200, JSON, json.dumps(answer).encode())


def stay(argument: str) -> None:
    """Stay for so many seconds, or until the file of that path is there."""
    if not argument.startswith("/"):
        time.sleep(float(argument))
    else:
        while not Path(argument).exists():
            time.sleep(0.01)


def refuse_to_start(_serving: ServingCertificate, _draining: Callable[[], bool]) -> Site:
    raise StartupError("policies.yaml: spec.rules: unknown rule")


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    factory = refuse_to_start if given.pop("refuse", False) else make_site
    paths = {name: Path(given[name]) for name in ("certificate", "key", "client_ca") if name in given}
    logging.basicConfig(level=logging.INFO)
    run(factory, ServerSettings(**given | paths))

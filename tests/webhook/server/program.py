"""A server to be tested, in a process of its own: `python -m tests.webhook.server.program SETTINGS`."""

import hashlib
import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from webhook.server import lifecycle
from webhook.server.application import run
from webhook.server.settings import ServerSettings


def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    path, argument = environ["PATH_INFO"], environ["QUERY_STRING"]
    match path:
        case "/body":
            body = environ["wsgi.input"].read()
            answer: dict[str, Any] = {"length": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        case "/sleep" | "/at-once":
            time.sleep(float(argument))
            answer = {"slept": argument}
        case "/healthz":
            answer = {}
        case "/state":
            state = lifecycle.certificate()
            answer = {
                "draining": lifecycle.draining(),
                "scheme": environ["wsgi.url_scheme"],
                "last_error": state.last_error if state else None,
                "failures": state.failures if state else None,
            }
        case "/large":
            start_response("200 OK", [("Content-Length", argument)])
            return [b"x" * int(argument)]
        case "/fails-half-way":
            start_response("200 OK", [("Content-Type", "text/plain")])
            return _half()
        case _:
            raise LookupError(path)
    content = json.dumps(answer).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(content)))])
    return [content]


def _half() -> Iterator[bytes]:
    yield b"half"
    raise LookupError("the other half")


def refuses_to_start() -> WSGIApplication:
    raise lifecycle.StartupError("policies.yaml: spec.rules: unknown rule")


def report_draining() -> None:
    sys.stderr.write("on_drain was called\n")
    raise LookupError("a callback that fails must not keep the server from draining")


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    factory = refuses_to_start if given.pop("refuse", False) else lambda: application
    settings = ServerSettings(**given | {name: Path(given[name]) for name in ("certificate", "key")})
    run(
        factory,
        settings,
        on_drain=report_draining,
        at_once=frozenset({b"/at-once"}),
        probes=frozenset({b"/healthz"}),
    )

"""The webhooks to compare with: a Flask view as anybody would write it that lets everything in, and constant answers.

`python -m tests.bench.noop SETTINGS` serves the view on our server (`webhook.server`, settings as JSON), or with `answers` among
the settings those, by path, with UID where the uid of the review belongs; `app` is for a stock gunicorn.
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flask import Flask, request

from webhook.server.dispatcher import Application
from webhook.server.http import JSON, Handler, Request, Response, call_wsgi
from webhook.server.server import run
from webhook.server.settings import ServerSettings

app = Flask(__name__, static_folder=None)

UID = "UID"
_UID = re.compile(rb'"uid":"([^"]+)"')
"""The first of a review is its own: the API server writes it before the object."""


@app.post("/mutate")
@app.post("/validate")
def allow() -> dict[str, Any]:
    review = request.get_json()
    answer = {"uid": review["request"]["uid"], "allowed": True}
    return {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": answer}


def _first_part(path: str) -> str:
    """Return of a path what chooses the hook: the rest of ours is a sentence for those who find it in an error."""
    return "/" + path.split("/")[1]


def constant(answers: Mapping[str, str]) -> Handler:
    """Return what answers a review without looking at more of it than its uid."""
    halves = {path: answer.encode().partition(UID.encode()) for path, answer in answers.items()}

    def answer(request: Request) -> Response:
        path = _first_part(request.path)
        if path not in halves or (uid := _UID.search(request.body)) is None:
            return Response(404, JSON, b"{}")
        before, _, after = halves[path]
        return Response(200, JSON, before + uid[1] + after)

    return answer


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    answers = given.pop("answers")
    application = Application(
        constant(answers) if answers else lambda request: call_wsgi(app, request),
        only_computes=lambda request: (
            _first_part(request.path) in ("/mutate", "/validate")
        ),  # as ours without a cluster
        probes=frozenset(),
    )
    run(
        lambda _serving, _draining: application,
        ServerSettings(**given | {name: Path(given[name]) for name in ("certificate", "key")}),
    )

"""The webhook to compare with: a Flask view as anybody would write it that lets everything in.

`python -m tests.bench.noop SETTINGS` serves it on our server (`webhook.server`, settings as JSON); `app` is for a stock gunicorn.
"""

import json
import sys
from pathlib import Path
from typing import Any

from flask import Flask, request

from webhook.server.dispatcher import Site
from webhook.server.http import call_wsgi
from webhook.server.server import run
from webhook.server.settings import ServerSettings

app = Flask(__name__, static_folder=None)


@app.post("/mutate")
@app.post("/validate")
def allow() -> dict[str, Any]:
    review = request.get_json()
    answer = {"uid": review["request"]["uid"], "allowed": True}
    return {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": answer}


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    site = Site(
        lambda request: call_wsgi(app, request),
        at_once=lambda path: path in ("/mutate", "/validate"),  # as ours without a cluster
        probes=frozenset(),
    )
    run(
        lambda _serving, _draining: site,
        ServerSettings(**given | {name: Path(given[name]) for name in ("certificate", "key")}),
    )

"""The webhook to compare with: a Flask view as anybody would write it that lets everything in.

`python -m tests.bench.noop SETTINGS` serves it on our server (`webhook.server`, settings as JSON); `app` is for a stock gunicorn.
"""

import json
import sys
from pathlib import Path
from typing import Any

from flask import Flask, request

from webhook.server.application import run
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
    run(
        lambda: app,
        ServerSettings(**given | {name: Path(given[name]) for name in ("certificate", "key")}),
        at_once=frozenset({b"/mutate", b"/validate"}),  # as ours without a cluster
    )

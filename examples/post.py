"""Post a pod manifest to a running webhook the way the API server does, and show the answer.

.venv/bin/python examples/post.py examples/workloads/pod-training.yaml
"""

import argparse
import base64
import json
import signal
import ssl
import sys
import time
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import yaml

DEFAULT_URL = "https://localhost:8443/mutate"
EXAMPLE = Path("examples/workloads/pod-training.yaml")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("manifest", type=Path, nargs="?", default=EXAMPLE, help="YAML of one Pod")
    parser.add_argument("--url", default=DEFAULT_URL)
    parser.add_argument("--ca", default=".run/certs/ca.crt", help="certificate authority of the webhook")
    parser.add_argument(
        "--announce", action="store_true", help="wait until the webhook is ready, and say how to try it"
    )
    arguments = parser.parse_args()
    if arguments.announce:
        return announce(arguments.url, arguments.ca)
    pod = yaml.safe_load(arguments.manifest.read_text(encoding="utf-8"))
    try:
        response = json.loads(call(arguments.url, arguments.ca, json.dumps(review(pod)).encode()))["response"]
    except OSError as error:
        print(f"no answer from {arguments.url}: {error}; start the webhook with `make run`", file=sys.stderr)
        return 2
    # From here on only output remains: end quietly if the pipe closes first, as with `| head`.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    return show(response)


def call(url: str, ca: str, body: bytes | None = None) -> bytes:
    """Return the body of the answer; raises OSError if there is none."""
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})  # noqa: S310 - the user's own URL
    context = ssl.create_default_context(cafile=ca)
    with urllib.request.urlopen(request, context=context, timeout=10) as answer:  # noqa: S310 - likewise
        read: bytes = answer.read()
    return read


def announce(url: str, ca: str) -> int:
    ready = url.removesuffix("/mutate") + "/readyz"
    for _ in range(100):
        try:
            call(ready, ca)
        except OSError:
            time.sleep(0.2)
            continue
        other = "" if url == DEFAULT_URL else f" --url {url}"
        print("\nThe webhook is up. In another terminal, post a pod to it and see the patch:\n")
        print(f"  .venv/bin/python examples/post.py{other} {EXAMPLE}\n")
        print("Its audit log follows here, one line per decision; Ctrl-C stops it.", flush=True)
        return 0
    return 1


def review(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the AdmissionReview that the API server would send when `pod` is created."""
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": str(uuid.uuid4()),
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "operation": "CREATE",
            "namespace": pod.get("metadata", {}).get("namespace", "default"),
            "userInfo": {"username": "you", "groups": ["system:authenticated"]},
            "object": pod,
            "dryRun": False,
        },
    }


def show(response: dict[str, Any]) -> int:
    for warning in response.get("warnings", ()):
        print(f"Warning: {warning}")
    if not response["allowed"]:
        print(f"denied ({response['status']['code']}): {response['status']['message']}")
        return 1
    if "patch" not in response:
        print("allowed, nothing to change")
        return 0
    print("allowed, with this patch:")
    for operation in json.loads(base64.b64decode(response["patch"])):
        print(f"  {operation['op']} {operation['path']}")
        print(f"      {json.dumps(operation['value'])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

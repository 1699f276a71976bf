"""Post a pod manifest to a running webhook the way the API server does, and show what comes back.

.venv/bin/python examples/post.py examples/workloads/pod-training.yaml
"""

import argparse
import base64
import json
import ssl
import sys
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import yaml


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("manifest", type=Path, help="YAML of one Pod")
    parser.add_argument("--url", default="https://localhost:8443/mutate")
    parser.add_argument("--ca", default=".run/certs/ca.crt", help="certificate authority of the webhook")
    arguments = parser.parse_args()
    pod = yaml.safe_load(arguments.manifest.read_text(encoding="utf-8"))
    request = urllib.request.Request(  # noqa: S310 - the URL is the user's own
        arguments.url, data=json.dumps(review(pod)).encode(), headers={"Content-Type": "application/json"}
    )
    context = ssl.create_default_context(cafile=arguments.ca)
    with urllib.request.urlopen(request, context=context, timeout=10) as answer:  # noqa: S310 - likewise
        response = json.load(answer)["response"]
    return show(response)


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
        print(f"refused ({response['status']['code']}): {response['status']['message']}")
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

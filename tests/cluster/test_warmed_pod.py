"""What a real API server stores of a warmed pod beside what was applied is what docs/tenants/model-warming.md shows.

UPDATE_DOCS=1 writes it again.
"""

import json
import os
import re
from pathlib import Path

import yaml

from tests.builders import JSON
from tests.cluster.configuration import default_policy
from tests.controlplane import ControlPlane
from tests.controlplane.webhook import ROOT, serving

PAGE = ROOT / "docs" / "tenants" / "model-warming.md"
APPLIED = re.compile(r"```yaml\n(apiVersion: v1\nkind: Pod\n.*?)```", re.DOTALL)
STORED = re.compile(r"(```yaml\n# added\n)(.*?)(```)", re.DOTALL)
SHOWN = ("name", "image", "command", "args", "env", "volumeMounts")
PAUSED_RULES = ("gpu-toleration", "gpu-class", "readiness-delay")


def test_the_page_shows_what_the_api_server_stores(plane: ControlPlane) -> None:
    page = PAGE.read_text()
    applied, written = APPLIED.search(page), STORED.search(page)
    assert applied
    assert written

    policy = default_policy({rule: {"mode": "disabled"} for rule in PAUSED_RULES})
    image = "--fetcher-image=registry.example.com/gpu-admission-fetcher:0.1.0"
    with serving(plane, policy, "chat", arguments=(image,)):
        plane.kubectl("apply", "-n", "chat", "-f", "-", stdin=applied[1])
        stored = plane.kubectl("get", "pod", "chat", "-n", "chat", "-o", "yaml").stdout
    if os.environ.get("UPDATE_DOCS"):
        shown = yaml.safe_dump(chosen(stored))
        Path(PAGE).write_text(STORED.sub(lambda found: found[1] + shown + found[3], page))
        return
    assert yaml.safe_load(written[2]) == chosen(stored)


def chosen(text: str) -> JSON:
    """Return what the webhook adds to the pod, but for resources and securityContext."""
    spec: JSON = yaml.safe_load(text)["spec"]
    mounts = [{"name": each["name"], "volumeMounts": each["volumeMounts"]} for each in spec["containers"]]
    added = [
        {field: value for field, value in each.items() if field in SHOWN} for each in spec["initContainers"]
    ]
    return {"spec": {"containers": mounts, "initContainers": added, "volumes": spec["volumes"]}}


def test_the_api_server_stores_an_image_volume(plane: ControlPlane) -> None:
    reference = f"ghcr.io/ml/chat:v1@sha256:{'a' * 64}"
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "image", "annotations": {"gpu-admission.dev/model-uri": f"oci://{reference}"}},
        "spec": {"containers": [{"name": "main", "image": "server"}]},
    }

    policy = default_policy(
        {"model-warming": {"sources": {"oci": {"imageVolumes": True, "requireDigest": True}}}}
    )
    with serving(plane, policy, "images"):
        plane.kubectl("apply", "-n", "images", "-f", "-", stdin=json.dumps(pod))
        stored = json.loads(plane.kubectl("get", "pod", "image", "-n", "images", "-o", "json").stdout)["spec"]

    (volume,) = (each for each in stored["volumes"] if each["name"] == "gpu-admission-model")
    assert volume["image"] == {"reference": reference, "pullPolicy": "IfNotPresent"}
    assert stored["containers"][0]["volumeMounts"][0] == {
        "name": "gpu-admission-model",
        "mountPath": "/model-cache",
        "readOnly": True,
    }
    assert "initContainers" not in stored

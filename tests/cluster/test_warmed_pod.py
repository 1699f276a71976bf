"""What a real API server stores of a warmed pod is what docs/tenants/model-warming.md shows; UPDATE_DOCS=1 writes it anew."""

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
STORED = re.compile(r"(```yaml\n# kubectl get pod chat -o yaml\n)(.*?)(```)", re.DOTALL)
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
    # What was applied stands in it once more, as one long line.
    stored = re.sub(r"    kubectl\.kubernetes\.io/last-applied-configuration: \|\n(      .*\n)+", "", stored)

    if os.environ.get("UPDATE_DOCS") and lasting(written[2]) != lasting(stored):
        Path(PAGE).write_text(STORED.sub(lambda found: found[1] + stored + found[3], page))
        return
    assert lasting(written[2]) == lasting(stored)


def lasting(text: str) -> JSON:
    """Return a pod without what is different each time."""
    document: JSON = yaml.safe_load(text) or {"metadata": {}}
    for field in ("creationTimestamp", "resourceVersion", "uid"):
        document["metadata"].pop(field, None)
    return document

"""Installing what the chart makes, as an operator would, and taking it away again."""

from typing import Any

import yaml

from tests.controlplane import ControlPlane
from tests.controlplane.webhook import uninstall
from tests.deploy.manifests import NAMESPACE

FOREIGN = ("monitoring.coreos.com/", "cert-manager.io/")
"""Kinds of other projects, whose definitions are not ours to bring: what is made of them is left out here."""
OURS = "gpu-admission.dev/"


def documents(text: str) -> list[dict[str, Any]]:
    """Return the manifests of `text` but those of other projects' kinds."""
    found = [document for document in yaml.safe_load_all(text) if document]
    return [document for document in found if not document["apiVersion"].startswith(FOREIGN)]


def apply_strictly(plane: ControlPlane, text: str) -> str:
    """Apply with strict field validation, documents of our kinds after these are known; return what kubectl said."""
    every = documents(text)
    ours = [document for document in every if document["apiVersion"].startswith(OURS)]
    said = _apply(plane, [document for document in every if document not in ours])
    kinds = [d["metadata"]["name"] for d in every if d["kind"] == "CustomResourceDefinition"]
    plane.kubectl("wait", "--for=condition=Established", "--timeout=90s", "crd", *kinds)
    return said + (_apply(plane, ours) if ours else "")


def remove(plane: ControlPlane) -> None:
    """Take away what would have a say in what other tests create."""
    uninstall(plane)
    client = plane.client()
    client.delete(f"/apis/{OURS}v1alpha1/gpupolicies")
    client.delete(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments")
    for service in client.get(f"/api/v1/namespaces/{NAMESPACE}/services")[1].get("items", []):
        client.delete(
            f"/api/v1/namespaces/{NAMESPACE}/services/{service['metadata']['name']}"
        )  # a clusterIP cannot change


def _apply(plane: ControlPlane, every: list[dict[str, Any]]) -> str:
    arguments = ("apply", "--server-side", "--force-conflicts", "--validate=strict", "-f", "-")
    done = plane.kubectl(*arguments, stdin=yaml.safe_dump_all(every))
    assert not done.stderr, (
        done.stderr
    )  # warnings of the API server: deprecated fields, a violated pod security profile
    return done.stdout

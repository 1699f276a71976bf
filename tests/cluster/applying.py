"""Applying manifests to a real API server, and reading what is stored."""

from tests.builders import JSON
from tests.controlplane import ControlPlane, accepted


def named(name: str, document: JSON, namespace: str) -> JSON:
    return {**document, "metadata": {**document["metadata"], "name": name, "namespace": namespace}}


def apply(plane: ControlPlane, document: JSON, *, dry_run: bool = False) -> tuple[bool, str]:
    """Return whether the API server was content, and everything it said, a line each.

    What kubectl makes of it is in test_kubectl_transcripts.py; a process of it for every object would take most of the time.
    """
    status, body, warnings = plane.client().apply(document, {"dryRun": "All"} if dry_run else None)
    said = [f"Warning: {each}" for each in warnings]
    if status >= 300:  # a kind that is not served yet is answered in plain text
        said.append(body["message"] if isinstance(body, dict) else str(body))
    return status < 300, "\n".join(said)


def stored(plane: ControlPlane, name: str, namespace: str) -> JSON:
    document = accepted(plane.client().get(f"/api/v1/namespaces/{namespace}/pods/{name}"))
    return dict(document)

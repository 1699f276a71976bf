"""What `kubectl apply` shows its user, with both configurations of deploy/ registered on a real API server."""

from collections.abc import Iterator

import pytest

from tests.builders import JSON, gpu_container, pod
from tests.controlplane import ControlPlane, accepted
from tests.controlplane.webhook import Webhook, serving

pytestmark = pytest.mark.usefixtures("webhook")


@pytest.fixture(scope="module")
def webhook(plane: ControlPlane) -> Iterator[Webhook]:
    with serving(plane, "", "limited") as running:
        yield running


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


LIMITS = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "defaults", "namespace": "limited"},
    "spec": {"limits": [{"type": "Container", "default": {"ephemeral-storage": "1Gi"}}]},
}


def test_reinvocation_finds_nothing_left_to_do(plane: ControlPlane, webhook: Webhook) -> None:
    # The API server's own plugins run again after a patch; LimitRanger then touches the injected container, and we are
    # called a second time.
    apply(plane, LIMITS)
    document = pod(gpu_container(), annotations={"gpu-admission.dev/model-uri": "hf://org/model"})
    accepted, said = apply(plane, named("warmed", document, "limited"))

    assert accepted, said
    verdicts = [
        line["verdict"] for line in webhook.audit() if line["name"] == "warmed" and line["phase"] == "mutate"
    ]
    assert verdicts == ["patched", "allowed"]
    injected = stored(plane, "warmed", "limited")["spec"]["initContainers"]
    assert [container["resources"]["limits"]["ephemeral-storage"] for container in injected] == ["1Gi"]


RESTRICTED = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {"name": "restricted", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
}


def test_a_restricted_namespace_admits_what_we_inject_and_guaranteed_stays_guaranteed(
    plane: ControlPlane,
) -> None:
    apply(plane, RESTRICTED)
    resources = {"limits": {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "1"}}
    document = pod(
        gpu_container(
            name="server",
            resources=resources,
            securityContext={"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        ),
        annotations={"gpu-admission.dev/model-uri": "s3://models/llama"},
        securityContext={
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    )
    accepted, said = apply(plane, named("server", document, "restricted"))

    assert accepted, said
    assert "Warning" not in said
    result = stored(plane, "server", "restricted")
    assert len(result["spec"]["initContainers"]) == 1
    assert result["status"]["qosClass"] == "Guaranteed"
    plane.kubectl("delete", "namespace", "restricted", "--wait=false")

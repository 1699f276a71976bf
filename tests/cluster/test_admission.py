"""What `kubectl apply` shows its user, with both configurations of deploy/ registered on a real API server."""

from collections.abc import Iterator

import pytest

from tests.builders import gpu_container, pod
from tests.cluster.applying import apply, named, stored
from tests.controlplane import ControlPlane
from tests.controlplane.webhook import Webhook, serving

pytestmark = pytest.mark.usefixtures("webhook")


@pytest.fixture(scope="module")
def webhook(plane: ControlPlane) -> Iterator[Webhook]:
    with serving(plane, "", "limited") as running:
        yield running


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

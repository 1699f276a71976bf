"""What `kubectl apply` shows its user, with both configurations of deploy/ registered on a real API server."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.builders import JSON, gpu_container, pod
from tests.controlplane import ControlPlane
from tests.controlplane.webhook import Webhook, serving

POLICY = """
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: default}
spec:
  rules:
    gpu-toleration:
      tolerations:
      - {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}
      - {key: dedicated, operator: Equal, value: ml-workloads, effect: NoSchedule}
    gpu-class: {default: nvidia-a100-80gb}
    readiness-delay: {modelLoadSeconds: 60}
---
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: completing}
spec:
  priority: 1
  match: {namespaces: [completing]}
  rules:
    gpu-requests: {completeLimits: true}
"""

pytestmark = pytest.mark.usefixtures("webhook")


@pytest.fixture(scope="module")
def webhook(plane: ControlPlane) -> Iterator[Webhook]:
    with serving(plane, POLICY, "team", "completing", "limited") as running:
        yield running


def named(name: str, document: JSON, namespace: str = "team") -> JSON:
    return {**document, "metadata": {**document["metadata"], "name": name, "namespace": namespace}}


def gpu_pod(
    name: str, *, limit: Any = None, request: Any = None, namespace: str = "team", **spec: Any
) -> JSON:
    lists = {"limits": limit, "requests": request}
    resources = {key: {"nvidia.com/gpu": value} for key, value in lists.items() if value is not None}
    return named(name, pod(gpu_container(name="train", resources=resources), **spec), namespace)


def apply(plane: ControlPlane, document: JSON, *, dry_run: bool = False) -> tuple[bool, str]:
    """Return whether the API server was content, and everything it said, a line each.

    What kubectl makes of it is in test_kubectl_transcripts.py; a process of it for every object would take most of the time.
    """
    status, body, warnings = plane.client().apply(document, {"dryRun": "All"} if dry_run else None)
    said = [f"Warning: {each}" for each in warnings]
    if status >= 300:  # a kind that is not served yet is answered in plain text
        said.append(body["message"] if isinstance(body, dict) else str(body))
    return status < 300, "\n".join(said)


def stored(plane: ControlPlane, name: str, namespace: str = "team") -> JSON:
    status, document = plane.client().get(f"/api/v1/namespaces/{namespace}/pods/{name}")
    assert status == 200, document
    found: JSON = document
    return found


def test_a_request_without_limit_is_completed_where_the_policy_says_so(plane: ControlPlane) -> None:
    accepted, said = apply(plane, gpu_pod("half-told", request="1", namespace="completing"))

    assert accepted, said
    resources = stored(plane, "half-told", "completing")["spec"]["containers"][0]["resources"]
    assert resources == {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}


def test_a_pod_that_has_everything_is_returned_without_a_patch(plane: ControlPlane, webhook: Webhook) -> None:
    apply(plane, gpu_pod("first", limit="1"))
    complete = stored(plane, "first")["spec"]

    accepted, said = apply(
        plane, named("second", {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": complete})
    )

    assert accepted, said
    lines = [line for line in webhook.audit() if line["name"] == "second"]
    assert {line["phase"]: line["verdict"] for line in lines} == {"mutate": "allowed", "validate": "allowed"}


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
    document = gpu_pod("warmed", limit="1", namespace="limited")
    document["metadata"]["annotations"] = {"gpu-admission.dev/model-uri": "hf://org/model"}
    accepted, said = apply(plane, document)

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

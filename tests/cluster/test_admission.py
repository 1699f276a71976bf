"""What `kubectl apply` shows its user, with both configurations of deploy/ registered on a real API server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from policies.pods.quantity import parse_quantity
from tests.builders import JSON, gpu_container, pod
from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane
from tests.controlplane.webhook import Webhook

POLICY = """
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: default}
spec:
  exemptions:
  - {namespaces: [exempted], reason: test}
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

NAMESPACES = ("team", "completing", "exempted", "limited")


@pytest.fixture(scope="module")
def webhook(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    config = tmp_path_factory.mktemp("config")
    (config / "policy.yaml").write_text(POLICY)
    for name in NAMESPACES:
        plane.kubectl("create", "namespace", name)
    with Webhook(plane, config=config) as running:
        running.register()
        yield running
        running.unregister()
    plane.kubectl("delete", "namespace", *NAMESPACES, "--wait=false")


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


def shown(plane: ControlPlane, document: JSON) -> JSON:
    """Return what would be stored."""
    status, body, _ = plane.client().apply(document, {"dryRun": "All"})
    assert status == 201, body
    found: JSON = body
    return found


def stored(plane: ControlPlane, name: str, namespace: str = "team") -> JSON:
    status, document = plane.client().get(f"/api/v1/namespaces/{namespace}/pods/{name}")
    assert status == 200, document
    found: JSON = document
    return found


REFUSED = 'admission webhook "pods.mutate.gpu-admission.dev" denied the request: pod team/'


@pytest.mark.parametrize(
    ("limit", "request_", "told"),
    [
        pytest.param(
            "500m",
            None,
            ['limits[nvidia.com/gpu] (container "train") = "500m" (0.5)', "set nvidia.com/gpu: 1"],
            id="500m",
        ),
        pytest.param(
            "0.5",
            "0.5",
            ["must be a whole number of GPUs", 'container "train"', "nvidia.com/mig-"],
            id="half-as-text",
        ),
        pytest.param("2", "1", ['container "train"', '"1"', "2"], id="request-below-limit"),
        pytest.param("1", "2", ['container "train"', '"2"', "1"], id="request-above-limit"),
        pytest.param(None, "1", ['container "train"', "limit"], id="request-without-limit"),
        pytest.param("-1", None, ['container "train"', '"-1"'], id="negative"),
    ],
)
def test_a_wrong_request_is_refused_by_our_sentence(
    plane: ControlPlane, limit: str, request_: str, told: list[str]
) -> None:
    accepted, said = apply(plane, gpu_pod("wrong", limit=limit, request=request_))

    assert not accepted
    assert REFUSED in said
    assert all(words in said for words in told), said


@pytest.mark.parametrize(
    ("quantity", "want"),
    [
        pytest.param("1000m", "1", id="a-thousand-milli-is-one"),
        pytest.param("1", "1", id="one"),
        pytest.param(1, "1", id="a-number"),
        pytest.param("2", "2", id="two"),
        pytest.param("2e0", "2", id="with-an-exponent"),
    ],
)
def test_a_whole_number_is_admitted(plane: ControlPlane, quantity: Any, want: str) -> None:
    name = f"whole-{str(quantity).replace('.', '')}"
    accepted, said = apply(plane, gpu_pod(name, limit=quantity))

    assert accepted, said
    resources = stored(plane, name)["spec"]["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"]
    assert parse_quantity(resources["limits"]["nvidia.com/gpu"]) == parse_quantity(want)


def test_a_request_without_limit_is_completed_where_the_policy_says_so(plane: ControlPlane) -> None:
    accepted, said = apply(plane, gpu_pod("half-told", request="1", namespace="completing"))

    assert accepted, said
    resources = stored(plane, "half-told", "completing")["spec"]["containers"][0]["resources"]
    assert resources == {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}


def test_everything_that_is_wrong_is_told_at_once(plane: ControlPlane) -> None:
    document = pod(
        gpu_container("500m", name="one"), gpu_container("1500m", name="two"), gpu_container("1", name="fine")
    )
    accepted, said = apply(plane, named("many", document))

    assert not accepted
    assert "(and 1 more)\n- " in said
    assert '(container "one") = "500m"' in said
    assert '(container "two") = "1500m"' in said


def test_applying_again_changes_nothing(plane: ControlPlane) -> None:
    document = json.dumps(gpu_pod("again", limit="1"))
    plane.kubectl("apply", "-f", "-", stdin=document)
    before = stored(plane, "again")

    said = plane.kubectl("apply", "-f", "-", stdin=document).stdout

    assert "unchanged" in said
    assert stored(plane, "again")["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


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


def test_a_server_side_dry_run_answers_the_same_and_stores_nothing(plane: ControlPlane) -> None:
    document = shown(plane, gpu_pod("dry", limit="1"))
    refused, reason = apply(plane, gpu_pod("dry", limit="500m"), dry_run=True)

    assert {
        "key": "dedicated",
        "operator": "Equal",
        "value": "ml-workloads",
        "effect": "NoSchedule",
    } in document["spec"]["tolerations"]
    assert not refused
    assert REFUSED in reason
    assert plane.client().get("/api/v1/namespaces/team/pods/dry")[0] == 404


@pytest.mark.parametrize("namespace", ["kube-system", "exempted"])
def test_some_namespaces_come_through_untouched(plane: ControlPlane, namespace: str) -> None:
    accepted, said = apply(plane, gpu_pod("untouched", limit="1", namespace=namespace))

    assert accepted, said
    document = stored(plane, "untouched", namespace)
    assert {toleration["key"] for toleration in document["spec"]["tolerations"]} == {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    }
    assert "nodeSelector" not in document["spec"]
    assert "gpu-admission.dev/injected" not in document["metadata"].get("annotations", {})


def test_a_cpu_pod_never_reaches_the_webhook(plane: ControlPlane, webhook: Webhook) -> None:
    accepted, said = apply(plane, named("plain", pod()))

    assert accepted, said
    assert [line for line in webhook.audit() if line["name"] == "plain"] == []


def test_a_gated_pod_is_not_pinned(plane: ControlPlane) -> None:
    gated = gpu_pod("gated", limit="1", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])
    accepted, said = apply(plane, gated)

    assert accepted, said
    assert "nodeSelector" not in stored(plane, "gated")["spec"]


def test_a_workload_is_warned_about_what_its_pods_would_meet(plane: ControlPlane) -> None:
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "team"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {
                    "labels": {"app": "web"},
                    "annotations": {"gpu-admission.dev/gpu-class": "nvidia-a1000"},
                },
                "spec": {"containers": [gpu_container()]},
            },
        },
    }
    accepted, said = apply(plane, deployment)

    assert accepted, said
    assert "Warning: its pods would be denied: template.metadata.annotations" in said
    assert "nvidia-a100" in said


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


def test_a_configuration_is_taken_over_while_running(plane: ControlPlane, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    with Webhook(plane, config=tmp_path, host=11) as running:
        (tmp_path / "policy.yaml").write_text(
            POLICY.replace("default: nvidia-a100-80gb", "default: nvidia-a1000")
        )
        assert eventually(lambda: "gpu_admission_config_valid 0.0" in running.metrics())
        assert eventually(lambda: "nvidia-a1000" in running.log())
        (tmp_path / "policy.yaml").write_text(POLICY)
        assert eventually(lambda: "gpu_admission_config_valid 1.0" in running.metrics())

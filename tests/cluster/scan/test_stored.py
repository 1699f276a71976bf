"""A pod as the API server stores it after the webhook, evaluated by the same configuration: it would get the same again."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from policies.pods.annotations import INJECTED
from tests.builders import JSON, container, gpu_container
from tests.cases import cases
from tests.controlplane import ControlPlane, accepted, create_gpu_node
from tests.controlplane.webhook import serving
from webhook.configuration.loader import load_directory
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.evaluator import Evaluator
from webhook.tools.stored_objects import evaluate

POLICY = """\
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: default}
spec:
  rules:
    gpu-class: {default: nvidia-a100-80gb}
    gpu-isolation: {mode: enforce}
    shared-memory: {mode: enforce, sizeLimit: 8Gi}
    readiness-delay: {modelLoadSeconds: 60}
    spot: {mode: enforce, pods: all, nodeSelector: {pool: spot}, minTerminationSeconds: 120, serving: true}
"""
NODE = "stored-1"
PODS = "/api/v1/namespaces/stored/pods"
WARMED = {"gpu-admission.dev/model-uri": "s3://models/llama-3"}
PROBE = {"httpGet": {"path": "/health", "port": 8000}}


@pytest.fixture(scope="module")
def config(plane: ControlPlane) -> Iterator[Path]:
    """Return the directory of documents by which a webhook is called for the pods of the namespace."""
    create_gpu_node(plane.client(), NODE, labels={"accelerator": "nvidia-a100-80gb", "pool": "spot"})
    with serving(plane, POLICY, "stored", host=44) as webhook:
        assert webhook.config is not None
        yield webhook.config
    plane.client().delete(f"/api/v1/nodes/{NODE}")


@cases(
    ("name", "containers", "annotations"),
    class_and_toleration=("plain", [gpu_container()], {}),
    shared_memory_and_isolation=("several", [gpu_container("2"), container("side")], {}),
    startup_probe=("serving", [gpu_container(readinessProbe=PROBE)], {}),
    fetcher=("warmed", [gpu_container(readinessProbe=PROBE)], WARMED),
)
def test_what_was_injected_would_be_injected_again(
    plane: ControlPlane, config: Path, name: str, containers: list[JSON], annotations: dict[str, str]
) -> None:
    client = plane.client()
    body = {"metadata": {"name": name, "annotations": annotations}, "spec": {"containers": containers}}
    accepted(client.post(PODS, body))
    binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": NODE}}
    assert client.post(f"{PODS}/{name}/binding", binding)[0] == 201
    _, stored = client.get(f"{PODS}/{name}")
    configuration = load_directory(config)
    fetcher = "gpu-admission-fetcher:0.1.0"
    by = Evaluator(cache=DecisionCache(configuration, fetcher), now=datetime.now(UTC))

    (found,) = evaluate("", "Pod", "stored", msgspec.json.encode(stored), by).pods

    lines: dict[str, list[str]] = {}
    for each in found.changes:
        lines.setdefault(each.rule, []).append(each.what)
    again = "\n".join(f"{rule}: {', '.join(whats)}" for rule, whats in lines.items())
    assert again == stored["metadata"]["annotations"][INJECTED]
    assert not found.is_denied

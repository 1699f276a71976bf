"""Pods of four vendors under a policy whose default class is of one of them: what each gets, and the node that it is bound to."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.builders import JSON, gpu_container, pod
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.cluster.test_admission import apply, named, stored
from tests.controlplane import ControlPlane, create_gpu_node
from tests.controlplane.webhook import serving

NAMESPACE = "vendors"
PRODUCT = "nvidia.com/gpu.product"
ZONE = "topology.kubernetes.io/zone"
RTX, MI300X = "NVIDIA-RTX-6000-Ada-Generation", "AMD_Instinct_MI300X_OAM"
FAMILY = "nvidia.com/gpu.family"
TPU = {"cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice", "cloud.google.com/gke-tpu-topology": "2x2"}
POLICY = """
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: default}
spec:
  rules:
    gpu-class: {default: nvidia-a100}
---
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUClass
metadata: {name: nvidia-a100-80gb}
spec:
  family: nvidia-a100
  memoryGiB: 80
  nodeLabels:
  - {key: accelerator, values: [nvidia-a100-80gb, nvidia-a100]}
"""
NODES: dict[str, tuple[JSON, JSON, str]] = {
    "a100": ({"accelerator": "nvidia-a100", ZONE: "a"}, {"nvidia.com/gpu": "8"}, "nvidia.com/gpu"),
    "rtx": ({PRODUCT: RTX, FAMILY: "ada-lovelace", ZONE: "b"}, {"nvidia.com/gpu": "8"}, "nvidia.com/gpu"),
    "mi300x": ({"amd.com/gpu.product-name": MI300X, ZONE: "a"}, {"amd.com/gpu": "8"}, "amd.com/gpu"),
    "trn1": (
        {"node.kubernetes.io/instance-type": "trn1.32xlarge", ZONE: "a"},
        {"aws.amazon.com/neuron": "16", "aws.amazon.com/neuroncore": "32"},
        "aws.amazon.com/neuron",
    ),
    "tpu": ({**TPU, ZONE: "a"}, {"google.com/tpu": "4"}, "google.com/tpu"),
}
"""Labels, resources, and the key of the taint."""
TAINTS = {taint for _, _, taint in NODES.values()}

NOT_ADDED = (
    "Warning: pod vendors/trainer: name a class with the annotation gpu-admission.dev/gpu-class; class nvidia-a100 "
    "(the default of the policy) is "
    "not added: no node matches both accelerator=nvidia-a100 and the pod's own nodeSelector and affinity [gpu-class]"
)


@pytest.fixture(scope="module")
def plane(nodes_plane: ControlPlane) -> Iterator[ControlPlane]:
    for name, (labels, resources, taint) in NODES.items():
        taints = [{"key": taint, "value": "present", "effect": "NoSchedule"}]
        create_gpu_node(nodes_plane.client(), name, labels=labels, resources=resources, taints=taints)
    with serving(nodes_plane, POLICY, NAMESPACE, arguments=("--kubeconfig", nodes_plane.kubeconfig())):
        assert eventually(lambda: NOT_ADDED in apply(nodes_plane, selecting({ZONE: "b"}), dry_run=True)[1])
        yield nodes_plane


def asking(resource: str, **spec: Any) -> JSON:
    return named("trainer", pod(gpu_container(resource=resource), **spec), NAMESPACE)


def selecting(labels: JSON) -> JSON:
    return asking("nvidia.com/gpu", nodeSelector=labels)


TERM = {"matchExpressions": [{"key": FAMILY, "operator": "In", "values": ["ada-lovelace"]}]}
WEIGHTED = [{"weight": 100, "preference": TERM}]
PREFERRED = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": WEIGHTED}}
DEFAULT = {"accelerator": "nvidia-a100"}


@cases(
    ("document", "selected", "node", "warnings"),
    nvidia_gets_the_default=(asking("nvidia.com/gpu"), DEFAULT, "a100", []),
    amd=(asking("amd.com/gpu"), {}, "mi300x", []),
    neuron=(asking("aws.amazon.com/neuron"), {}, "trn1", []),
    tpu=(asking("google.com/tpu", nodeSelector=TPU), TPU, "tpu", []),
    a_card_that_no_class_has=(selecting({PRODUCT: RTX}), {PRODUCT: RTX}, "rtx", []),
    a_family_that_is_preferred=(asking("nvidia.com/gpu", affinity=PREFERRED), {}, "rtx", []),
    a_zone_without_the_default=(selecting({ZONE: "b"}), {ZONE: "b"}, "rtx", [NOT_ADDED]),
)
def test_where_a_pod_runs(
    plane: ControlPlane, document: JSON, selected: JSON, node: str, warnings: list[str]
) -> None:
    accepted, said = apply(plane, document)
    assert accepted, said

    try:
        spec = eventually(
            lambda: (spec := stored(plane, "trainer", NAMESPACE)["spec"]).get("nodeName") and spec
        )
        assert spec
        assert spec["nodeName"] == node
        assert {toleration["key"] for toleration in spec["tolerations"]} & TAINTS == {NODES[node][2]}
        assert spec.get("nodeSelector", {}) == selected
        assert [line for line in said.splitlines() if line.startswith("Warning:")] == warnings
    finally:
        plane.client().delete(f"/api/v1/namespaces/{NAMESPACE}/pods/trainer", {"gracePeriodSeconds": 0})

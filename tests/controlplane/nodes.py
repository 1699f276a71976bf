"""Nodes that exist only as objects: enough for the scheduler to bind GPU pods to them."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.controlplane.client import Client

ROOM = {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "1Ti", "pods": "110"}


def create_gpu_node(
    client: Client,
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
    resources: Mapping[str, str] | None = None,
) -> None:
    """Create a Ready node with 8 nvidia.com/gpu, or `resources` instead, beside 64 CPUs and 512Gi of memory.

    Raises RuntimeError with the API server's answer when it refuses.
    """
    well_known = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    capacity = {**ROOM, **(resources if resources is not None else {"nvidia.com/gpu": "8"})}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "fake node, no kubelet"}
    node = {
        "metadata": {"name": name, "labels": {**well_known, **(labels or {})}},
        "spec": {"taints": list(taints)},
    }
    path = f"/api/v1/nodes/{name}"
    _accepted(client.post("/api/v1/nodes", node))
    status = {"capacity": capacity, "allocatable": capacity, "conditions": [ready]}
    _accepted(client.patch(f"{path}/status", {"status": status}))
    # Admission has added node.kubernetes.io/not-ready, and the controller that would take it away is off.
    _accepted(client.patch(path, {"spec": {"taints": list(taints)}}))


def _accepted(answer: tuple[int, Any]) -> None:
    status, body = answer
    if status >= 300:
        raise RuntimeError(f"the API server answered {status}: {body}")

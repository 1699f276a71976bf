"""Nodes, and documents that the API server has stored."""

from typing import Any

GPU = {"nvidia.com/gpu": "8"}
NVIDIA = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
POLICIES = "/apis/gpu-admission.dev/v1alpha1/gpupolicies"


def node(
    name: str, labels: dict[str, str], taints: list[dict[str, str]] | None = None, **gpus: str
) -> dict[str, Any]:
    allocatable = {"cpu": "64", **(gpus or GPU)}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [NVIDIA] if taints is None else taints},
        "status": {"allocatable": allocatable},
    }


def stored(spec: dict[str, Any], accepted: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the GPUPolicy p as the API server has it, with the spec that was in force last."""
    status = {} if accepted is None else {"status": {"accepted": accepted}}
    return {"metadata": {"name": "p", "uid": "u", "generation": 2}, "spec": spec, **status}

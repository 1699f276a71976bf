"""GPUQuotas with the conditions of their status."""

from typing import Any

QUOTAS = "/apis/gpu-admission.dev/v1alpha1/gpuquotas"
COUNTED = ("Ready", "True", "")


def conditions(*found: tuple[str, str, str]) -> list[dict[str, Any]]:
    times = {"lastTransitionTime": "2027-01-31T00:00:00Z", "observedGeneration": 1}
    return [
        {"type": kind, "status": holds, "reason": "R", "message": message, **times}
        for kind, holds, message in found
    ]


def quota(*found: tuple[str, str, str], **spec: Any) -> dict[str, Any]:
    identity = {"name": "default", "namespace": "team", "uid": "u", "resourceVersion": "1", "generation": 1}
    status = {"conditions": conditions(*found)}
    return {"metadata": identity, "spec": {"hard": {"gpus": "4"}, **spec}, "status": status}

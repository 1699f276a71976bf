"""GPUQuota objects as people write them."""

from typing import Any

from tests.builders import JSON

QUOTAS = "/apis/gpu-admission.dev/v1alpha1/namespaces/{}/gpuquotas"


def gpu_quota(namespace: str, name: str = "default", **spec: Any) -> JSON:
    return {
        "apiVersion": "gpu-admission.dev/v1alpha1",
        "kind": "GPUQuota",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec or {"hard": {"gpus": "8"}},
    }

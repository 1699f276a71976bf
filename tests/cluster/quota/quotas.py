"""GPUQuota objects as people write them."""

from typing import Any

from tests.builders import JSON
from tests.cluster.controllers import eventually
from tests.controlplane.gpuquota import Namespace

QUOTAS = "/apis/gpu-admission.dev/v1alpha1/namespaces/{}/gpuquotas"
EXPIRY = 10.0
"""Seconds; all that is said of a damaged ledger meanwhile has to be read within them."""


def gpu_quota(namespace: str, name: str = "default", **spec: Any) -> JSON:
    return {
        "apiVersion": "gpu-admission.dev/v1alpha1",
        "kind": "GPUQuota",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec or {"hard": {"gpus": "8"}},
    }


def in_force(team: Namespace, hard: JSON, **spec: Any) -> None:
    """Create the quota; return once it was counted."""
    team.quota(hard, **spec)
    assert eventually(lambda: team.used() is not None)

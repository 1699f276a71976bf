"""GPUQuotas, and the pods and claims that they count, as people write them."""

from typing import Any

from tests.builders import JSON, manifest
from tests.cluster.controllers import eventually
from tests.controlplane import CLAIMS_API
from tests.controlplane.gpuquota import Namespace
from webhook.configuration.documents import Document

PODS = "/api/v1/namespaces/{}/pods"
CLAIMS = CLAIMS_API + "/namespaces/{}/resourceclaims"
QUOTAS = "/apis/gpu-admission.dev/v1alpha1/namespaces/{}/gpuquotas"
EXPIRY = 10.0
"""Seconds; all that is said of a damaged ledger meanwhile has to be read within them."""


def gpu_pod(name: str, gpus: int = 1, resource: str = "nvidia.com/gpu", **spec: Any) -> JSON:
    container = {"name": "train", "image": "trainer", "resources": {"limits": {resource: str(gpus)}}}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}


def claim(name: str, count: int, device_class: str = "gpu.nvidia.com") -> JSON:
    requests = [{"name": "gpu", "exactly": {"deviceClassName": device_class, "count": count}}]
    version = CLAIMS_API.removeprefix("/apis/")
    return manifest(version, "ResourceClaim", name, {"devices": {"requests": requests}})


def gpu_quota(namespace: str, name: str = "default", **spec: Any) -> JSON:
    return Document("GPUQuota", name, spec or {"hard": {"gpus": "8"}}, namespace).data


def in_force(team: Namespace, hard: JSON, **spec: Any) -> None:
    """Create the quota; return once it was counted."""
    team.quota(hard, **spec)
    assert eventually(lambda: team.used() is not None)


DEVICE_CLASSES = CLAIMS_API + "/deviceclasses"

FINALIZER = "resource.kubernetes.io/delete-protection"

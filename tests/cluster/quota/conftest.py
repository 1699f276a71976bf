"""A control plane that knows GPUQuota."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.builders import JSON
from tests.cluster.quota.quotas import QUOTAS, gpu_quota
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import CRD
from webhook.cluster.access import load_access
from webhook.cluster.api import ApiClient
from webhook.quota.cluster_store import ClusterStore
from webhook.quota.documents import quota_path


@pytest.fixture(scope="session")
def quota_plane(plane: ControlPlane) -> ControlPlane:
    plane.kubectl("apply", "-f", CRD)
    plane.kubectl("wait", "--for=condition=Established", "crd/gpuquotas.gpu-admission.dev", "--timeout=30s")
    return plane


@pytest.fixture(scope="session")
def api(quota_plane: ControlPlane) -> Iterator[ApiClient]:
    client = ApiClient(load_access(str(quota_plane.kubeconfig())))
    yield client
    client.close()


@pytest.fixture
def cluster_store(api: ApiClient) -> ClusterStore:
    return ClusterStore(api)


@pytest.fixture
def make_quota(quota_plane: ControlPlane) -> Iterator[Callable[..., JSON]]:
    """Return a function that creates a quota (`gpu_quota`) in a namespace, which goes when the test ends."""
    made: list[str] = []
    client = quota_plane.client()

    def make(namespace: str, **spec: Any) -> JSON:
        client.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
        status, answer = client.post(QUOTAS.format(namespace), gpu_quota(namespace, **spec))
        assert status == 201, answer
        made.append(namespace)
        created: JSON = answer
        return created

    yield make
    for namespace in made:
        client.delete(quota_path(namespace))
        client.delete(f"/api/v1/namespaces/{namespace}")

"""A control plane that knows GPUQuota."""

from collections.abc import Iterator

import pytest

from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import INSTALLATION
from webhook.cluster.access import load_access
from webhook.cluster.api import ApiClient
from webhook.quota.cluster_store import ClusterStore


@pytest.fixture(scope="session")
def api(quotas: ControlPlane) -> Iterator[ApiClient]:
    client = ApiClient(load_access(str(quotas.kubeconfig())))
    yield client
    client.close()


@pytest.fixture
def cluster_store(api: ApiClient) -> ClusterStore:
    return ClusterStore(api, INSTALLATION)

"""One webhook and one controller for the tests of this folder that break neither; each has a namespace of its own."""

from collections.abc import Iterator

import pytest

from tests.cluster.controllers import Counting, counting
from tests.cluster.quota.quotas import EXPIRY
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import Namespace
from tests.controlplane.replicas import Replicas


@pytest.fixture(scope="package")
def counted(quotas: ControlPlane) -> Iterator[Counting]:
    with counting(quotas, expiry=EXPIRY) as running:
        yield running


@pytest.fixture(scope="module")
def replicas(readable: ControlPlane) -> Iterator[Replicas]:
    """Serve by three replicas on a plane whose history can be read."""
    with Replicas(readable, 3, arguments=("--kubeconfig", readable.kubeconfig())) as three:
        three.register()
        yield three


@pytest.fixture
def team(counted: Counting) -> Namespace:
    return Namespace(counted.plane)

"""One webhook and one controller for the tests of this folder that break neither; each has a namespace of its own."""

from collections.abc import Iterator

import pytest

from tests.cluster.controllers import Counting, counting
from tests.cluster.quota.quotas import EXPIRY
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import Namespace


@pytest.fixture(scope="package")
def counted(quotas: ControlPlane) -> Iterator[Counting]:
    with counting(quotas, expiry=EXPIRY) as running:
        yield running


@pytest.fixture
def team(counted: Counting) -> Namespace:
    return Namespace(counted.plane)

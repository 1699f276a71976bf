"""One control plane with scheduler and controllers for the tests of this folder, which have nodes and devices of their own."""

from collections.abc import Iterator

import pytest

from tests.cluster.devices.playing import Cluster, cluster


@pytest.fixture(scope="package")
def running() -> Iterator[Cluster]:
    with cluster() as running:
        yield running

"""A control plane of its own: what is installed here would meet every other test's pods."""

import os
from collections.abc import Iterator

import pytest

from tests.controlplane import ControlPlane, ControlPlaneUnavailable, helm


@pytest.fixture(scope="session", autouse=True)
def _helm() -> None:
    try:
        helm.locate()
    except ControlPlaneUnavailable as unavailable:
        if os.environ.get("GPU_ADMISSION_REQUIRE_CLUSTER") == "1":
            pytest.fail(f"GPU_ADMISSION_REQUIRE_CLUSTER=1: {unavailable}", pytrace=False)
        pytest.skip(str(unavailable))


@pytest.fixture(scope="package")
def plane() -> Iterator[ControlPlane]:
    """Serve the API with controllers: Deployments make pods, which meet the namespace's pod security profile."""
    with ControlPlane(controllers=True) as own:
        yield own

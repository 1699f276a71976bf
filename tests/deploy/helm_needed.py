"""Tests that render the chart need Helm, as tests/cluster needs the control plane: skipped without, unless that is a failure."""

import os

import pytest

from tests.controlplane import ControlPlaneUnavailable, helm


def need_helm() -> None:
    """Skip the test when Helm is not built; GPU_ADMISSION_REQUIRE_CLUSTER=1 makes that a failure."""
    try:
        helm.locate()
    except ControlPlaneUnavailable as unavailable:
        if os.environ.get("GPU_ADMISSION_REQUIRE_CLUSTER") == "1":
            pytest.fail(f"GPU_ADMISSION_REQUIRE_CLUSTER=1: {unavailable}", pytrace=False)
        pytest.skip(str(unavailable))

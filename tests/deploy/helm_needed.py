"""Tests that render the chart need Helm, as tests/cluster needs the control plane: skipped without, unless that is a failure."""

from tests.controlplane import ControlPlaneUnavailable, helm
from tests.unavailable import skip_without


def need_helm() -> None:
    """Skip the test when Helm is not built; GPU_ADMISSION_REQUIRE_CLUSTER=1 makes that a failure."""
    try:
        helm.locate()
    except ControlPlaneUnavailable as unavailable:
        skip_without(unavailable)

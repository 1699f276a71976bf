"""Each file has a control plane of its own: a neighbour's webhooks reach every namespace."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controlplane import ControlPlane, ControlPlaneUnavailable
from tests.neighbours.kubelet import running_pods
from tests.unavailable import skip_without


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            for marker in ("cluster", "slow", "long"):
                item.add_marker(marker)


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """Serve the API with controllers, scheduler, and a kubelet that runs what is bound."""
    try:
        plane = ControlPlane(controllers=True, scheduler=True)
    except ControlPlaneUnavailable as unavailable:
        skip_without(unavailable)
    with plane, running_pods(plane):
        yield plane

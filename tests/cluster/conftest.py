"""Everything here runs against a real API server; without binaries all of it is skipped, for one reason.

GPU_ADMISSION_REQUIRE_CLUSTER=1 makes that a failure.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.exported import configuration, installed
from tests.cluster.quota import history
from tests.controlplane import ControlPlane, ControlPlaneUnavailable, locate
from tests.controlplane.gpuquota import install_quota_kind
from tests.controlplane.webhook import uninstall
from tests.unavailable import skip_without

_SHARED = pytest.StashKey[ControlPlane]()


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("cluster")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    # A hook and not a fixture: a fixture's skip is reported per test, this one as one line with their number.
    try:
        locate()
    except ControlPlaneUnavailable as unavailable:
        skip_without(unavailable)


@pytest.fixture(scope="session")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """Serve the API alone: what is created stays as it is. `engineer`, of ml-engineers, may do nothing."""
    for plane in _running(ControlPlane):
        request.config.stash[_SHARED] = plane
        yield plane
        del request.config.stash[_SHARED]


@pytest.fixture(scope="module", autouse=True)
def _no_node_of_another_module(request: pytest.FixtureRequest) -> Iterator[None]:
    """Delete the nodes of the shared plane: the next module may ask which class has a node."""
    yield
    if shared := request.config.stash.get(_SHARED, None):
        shared.client().delete("/api/v1/nodes")


@pytest.fixture(scope="session")
def quotas(plane: ControlPlane) -> ControlPlane:
    install_quota_kind(plane.client())
    return plane


@pytest.fixture(scope="session")
def full_plane() -> Iterator[ControlPlane]:
    """Serve the API with controllers and scheduler. `engineer`, of ml-engineers, may do nothing."""
    yield from _running(lambda: ControlPlane(controllers=True, scheduler=True))


@pytest.fixture(scope="session")
def _scheduled_plane() -> Iterator[ControlPlane]:
    yield from _running(lambda: ControlPlane(scheduler=True))


@pytest.fixture(scope="module")
def nodes_plane(_scheduled_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Serve the API with a scheduler, and no nodes but those of the module: they are deleted after it, with every pod."""
    yield _scheduled_plane
    uninstall(_scheduled_plane)
    _scheduled_plane.kubectl("delete", "pods", "--all", "--all-namespaces", "--force", "--grace-period=0")
    _scheduled_plane.kubectl("delete", "nodes", "--all")


@pytest.fixture(scope="module")
def own_plane() -> Iterator[ControlPlane]:
    """Serve the API of a plane of the module's own."""
    with ControlPlane() as plane:
        yield plane


@pytest.fixture(scope="module")
def readable() -> Iterator[ControlPlane]:
    """Serve the API of a plane of the module's own, which may be restarted, and keep its history."""
    with ControlPlane(apiserver_args=history.READABLE) as plane:
        yield plane


@pytest.fixture(scope="session")
def exported(full_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Serve the API with the exported policies in force, which reach no namespace but those of `tests.cluster.exported`."""
    with installed(full_plane, configuration(tmp_path_factory.mktemp("config"))):
        yield full_plane


def _running(make: Callable[[], ControlPlane]) -> Iterator[ControlPlane]:
    try:
        plane = make()
    except ControlPlaneUnavailable as unavailable:
        skip_without(unavailable)
    plane.add_user("engineer", groups=["ml-engineers"])
    with plane:
        yield plane

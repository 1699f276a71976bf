"""KubeSpawner of JupyterHub: what docs/tenants/queue.md says of servers that wait, and of those that are denied."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane, ControlPlaneUnavailable
from tests.neighbours.build import KUBESPAWNER, locate
from tests.neighbours.tenant import Ours, Tenant, name_of, ours, tolerated
from tests.unavailable import skip_without

HUB = Path(__file__).with_name("hub.py")
SERVER = "jupyter-ada"


@pytest.fixture(scope="module")
def beside(plane: ControlPlane) -> Iterator[Ours]:
    with ours(plane) as running:
        yield running


@pytest.fixture
def tenant(beside: Ours, plane: ControlPlane) -> Tenant:  # noqa: ARG001 - it runs
    """Return a namespace that queues, with 1 GPU."""
    return Tenant(plane, 1)


@contextmanager
def spawning(plane: ControlPlane, tenant: Tenant, *, seconds: int) -> Iterator["subprocess.Popen[str]"]:
    """Start a server that must be there after so many seconds."""
    try:
        command: list[str | Path] = [locate(KUBESPAWNER), HUB, tenant.name, str(seconds)]
    except ControlPlaneUnavailable as unavailable:
        skip_without(unavailable)
    environment = {**plane.processes.environment, "KUBECONFIG": str(plane.kubeconfig())}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, text=True, stdout=pipe, stderr=pipe) as hub:
        yield hub
        hub.kill()


def test_its_pod_is_made_once_and_starts(plane: ControlPlane, tenant: Tenant) -> None:
    since = tenant.version()
    with spawning(plane, tenant, seconds=60) as hub:
        out, err = hub.communicate(timeout=90)
    assert (hub.returncode, out.strip()) == (0, "http://10.0.0.1:8888"), err
    assert [tolerated(pod) for pod in tenant.pods()] == [1]
    assert [each["type"] for each in tenant.history(since, 5)].count("ADDED") == 1


def test_a_server_that_waits_in_line_starts_when_it_is_its_turn(plane: ControlPlane, tenant: Tenant) -> None:
    tenant.pod("holder", 1)
    assert tenant.runs(1, "holder")
    with spawning(plane, tenant, seconds=300) as hub:
        assert tenant.runs(0, SERVER, gated=1)
        tenant.end("holder")
        out, err = hub.communicate(timeout=90)
    assert (hub.returncode, out.strip()) == (0, "http://10.0.0.1:8888"), err


def test_a_server_that_waits_for_longer_than_its_start_timeout_loses_its_place(
    plane: ControlPlane, tenant: Tenant
) -> None:
    tenant.pod("holder", 1)
    assert tenant.runs(1, "holder")
    with spawning(plane, tenant, seconds=5) as first:
        assert tenant.runs(0, SERVER, gated=1)
        tenant.in_a_later_second("next", 1)
        assert "TimeoutError" in first.communicate(timeout=90)[1]
    assert eventually(lambda: not tenant.pods(SERVER))
    with spawning(plane, tenant, seconds=300):
        assert tenant.runs(0, SERVER, gated=1)
        tenant.end("holder")
        assert tenant.runs(1, "next")
        assert tenant.runs(0, SERVER, gated=1), "created again, it is behind those that came meanwhile"


def test_a_denial_ends_the_start_at_once_with_our_message(beside: Ours, plane: ControlPlane) -> None:  # noqa: ARG001 - it runs
    denying = Tenant(plane, 1, name="deny-kubespawner")
    denying.pod("holder", 1)
    with spawning(plane, denying, seconds=300) as hub:
        err = hub.communicate(timeout=60)[1]
    assert hub.returncode == 1
    assert "1 of 1 used" in err
    assert "[gpu-quota]" in err
    assert [name_of(pod) for pod in denying.pods()] == ["holder"]


def test_a_start_fails_while_our_webhook_is_away_and_the_next_one_works(
    beside: Ours, plane: ControlPlane, tenant: Tenant
) -> None:
    beside.webhook.kill()
    try:
        with spawning(plane, tenant, seconds=300) as hub:
            assert "failed calling webhook" in hub.communicate(timeout=60)[1]
    finally:
        beside.webhook.start()
    with spawning(plane, tenant, seconds=60) as hub:
        _, err = hub.communicate(timeout=90)
    assert hub.returncode == 0, err

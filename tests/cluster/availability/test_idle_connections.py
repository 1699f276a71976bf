"""A call that crosses the end of an idle connection: kube-apiserver repeats none that is answered with nothing.

A pooled connection may be used at any moment, also that in which a server that stops closes it.
"""

import threading
from collections.abc import Iterator

import pytest

from tests.cluster.availability.creators import gpu_pod
from tests.cluster.controllers import eventually
from tests.cluster.proxy import Proxy
from tests.controlplane import ControlPlane
from tests.controlplane.webhook import Webhook, install, manifests, uninstall

PODS = "/api/v1/namespaces/default/pods"


class Road:
    """The way from the API server to a process; `closed` holds back what the former sends."""

    def __init__(self, plane: ControlPlane, webhook: Webhook) -> None:
        self.open = threading.Event()
        self.open.set()
        self.held = threading.Event()
        self.proxy = Proxy((webhook.address, 443), self._hold, listen=(plane.service_address(50), 443))

    def _hold(self, _: bytes) -> None:
        if not self.open.is_set():
            self.held.set()
            self.open.wait(60)


@pytest.fixture
def stopping(plane: ControlPlane) -> Iterator[Webhook]:
    with Webhook(plane, host=51) as webhook:
        yield webhook


@pytest.fixture
def following(plane: ControlPlane, stopping: Webhook) -> Iterator[Webhook]:
    with Webhook(plane, host=52, certificates=stopping.certificates) as webhook:
        yield webhook


@pytest.fixture
def road(plane: ControlPlane, stopping: Webhook) -> Iterator[Road]:
    road = Road(plane, stopping)
    with road.proxy:
        documents = manifests(plane.service_address(50), stopping.certificates / "ca.crt")
        for webhook in (each for document in documents for each in document.get("webhooks", ())):
            webhook["timeoutSeconds"] = (
                30  # of which the end of a process may take some while the call is held
            )
        install(plane, documents, stopping.calls)
        yield road
        road.open.set()
        uninstall(plane)


def test_call_that_crosses_the_end_of_its_connection_is_repeated(
    plane: ControlPlane, stopping: Webhook, following: Webhook, road: Road
) -> None:
    client = plane.client()
    outcome: list[int] = []
    road.open.clear()
    creating = threading.Thread(target=lambda: outcome.append(client.post(PODS, gpu_pod())[0]))
    creating.start()
    assert road.held.wait(30)  # sent on the connection that there is, and still on its way
    road.proxy.target = (following.address, 443)
    stopping.stop()
    assert "stopped with" in stopping.log()
    road.open.set()
    creating.join(60)
    assert outcome == [201]
    assert eventually(lambda: following.calls()["mutate"] == 1)


def test_connection_that_nobody_uses_ends_with_a_line_in_the_log_of_the_api_server(
    plane: ControlPlane, stopping: Webhook, road: Road
) -> None:
    assert road.open.is_set()
    stopping.stop()
    reported = "Unsolicited response received on idle HTTP channel"
    goodbye = "this replica of gpu-admission is stopping; try again"

    def is_told() -> bool:
        return any(reported in line and goodbye in line for line in plane.logs("kube-apiserver").splitlines())

    assert eventually(is_told), plane.logs("kube-apiserver")[-1500:]

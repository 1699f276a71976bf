"""More calls than a replica takes: those that are shed are repeated by the API server, and no creation fails."""

from collections.abc import Iterator

import pytest

from tests.cluster.availability.creators import Creators
from tests.controlplane import ControlPlane
from tests.controlplane.webhook import SERVER_NAME, Webhook, serving, summed, uninstall

CLIENTS = 16
"""Each has one call under way at a time."""


@pytest.fixture
def webhook(plane: ControlPlane) -> Iterator[Webhook]:
    with serving(plane, host=45, arguments=("--max-concurrent", "4")) as running:
        yield running


def repeated(plane: ControlPlane) -> float:
    """Return how many calls to the webhook the API server has repeated, by its own account."""
    metrics = plane.client().get("/metrics")[1]
    return summed(metrics, "rest_client_request_retries_total", host=SERVER_NAME)


def test_what_is_shed_is_asked_again_and_answered(plane: ControlPlane, webhook: Webhook) -> None:
    before = repeated(plane)
    with Creators(plane, "overloading", CLIENTS, pauses=False) as creators:
        creators.wait_for(150)
    shed = webhook.total("gpu_admission_requests_shed_total")
    assert creators.failed == []
    assert shed > 0
    assert repeated(plane) - before == shed


def test_uninstalled_in_order_fails_no_creation(plane: ControlPlane) -> None:
    """Going away for good, in the order of docs/operate/operations.md."""
    with (
        Webhook(plane, host=46, arguments=("--drain-seconds", "2")) as webhook,
        Creators(plane, "uninstalling", 4) as creators,
    ):
        webhook.register()
        creators.wait_for(20)
        called = webhook.calls()["validate"]
        uninstall(plane)
        webhook.stop()
        creators.wait_for(20)
    assert called > 0
    assert creators.failed == []

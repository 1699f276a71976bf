"""More calls than a replica takes: those that are shed are repeated by the API server, and no creation fails."""

import logging
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.availability.creators import Creators
from tests.controlplane import ControlPlane
from tests.controlplane.webhook import SERVER_NAME, Webhook

log = logging.getLogger(__name__)

CLIENTS = 16
"""Each has one call under way at a time."""


@pytest.fixture(scope="module")
def webhook(plane: ControlPlane) -> Iterator[Webhook]:
    with Webhook(plane, host=45, arguments=("--max-concurrent", "4")) as running:
        running.register()
        yield running
        running.unregister()


def repeated(plane: ControlPlane) -> int:
    """Return how many calls to the webhook the API server has repeated, by its own account."""
    _, text = plane.client().get("/metrics")
    return sum(
        int(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "rest_client_request_retries_total"
        and sample.labels["host"].startswith(SERVER_NAME)
    )


def test_what_is_shed_is_asked_again_and_answered(plane: ControlPlane, webhook: Webhook) -> None:
    before = repeated(plane)
    with Creators(plane, "overloading", CLIENTS, pauses=False) as creators:
        creators.wait_for(150)
    shed = webhook.total("gpu_admission_requests_shed_total")
    log.info("%d calls shed in %d creations", shed, len(creators.attempts))
    assert creators.failed == []
    assert shed > 0
    assert repeated(plane) - before == shed

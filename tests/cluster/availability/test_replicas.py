"""Three replicas behind one Service under load: restarted one after another, and one of them killed."""

import time
from collections.abc import Iterator

import psutil
import pytest

from tests.cluster.availability.creators import Creators
from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane
from tests.controlplane.forwarder import PROBE_SECONDS
from tests.controlplane.replicas import Replicas

PROPAGATION_SECONDS = 1.0
"""Until a change of readiness reaches who spreads the connections."""
DRAIN_SECONDS = 5.0
CALL_SECONDS = 5.0
"""timeoutSeconds of the webhooks of pods."""
CLIENTS = 6

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def replicas(plane: ControlPlane) -> Iterator[Replicas]:
    drain = ("--drain-seconds", str(DRAIN_SECONDS))
    with Replicas(plane, 3, host=40, arguments=drain, follow=PROPAGATION_SECONDS) as three:
        three.register()
        yield three
        three.unregister()


def test_rolling_restart_fails_no_creation(plane: ControlPlane, replicas: Replicas) -> None:
    with Creators(plane, "rolling", CLIENTS) as creators:
        for webhook in replicas.each:
            creators.wait_for(20)
            webhook.stop()
            webhook.start()
            # As a Deployment waits for minReadySeconds: the next one goes when this one gets connections.
            time.sleep(PROBE_SECONDS + PROPAGATION_SECONDS)
        creators.wait_for(20)
    assert creators.failed == []
    # Every answer was written down, those of the processes that ended as well.
    validated = {
        line["name"]
        for webhook in replicas.each
        for line in webhook.audit()
        if line["phase"] == "validate" and line["namespace"] == creators.namespace
    }
    assert creators.created <= validated
    for webhook in replicas.each:
        assert webhook.log().count("draining for") == 1
        assert "stopped with 0 connections open" in webhook.log()


def test_killed_replica_fails_what_was_led_to_it_and_nothing_after(
    plane: ControlPlane, replicas: Replicas
) -> None:
    victim = replicas.each[0]
    with Creators(plane, "killing", CLIENTS, pauses=False) as creators:
        creators.wait_for(50)
        victim.kill()
        # One look at its readiness and the time until that is known, here with some seconds for a busy machine.
        known = PROBE_SECONDS + PROPAGATION_SECONDS + 4
        time.sleep(known)
        began_after = time.monotonic()
        creators.wait_for(50)
    victim.start()
    after = [attempt for attempt in creators.failed if attempt.began > began_after]
    assert after == []
    # The end of its time for the one call, and for the other.
    assert all(attempt.seconds < 2 * CALL_SECONDS for attempt in creators.attempts)
    for attempt in creators.failed:
        assert 'failed calling webhook "pods.' in attempt.said, attempt


def test_killed_worker_is_replaced_by_its_master(plane: ControlPlane, replicas: Replicas) -> None:
    webhook = replicas.each[1]
    worker, _ = webhook.pids()
    with Creators(plane, "replacing", CLIENTS, pauses=False) as creators:
        creators.wait_for(50)
        psutil.Process(worker).kill()
        assert eventually(lambda: webhook.pids()[0] != worker)
        creators.wait_for(50)
    # At most one call for each client was with it.
    assert len(creators.failed) <= CLIENTS

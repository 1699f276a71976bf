"""Certificates in a cluster: made once by many at a time, rotated without a failed call, repaired by whoever sees it first."""

import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Self

import pytest

from certs.rotation import RotationPhase
from tests.cluster.availability.creators import Creators, gpu_pod
from tests.cluster.certificates.damage import (
    delete_and_apply_configurations,
    delete_both,
    remove_bundles,
)
from tests.controlplane.certificates import AUTHORITY_PATH, SECRET, Installation, Process, within
from tests.controlplane.webhook import NAMESPACE

PODS = "/api/v1/namespaces/certificates/pods"
READY_SECONDS = REPAIR_SECONDS = 20.0
"""A second or two where the machine is idle; 24 is the least after which everybody looks by itself."""

BROKEN = re.compile(
    r'^(apiserver_admission_webhook_(?:fail_open_count|rejection_count\{.*"calling_webhook_error")\S*) (\d+)$',
    re.MULTILINE,
)
"""What the API server could not call, including what it let pass for that."""


class Load(Creators):
    """Pods created through the API server, and handshakes by the caBundle of the moment, until it ends."""

    def __init__(self, installation: Installation) -> None:
        super().__init__(installation.plane, "certificates", 2)
        self._installation = installation
        self._threads.append(threading.Thread(target=self._shake_hands))
        self.handshakes = 0
        self.failures: list[str] = []

    def __enter__(self) -> Self:
        client = self._installation.client
        assert client.post("/api/v1/namespaces", {"metadata": {"name": self.namespace}})[0] in {201, 409}
        within(60, lambda: client.post(PODS, gpu_pod(), {"dryRun": "All"})[0] == 201)
        self._before = self._broken_calls()
        return super().__enter__()

    def __exit__(self, *reason: object) -> None:
        super().__exit__(*reason)
        self.failures += [attempt.said for attempt in self.failed]
        self._installation.client.delete(PODS, {"gracePeriodSeconds": 0})

    def broken_calls(self) -> Counter[str]:
        return self._broken_calls() - self._before

    def _broken_calls(self) -> Counter[str]:
        found = BROKEN.findall(self._installation.client.get("/metrics")[1])
        return Counter({series: int(count) for series, count in found})

    def _shake_hands(self) -> None:
        while not self._stop.wait(0.2):
            for bundle in set(self._installation.bundles()):
                for server in self._installation.servers:
                    try:
                        self._installation.served(server.address, bundle)
                    except OSError as error:
                        self.failures.append(f"{server.name}: {error}")
                    self.handshakes += 1


def test_replicas_that_start_together_agree_on_one_authority(installation: Installation) -> None:
    installation.start()
    # Until then the test measures how fast five interpreters start on this machine.
    within(60, installation.listening)
    within(READY_SECONDS, installation.ready)

    within(READY_SECONDS, installation.serve_the_secrets)
    assert len(installation.state().authorities) == 1
    assert sum(each.log().count("making a certificate authority") for each in installation.reconcilers) >= 1


def rotate_leaf(installation: Installation) -> None:
    leaf = installation.state().leaf
    installation.ask("leaf")
    within(60, lambda: installation.state().leaf != leaf)
    within(60, installation.serve_the_secrets)


def rotate_authority(installation: Installation, dies: Process) -> None:
    """One of the controllers dies in the middle of it, and is back afterwards."""
    authority = installation.state().authority.certificate
    installation.ask("ca")
    within(60, lambda: installation.state().phase is RotationPhase.PROPAGATING)
    dies.kill()
    within(
        60,
        lambda: installation.state().phase is RotationPhase.STEADY and installation.state().requested is None,
    )
    assert installation.state().authority.certificate != authority
    within(60, installation.serve_the_secrets)
    starts = dies.log().count("metrics on port")
    dies.start()
    within(60, lambda: dies.log().count("metrics on port") > starts)


@pytest.mark.slow
def test_rotations_cost_no_call(running: Installation) -> None:
    with Load(running) as load:
        for _ in range(2):
            rotate_leaf(running)
        for each in running.reconcilers:
            rotate_authority(running, each)
    assert load.failures == [], running.logs()
    assert not load.broken_calls()
    assert len(load.created) > 50
    assert load.handshakes > 50
    assert len(running.state().authorities) == 1, "every retired authority was dropped"


@pytest.mark.parametrize(
    ("damage", "calls_fail_meanwhile"),
    [
        pytest.param(delete_both, False, id="secrets-deleted"),
        pytest.param(remove_bundles, True, id="bundles-removed", marks=pytest.mark.slow),
        pytest.param(delete_and_apply_configurations, True, id="installed-again", marks=pytest.mark.slow),
    ],
)
def test_what_is_broken_by_hand_is_repaired(
    running: Installation, damage: Callable[[Installation], None], calls_fail_meanwhile: bool
) -> None:
    authority = running.state().authority.certificate
    with Load(running) as load:
        damage(running)
        within(REPAIR_SECONDS, lambda: whole(running))
        within(REPAIR_SECONDS, running.serve_the_secrets)
        assert authority in running.state().authorities, "the authority is remembered"
        within(READY_SECONDS, running.ready)
    if not calls_fail_meanwhile:
        assert load.failures == []
        assert not load.broken_calls()


def whole(installation: Installation) -> bool:
    return (
        "tls.key" in installation.secret()
        and "ca.key" in installation.secret(AUTHORITY_PATH)
        and installation.published()
    )


def test_without_a_secret_servers_wait_alive_and_stop_when_asked(installation: Installation) -> None:
    server = installation.servers[0]
    server.start()
    within(60, lambda: server.readyz()[0])
    status, detail = server.readyz()
    assert (status, detail["unready"]) == (503, [f"waiting for the Secret {NAMESPACE}/{SECRET}"])
    assert server.terminate() == 0


@pytest.mark.slow
def test_an_api_server_that_is_away_costs_no_readiness(running: Installation) -> None:
    running.plane.kill("kube-apiserver")
    time.sleep(3)
    try:
        assert running.ready()
    finally:
        running.plane.restart("kube-apiserver")

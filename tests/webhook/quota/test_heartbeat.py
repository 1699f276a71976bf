"""Whether a controller is alive, by its Lease and our own clock alone."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.webhook.cluster.apiserver import Answer, ApiServer, Request, status
from webhook.cluster.leader import ALIVE_SECONDS, READ_SECONDS, READ_SECONDS_AWAY, Heartbeat

SECONDS = 1.0


class RenewedLease:
    """A Lease that a test renews, and a clock that it sets."""

    def __init__(self, folder: Path) -> None:
        self.renewed: str | None = "2026-01-01T00:00:00.000000Z"
        self.now = 1000.0
        self.is_down = False
        self.server = ApiServer(folder, self._answer)

    def _answer(self, request: Request) -> Answer:
        assert request.path == "/apis/coordination.k8s.io/v1/namespaces/home/leases/gpu-admission-controller"
        if self.is_down:
            return status(503, "no etcd", "ServiceUnavailable")
        if self.renewed is None:
            return status(404, "no Lease", "NotFound")
        return Answer(json.dumps({"metadata": {}, "spec": {"renewTime": self.renewed}}).encode())


@pytest.fixture
def lease(tmp_path: Path) -> Iterator[RenewedLease]:
    lease = RenewedLease(tmp_path)
    with lease.server:
        yield lease


@pytest.fixture
def heartbeat(lease: RenewedLease) -> Heartbeat:
    return Heartbeat(lease.server.client(), "home", lambda: lease.now)


def test_a_lease_that_is_renewed_is_alive(lease: RenewedLease, heartbeat: Heartbeat) -> None:
    for number in range(20):
        lease.renewed = f"2026-01-01T00:00:{number:02}.000000Z"
        assert heartbeat.is_alive(SECONDS)
        lease.now += READ_SECONDS

    assert len(lease.server.requests) == 20


def test_a_lease_that_stays_the_same_is_not(lease: RenewedLease, heartbeat: Heartbeat) -> None:
    alive = []
    for _ in range(int(ALIVE_SECONDS / READ_SECONDS) + 2):
        alive.append(heartbeat.is_alive(SECONDS))
        lease.now += READ_SECONDS

    assert alive == [True] * int(ALIVE_SECONDS / READ_SECONDS) + [False] * 2

    lease.renewed = "2026-01-01T00:01:00.000000Z"
    assert heartbeat.is_alive(SECONDS), "another controller leads"


def test_it_is_read_at_most_every_few_seconds(lease: RenewedLease, heartbeat: Heartbeat) -> None:
    for _ in range(10):
        assert heartbeat.is_alive(SECONDS)
        lease.now += READ_SECONDS / 10

    assert len(lease.server.requests) == 1


def test_without_a_lease_nobody_is(lease: RenewedLease, heartbeat: Heartbeat) -> None:
    lease.renewed = None

    assert not heartbeat.is_alive(SECONDS)


def test_a_controller_that_starts_is_known_soon(lease: RenewedLease, heartbeat: Heartbeat) -> None:
    started, lease.renewed = lease.renewed, None
    assert not heartbeat.is_alive(SECONDS)

    lease.renewed = started
    lease.now += READ_SECONDS_AWAY

    assert heartbeat.is_alive(SECONDS)


def test_while_the_lease_cannot_be_read_the_last_answer_holds(
    lease: RenewedLease, heartbeat: Heartbeat
) -> None:
    assert heartbeat.is_alive(SECONDS)

    lease.is_down = True
    lease.now += ALIVE_SECONDS - 1
    assert heartbeat.is_alive(SECONDS)
    lease.now += 1
    assert not heartbeat.is_alive(SECONDS)


@pytest.mark.parametrize("quiet", [False, True], ids=["first", "after-a-quiet-time"])
def test_all_threads_wait_for_an_answer(lease: RenewedLease, heartbeat: Heartbeat, quiet: bool) -> None:
    if quiet:
        assert heartbeat.is_alive(SECONDS)
        lease.now += 2 * ALIVE_SECONDS
        lease.renewed = "2026-01-01T00:02:00.000000Z"
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(heartbeat.is_alive(SECONDS))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert answers == [True] * 8
    assert len(lease.server.requests) == 1 + quiet

"""Whether a controller is alive, by its Lease and our own clock alone."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.webhook.cluster.apiserver import Answer, ApiServer, Request, status
from webhook.quota.heartbeat import ALIVE_SECONDS, READ_EVERY, Heartbeat

SECONDS = 1.0


class World:
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
        return Answer(json.dumps({"spec": {"renewTime": self.renewed}}).encode())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    with world.server:
        yield world


@pytest.fixture
def heartbeat(world: World) -> Heartbeat:
    return Heartbeat(world.server.client(), "home", lambda: world.now)


def test_a_lease_that_is_renewed_is_alive(world: World, heartbeat: Heartbeat) -> None:
    for number in range(20):
        world.renewed = f"2026-01-01T00:00:{number:02}.000000Z"
        assert heartbeat.is_alive(SECONDS)
        world.now += READ_EVERY

    assert len(world.server.requests) == 20


def test_a_lease_that_stays_the_same_is_not(world: World, heartbeat: Heartbeat) -> None:
    alive = []
    for _ in range(int(ALIVE_SECONDS / READ_EVERY) + 2):
        alive.append(heartbeat.is_alive(SECONDS))
        world.now += READ_EVERY

    assert alive == [True] * int(ALIVE_SECONDS / READ_EVERY) + [False] * 2

    world.renewed = "2026-01-01T00:01:00.000000Z"
    assert heartbeat.is_alive(SECONDS), "another controller leads"


def test_it_is_read_at_most_every_few_seconds(world: World, heartbeat: Heartbeat) -> None:
    for _ in range(10):
        assert heartbeat.is_alive(SECONDS)
        world.now += READ_EVERY / 10

    assert len(world.server.requests) == 1


def test_without_a_lease_nobody_is(world: World, heartbeat: Heartbeat) -> None:
    world.renewed = None

    assert not heartbeat.is_alive(SECONDS)


def test_while_the_lease_cannot_be_read_the_last_answer_holds(world: World, heartbeat: Heartbeat) -> None:
    assert heartbeat.is_alive(SECONDS)

    world.is_down = True
    world.now += ALIVE_SECONDS - 1
    assert heartbeat.is_alive(SECONDS)
    world.now += 1
    assert not heartbeat.is_alive(SECONDS)


@pytest.mark.parametrize("quiet", [False, True], ids=["first", "after-a-quiet-time"])
def test_all_threads_wait_for_an_answer(world: World, heartbeat: Heartbeat, quiet: bool) -> None:
    if quiet:
        assert heartbeat.is_alive(SECONDS)
        world.now += 2 * ALIVE_SECONDS
        world.renewed = "2026-01-01T00:02:00.000000Z"
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(heartbeat.is_alive(SECONDS))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert answers == [True] * 8
    assert len(world.server.requests) == 1 + quiet

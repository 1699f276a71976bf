"""A candidate outlives answers that it cannot use."""

import threading
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from tests.cases import cases
from webhook import threads
from webhook.cluster import errors, leader
from webhook.cluster.leader import LeaderElector, LeaseTimings

LEASE = msgspec.json.encode(
    {"metadata": {"name": "lease", "resourceVersion": "1"}, "spec": {"holderIdentity": "me"}}
)


@cases(
    "first",
    no_answer=errors.Unreachable("cut"),
    credentials_that_cannot_be_read=errors.Unauthorized("the credentials cannot be read"),
    a_page_of_a_proxy=b"<html>",
    a_bug=OSError("no such file"),
)
def test_it_leads_after_an_attempt_that_failed(
    first: bytes | Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "FIRST_PAUSE", 0.001)
    answers, stopping = iter([first]), threading.Event()

    def get(_path: str, **_: Any) -> bytes:
        answer = next(answers, LEASE)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def put(*_: Any, **__: Any) -> bytes:
        stopping.set()
        return LEASE

    api = SimpleNamespace(get=get, put=put)
    timings = LeaseTimings(retry=0.001)
    elector = LeaderElector(cast("Any", api), "team", "lease", "me", timings=timings)

    election = threads.thread("election", elector.run, stopping)
    election.start()
    election.join(10)

    assert stopping.is_set()
    assert next(answers, None) is None


class World:
    """A Lease that another candidate holds, how long a read of it takes, and the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.took, self.version = 0.0, 0.0, 1
        self.is_away = self.took_over = False
        monkeypatch.setattr(leader, "monotonic", lambda: self.now)
        api = SimpleNamespace(get=self._get, put=lambda *_, **__: LEASE)
        self.elector = LeaderElector(cast("Any", api), "team", "lease", "me")

    def _get(self, _path: str, **_: Any) -> bytes:
        self.now += self.took
        if self.is_away:
            raise errors.Unreachable("no answer")
        metadata = {"name": "lease", "resourceVersion": str(self.version)}
        return msgspec.json.encode({"metadata": metadata, "spec": {"holderIdentity": "other"}})

    def looks(self, seconds: float) -> bool:
        """Look each second for so long, and return whether it leads."""
        until = self.now + seconds
        stopping = SimpleNamespace(is_set=lambda: self.now >= until, wait=self._wait)
        self.elector.run(cast("Any", stopping))
        return self.took_over

    def _wait(self, _seconds: float) -> None:
        self.now += 1.0
        self.took_over = self.elector.is_leader()


SECONDS = LeaseTimings().lease


def test_a_lease_that_nobody_renews_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    assert not world.looks(SECONDS)
    assert world.looks(2)


def test_a_slow_api_server_costs_nobody_the_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its leader needs two calls of three seconds and a pause for a renewal."""
    world = World(monkeypatch)
    world.took = 3.0
    for _ in range(5):
        assert not world.looks(2 * world.took + 2)
        world.version += 1


def test_an_api_server_that_was_away_costs_nobody_the_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    assert not world.looks(2)
    world.is_away = True
    assert not world.looks(60)
    world.is_away = False
    assert not world.looks(SECONDS)
    assert world.looks(2)

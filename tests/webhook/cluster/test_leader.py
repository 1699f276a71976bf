"""A candidate outlives answers that it cannot use."""

import threading
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from tests.cases import cases
from tests.webhook.controller.clock import Clock
from webhook.cluster import errors
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
def test_it_leads_after_an_attempt_that_failed(first: bytes | Exception) -> None:
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

    elector.run(stopping)

    assert stopping.is_set()
    assert next(answers, None) is None


@cases(
    ("versions", "want"),
    renewed_lately=(("1", "1", "2"), False),
    the_same_for_long=(("1", "1", "1"), True),
    never_read=((), False),
)
def test_a_lease_is_late_that_stays_the_same(
    monkeypatch: pytest.MonkeyPatch, versions: tuple[str, ...], want: bool
) -> None:
    clock, answers = Clock(), iter(versions)

    def get(_path: str, **_: Any) -> bytes:
        return LEASE.replace(b'"1"', f'"{next(answers)}"'.encode()).replace(b'"me"', b'"another"')

    monkeypatch.setattr("webhook.cluster.leader.monotonic", clock)
    elector = LeaderElector(cast("Any", SimpleNamespace(get=get)), "team", "lease", "me")

    for _ in versions:
        elector.try_once()
        clock.now += 4.0

    assert elector.is_late is want

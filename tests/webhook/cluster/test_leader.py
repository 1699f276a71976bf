"""A candidate outlives answers that it cannot use."""

import threading
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from tests.cases import cases
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

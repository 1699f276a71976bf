"""LimitRanges against an API server that answers as the tests say."""

import gc
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pytest

from policies.pods.limit_ranges import ResourceBounds, decode_limit_range, namespace_limits
from policies.pods.quantity import parse_quantity
from tests.builders import JSON
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.webhook.cluster.apiserver import Answer, ApiServer, Request, status
from webhook.cluster import informer
from webhook.cluster.informer import WatchTimings
from webhook.cluster.namespaces import LimitRanges

ALL, TEAM = "/api/v1/limitranges", "/api/v1/namespaces/team/limitranges"
NONE = ResourceBounds()


def limit_range(name: str, cpu: str) -> JSON:
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": "5"}
    return {"metadata": metadata, "spec": {"limits": [{"type": "Pod", "max": {"cpu": cpu}}]}}


def at_most(cpu: str) -> ResourceBounds:
    return ResourceBounds(pod_max=parse_quantity(cpu))


def cpu_of(limits: LimitRanges, deadline: float = 0.0, namespace: str = "team") -> ResourceBounds | None:
    known = limits.limits_of(namespace, deadline)
    assert known is not None
    return known.cpu


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "TIMINGS", WatchTimings(pause_least=0.02, pause_most=0.1))


@contextmanager
def running(folder: Path, everything: Answer, of_team: Answer) -> Iterator[tuple[LimitRanges, ApiServer]]:
    ended = threading.Event()

    def answer(request: Request) -> Answer:
        if "watch" in request.query:
            return Answer(stream=[], wait=ended)
        return everything if request.path == ALL else of_team

    with ApiServer(folder, answer) as server:
        try:
            yield LimitRanges(server.client(), ended), server
        finally:
            ended.set()
            assert eventually(
                lambda: not any(each.name.endswith("limitranges") for each in threading.enumerate())
            )


def listed(*items: JSON) -> Answer:
    return Answer(json.dumps({"metadata": {"resourceVersion": "5"}, "items": items}).encode())


def test_nothing_is_read_before_somebody_asks(tmp_path: Path) -> None:
    with running(tmp_path, listed(), listed()) as (_, server):
        assert server.requests == []


def test_the_first_review_reads_and_later_ones_know(tmp_path: Path) -> None:
    two = listed(limit_range("a", "8"), limit_range("b", "4"))
    with running(tmp_path, two, two) as (limits, server):
        assert cpu_of(limits, monotonic() + 20) == at_most("4")
        assert eventually(lambda: limits._informer.is_current)
        before = len([each for each in server.requests if each.path == TEAM])
        assert cpu_of(limits) == at_most("4")
        assert cpu_of(limits, namespace="elsewhere") == NONE
        assert len([each for each in server.requests if each.path == TEAM]) == before


def test_changes_hold_at_once(tmp_path: Path) -> None:
    first, second, changed = (
        decode_limit_range(json.dumps(limit_range(uid, cpu)).encode())
        for uid, cpu in (("1", "8"), ("2", "4"), ("2", "6"))
    )
    with running(tmp_path, listed(), listed()) as (limits, _):
        limits.limits_of("team", 0.0)
        assert eventually(lambda: limits._informer.is_current)
        for before, after, want in (
            (None, first, at_most("8")),
            (None, second, at_most("4")),
            (second, changed, at_most("6")),
            (changed, None, at_most("8")),
            (first, None, NONE),
        ):
            limits._changed(before, after)
            assert cpu_of(limits) == want
        assert limits._by_namespace == {}


FORBIDDEN = status(403, "limitranges is forbidden", "Forbidden")


@cases(
    ("of_team", "left"),
    no_right=(FORBIDDEN, 20.0),
    away=(status(503, "starting"), 20.0),
    nonsense=(Answer(b'{"items": [{"spec": 1}]}'), 20.0),
    no_time_left=(listed(), -1.0),
)
def test_what_cannot_be_read_is_not_known(tmp_path: Path, of_team: Answer, left: float) -> None:
    with running(tmp_path, FORBIDDEN, of_team) as (limits, _):
        assert limits.limits_of("team", monotonic() + left) is None


# urllib3 leaves it to the garbage collector to close a connection whose answer did not come in time.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <ssl.SSLSocket:pytest.PytestUnraisableExceptionWarning"
)
def test_an_answer_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    never = threading.Event()
    with running(tmp_path, FORBIDDEN, Answer(stream=[], wait=never)) as (limits, _):
        started = monotonic()
        assert limits.limits_of("team", started + 0.3) is None
        assert monotonic() - started < 20  # of the time without end that the answer takes
        never.set()
    gc.collect()


def test_no_limit_range_bounds_nothing() -> None:
    assert namespace_limits(()).cpu == NONE

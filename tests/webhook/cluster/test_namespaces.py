"""Labels of namespaces against an API server that answers as the tests say."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pytest

from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.webhook.cluster.apiserver import Answer, ApiServer, Collections, Request, status
from webhook.cluster import informer
from webhook.cluster.api import METADATA, METADATA_LIST
from webhook.cluster.informer import WatchTimings
from webhook.cluster.namespaces import NamespaceRecord, Namespaces, NamespaceUnknown

QUICK = WatchTimings(pause_least=0.02, pause_most=0.1)


def namespace(name: str, **labels: str) -> dict[str, object]:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "labels": labels, "resourceVersion": "5"}}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "TIMINGS", QUICK)


@contextmanager
def running(folder: Path, one: Callable[[Request], Answer]) -> Iterator[tuple[Namespaces, ApiServer]]:
    """Serve one namespace, `known`; `one` answers for reads of others."""
    cluster = Collections(namespaces=[namespace("known", team="ml", a="b")])
    cluster.read = one
    with ApiServer(folder, cluster) as server:
        namespaces = Namespaces(server.client())
        assert namespaces.all() is None
        namespaces.informer.start(cluster.ended)
        assert eventually(lambda: namespaces.informer.synced)
        try:
            yield namespaces, server
        finally:
            cluster.ended.set()


def test_what_the_watch_has_seen_is_not_asked_for(tmp_path: Path) -> None:
    with running(tmp_path, lambda _request: status(500, "must not be asked")) as (namespaces, server):
        assert eventually(namespaces.all) == {"known": (("a", "b"), ("team", "ml"))}
        assert namespaces.labels_of("known", 0.0) == (("a", "b"), ("team", "ml"))
        wanted = {METADATA, METADATA_LIST}  # of the watch, and of the list before it
        assert eventually(lambda: {request.headers["Accept"] for request in server.requests} == wanted)


def test_one_that_was_deleted_is_read_again(tmp_path: Path) -> None:
    first, second = (
        NamespaceRecord(uid, "known", (("team", team),)) for uid, team in (("1", "ml"), ("2", "web"))
    )
    again = Answer(json.dumps(namespace("known", team="later")).encode())
    with running(tmp_path, lambda _request: again) as (namespaces, _):
        namespaces.informer._changed(None, second)
        namespaces.informer._changed(first, None)
        assert namespaces.labels_of("known", 0.0) == second.labels, "the deletion is that of the one before"
        namespaces.informer._changed(second, None)
        assert namespaces.labels_of("known", monotonic() + 20) == (("team", "later"),)


def test_one_that_is_new_is_read(tmp_path: Path) -> None:
    found = Answer(json.dumps(namespace("young", team="web")).encode())
    with running(tmp_path, lambda _request: found) as (namespaces, server):
        assert namespaces.labels_of("young", monotonic() + 20) == (("team", "web"),)
        assert server.requests[-1].path == "/api/v1/namespaces/young"
        assert server.requests[-1].headers["Accept"] == METADATA


@cases(
    ("answer", "left", "want"),
    none_there=(status(404, 'namespaces "no" not found'), 20.0, 'namespaces "no" not found'),
    server_is_away=(status(503, "starting"), 20.0, "starting"),
    nonsense=(Answer(b"{}"), 20.0, "Object missing required field `metadata`"),
    too_late=(Answer(b"{}"), -1.0, "no time was left to ask the API server"),
)  # fmt: skip
def test_one_that_cannot_be_read_is_unknown(tmp_path: Path, answer: Answer, left: float, want: str) -> None:
    with (
        running(tmp_path, lambda _request: answer) as (namespaces, _),
        pytest.raises(NamespaceUnknown, match=want),
    ):
        namespaces.labels_of("no", monotonic() + left)


def test_one_that_does_not_come_is_given_up_in_time(tmp_path: Path) -> None:
    never = threading.Event()
    with running(tmp_path, lambda _request: Answer(stream=[], wait=never)) as (namespaces, _):
        with pytest.raises(NamespaceUnknown, match="the API server did not answer in time"):
            namespaces.labels_of("slow", monotonic() + 0.3)
        never.set()

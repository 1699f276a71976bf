"""The informer against a watch that breaks in every way that watches do."""

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep

import msgspec
import pytest

from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.webhook.cluster.apiserver import (
    Answer,
    ApiServer,
    Request,
    Script,
    Slow,
    event,
    is_list,
    page,
    status,
)
from webhook.cluster.api import JSON, METADATA_LIST
from webhook.cluster.collection import NOWHERE
from webhook.cluster.informer import (
    SINGLE_READS,
    SINGLE_READS_ONE_IN,
    UNANSWERED_SECONDS,
    Informer,
    Pauses,
    Resource,
    WatchTimings,
)
from webhook.cluster.objects import decode_metadata

PODS = Resource("/api/v1", "pods")
A_AT_TEN = b'"a", "namespace": "team", "resourceVersion": "10"'
QUICK = WatchTimings(watch=60.0, silence=2.0, pause_least=0.02, pause_most=0.1)


class Record(msgspec.Struct, frozen=True):
    uid: str
    namespace: str
    name: str
    resource_version: str = ""


def record(raw: msgspec.Raw) -> Record | None:
    seen = decode_metadata(raw)
    if seen.name == "unwanted":
        return None
    return Record(seen.uid, seen.namespace, seen.name, seen.resource_version)


Changes = list[tuple[str | None, str | None]]


@contextmanager
def followed(
    folder: Path, script: Script, *, awaited: Callable[[], Iterable[str]] = tuple
) -> Iterator[tuple[Informer[Record], ApiServer, Changes]]:
    changes: Changes = []

    def changed(before: Record | None, after: Record | None) -> None:
        changes.append((before.name if before else None, after.name if after else None))

    stopping = threading.Event()
    with ApiServer(folder, script) as server:
        informer = Informer(server.client(), PODS, record, changed, timings=QUICK, awaited=awaited)
        thread = threading.Thread(target=informer.run, args=(stopping,))
        thread.start()
        try:
            assert eventually(lambda: informer.synced)
            script.begun.set()
            yield informer, server, changes
        finally:
            stopping.set()
            script.begun.set()
            script.ended.set()
            thread.join(30)
            assert not thread.is_alive()


def names(informer: Informer[Record]) -> list[str]:
    return sorted(each.name for each in informer.items("team"))


def names_at(informer: Informer[Record]) -> dict[str, str]:
    return {each.name: each.resource_version for each in sorted(informer.all(), key=lambda each: each.name)}


def shows(informer: Informer[Record], *want: str) -> bool:
    return eventually(lambda: names(informer) == list(want))


def test_one_object_that_is_nested_too_deeply_hides_no_other(tmp_path: Path) -> None:
    deep = b"[" * 9_000 + b"]" * 9_000
    listed, added = page(["a", "b"], "10"), event("ADDED", "c", "11")
    listed = Answer(
        listed.body.replace(b'{"metadata": {"name": "a"', b'{"spec": ' + deep + b', "metadata": {"name": "a"')
    )
    added = added.replace(b'"object": {', b'"object": {"spec": ' + deep + b", ")
    with followed(tmp_path, Script([listed], [Answer(stream=[added])])) as (informer, _, _):
        assert shows(informer, "a", "b", "c")


def test_events_are_taken_in_and_told_in_whatever_pieces_they_come(tmp_path: Path) -> None:
    events = [
        event("ADDED", "b", "11"),
        event("MODIFIED", "unwanted", "12"),
        event("DELETED", "a", "13"),
        event("BOOKMARK", "", "40"),
    ]
    whole = b"".join(events)
    pieces = [whole[:20], whole[20 : len(whole) - 30], whole[-30:]]
    script = Script([page(["a"], "10")], [Answer(stream=pieces)])
    with followed(tmp_path, script) as (informer, server, changes):
        assert shows(informer, "b")
        assert eventually(lambda: informer.position("team").revision == 40)

    assert changes == [(None, "a"), (None, "b"), ("a", None)]
    watches = [request.query for request in server.requests if "watch" in request.query]
    assert watches[0]["resourceVersion"] == "10"
    assert watches[0]["allowWatchBookmarks"] == "true"
    assert watches[1]["resourceVersion"] == "40"  # goes on after the bookmark


def test_a_change_is_called_with_at_the_revision_that_has_it(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []

    def changed(_before: Record | None, after: Record | None) -> None:
        assert after is not None
        seen.append((after.name, informer.position("team").revision))
        if after.name == "b":
            raise ValueError("a bug met with one object must not hide the others")

    events = [event("ADDED", "b", "11"), event("ADDED", "c", "12"), event("ADDED", "d", "13")]
    script, stopping = Script([page(["a"], "10")], [Answer(stream=events)]), threading.Event()
    with ApiServer(tmp_path, script) as server:
        informer = Informer(server.client(), PODS, record, changed, timings=QUICK)
        with informer.lock:
            informer.start(stopping)
            sleep(0.2)
            assert not informer.synced, "the list is taken in under the lock"
        assert eventually(lambda: informer.synced)
        script.begun.set()
        assert eventually(lambda: len(seen) == 4)
        stopping.set()
        script.ended.set()

    assert seen == [("a", 10), ("b", 11), ("c", 12), ("d", 13)]
    assert informer.failures == 0


GONE_EVENT = (
    b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}\n'
)
OTHER_EVENT = b'{"type":"ERROR","object":{"kind":"Status","code":500,"message":"etcd is away"}}\n'


@cases(
    ("broken", "lists"),
    gone_as_an_event=(lambda: Answer(stream=[GONE_EVENT]), 2),
    gone_as_an_answer=(lambda: status(410, "too old", "Expired"), 2),
    a_failure_as_an_event=(lambda: Answer(stream=[OTHER_EVENT]), 1),
    too_many_requests=(lambda: status(429, "slow down"), 1),
    cut=(lambda: Answer(cut=True), 1),
    garbage=(lambda: Answer(stream=[b"garbage\n"]), 1),
    half_open=(lambda: Answer(stream=[], wait=threading.Event()), 1),
)
def test_a_broken_watch_is_begun_again(tmp_path: Path, broken: Callable[[], Answer], lists: int) -> None:
    good = Answer(stream=[event("ADDED", "b", "21")])
    script = Script([page(["a"], "10"), page(["a"], "20")], [broken(), good])
    with followed(tmp_path, script) as (informer, server, _):
        assert shows(informer, "a", "b")

        assert eventually(lambda: sum(map(is_list, server.requests)) == lists)


def test_failures_are_counted_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    forbidden = [status(403, "pods is forbidden", "Forbidden") for _ in range(4)]
    script = Script([*forbidden, status(503, "away"), page(["a"], "10")], [])
    with caplog.at_level("WARNING", "gpu_admission.cluster"), followed(tmp_path, script) as (informer, *_):
        assert shows(informer, "a")
        assert informer.failures == 5

    assert caplog.messages == ["pods: pods is forbidden"] * 4 + ["pods: away"]


def test_a_kind_that_nobody_changes_is_no_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of a kind without any event since its start, the API server sends no bookmarks: a good watch stays silent."""
    script = Script([page(["a"], "10")], [])
    with (
        caplog.at_level("INFO", "gpu_admission.cluster"),
        followed(tmp_path, script) as (informer, server, _),
    ):
        assert eventually(lambda: sum("watch" in each.query for each in server.requests) > 3)
        assert (informer.failures, informer.relists) == (0, 1)

    assert caplog.messages == []


def test_a_list_is_of_metadata_and_of_the_bodies_that_are_not_held(tmp_path: Path) -> None:
    """`b` changed and `c` came while the watch lagged behind; `a` is held as it is."""
    first, second = page(["a", "b"], "10"), page(["a", "b", "c"], "20")
    second = Answer(second.body.replace(b'"a", "namespace": "team", "resourceVersion": "20"', A_AT_TEN))
    with followed(tmp_path, Script([first, second], [])) as (informer, server, changes):
        before = len(server.requests)
        informer.refresh("team")

        assert names_at(informer) == {"a": "10", "b": "20", "c": "20"}
        assert informer.position("team").revision == 20
        listed, *bodies = [each for each in server.requests[before:] if "watch" not in each.query]
    assert listed.headers["Accept"] == METADATA_LIST
    assert listed.headers["Accept-Encoding"] == "gzip"
    assert [(each.query["fieldSelector"], each.query["resourceVersion"]) for each in bodies] == [
        ("metadata.name=b", "20"),
        ("metadata.name=c", "20"),
    ]
    assert {each.query["resourceVersionMatch"] for each in bodies} == {"Exact"}
    assert changes[-2:] == [("b", "b"), (None, "c")]


@pytest.mark.parametrize("reason", ["many", "compacted"])
def test_the_namespace_is_read_in_full_where_bodies_cannot_be_read_one_by_one(
    tmp_path: Path, reason: str
) -> None:
    names = [f"pod-{number}" for number in range(SINGLE_READS + 1 if reason == "many" else 2)]

    class Compacted(Script):
        def __call__(self, request: Request) -> Answer:
            if "fieldSelector" in request.query:
                return status(410, "compacted", "Expired")
            return super().__call__(request)

    script = Compacted([page(["a"], "10"), page(names, "20"), page(names, "30")], [])
    with followed(tmp_path, script) as (informer, server, _):
        informer.refresh("team")

        assert names_at(informer) == dict.fromkeys(sorted(names), "30")
        assert informer.position("team").revision == 30
        accepted = [each.headers["Accept"] for each in server.requests if is_list(each)]
    assert accepted == [JSON, METADATA_LIST, JSON]


def test_the_watch_goes_on_while_everything_is_listed_again(tmp_path: Path) -> None:
    """After a 410 one namespace is listed alone, and has its place, before the list of everything has come."""
    lists = [page(["a"], "10"), page(["a", "b"], "20"), page(["a", "b"], "20")]
    script = Slow(lists, [status(410, "too old"), Answer(stream=[event("ADDED", "c", "21")])])
    with followed(tmp_path, script) as (informer, *_):
        assert script.requested.wait(30)
        assert shows(informer, "a", "c")
        assert informer.position("team") == NOWHERE
        informer.refresh("team")

        assert names(informer) == ["a", "b", "c"]
        assert informer.position("team").revision == 21
        assert informer.position("other") == NOWHERE
        script.held_back.set()
        assert eventually(lambda: informer.position("other").revision == 21)
        assert informer.missed == 0


def test_silence_shows_until_a_watch_is_opened_again(tmp_path: Path) -> None:
    script = Script([page(["a"], "10")], [Answer(stream=[], wait=threading.Event()), Answer(cut=True)])
    with followed(tmp_path, script) as (informer, *_):
        assert eventually(lambda: informer.age > 0.3)
        assert eventually(lambda: informer.failures == 1)  # what was silent could not be opened again at once
        assert eventually(lambda: informer.age < 0.3)


def everywhere(revision: str, **pods: int) -> Answer:
    """Return a list with so many pods in each of these namespaces."""
    items = [
        {"metadata": {"name": name, "uid": name, "namespace": namespace, "resourceVersion": revision}}
        for namespace, number in pods.items()
        for name in (f"{namespace}-{each}" for each in range(number))
    ]
    return Answer(json.dumps({"metadata": {"resourceVersion": revision}, "items": items}).encode())


def test_awaited_namespaces_are_listed_first_and_the_smallest_of_them_before_the_others(
    tmp_path: Path,
) -> None:
    lists = [
        everywhere("10", large=3, other=1, small=2),
        everywhere("20"),
        everywhere("20", small=1),
        everywhere("20", large=3),
        everywhere("20", large=3, other=1, small=1),
    ]
    script = Script(lists, [status(410, "too old")])
    with followed(tmp_path, script, awaited=lambda: ["large", "unknown", "small"]) as (held, server, changes):
        assert eventually(lambda: held.relists == 2)

        listed = [each.path for each in server.requests if is_list(each)]
    assert listed == [
        "/api/v1/pods",
        *(f"/api/v1/namespaces/{name}/pods" for name in ("unknown", "small", "large")),
        "/api/v1/pods",
    ]
    assert ("small-1", None) in changes


def test_very_many_namespaces_that_somebody_waits_for_are_listed_together(tmp_path: Path) -> None:
    teams = {f"team_{number}": 1 for number in range(20)}
    script = Script([everywhere("10", **teams), everywhere("20", **teams)], [status(410, "too old")])
    with followed(tmp_path, script, awaited=lambda: teams) as (held, server, _):
        assert eventually(lambda: held.relists == 2)

        assert [each.path for each in server.requests if is_list(each)] == ["/api/v1/pods"] * 2
        assert held.position("team_0").revision == 20


def test_what_somebody_waits_for_is_listed_though_a_list_of_everything_goes_on(tmp_path: Path) -> None:
    """A watch may begin again twice while a large cluster is listed once."""

    class Twice(Slow):
        def __call__(self, request: Request) -> Answer:
            if "watch" in request.query and len(self.watches) == 1:
                self.requested.wait(60)
            return super().__call__(request)

    lists = [
        everywhere("10", team=2),
        everywhere("20", team=2),
        everywhere("20", team=2),
        everywhere("30", team=1),
    ]
    script = Twice(lists, [status(410, "too old"), status(410, "too old")])
    with followed(tmp_path, script, awaited=lambda: ["team"]) as (held, server, changes):
        assert eventually(lambda: held.position("team").revision == 30)

        listed = [each.path for each in server.requests if is_list(each)]
        everything, team = "/api/v1/pods", "/api/v1/namespaces/team/pods"
        assert listed == [everything, team, everything, team]
        assert ("team-1", None) in changes
        script.held_back.set()
        assert eventually(lambda: held.relists == 3), "once more, since the second was of before the watch"


def test_a_caller_that_waited_for_a_list_of_a_namespace_needs_no_other(tmp_path: Path) -> None:
    script = Slow([page(["a"], "10"), page(["a"], "20")], [], "/api/v1/namespaces/team/pods")
    with followed(tmp_path, script) as (held, server, _):
        before = held.position("team").list_started

        def count() -> int:
            return sum(map(is_list, server.requests))

        first = threading.Thread(target=held.refresh, args=("team",))
        first.start()
        assert eventually(lambda: count() == 2)
        held.refresh("team", since=before)
        assert first.is_alive(), "who needs nothing newer than what is held waits for nobody"
        second = threading.Thread(target=held.refresh, args=("team",), kwargs={"since": before + 1e-9})
        second.start()
        assert not eventually(lambda: count() > 2, seconds=0.3)
        script.held_back.set()
        first.join(60)
        second.join(60)

        assert held.position("team").list_started > before
        assert count() == 2
        held.refresh("team")
        assert count() == 3


def test_of_many_objects_more_are_read_one_by_one(tmp_path: Path) -> None:
    names, changed = (
        [f"pod-{number}" for number in range((SINGLE_READS + 1) * SINGLE_READS_ONE_IN)],
        SINGLE_READS + 1,
    )
    old, new = page(names[changed:], "10"), page(names[:changed], "20")
    items = [item for answer in (old, new) for item in json.loads(answer.body)["items"]]
    both = Answer(json.dumps({"metadata": {"resourceVersion": "20"}, "items": items}).encode())
    with followed(tmp_path, Script([page(names, "10"), both], [])) as (held, server, _):
        held.refresh("team")

        assert sorted(names_at(held).values()) == ["10"] * (len(names) - changed) + ["20"] * changed
        assert sum("fieldSelector" in each.query for each in server.requests) == changed


def test_pauses_stay_short_while_the_api_server_is_away_and_as_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1_000.0
    monkeypatch.setattr("webhook.cluster.informer.monotonic", lambda: now)
    monkeypatch.setattr("random.uniform", lambda _least, most: most)
    timings = WatchTimings()
    pauses = Pauses(timings.pause_least, timings.pause_most)
    refused = [pauses.next() for _ in range(12)]
    assert refused[:2] == [timings.pause_least, 2 * timings.pause_least]
    assert refused[-1] == timings.pause_most

    for _ in range(3):
        pauses.note_unanswered()
        assert pauses.next() == UNANSWERED_SECONDS
        now += 20.0
    pauses.note_unanswered()
    now += 2.0
    assert pauses.next() <= UNANSWERED_SECONDS * 1.5, "it starts"
    now += 200.0
    assert [pauses.next() for _ in range(4)][-1] == timings.pause_most

    pauses.reset()
    assert pauses.next() == timings.pause_least


def calls_of(monkeypatch: pytest.MonkeyPatch, method: str) -> list[Pauses]:
    """Return a list that gets each Pauses of which the method is called."""
    noted, original = list[Pauses](), getattr(Pauses, method)

    def noting(pauses: Pauses) -> None:
        noted.append(pauses)
        original(pauses)

    monkeypatch.setattr(Pauses, method, noting)
    return noted


def test_only_what_is_not_answered_keeps_pauses_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = calls_of(monkeypatch, "note_unanswered")
    script = Script([page(["a"], "10")], [Answer(cut=True), status(503, "away")])
    with followed(tmp_path, script) as (held, *_):
        assert eventually(lambda: held.failures == 2)

    assert len(noted) == 1


@pytest.mark.parametrize(("lasting", "resets"), [(60.0, 0), (-1.0, 3)])
def test_pauses_begin_again_after_a_watch_that_lasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lasting: float, resets: int
) -> None:
    monkeypatch.setattr("webhook.cluster.informer.UNANSWERED_SECONDS", lasting)
    noted = calls_of(monkeypatch, "reset")
    failing = [status(503, "away") for _ in range(3)]
    with followed(tmp_path, Script([page(["a"], "10")], failing)) as (_, server, _):
        assert eventually(lambda: sum("watch" in each.query for each in server.requests) == 4)
        of_watch = [each for each in noted if each is noted[0]]

    assert len(of_watch) == 1 + resets, "once when it was made"

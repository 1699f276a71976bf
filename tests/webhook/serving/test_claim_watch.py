"""For what claims ask, from API servers that answer as the tests say: known by a watch, read once, or unknown."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from policies.gpus.claimed_devices import CLAIM, TEMPLATE, ClaimName, DeviceQuery
from tests.builders import JSON
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.webhook.cluster.apiserver import Answer, ApiServer, Collections, group, status
from webhook.cluster import informer
from webhook.cluster.informer import WatchTimings
from webhook.serving.claim_watch import ClaimWatch, is_made_for_pod, may_name_claims, requested_by

QUICK = WatchTimings(pause_least=0.02, pause_most=0.1)
ROOT = "/apis/resource.k8s.io/v1"
GPU = frozenset({DeviceQuery("gpu.example.com")})


def _spec(*device_classes: str) -> JSON:
    return {
        "devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": c}} for c in device_classes]}
    }


def claim(name: str, *device_classes: str, **metadata: Any) -> JSON:
    identity = {"name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": "5"}
    return {"metadata": {**identity, **metadata}, "spec": _spec(*device_classes)}


def template(name: str, *device_classes: str) -> JSON:
    found = claim(name, *device_classes)
    return {**found, "spec": {"spec": found["spec"]}}


def by_name(name: str, kind: str = CLAIM) -> ClaimName:
    return ClaimName(kind, "team", name)


def claims(*known: JSON, templates: Sequence[JSON] = ()) -> Collections:
    cluster = Collections(resourceclaims=known, resourceclaimtemplates=templates)
    cluster.answers["/apis/resource.k8s.io"] = group("v1")
    return cluster


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "TIMINGS", QUICK)


@contextmanager
def watching(folder: Path, cluster: Collections) -> Iterator[ClaimWatch]:
    with ApiServer(folder, cluster) as server:
        watch = ClaimWatch(server.client())
        stopping = threading.Event()
        watch.start(stopping)
        try:
            yield watch
        finally:
            stopping.set()
            cluster.ended.set()
            for thread in threading.enumerate():
                if thread.name.startswith("watch resourceclaim"):
                    thread.join(10)


def requested(watch: ClaimWatch, name: ClaimName, seconds: float = 20.0) -> Any:
    return requested_by(watch.lookup(monotonic() + seconds), name)


def test_what_the_watch_has_seen_is_not_read(tmp_path: Path) -> None:
    cluster = claims(claim("card", "gpu.example.com"), templates=(template("link", "nic.example.com"),))
    with watching(tmp_path, cluster) as watch:
        assert eventually(lambda: watch.watched(by_name("card")) and watch.watched(by_name("link", TEMPLATE)))
        assert requested(watch, by_name("card")) == GPU
        assert requested(watch, by_name("link", TEMPLATE)) == frozenset({DeviceQuery("nic.example.com")})
        assert cluster.reads == []


def test_thousands_of_claims_for_the_same_share_what_is_kept(tmp_path: Path) -> None:
    cluster = claims(claim("one", "gpu.example.com"), claim("two", "gpu.example.com"))
    with watching(tmp_path, cluster) as watch:
        assert eventually(lambda: watch.watched(by_name("two")))
        assert requested(watch, by_name("one")) is requested(watch, by_name("two"))


def test_a_claim_that_is_made_again_is_known_by_what_it_asks_for_now(tmp_path: Path) -> None:
    cluster = claims(claim("mine", "nic.example.com"))
    again = claim("mine", "gpu.example.com", uid="another", resourceVersion="7")
    gone = claim("mine", "nic.example.com", resourceVersion="6")
    events = [{"type": "DELETED", "object": gone}, {"type": "ADDED", "object": again}]
    cluster.events["resourceclaims"] = [json.dumps(each).encode() + b"\n" for each in events]
    with watching(tmp_path, cluster) as watch:
        assert eventually(lambda: requested(watch, by_name("mine")) == GPU)


def test_one_that_is_new_is_read_once_a_review(tmp_path: Path) -> None:
    cluster = claims()
    cluster.read = lambda _request: Answer(json.dumps(template("young", "gpu.example.com")).encode())
    with watching(tmp_path, cluster) as watch:
        assert eventually(lambda: requested(watch, by_name("young", TEMPLATE)) == GPU)
        lookup = watch.lookup(monotonic() + 20)
        cluster.reads.clear()
        assert [requested_by(lookup, by_name("young", TEMPLATE)) for _ in range(2)] == [GPU, GPU]
        assert cluster.reads == [f"{ROOT}/namespaces/team/resourceclaimtemplates/young"]


@cases(
    ("review", "may"),
    claims=(b'{"spec": {"resourceClaims": [{"name": "gpu"}]}}', True),
    a_letter_of_the_name_is_escaped=(b'{"spec": {"r\\u0065sourceClaims": []}}', True),
    what_go_escapes=(b'{"spec": {"command": ["a \\u003c b \\u0026 c"]}}', False),
    no_claims=(b'{"spec": {"containers": []}}', False),
)
def test_which_reviews_may_wait_for_a_claim(review: bytes, may: bool) -> None:
    assert may_name_claims(review) is may


def test_of_claims_made_for_pods_the_name_is_kept(tmp_path: Path) -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "server", "uid": "u", "controller": True}
    cluster = claims(
        claim("made", "gpu.example.com", ownerReferences=[owner]), claim("own", "gpu.example.com")
    )
    with watching(tmp_path, cluster) as watch:
        assert eventually(lambda: watch.watched(by_name("own")) and watch.watched(by_name("made")))
        lookup = watch.lookup(monotonic() + 20)
        assert requested_by(lookup, by_name("made")) is None
        assert [is_made_for_pod(lookup, by_name(name)) for name in ("made", "own")] == [True, False]
        assert cluster.reads == []


@cases(
    ("name", "answer", "seconds", "reads", "made"),
    there_is_none=(by_name("no"), status(404, "not found", "NotFound"), 20.0, 1, False),
    may_not_be_read=(by_name("no"), status(403, "forbidden", "Forbidden"), 20.0, 1, None),
    nonsense=(by_name("no"), Answer(b'{"spec": 3}'), 20.0, 1, None),
    too_late=(by_name("no"), Answer(b"{}"), -1.0, 0, None),
    no_name_of_an_object=(by_name("../../secrets"), Answer(b"{}"), 20.0, 0, False),
    of_an_object_without_a_namespace=(ClaimName(CLAIM, "", "no"), Answer(b"{}"), 20.0, 0, False),
)
def test_what_stays_unknown(
    tmp_path: Path, name: ClaimName, answer: Answer, seconds: float, reads: int, made: bool | None
) -> None:
    cluster = claims(claim("known", "gpu.example.com"))
    cluster.read = lambda _request: answer
    with watching(tmp_path, cluster) as watch:
        assert eventually(lambda: watch.watched(by_name("known")))
        lookup = watch.lookup(monotonic() + seconds)
        assert requested_by(lookup, name) is None
        assert is_made_for_pod(lookup, name) is made
        assert len(cluster.reads) == reads


@cases(
    "spec",
    a_request_of_a_new_kind={"devices": {"requests": [{"name": "a", "byMagic": {}}]}},
    too_many_device_classes=_spec(*(f"class-{n}.example.com" for n in range(9))),
)
def test_a_claim_that_may_be_for_anything_is_unknown_and_not_read_again(tmp_path: Path, spec: JSON) -> None:
    cluster = claims({**claim("odd"), "spec": spec})
    with watching(tmp_path, cluster) as watch:
        assert eventually(lambda: watch.watched(by_name("odd")))
        assert requested(watch, by_name("odd")) is None
        assert cluster.reads == []


def test_a_review_reads_few_claims(tmp_path: Path) -> None:
    cluster = claims(claim("known", "gpu.example.com"))
    cluster.read = lambda _request: Answer(json.dumps(claim("any", "gpu.example.com")).encode())
    with watching(tmp_path, cluster) as watch:
        assert eventually(lambda: watch.watched(by_name("known")))
        lookup = watch.lookup(monotonic() + 20)
        found = [requested_by(lookup, by_name(f"new-{number}")) for number in range(7)]

        assert found == [GPU] * 4 + [None] * 3
        assert [is_made_for_pod(lookup, by_name(f"new-{number}")) for number in (0, 6)] == [False, None]
        assert requested_by(lookup, by_name("known")) == GPU
        assert len(cluster.reads) == 4


def test_a_read_that_is_not_answered_is_given_up_in_time(tmp_path: Path) -> None:
    never = threading.Event()
    cluster = claims(claim("known", "gpu.example.com"))
    cluster.read = lambda _request: Answer(stream=[], wait=never)
    with watching(tmp_path, cluster) as watch:
        assert eventually(lambda: watch.watched(by_name("known")))
        began = monotonic()
        assert requested(watch, by_name("slow"), 0.3) is None
        assert monotonic() - began < 10
        never.set()


def test_nothing_is_known_or_read_where_no_claims_are_served(tmp_path: Path) -> None:
    cluster = Collections()
    with watching(tmp_path, cluster) as watch:
        assert eventually(lambda: bool(cluster.reads))
        assert requested(watch, by_name("any")) is None
        assert set(cluster.reads) == {"/apis/resource.k8s.io"}

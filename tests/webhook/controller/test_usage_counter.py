"""A count is of one revision of each collection, whatever comes in meanwhile."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import Reservation
from policies.quota.waiting import GATE
from tests.budgets import budget, spending
from tests.builders import gpu_container, pod, quota_ledger
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.webhook.cluster.apiserver import Answer, ApiServer, Request, status
from tests.webhook.controller.counters import slices_of
from webhook.cluster.informer import STALE_SECONDS, Informer
from webhook.configuration.loader import load_directory
from webhook.controller.namespace_sum import anchored_clock
from webhook.controller.usage_counter import DELETED_OBJECT, Counted, Holding, UsageCounter, UsageEvents
from webhook.controller.usage_sums import UsageSums
from webhook.quota.counted_records import ClaimHistory

FIRST, LAST = 10, 400
ONE = {"gpus": Fraction(1)}
WAITS = "Waits"


def stored(revision: int, phase: str = "Running") -> dict[str, object]:
    """Return a pod, in the phase WAITS one under our scheduling gate."""
    gates = [{"name": GATE}] if phase == WAITS else []
    document = {**pod(gpu_container("1"), schedulingGates=gates), "status": {"phase": phase}}
    names = {"name": f"p{revision}", "uid": f"u{revision}", "namespace": "team"}
    document["metadata"] |= {**names, "resourceVersion": str(revision)}
    return document


def event(kind: str, pod_of: int, revision: int, phase: str = "Running", owner: str = "") -> bytes:
    document = stored(pod_of, phase)
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": owner, "uid": owner, "controller": True}
    owners = {"ownerReferences": [reference]} if owner else {}
    document["metadata"] |= {"resourceVersion": str(revision), **owners}  # type: ignore[operator]
    return json.dumps({"type": kind, "object": document}).encode() + b"\n"


def ledger(*uids: str) -> QuotaLedger:
    return quota_ledger(*(Reservation(uid, ONE) for uid in uids), hard=ONE)


@contextmanager
def counter(
    folder: Path,
    events: list[bytes],
    begun: threading.Event | None = None,
    lost: threading.Event | None = None,
    changed: Callable[[str, bool], object] = lambda _namespace, _frees: None,
    began: Callable[[str, Holding], object] = lambda _digest, _holding: None,
    has_ended: Callable[[str, Holding], object] = lambda _digest, _holding: None,
) -> Iterator[UsageCounter]:
    """Yield a counter whose watch shows these events, once it has `begun`.

    With `lost`, the pod is deleted and the watch has to begin again, once that is set.
    """
    items, ended = [stored(FIRST)], threading.Event()

    def answer(request: Request) -> Answer:
        of_pods = request.path.endswith("pods")
        if request.path not in {"/api/v1/pods", "/api/v1/namespaces/team/pods", "/api/v1/nodes"}:
            return status(404, "not served")
        if "watch" in request.query:
            if begun is not None:
                begun.wait(20)
            if of_pods and items and lost is not None:
                lost.wait(20)
                items.clear()
                return status(410, "too old")
            return Answer(stream=events if of_pods else [], wait=ended)
        metadata = {"resourceVersion": str(FIRST if items else LAST)}
        return Answer(json.dumps({"metadata": metadata, "items": items if of_pods else []}).encode())

    with ApiServer(folder, answer) as server:
        reported = UsageEvents()
        reported.changed.subscribe(changed)
        reported.began.subscribe(began)
        reported.ended.subscribe(has_ended)
        started = UsageCounter(
            server.client(),
            load_directory(None),
            reported,
            history=ClaimHistory(),
            slices=slices_of(),
            clock=anchored_clock(),
        )
        started.start()
        try:
            assert eventually(lambda: started.synced)
            yield started
        finally:
            ended.set()
            started.stop()


def count(of: UsageCounter, *uids: str) -> Counted:
    return of.count("team", ledger(*uids), UnclassifiedPods.TOTAL_ONLY, of.deleted("team"), {})


def test_a_count_is_of_the_revision_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    events = [event("ADDED", number, number) for number in range(FIRST + 1, LAST + 1)]
    with counter(tmp_path, events) as of:

        def all_counted() -> bool:
            listing = count(of).listing
            assert listing.used["gpus"] == listing.revisions.pods - FIRST + 1
            return listing.revisions.pods == LAST

        assert eventually(all_counted)
        of.recount("team")
        assert count(of).listing.used["gpus"] == LAST - FIRST + 1
        assert caplog.messages == []

        monkeypatch.setattr(of.sums, "recount", lambda _namespace: False)
        of.recount("team")
        assert caplog.messages == ["team: the sums of its pods and claims were not those of a full count"]


def test_a_count_shows_what_reservations_wait_for(tmp_path: Path) -> None:
    events = [event("ADDED", 11, 11), event("ADDED", 12, 12), event("DELETED", 12, 13)]
    with counter(tmp_path, events) as of:
        assert eventually(lambda: of.pods.position("team").revision == 13)
        objects = count(of, "u11", "u12", "u99").listing.objects
        assert sorted(each.record.uid for each in of.holdings()) == ["u10", "u11"]

    assert objects.keys() == {"u11", "u12"}, "nobody has seen the third one"
    assert objects["u11"].version == 11
    assert objects["u11"].demand["gpus"] == 1
    assert objects["u12"] == DELETED_OBJECT


def test_a_pod_begins_once_unless_the_first_list_has_it(tmp_path: Path) -> None:
    events = [event("ADDED", 11, 11, "Pending"), event("MODIFIED", 11, 12), event("ADDED", 13, 13, "Failed")]
    begun: list[str] = []
    listed = threading.Event()
    with counter(tmp_path, events, listed, began=lambda _digest, each: begun.append(each.record.uid)) as of:
        listed.set()
        assert eventually(lambda: of.pods.position("team").revision == 13)

    assert begun == ["u11"]


@cases(
    ("owners", "want"),
    by_nobody=(["a", "a"], False),
    nor_if_it_was_adopted=(["", "a"], False),
    to_another_one=(["a", "b"], True),
    at_last_to_its_first_one=(["a", "b", "a"], True),
    to_nobody=(["a", ""], True),
)
def test_a_pod_that_ended_says_whether_it_was_handed_over(
    tmp_path: Path, owners: list[str], want: bool
) -> None:
    changes = [("ADDED", owners[0]), *(("MODIFIED", owner) for owner in owners[1:]), ("DELETED", owners[-1])]
    events = [event(kind, 11, 11 + number, owner=owner) for number, (kind, owner) in enumerate(changes)]
    begun, said = threading.Event(), list[bool]()
    with counter(tmp_path, events, begun, has_ended=lambda _, each: said.append(each.was_handed_over)) as of:
        begun.set()
        assert eventually(lambda: of.pods.position("team").revision == 10 + len(changes))

    assert said == [want]


@cases(
    ("changes", "want"),
    once_when_it_ends=(
        [("ADDED", "Pending"), ("MODIFIED", "Running"), ("MODIFIED", "Succeeded"), ("DELETED", "Succeeded")],
        [False, False, True, False],
    ),
    a_pod_that_waits_may_start_at_once=(
        [("ADDED", WAITS), ("MODIFIED", WAITS), ("MODIFIED", "Pending"), ("DELETED", "Pending")],
        [True, True, False, True],
    ),
    what_was_held_for_a_pod_that_waited=([("ADDED", WAITS), ("DELETED", WAITS)], [True, True]),
)
def test_what_frees_quota_for_others(
    tmp_path: Path, changes: list[tuple[str, str]], want: list[bool]
) -> None:
    events = [event(kind, 11, 11 + number, phase) for number, (kind, phase) in enumerate(changes)]
    freed, begun = list[bool](), threading.Event()
    with counter(tmp_path, events, begun, changed=lambda _namespace, frees: freed.append(frees)) as of:
        begun.set()
        assert eventually(lambda: of.pods.position("team").revision == 10 + len(changes))

    assert freed == [False, *want], "the first one is in the list"


def test_lists_from_before_a_moment_are_made_again(tmp_path: Path) -> None:
    with counter(tmp_path, []) as of:
        before = count(of).list_started
        of.refresh("team", since=before, nodes_since=0.0)
        assert count(of).list_started == before
        since = monotonic()
        of.refresh("team", since=since, nodes_since=since)
        assert count(of).list_started >= since
        assert of.nodes.position().list_started >= since


def test_a_count_is_as_old_as_the_older_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with counter(tmp_path, []) as of:
        older = SimpleNamespace(revision=7, list_started=0.5)
        claims = SimpleNamespace(
            position=lambda _: older, resource=SimpleNamespace(plural="resourceclaims"), age=0.0
        )
        monkeypatch.setattr(of, "claims", claims)
        monkeypatch.setattr(of, "_deleted_claims_in_use", lambda _: {})
        counted = of.count("team", ledger(), UnclassifiedPods.TOTAL_ONLY, (), {})

    revisions = counted.listing.revisions
    assert (revisions.pods, revisions.resource_claims, counted.list_started) == (FIRST, 7, 0.5)


def test_claims_are_listed_for_a_bound_pod_at_most_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[tuple[str, bool]] = []
    held, number = SimpleNamespace(revision=7, list_started=monotonic() - 60), [500]
    claims = SimpleNamespace(
        position=lambda _: held,
        size=lambda _: number[0],
        resource=SimpleNamespace(plural="resourceclaims"),
        synced=True,
        refresh=lambda namespace, since: listed.append((namespace, since > held.list_started)),
    )
    bound = {**pod(gpu_container("1"), nodeName="x"), "metadata": stored(9)["metadata"]}
    bound["status"] = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "p9-gpu"}]}
    with counter(tmp_path, []) as of:
        monkeypatch.setattr(of, "claims", claims)
        assert of.claims_wait("team") is None
        with of.sums.lock:
            of.sums.pod_changed(None, of.sums.reader.read_pod(msgspec.Raw(json.dumps(bound).encode())))
        assert of.claims_wait("team") == 0
        held.list_started = monotonic()
        assert 0 < (of.claims_wait("team") or 0) <= 1
        number[0] = 10_000
        assert 19 < (of.claims_wait("team") or 0) <= 20, "many claims take longer"
        number[0] = 500
        of.refresh_claims("team")
        assert listed == []
        held.list_started -= 1
        of.refresh_claims("team")
        assert listed == [("team", True)]
        assert of.claims_wait("team") is None, "also if revisions of claims are of another etcd"


def test_what_was_deleted_while_nobody_watched_holds_no_reservation(tmp_path: Path) -> None:
    """It was held, and a list lacks it. What was never held may still be stored."""
    lost = threading.Event()
    with counter(tmp_path, [], lost=lost) as of:
        lost.set()
        assert eventually(lambda: of.pods.relists == 2)

        assert count(of, f"u{FIRST}", "never-held").listing.objects == {f"u{FIRST}": DELETED_OBJECT}


def test_a_change_that_is_summed_up_in_part_is_no_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug met with one object must not leave it uncounted: what is not in the sums, others are admitted for."""
    monkeypatch.setattr(UsageSums, "_count", lambda *_: 1 // 0)
    begun = threading.Event()
    with counter(tmp_path, [event("ADDED", 11, 11)], begun) as of:
        assert count(of).listing.used["gpus"] == 1
        begun.set()
        assert eventually(lambda: of.pods.position("team").revision == 11)

        assert count(of).listing.used["gpus"] == 2


@cases("silent", no_watch="", of_pods="pods", of_nodes="nodes")
def test_while_a_watch_is_silent_nothing_is_added_to_a_budget(
    silent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def age(of: Informer[Any]) -> float:
        return STALE_SECONDS + 1 if of.resource.plural == silent else 0.0

    monkeypatch.setattr(Informer, "age", property(age))
    before = quota_ledger(hard=ONE, budget=budget(gpus=100), spending=spending(start=0, end=1, until=0))
    with counter(tmp_path, []) as of:
        counted = of.count("team", before, UnclassifiedPods.TOTAL_ONLY, (), {}).listing
        (kept,) = of.sums._namespaces["team"].sums.values()
    assert counted.used == ONE
    assert (counted.spending == before.spending) is bool(silent)
    assert (kept.history is None) is bool(silent)

"""Counters of several catalogues, while configurations and ledgers come and go; and whose turn it is to be verified."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from policies.gpus.classes import GPUClasses
from policies.quota.catalogue import CatalogueVersion, PublishedCatalogue, catalogue_digest
from policies.quota.demand import UnclassifiedPods
from tests.budgets import budget
from tests.builders import CLASSES, RESOURCE_MAPPING, quota_ledger
from tests.cluster.controllers import eventually
from tests.webhook.cluster.apiserver import Answer, ApiServer, Request, status
from tests.webhook.controller.counters import slices_of
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.objects import CATALOGUES_CONFIG_MAP
from webhook.controller.manager import FRESH_SHARE, ROUND_SHARE, Manager
from webhook.controller.metrics import ControllerMetrics
from webhook.controller.namespace_sum import anchored_clock
from webhook.controller.usage_cache import UsageCache
from webhook.controller.usage_counter import UsageCounter

OURS = PublishedCatalogue(CLASSES, RESOURCE_MAPPING)
NEXT = PublishedCatalogue(GPUClasses(list(CLASSES)[:1]), RESOURCE_MAPPING)


def caching(api: ApiClient) -> UsageCache:
    return UsageCache(api, "gpu-admission", OURS, slices_of(), anchored_clock())


@pytest.fixture
def usage_cache(tmp_path: Path) -> Iterator[Any]:
    with ApiServer(tmp_path, lambda _: status(404, "not found")) as server:
        yield caching(server.client())


def test_a_new_configuration_is_kept_though_no_ledger_names_it_yet(
    usage_cache: UsageCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another thread tidies up at the worst moment: when the new counter starts.
    monkeypatch.setattr(UsageCounter, "start", lambda _: usage_cache.prune({}, is_leader=False))

    assert usage_cache.configure(NEXT)

    kept = usage_cache.of(usage_cache.own_counter.digest)
    assert kept is usage_cache.own_counter, "its informers are stopped, and it never counts anything"


def test_the_counter_of_each_configuration_is_started_once(
    usage_cache: UsageCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(UsageCounter, "start", lambda counter: started.append(counter.digest))
    usage_cache.own_counter.start()
    for configured in (NEXT, OURS, NEXT):
        assert usage_cache.configure(configured)

    assert started == [catalogue_digest(OURS), catalogue_digest(NEXT)]


class Counter:
    """Stands for the counter of a catalogue."""

    def __init__(self, digest: str, *, synced: bool = True) -> None:
        self.digest, self.synced, self.catalogue = digest, synced, OURS
        self.called: list[tuple[object, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., frozenset[str]]:
        def call(*given: object, **named: object) -> frozenset[str]:
            self.called.append((name, *given, *named.values()))
            return frozenset({f"gone-{self.digest}"})

        return call


def test_all_counters_are_verified_kept_and_stopped(usage_cache: Any) -> None:
    own, named, unnamed = Counter("a" * 16), Counter("b" * 16, synced=False), Counter("c" * 16)
    usage_cache.own_counter, usage_cache._counters = (
        own,
        {each.digest: each for each in (own, named, unnamed)},
    )
    usage_cache.recount("team", since=1.0, nodes_since=2.0)
    verified = [("refresh", "team", 1.0, 2.0), ("recount", "team")]
    assert [each.called for each in (own, named, unnamed)] == [verified, [], verified]
    assert usage_cache.deleted("team") == {f"gone-{each.digest}" for each in (own, named, unnamed)}

    by = CatalogueVersion(named.digest, UnclassifiedPods.DENY)
    usage_cache.prune({"team": quota_ledger(class_catalogue=str(by))}, is_leader=True)
    kept = {("team", UnclassifiedPods.TOTAL_ONLY), ("team", UnclassifiedPods.DENY)}
    assert [each.called[-1] for each in (own, named)] == [("keep", kept)] * 2
    assert unnamed.called[-1] == ("stop",)
    assert [usage_cache.of(each.digest) for each in (own, unnamed)] == [own, None]

    usage_cache.stop()
    assert [each.called[-1] for each in (own, named)] == [("stop",)] * 2
    assert unnamed.called.count(("stop",)) == 1


def test_only_ledgers_with_a_budget_are_followed_under_all_their_catalogue_versions(usage_cache: Any) -> None:
    own, other = Counter("a" * 16), Counter("b" * 16)
    usage_cache._counters = {each.digest: each for each in (own, other)}
    now, later = (str(CatalogueVersion(each.digest, UnclassifiedPods.DENY)) for each in (own, other))
    plain = quota_ledger(class_catalogue=now)
    moving = replace(plain, next_catalogue=later, budget=budget(gpus=1))

    usage_cache.follow({"plain": plain, "team": moving, "new": quota_ledger(budget=budget(gpus=1))})

    followed = [("follow", "team", moving, UnclassifiedPods.DENY)]
    assert [own.called, other.called] == [followed, followed]


def test_a_published_catalogue_is_counted_by_once_a_ledger_names_it(
    usage_cache: UsageCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(UsageCounter, "start", lambda counter: started.append(counter.digest))
    monkeypatch.setattr(usage_cache._published, "get", {catalogue_digest(NEXT): NEXT}.get)
    found = usage_cache.of(catalogue_digest(NEXT))

    assert found is not None
    assert usage_cache.of(found.digest) is found
    assert usage_cache.of("d" * 16) is None
    assert started == [found.digest]


def test_a_follower_believes_nothing_of_what_it_published_while_it_led(tmp_path: Path) -> None:
    reads: list[str] = []
    stored = {
        "metadata": {"name": CATALOGUES_CONFIG_MAP, "resourceVersion": "1"},
        "data": {catalogue_digest(OURS): "as it was published"},
    }

    def answer(request: Request) -> Answer:
        if not request.path.endswith(CATALOGUES_CONFIG_MAP):
            return status(404, "not found")
        reads.append(request.path)
        return Answer(json.dumps(stored).encode())

    with ApiServer(tmp_path, answer) as server:
        usage_cache = caching(server.client())
        assert usage_cache.publish(usage_cache.own_counter)
        assert usage_cache.publish(usage_cache.own_counter)
        assert len(reads) == 1

        usage_cache.prune({}, is_leader=False)

        assert usage_cache.publish(usage_cache.own_counter)
        assert len(reads) == 2, "the leader in between may have removed it"


PERIOD = 1.0
NAMES = ["a", "b", "c", "d"]


class Verified(UsageCache):
    """Counters that only note the namespaces to verify. `failing` cannot be listed."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing
        self.turns: list[str] = []
        self.allowances: list[float] = []

    def recount(self, namespace: str, *, since: float, nodes_since: float) -> None:
        self.turns.append(namespace)
        self.allowances.append(since - nodes_since)
        if namespace == self.failing:
            raise errors.Unreachable("away")


def test_all_have_their_turn_one_after_another() -> None:
    usage_cache, namespaces = Verified(), list(NAMES)
    done: list[str] = []
    stopping = threading.Event()
    metrics = verifying(usage_cache, lambda: namespaces, done, stopping)
    assert eventually(lambda: len(done) >= 6)
    namespaces.remove("b")
    namespaces.append("new")
    seen, turns = len(done), len(usage_cache.turns)
    assert eventually(lambda: len(done) >= seen + 8)
    stopping.set()

    assert done[:6] == ["a", "b", "c", "d", "a", "b"]
    assert "b" not in usage_cache.turns[turns + 1 :]
    assert set(done[seen + 1 : seen + 8]) == {"a", "c", "d", "new"}
    assert usage_cache.allowances == pytest.approx(
        [(ROUND_SHARE - FRESH_SHARE) * PERIOD] * len(usage_cache.allowances)
    )
    assert metrics.recount_time.labels("a")._value.get() > 0


def test_one_that_cannot_be_listed_keeps_nobody_waiting(caplog: pytest.LogCaptureFixture) -> None:
    usage_cache, done = Verified(failing="b"), list[str]()
    stopping = threading.Event()
    verifying(usage_cache, lambda: NAMES, done, stopping)
    assert eventually(lambda: len(done) >= 4)
    stopping.set()

    assert done[:4] == ["a", "c", "d", "a"]
    assert usage_cache.turns[:5] == ["a", "b", "c", "d", "a"]
    assert "b: not recounted: away" in caplog.text


def test_who_does_not_lead_verifies_nothing_until_it_does() -> None:
    usage_cache, done, leads = Verified(), list[str](), threading.Event()
    stopping = threading.Event()
    requested: list[bool] = []

    def namespaces() -> list[str]:
        requested.append(leads.is_set())
        return NAMES if leads.is_set() else []

    verifying(usage_cache, namespaces, done, stopping, period=0.1)
    assert eventually(lambda: len(requested) >= 2)
    assert usage_cache.turns == []
    leads.set()
    assert eventually(lambda: set(done) == set(NAMES))
    stopping.set()


def verifying(
    usage_cache: Verified,
    namespaces: Callable[[], list[str]],
    done: list[str],
    stopping: threading.Event,
    *,
    period: float = PERIOD,
) -> ControllerMetrics:
    metrics = ControllerMetrics(CollectorRegistry())
    manager: Any = SimpleNamespace(
        informers=SimpleNamespace(usage=usage_cache),
        _metrics=metrics,
        queue=SimpleNamespace(add=done.append),
        namespaces_to_recount=namespaces,
    )
    threading.Thread(target=Manager.recount, args=(manager, period, stopping), daemon=True).start()
    return metrics

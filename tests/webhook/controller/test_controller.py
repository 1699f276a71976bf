import threading
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from policies.quota.amounts import Hard
from policies.quota.spec import QuotaSpec
from tests.builders import quota_ledger
from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, status
from webhook.cluster import errors
from webhook.cluster.leader import LeaderElector
from webhook.configuration.loader import load_directory
from webhook.controller.controller import Controller
from webhook.controller.metrics import ControllerMetrics
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.controller.work_queue import WorkItem
from webhook.quota.documents import QuotaRecord
from webhook.quota.store import VersionedLedger


def test_series_go_with_the_quota_of_their_namespace() -> None:
    registry = CollectorRegistry()
    metrics = ControllerMetrics(registry)
    for namespace in ("gone", "stays"):
        for counter in (metrics.confirmed, metrics.expired, metrics.unreadable):
            counter.labels(namespace).inc()
        metrics.recount_time.labels(namespace).set(1.0)

    metrics.forget("gone")
    metrics.forget("never-seen")

    shown = generate_latest(registry).decode()
    assert 'namespace="gone"' not in shown
    assert shown.count('_total{namespace="stays"} 1.0') == 3
    assert 'last_recount_timestamp_seconds{namespace="stays"}' in shown


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    """Return one that has observed two ledgers, and is not running."""
    observed = ObservedLedgers()
    for namespace, used in (("full", 8), ("roomy", 7)):
        ledger = quota_ledger(hard={"gpus": Fraction(8)}, used={"gpus": Fraction(used)})
        observed.observe(namespace, VersionedLedger(ledger, "1"))
    with ApiServer(tmp_path, lambda _: status(404, "not served")) as server:
        api = server.client()
        yield Controller(
            api,
            load_directory(None),
            LeaderElector(api, "default", "lease", "me"),
            ControllerMetrics(CollectorRegistry()),
            namespace="default",
            recount_seconds=300.0,
            observed=observed,
        )


def test_pods_of_full_namespaces_are_awaited(controller: Controller) -> None:
    assert controller.usage_cache.own.pods.awaited() == ["full"]


def item(name: str) -> WorkItem:
    return WorkItem(name, (name,))


def test_what_ends_in_a_quiet_namespace_is_counted_without_a_pause(controller: Controller) -> None:
    controller._count_changed("roomy", False)
    controller._count_changed("full", True)
    controller._count_changed("without-quota", True)

    assert [controller._queue.take(0) for _ in range(2)] == [item("full"), None]


def test_namespaces_that_join_a_team_have_one_turn(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each would find the object of the team changed by another one, and all would read it again."""
    monkeypatch.setattr(controller.teams, "_team_of", {"full": "vision", "roomy": "vision", "new": "speech"})
    for namespace in ("full", "roomy", "new", "apart"):
        controller._queue.add(namespace)

    assert [controller._queue.take(0) for _ in range(3)] == [
        WorkItem("clustergpuquota.vision", ("full", "roomy")),
        WorkItem("clustergpuquota.speech", ("new",)),
        item("apart"),
    ]


class Queue:
    """Collects what is to be reconciled, and in how many seconds; None: before all others."""

    def __init__(self) -> None:
        self.added: list[tuple[str, int | None]] = []

    def add(self, namespace: str, delay: float = 0.0) -> None:
        self.added.append((namespace, round(delay)))


@pytest.mark.parametrize(("differs", "want"), [(True, {"a", "b", "c"}), (False, set())])
def test_another_catalogue_counts_all_namespaces_again(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, differs: bool, want: set[str]
) -> None:
    queue = Queue()
    monkeypatch.setattr(controller, "_queue", queue)
    monkeypatch.setattr(controller.usage_cache, "configure", lambda _: differs)
    monkeypatch.setattr(controller.quotas, "namespaces", lambda: ["a", "b"])
    monkeypatch.setattr(controller.ledger_objects, "namespaces", lambda: ["b", "c"])

    controller.configure(load_directory(None))

    assert sorted(queue.added) == sorted((each, 0) for each in want)


def test_old_catalogues_are_removed_once_a_minute(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tidied: list[tuple[set[str], bool]] = []

    def prune(ledgers: dict[str, Any], *, is_leader: bool) -> None:
        tidied.append((set(ledgers), is_leader))
        raise errors.Unreachable("away")

    listed = SimpleNamespace(synced=False)
    monkeypatch.setattr(controller.usage_cache, "prune", prune)
    monkeypatch.setattr(controller, "ledger_objects", listed)
    for age, listed.synced in ((61, False), (59, True), (61, True), (0, True)):
        controller._tidied_at = monotonic() - age if age else controller._tidied_at
        controller._remove_old_catalogues()

    assert tidied == [({"full", "roomy"}, False)]
    assert caplog.messages == ["the published catalogues: away"]


def test_a_worker_that_hangs_is_unhealthy(controller: Controller) -> None:
    controller._busy_since = {"b": monotonic() - 121, "slow": monotonic() - 119, "a": monotonic() - 500}

    assert controller.unhealthy() == "busy for over 120 s: a, b"


@cases(
    ("digest", "own_is_synced", "is_logged"),
    by_the_catalogue_in_force=("own", True, True),
    by_another_catalogue=("older", True, False),
    # Our own counter never saw what ended before its first list.
    by_another_catalogue_before_our_first_list=("older", False, True),
)
def test_what_ends_or_begins_is_logged(
    controller: Controller, digest: str, own_is_synced: bool, is_logged: bool
) -> None:
    released, counted = list[Any](), list[Any]()
    ended: Any = SimpleNamespace(record=object())
    controller._ended(digest, ended)  # without an audit log
    controller._began(digest, ended)
    controller._usage = SimpleNamespace(released=released.append, counted=counted.append)  # type: ignore[assignment]
    pods = SimpleNamespace(changed_after=7)
    controller.usage_cache.own = SimpleNamespace(  # type: ignore[assignment]
        digest="own", synced=own_is_synced, pods=pods
    )

    controller._ended(digest, ended)
    controller._began(digest, ended)

    assert released == [ended] * is_logged
    assert counted == [ended] * (digest == "own")


UNREADABLE = "the GPUQuota cannot be read: unknown field `gpu`"


def quota(generation: int | str | None) -> QuotaRecord | None:
    common: dict[str, Any] = {"namespace": "team", "uid": "q", "version": "7"}
    if isinstance(generation, int):
        return QuotaRecord(**common, generation=generation, spec=QuotaSpec(hard=Hard()))
    return QuotaRecord(**common, generation=2, problem=UNREADABLE) if generation else None


@pytest.mark.parametrize(("stored", "want"), [(3, 3), ("unreadable", None), (None, None)])
def test_a_quota_that_can_be_read_grants(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, stored: int | str | None, want: int | None
) -> None:
    found = quota(stored)
    monkeypatch.setattr(controller.quotas, "items", lambda _namespace: [found] if found else [])

    desired = controller._watched_quota("team")

    assert (desired and desired.generation) == want


@cases(
    ("before", "after", "is_due", "logged"),
    new=(None, 1, True, []),
    another_spec=(1, 2, True, []),
    another_status=(1, 1, False, []),
    deleted=(1, None, True, []),
    never_seen=(None, None, False, []),
    a_spec_that_cannot_be_read=(1, "unreadable", True, [f"team: {UNREADABLE}"]),
)
def test_a_quota_that_changed_is_reconciled(
    controller: Controller,
    caplog: pytest.LogCaptureFixture,
    before: int | None,
    after: int | str | None,
    is_due: bool,
    logged: list[str],
) -> None:
    controller._quota_changed(quota(before), quota(after))

    assert controller._queue.take(0) == (item("team") if is_due else None)
    assert caplog.messages == logged


@cases(
    ("is_leader", "why_unready", "want"),
    a_leader=(True, "", ["full"]),
    a_follower=(False, "", []),
    unready=(True, "not listed yet", []),
)
def test_only_a_ready_leader_begins_namespaces_until_it_stops(
    controller: Controller,
    monkeypatch: pytest.MonkeyPatch,
    is_leader: bool,
    why_unready: str,
    want: list[str],
) -> None:
    stopping, begun, takes = threading.Event(), list[str](), iter(["full", None, "roomy"])

    def take(_seconds: float) -> str | None:
        taken = next(takes)
        if taken == "roomy":
            stopping.set()
        return taken

    monkeypatch.setattr(controller, "_queue", SimpleNamespace(take=take))
    monkeypatch.setattr(stopping, "wait", lambda _seconds: stopping.set())
    monkeypatch.setattr(controller, "_elector", SimpleNamespace(is_leader=is_leader))
    monkeypatch.setattr(controller, "unready", lambda: why_unready)
    monkeypatch.setattr(controller, "_reconcile", begun.append)

    controller._work(stopping)

    assert begun == want


def test_it_is_ready_once_everything_is_listed(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert controller.unready().startswith("not listed yet: gpuquotas, gpuquotaledgers, ")

    monkeypatch.setattr(controller, "informers", lambda: {"pods": SimpleNamespace(synced=True)})
    assert controller.unready() == ""


def test_it_is_ready_without_the_kind_of_teams_and_no_other(controller: Controller) -> None:
    for name, informer in controller.informers().items():
        informer.synced, informer.is_missing = name != "clustergpuquotas", True
    assert controller.unready() == ""

    controller.teams.informer.is_missing, controller.quotas.synced = False, False
    assert controller.unready() == "not listed yet: gpuquotas, clustergpuquotas"


def test_pauses_between_failures_double(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webhook.controller.controller.random.uniform", lambda _least, most: most)

    pauses = [controller._retry_pause("full") for _ in range(9)]

    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert controller._retry_pause("roomy") == 0.1


@cases(
    ("outcome", "comes_again"),
    all_done=(None, False),
    a_reservation_will_expire=(0.01, True),
    no_answer=(errors.Unreachable("away"), True),
    a_bug=(RuntimeError("a bug"), True),
)
def test_a_namespace_comes_again_if_its_reconciliation_says_so_or_failed(
    controller: Controller, outcome: float | Exception | None, comes_again: bool
) -> None:
    def reconcile(_namespace: str) -> float | None:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    controller._reconciler = SimpleNamespace(reconcile=reconcile)  # type: ignore[assignment]
    controller._queue.add("full")
    assert controller._queue.take(0) == item("full")

    controller._reconcile(item("full"))

    assert controller._queue.take(0.3) == (item("full") if comes_again else None)
    assert controller.unhealthy() == ""

import threading
from fractions import Fraction
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest

from policies.quota.amounts import Hard
from policies.quota.spec import QuotaSpec
from tests.builders import quota_ledger
from tests.cases import cases
from tests.webhook.controller.informers import unstarted
from tests.webhook.stopping import Stopping
from webhook import threads
from webhook.cluster import errors
from webhook.cluster.leader import LeaderElector
from webhook.configuration.loader import load_directory
from webhook.controller.ledger_changes import LedgerChanges
from webhook.controller.manager import Manager
from webhook.controller.metrics import ControllerMetrics
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.controller.shared_informers import UsageUpkeep
from webhook.controller.team_reconciler import Outcome
from webhook.controller.work_queue import WorkItem
from webhook.quota.documents import QuotaRecord
from webhook.quota.store import VersionedLedger
from webhook.threads import while_leading


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
def manager() -> Manager:
    """Return one that has observed two ledgers, and does not run."""
    observed = ObservedLedgers()
    for namespace, used in (("full", 8), ("roomy", 7)):
        ledger = quota_ledger(hard={"gpus": Fraction(8)}, used={"gpus": Fraction(used)})
        observed.observe(namespace, VersionedLedger(ledger, "1"))
    api: Any = None
    elector = LeaderElector(api, "default", "lease", "me")
    return Manager(api, elector, unstarted(observed), ControllerMetrics(CollectorRegistry()))


@pytest.fixture
def changes(manager: Manager) -> LedgerChanges:
    return LedgerChanges(manager.informers, None, manager.queue, ControllerMetrics(CollectorRegistry()))


def test_pods_of_full_namespaces_are_awaited(manager: Manager) -> None:
    assert manager.informers.usage.own_counter.pods.awaited() == ["full"]


def item(name: str) -> WorkItem:
    return WorkItem(name, (name,))


@pytest.mark.usefixtures("changes")
def test_what_ends_in_a_quiet_namespace_is_counted_without_a_pause(manager: Manager) -> None:
    changed = manager.informers.usage.events.changed
    changed("roomy", False)
    changed("full", True)
    changed("without-quota", True)

    assert [manager.queue.take(0) for _ in range(2)] == [item("full"), None]


def test_namespaces_that_join_a_team_have_one_turn(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each would find the object of the team changed by another one, and all would read it again."""
    team_of = {"full": "vision", "roomy": "vision", "new": "speech"}
    monkeypatch.setattr(manager.informers.membership, "_team_of", team_of)
    for namespace in ("full", "roomy", "new", "apart"):
        manager.queue.add(namespace)

    assert [manager.queue.take(0) for _ in range(3)] == [
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
    manager: Manager, monkeypatch: pytest.MonkeyPatch, differs: bool, want: set[str]
) -> None:
    queue, informers = Queue(), manager.informers
    monkeypatch.setattr(manager, "queue", queue)
    monkeypatch.setattr(informers.usage, "configure", lambda _: differs)
    monkeypatch.setattr(informers.quotas, "namespaces", lambda: ["a", "b"])
    monkeypatch.setattr(informers.ledger_objects, "namespaces", lambda: ["b", "c"])

    manager.configure(load_directory(None))

    assert sorted(queue.added) == sorted((each, 0) for each in want)


def test_old_catalogues_are_removed_once_a_minute(
    manager: Manager, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    informers: Any = manager.informers
    upkeep, start = UsageUpkeep(informers, manager._elector), 1000.0
    tidied: list[tuple[set[str], bool]] = []

    def prune(ledgers: dict[str, Any], *, is_leader: bool) -> None:
        tidied.append((set(ledgers), is_leader))
        raise errors.Unreachable("away")

    monkeypatch.setattr(informers.usage, "prune", prune)
    upkeep._tidied_at = start
    for seconds, informers.ledger_objects.synced in ((61, False), (59, True), (61, True), (62, True)):
        monkeypatch.setattr("webhook.controller.shared_informers.monotonic", lambda at=start + seconds: at)
        upkeep.sync()

    assert tidied == [({"full", "roomy"}, False)]
    assert caplog.messages == ["the published catalogues: away"]


def test_two_parts_cannot_have_one_name(manager: Manager) -> None:
    manager.add("status", threading.Event.wait)

    with pytest.raises(
        ValueError, match='there is a part "status" already: each part must have a name of its own'
    ):
        manager.add("status", threading.Event.wait)


def test_a_part_that_raises_is_counted_and_starts_again(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping, begun = threading.Event(), list[str]()
    for name in ("start", "stop", "why_unready"):
        monkeypatch.setattr(manager.informers, name, lambda *_: "not listed yet")
    monkeypatch.setattr(manager, "_elector", SimpleNamespace(run=threading.Event.wait))
    monkeypatch.setattr(threads, "FIRST_PAUSE", 0.001)

    def broken(stopping: threading.Event) -> None:
        begun.append("broken")
        if len(begun) < 3:
            raise KeyError("a bug")
        stopping.set()

    manager.add("broken part", broken)
    manager.add("whole", threading.Event.wait)
    manager.run(stopping)

    assert begun == ["broken"] * 3
    assert REGISTRY.get_sample_value("gpu_admission_thread_failures_total", {"thread": "broken part"}) == 2


def test_who_begins_to_lead_acts_at_once_and_then_once_a_period(monkeypatch: pytest.MonkeyPatch) -> None:
    done, leading = list[str](), iter([False, True, True, True, False, True])
    now = iter([100.0, 100.0, 100.5, 101.0, 101.0, 102.0, 102.0])
    monkeypatch.setattr("webhook.threads.monotonic", lambda: next(now))
    body = while_leading(
        lambda: next(leading), 1.0, lambda: done.append("act"), lambda: done.append("forget")
    )
    body(Stopping(7))

    assert done == ["forget", "act", "act", "forget", "act"]


def test_a_worker_that_hangs_is_unhealthy(manager: Manager) -> None:
    manager._busy_since = {"b": monotonic() - 121, "slow": monotonic() - 119, "a": monotonic() - 500}

    assert manager.why_unhealthy() == "busy for over 120 s: a, b"


UNREADABLE = "the GPUQuota cannot be read: unknown field `gpu`"


def quota(generation: int | str | None) -> QuotaRecord | None:
    common: dict[str, Any] = {"namespace": "team", "uid": "q", "version": "7"}
    if isinstance(generation, int):
        return QuotaRecord(**common, generation=generation, spec=QuotaSpec(hard=Hard()))
    return QuotaRecord(**common, generation=2, problem=UNREADABLE) if generation else None


@pytest.mark.parametrize(("stored", "want"), [(3, 3), ("unreadable", None), (None, None)])
def test_a_quota_that_can_be_read_grants(
    manager: Manager, monkeypatch: pytest.MonkeyPatch, stored: int | str | None, want: int | None
) -> None:
    found = quota(stored)
    monkeypatch.setattr(manager.informers.quotas, "items", lambda _namespace: [found] if found else [])

    desired = manager.informers.watched_quota("team")

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
@pytest.mark.usefixtures("changes")
def test_a_quota_that_changed_is_reconciled(
    manager: Manager,
    caplog: pytest.LogCaptureFixture,
    before: int | None,
    after: int | str | None,
    is_due: bool,
    logged: list[str],
) -> None:
    manager.informers.quotas._changed(quota(before), quota(after))

    assert manager.queue.take(0) == (item("team") if is_due else None)
    assert caplog.messages == logged


@cases(
    ("is_leader", "why_unready", "want"),
    a_leader=(True, "", ["full"]),
    a_follower=(False, "", []),
    unready=(True, "not listed yet", []),
)
def test_only_a_ready_leader_begins_namespaces_until_it_stops(
    manager: Manager,
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

    reconcile: Any = None
    monkeypatch.setattr(manager, "queue", SimpleNamespace(take=take))
    monkeypatch.setattr(stopping, "wait", lambda _seconds: stopping.set())
    monkeypatch.setattr(manager, "_elector", SimpleNamespace(is_leader=lambda: is_leader))
    monkeypatch.setattr(manager.informers, "why_unready", lambda: why_unready)
    monkeypatch.setattr(manager, "_reconcile", lambda _reconcile, taken: begun.append(taken))

    manager._work(reconcile, stopping)

    assert begun == want


def test_it_is_ready_once_everything_is_listed(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    informers = manager.informers
    assert informers.why_unready().startswith("not listed yet: gpuquotas, gpuquotaledgers, ")

    monkeypatch.setattr(informers, "all", lambda: {"pods": SimpleNamespace(synced=True)})
    assert informers.why_unready() == ""


def test_it_is_ready_without_the_kind_of_teams_and_no_other(manager: Manager) -> None:
    informers = manager.informers
    for name, informer in informers.all().items():
        informer.synced, informer.is_missing = name != "clustergpuquotas", True
    assert informers.why_unready() == ""

    informers.membership.informer.is_missing, informers.quotas.synced = False, False
    assert informers.why_unready() == "not listed yet: gpuquotas, clustergpuquotas"


def test_pauses_between_failures_double(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webhook.controller.manager.random.uniform", lambda _least, most: most)

    pauses = [manager._retry_pause("full") for _ in range(9)]

    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert manager._retry_pause("roomy") == 0.1


@cases(
    ("outcome", "comes_again"),
    all_done=(None, False),
    a_reservation_will_expire=(0.01, True),
    no_answer=(errors.Unreachable("away"), True),
    a_bug=(RuntimeError("a bug"), True),
)
def test_a_namespace_comes_again_if_its_reconciliation_says_so_or_failed(
    manager: Manager, outcome: float | Exception | None, comes_again: bool
) -> None:
    def reconcile(taken: WorkItem) -> dict[str, Outcome]:
        if isinstance(outcome, Exception):
            raise outcome
        return dict.fromkeys(taken.names, outcome)

    manager.queue.add("full")
    assert manager.queue.take(0) == item("full")

    manager._reconcile(reconcile, item("full"))

    assert manager.queue.take(0.3) == (item("full") if comes_again else None)
    assert manager.why_unhealthy() == ""

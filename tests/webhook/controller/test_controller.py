import threading
from fractions import Fraction
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from policies.quota.charge import Unpinned
from policies.quota.ledger.quota_ledger import QuotaLedger
from tests.webhook.cluster.apiserver import ApiServer, status
from webhook.cluster.leader import LeaderElector
from webhook.configuration.loader import load_directory
from webhook.controller.controller import Controller
from webhook.controller.metrics import ControllerMetrics
from webhook.controller.observed_rows import ObservedRows
from webhook.controller.work_queue import WorkQueue
from webhook.quota.store import VersionedLedger


def test_the_earliest_time_asked_for_holds() -> None:
    queue = WorkQueue()
    queue.add("team", 60)
    queue.add("team")
    queue.add("team", 30)

    assert queue.take(0) == "team"
    assert queue.take(0) is None


def test_what_is_due_first_comes_first() -> None:
    queue = WorkQueue()
    queue.add("second", 1.0)
    queue.add("first", 0.01)

    assert [queue.take(10), queue.take(10)] == ["first", "second"]


def test_nothing_is_handed_out_twice_at_once() -> None:
    queue = WorkQueue()
    queue.add("team")
    assert queue.take(0) == "team"
    queue.add("team")

    assert queue.take(0.02) is None
    queue.done("team")
    assert queue.take(0) == "team"


def test_a_worker_that_waits_is_woken() -> None:
    queue = WorkQueue()
    taken: list[str | None] = []
    worker = threading.Thread(target=lambda: taken.append(queue.take(30)))
    worker.start()
    queue.add("team")
    worker.join(30)

    assert taken == ["team"]


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


def test_pods_of_full_namespaces_are_awaited(tmp_path: Path) -> None:
    observed = ObservedRows()
    for namespace, used in (("full", 8), ("roomy", 7)):
        ledger = QuotaLedger(
            quota_uid="q",
            generation=1,
            hard={"gpus": Fraction(8)},
            unpinned=Unpinned.TOTAL_ONLY,
            used={"gpus": Fraction(used)},
        )
        observed.observe(namespace, VersionedLedger(ledger, "1"))
    with ApiServer(tmp_path, lambda _: status(404, "not served")) as server:
        api = server.client()
        controller = Controller(
            api,
            load_directory(None),
            LeaderElector(api, "default", "lease", "me"),
            ControllerMetrics(CollectorRegistry()),
            namespace="default",
            recount_seconds=300.0,
            observed=observed,
        )

    assert controller.countings.own.pods.awaited() == ["full"]

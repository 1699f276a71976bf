import threading

from prometheus_client import CollectorRegistry, generate_latest

from webhook.controller.controller import WorkQueue
from webhook.controller.metrics import ControllerMetrics


def test_the_earliest_time_asked_for_holds() -> None:
    queue = WorkQueue()
    queue.add("team", 60)
    queue.add("team")
    queue.add("team", 30)

    assert queue.take(0) == "team"
    assert queue.take(0) is None


def test_what_is_due_first_comes_first() -> None:
    queue = WorkQueue()
    queue.add("second", 0.05)
    queue.add("first", 0.01)

    assert [queue.take(1), queue.take(1)] == ["first", "second"]


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
    worker = threading.Thread(target=lambda: taken.append(queue.take(10)))
    worker.start()
    queue.add("team")
    worker.join(5)

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

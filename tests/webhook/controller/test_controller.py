import threading
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
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


def test_what_ends_in_a_quiet_namespace_is_counted_without_a_pause(controller: Controller) -> None:
    controller._count_changed("roomy", False)
    controller._count_changed("full", True)
    controller._count_changed("without-quota", True)

    assert [controller._queue.take(0) for _ in range(2)] == ["full", None]


UNREADABLE = "the GPUQuota cannot be read: unknown field `gpu`"


@cases(
    ("before", "after", "is_due", "logged"),
    {
        "new": (None, 1, True, []),
        "another-spec": (1, 2, True, []),
        "another-status": (1, 1, False, []),
        "deleted": (1, None, True, []),
        "a-spec-that-cannot-be-read": (1, "unreadable", True, [f"team: {UNREADABLE}"]),
    },
)
def test_a_quota_that_changed_is_reconciled(
    controller: Controller,
    caplog: pytest.LogCaptureFixture,
    before: int | None,
    after: int | str | None,
    is_due: bool,
    logged: list[str],
) -> None:
    def quota(generation: int | str | None) -> QuotaRecord | None:
        common: dict[str, Any] = {"namespace": "team", "uid": "q", "version": "7"}
        if isinstance(generation, int):
            return QuotaRecord(**common, generation=generation, spec=QuotaSpec(hard=Hard()))
        return QuotaRecord(**common, generation=2, problem=UNREADABLE) if generation else None

    controller._quota_changed(quota(before), quota(after))

    assert controller._queue.take(0) == ("team" if is_due else None)
    assert caplog.messages == logged


def test_no_namespace_is_begun_once_it_stops(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    stopping, begun, takes = threading.Event(), list[str](), iter(["full", None, "roomy"])

    def take(_seconds: float) -> str | None:
        taken = next(takes)
        if taken == "roomy":
            stopping.set()
        return taken

    monkeypatch.setattr(controller, "_queue", SimpleNamespace(take=take))
    monkeypatch.setattr(controller, "_elector", SimpleNamespace(is_leader=True))
    monkeypatch.setattr(controller, "unready", str)
    monkeypatch.setattr(controller, "_reconcile", begun.append)

    controller._work(stopping)

    assert begun == ["full"]


@cases(
    ("outcome", "comes_again"),
    {
        "all-done": (None, False),
        "a-reservation-will-expire": (0.01, True),
        "no-answer": (errors.Unreachable("away"), True),
        "a-bug": (RuntimeError("a bug"), True),
    },
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
    assert controller._queue.take(0) == "full"

    controller._reconcile("full")

    assert controller._queue.take(0.3) == ("full" if comes_again else None)
    assert controller.unhealthy() == ""

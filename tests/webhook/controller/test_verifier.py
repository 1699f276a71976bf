"""Whose turn it is to be verified, and when: one namespace after another, all within a period."""

import threading
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry

from tests.cluster.controllers import eventually
from webhook.cluster import errors
from webhook.controller.metrics import ControllerMetrics
from webhook.controller.usage_cache import RECENT, TURN, UsageCache, verify

PERIOD = 1.0
NAMES = ["a", "b", "c", "d"]


class Verified(UsageCache):
    """Counters that only note the namespaces to verify. `failing` cannot be listed."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing
        self.turns: list[str] = []
        self.allowances: list[float] = []

    def verify(self, namespace: str, *, since: float, nodes_since: float) -> None:
        self.turns.append(namespace)
        self.allowances.append(since - nodes_since)
        if namespace == self.failing:
            raise errors.Unreachable("away")


def test_all_have_their_turn_one_after_another() -> None:
    usage_cache, namespaces = Verified(), list(NAMES)
    done: list[str] = []
    stopping = threading.Event()
    metrics = run(usage_cache, lambda: namespaces, done, stopping)
    assert eventually(lambda: len(done) >= 6)
    namespaces.remove("b")
    namespaces.append("new")
    seen, turns = len(done), len(usage_cache.turns)
    assert eventually(lambda: len(done) >= seen + 8)
    stopping.set()

    assert done[:6] == ["a", "b", "c", "d", "a", "b"]
    assert "b" not in usage_cache.turns[turns + 1 :]
    assert set(done[seen + 1 : seen + 8]) == {"a", "c", "d", "new"}
    assert usage_cache.allowances == pytest.approx([(TURN - RECENT) * PERIOD] * len(usage_cache.allowances))
    assert metrics.recount_time.labels("a")._value.get() > 0


def test_one_that_cannot_be_listed_keeps_nobody_waiting(caplog: pytest.LogCaptureFixture) -> None:
    usage_cache, done = Verified(failing="b"), list[str]()
    stopping = threading.Event()
    run(usage_cache, lambda: NAMES, done, stopping)
    assert eventually(lambda: len(done) >= 4)
    stopping.set()

    assert done[:4] == ["a", "c", "d", "a"]
    assert usage_cache.turns[:5] == ["a", "b", "c", "d", "a"]
    assert "b: not verified: away" in caplog.text


def test_who_does_not_lead_verifies_nothing_until_it_does() -> None:
    usage_cache, done, leads = Verified(), list[str](), threading.Event()
    stopping = threading.Event()
    requested: list[bool] = []

    def namespaces() -> list[str]:
        requested.append(leads.is_set())
        return NAMES if leads.is_set() else []

    run(usage_cache, namespaces, done, stopping, period=0.1)
    assert eventually(lambda: len(requested) >= 2)
    assert usage_cache.turns == []
    leads.set()
    assert eventually(lambda: set(done) == set(NAMES))
    stopping.set()


def run(
    usage_cache: Verified,
    namespaces: Callable[[], list[str]],
    done: list[str],
    stopping: threading.Event,
    *,
    period: float = PERIOD,
) -> ControllerMetrics:
    metrics = ControllerMetrics(CollectorRegistry())
    arguments = (usage_cache, metrics, namespaces, done.append, period, stopping)
    threading.Thread(target=verify, args=arguments, daemon=True).start()
    return metrics

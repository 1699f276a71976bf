"""Replicas that write to one ledger find out about each other, and leave it to each other in turn."""

import pytest
from prometheus_client import CollectorRegistry

from policies.quota.ledger.decide import VerdictReason
from tests.webhook.quota.slow_store import Bench, failing, reads_of, reason
from tests.webhook.quota.world import NAMESPACE
from webhook.quota.batcher import RIVAL_SECONDS, ReservationBatcher
from webhook.quota.metrics import QuotaMetrics
from webhook.quota.store import LedgerConflict


def test_after_a_write_of_another_replica_the_ledger_is_read_first() -> None:
    now = 100.0
    bench = Bench(gpus=10, clock=lambda: now)
    other = ReservationBatcher(bench.store, QuotaMetrics(CollectorRegistry()), lambda: now)
    bench.reserve("pod0")
    other.reserve(NAMESPACE, bench.ask("pod1"), now + 5)
    reads = []
    for number, seconds in enumerate((0.0, 0.0, RIVAL_SECONDS, 0.0), start=2):
        now += seconds
        reads.append(reads_of(bench, f"pod{number}"))
    assert reads == [1, 1, 1, 0], "the last one soon after a write"
    assert bench.metric("conflicts_total") == 1, "the write that the remembered ledger justified"


class Rivals:
    """Two replicas on one ledger that know of each other, by a clock that only their writes and pauses move."""

    WRITE_SECONDS = 0.03

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.pauses: list[float] = []
        self.bench = Bench(gpus=100, clock=lambda: self.now)
        self.bench.store.fails = self._takes_time
        self.other = ReservationBatcher(self.bench.store, QuotaMetrics(CollectorRegistry()), lambda: self.now)
        monkeypatch.setattr("webhook.quota.batcher.sleep", self._pause)
        self.bench.reserve("ours")
        self.other.reserve(NAMESPACE, self.bench.ask("theirs"), self.now + 5)
        self.bench.reserve("ours-again")
        self.pauses.clear()

    def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def _takes_time(self, what: str) -> None:
        self.now += self.WRITE_SECONDS if what == "swap" else 0.0


def test_after_a_write_a_replica_leaves_the_ledger_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    rivals = Rivals(monkeypatch)
    for number in range(2):
        assert reason(rivals.bench.reserve(f"pod{number}")) is VerdictReason.RESERVED
    assert rivals.pauses == pytest.approx([3 * Rivals.WRITE_SECONDS] * 2)
    rivals.now += RIVAL_SECONDS
    rivals.pauses.clear()
    for number in range(2, 4):
        assert reason(rivals.bench.reserve(f"pod{number}")) is VerdictReason.RESERVED
    assert rivals.pauses == [], "there are no others any more"


def test_a_replica_whose_write_met_anothers_waits_for_as_long_as_a_write_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rivals = Rivals(monkeypatch)
    monkeypatch.setattr("webhook.quota.batcher.random.uniform", max)
    rivals.now += 3 * Rivals.WRITE_SECONDS
    meets = failing("swap", LedgerConflict("changed"), None)

    def met(what: str) -> None:
        rivals._takes_time(what)
        meets(what)

    rivals.bench.store.fails = met
    assert reason(rivals.bench.reserve("pod")) is VerdictReason.RESERVED
    assert rivals.pauses == pytest.approx([2 * Rivals.WRITE_SECONDS])

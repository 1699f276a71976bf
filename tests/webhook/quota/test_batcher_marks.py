"""Denials that write: the mark of an object that never waits under our gate."""

from msgspec.structs import replace

from policies.quota.ledger.credits import SEEN_MS
from policies.quota.ledger.decide import Line, VerdictReason
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.quota_request import ReservationOutcome
from tests.reservation_requests import creation_request
from tests.webhook.quota.slow_store import Bench, failing, reason
from tests.webhook.quota.world import NAMESPACE, vector
from webhook.quota.store import LedgerConflict


def stored(bench: Bench) -> QuotaLedger:
    found = bench.ledger.store.read(NAMESPACE, 1.0)
    assert found is not None
    return found.ledger


def bench_with_a_head() -> Bench:
    """Return one whose first pod in line lacks a GPU."""
    bench = Bench(gpus=4)
    bench.batches._utc = lambda: 1_790_000_000.0
    before = bench.ledger.store.read(NAMESPACE, 1.0)
    assert before is not None
    changed = replace(before.ledger, waiting=1, scarce={"gpus": False})
    bench.ledger.store.compare_and_swap(NAMESPACE, before, changed, 1.0)
    return bench


def attempt(bench: Bench, uid: str) -> ReservationOutcome:
    requested = replace(creation_request(uid, vector(gpus=1), bench.ledger.catalogue), line=Line.NEVER_WAITS)
    return bench.batches.reserve(NAMESPACE, lambda *_: requested, bench.clock() + 20)


def test_a_denial_writes_a_mark_and_the_next_one_none() -> None:
    bench = bench_with_a_head()
    assert reason(attempt(bench, "a")) is VerdictReason.OTHERS_WAIT
    marks, version = stored(bench).marks, bench.ledger.store.read(NAMESPACE, 1.0)
    assert len(marks) == 1
    assert reason(attempt(bench, "b")) is VerdictReason.OTHERS_WAIT
    assert bench.ledger.store.read(NAMESPACE, 1.0) == version

    bench.batches._utc = lambda: 1_790_000_000.0 + SEEN_MS / 1000 + 1
    assert reason(attempt(bench, "c")) is VerdictReason.OTHERS_WAIT
    ((key, mark),) = stored(bench).marks.items()
    assert mark.since == marks[key].since
    assert mark.seen > marks[key].seen
    assert bench.held() == []


def test_a_mark_is_written_after_a_conflict() -> None:
    bench = bench_with_a_head()
    bench.store.fails = failing("swap", LedgerConflict("another one wrote"), None)
    assert reason(attempt(bench, "a")) is VerdictReason.OTHERS_WAIT
    assert bench.metric("conflicts_total") == 1
    assert len(stored(bench).marks) == 1


def test_a_dry_run_leaves_no_mark() -> None:
    bench = bench_with_a_head()
    requested = replace(creation_request("a", vector(gpus=1), bench.ledger.catalogue), line=Line.NEVER_WAITS)
    outcome = bench.batches.try_out(NAMESPACE, lambda *_: requested, bench.clock() + 20)
    assert reason(outcome) is VerdictReason.OTHERS_WAIT
    assert stored(bench).marks == {}

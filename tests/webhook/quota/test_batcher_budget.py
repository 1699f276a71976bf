"""A replica that remembers a ledger, beside a controller that counts its budget."""

import msgspec

from policies.quota.ledger.decide import VerdictReason
from tests.budgets import MONTH, budget, spending
from tests.webhook.quota.slow_store import Bench, reason
from tests.webhook.quota.world import NAMESPACE


def test_no_old_copy_of_a_ledger_admits_anybody_once_its_budget_is_spent() -> None:
    bench = Bench(gpus=100, clock=lambda: 0.0)  # a ledger that was read is remembered for 0.1 s
    bench.batches._utc = lambda: (MONTH[1] - 1) / 1000
    left = spending(spent=99)
    assert reason(bench.reserve("first")) is VerdictReason.RESERVED
    before = bench.ledger.store.read(NAMESPACE, 1.0)
    assert before is not None
    changed = msgspec.structs.replace(before.ledger, budget=budget(gpus=100), spending=left)
    counted = bench.ledger.store.compare_and_swap(NAMESPACE, before, changed, 1.0)
    assert reason(bench.reserve("second")) is VerdictReason.RESERVED, "after a conflict"

    # A controller counts: the replica still remembers the ledger that it wrote itself.
    remembered = bench.ledger.store.read(NAMESPACE, 1.0)
    assert remembered is not None
    assert remembered.version != counted.version
    spent = msgspec.structs.replace(remembered.ledger, spending=spending(spent=100))
    bench.ledger.store.compare_and_swap(NAMESPACE, remembered, spent, 1.0)
    reads = bench.store.reads
    assert reason(bench.reserve("third")) is VerdictReason.BUDGET_SPENT
    assert bench.store.reads == reads + 1
    assert bench.held() == ["first", "second"]

    bench.batches._utc = lambda: MONTH[1] / 1000
    assert reason(bench.reserve("fourth")) is VerdictReason.RESERVED, (
        "without a controller, in the next period"
    )

"""A turn of a namespace without a team, of the pods that wait there."""

from collections.abc import Iterable, Mapping

from policies.quota import line
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.line import Gang, Turn, Waiter
from policies.quota.waiting import QueueSpec


def next_to_start(
    ledger: QuotaLedger,
    waiters: Iterable[Waiter],
    gangs: Mapping[str, Gang],
    queue: QueueSpec,
    starved_before: str = "",
    now: int = 0,
) -> Turn:
    """`now` is in ms since 1970."""
    return line.next_to_start(ledger, line.line_up(ledger, waiters, gangs, queue, now), starved_before)

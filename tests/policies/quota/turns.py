"""Turns of a namespace without a team: its ledger, the pods that wait there, and what a turn gives them."""

from collections.abc import Iterable, Mapping
from fractions import Fraction

from policies.quota import line
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import Reservation
from policies.quota.line import Turn
from policies.quota.queue_entries import Gang, line_up
from policies.quota.waiting import QueueOrder, QueueSpec, Standing, Waiter
from tests.builders import quota_ledger
from tests.policies.quota.waiters import gpus

STRICT, BEST_EFFORT = QueueSpec(), QueueSpec(order=QueueOrder.BEST_EFFORT_FIFO)


def ledger(hard: int, used: int = 0, *reservations: Reservation, **fields: object) -> QuotaLedger:
    counted = {
        "hard": gpus(hard) or {"gpus": Fraction(0)},
        "used": {"gpus": Fraction(used)},
        "class_catalogue": "now",
    }
    return quota_ledger(*reservations, **{**counted, **fields})


def amounts_held(turn: Turn) -> dict[str, int]:
    return {each.id.removesuffix("/lift"): int(each.demand["gpus"]) for each in turn.ledger.reservations}


def standings(turn: Turn) -> dict[str, Standing]:
    return {uid: place.standing for uid, place in turn.places.items()}


def next_to_start(
    ledger: QuotaLedger,
    waiters: Iterable[Waiter],
    gangs: Mapping[str, Gang],
    queue: QueueSpec,
    starved_before: str = "",
    now: int = 0,
) -> Turn:
    """`now` is in ms since 1970."""
    return line.next_to_start(ledger, line_up(ledger, waiters, gangs, queue, now), starved_before)

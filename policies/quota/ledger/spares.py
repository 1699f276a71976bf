"""Spare reservations: what a replica reserves ahead where creations of equal demand follow each other fast.

In one swap it reserves what was asked, and some more of the same. What comes next is assigned a spare in memory, without a write;
a later swap puts the reservation of the object in its place. To everybody else a spare is a reservation like any other: it holds
its amount, and a controller drops it once it has expired.
"""

from collections.abc import Mapping, Sequence
from math import floor

import msgspec
from msgspec.structs import replace

from policies.quota.amounts import NOTHING
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import Reservation

PREFIX = "+"
"""Of the ids of spares. A uid never begins with it."""

ROOM_PARTS = 16
"""The spares of one swap take at most this part of what is free, so that others may ask for almost all of it."""

FEWEST = 4
"""In one swap: fewer save too little."""


def is_spare(reservation_id: str) -> bool:
    return reservation_id.startswith(PREFIX)


def has_spares(ledger: QuotaLedger) -> bool:
    return any(map(is_spare, ledger.reservations.ids))


def with_spares(
    ledger: QuotaLedger, like: Reservation, ids: Sequence[str], *, coming: int, limit: int
) -> QuotaLedger:
    """Return the ledger with reservations of the demand of `like` under the first of `ids`: as many as there is ample room for.

    `coming`: creations that are awaited while what spares admitted may be counted twice. Unless so many fit for each replica that
    has spares, there are none, so that the quota is full only after all is counted once. `limit`: characters of the reservations.
    """
    fit = _fit(ledger, like)
    processes = {_process(each) for each in (*ledger.reservations.ids, *ids) if is_spare(each)}
    if fit is not None and fit < coming * len(processes):
        return ledger
    mark, number = ledger.next_catalogue or "", len(ids) if fit is None else fit // ROOM_PARTS
    spares = [replace(like, id=each, name="", catalogue=mark) for each in ids[:number]]
    if len(spares) < FEWEST:
        return ledger
    text = ledger.reservations.size + len(spares) * ledger.reservations.cost(spares[-1])
    return ledger if text > limit else replace(ledger, reservations=ledger.reservations.plus(spares))


def _process(spare: str) -> str:
    return spare.rpartition("-")[0]


class SettledSpares(msgspec.Struct, frozen=True):
    """What a swap puts in the place of assigned spares, by their ids, and the spares that it removes."""

    assigned: Mapping[str, Reservation]
    unassigned: frozenset[str]


def settled(ledger: QuotaLedger, settling: SettledSpares) -> QuotaLedger:
    """Return the ledger with the reservation of the object for each assigned spare, and without the others.

    A spare that is not there any more was settled before, or has expired: what it was for was stored by then, or never will be.
    """
    there = [each for each in (*settling.assigned, *settling.unassigned) if each in ledger.reservations]
    if not there:
        return ledger
    objects = [settling.assigned[each] for each in there if each in settling.assigned]
    return replace(
        ledger,
        reservations=ledger.reservations.without(there).plus(objects),
        settled_uncounted=ledger.settled_uncounted or bool(objects),
    )


def counts_twice(ledger: QuotaLedger) -> bool:
    """Whether `used` may have what is reserved, too: what a spare was assigned to, until the count after it was settled."""
    return ledger.settled_uncounted or has_spares(ledger)


def _fit(ledger: QuotaLedger, like: Reservation) -> int | None:
    """Return how many times the demand fits into what is free, None where that is not limited."""
    used, reserved = ledger.used, ledger.reserved
    if used is None:
        return 0
    return min(
        (
            max(0, floor((ledger.hard[key] - used.get(key, NOTHING) - reserved.get(key, NOTHING)) / each))
            for key, each in like.demand.items()
            if key in ledger.hard
        ),
        default=None,
    )

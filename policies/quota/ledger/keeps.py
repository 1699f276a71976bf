"""Keeps: what an object keeps in the ledger while its pods are replaced, so that no other pod takes the quota.

The count that takes a pod out of `used` adds an entry `uid/keep/…` with its demand: counts are fenced, so exactly one count does.
serve counts it as it counts every entry. The turn of a pod of the same object replaces it by `uid/lift` in one write.
"""

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import chain

import msgspec
from msgspec.structs import replace

from policies.quota.amounts import GPUS, ZERO, Amounts, positive_difference, total
from policies.quota.budget import Spending, with_held
from policies.quota.ledger.credits import MAX_CHARACTERS
from policies.quota.ledger.keeping_objects import Keeper
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import Reservation, Reservations, keep_id
from policies.quota.waiting import Waiter

MIN_PARTS = 4
"""A ledger has at most this part of MAX_CHARACTERS for keeps, and as much for keepers, also if the object has fewer ledgers: some
200 pods, and some 30 objects in 10 minutes. Pods of further objects keep nothing."""


class Ended(msgspec.Struct, frozen=True):
    """A pod that ended and did not succeed, the demand that it had, and the object that replaces it."""

    uid: str
    demand: Amounts
    keeper: Keeper


class DemandOfObject(msgspec.Struct, frozen=True):
    """What an object asks for now beyond its live pods: pods, and GPUs of them all."""

    pods: int
    gpus: Fraction


Rooms = Mapping[str, DemandOfObject | None]
"""By uid of a Keeper; None if it makes no pods any more. What could not be read is absent: it keeps no more than before."""


def with_keeps(ledger: QuotaLedger, ended: Iterable[Ended], rooms: Rooms, now: int) -> QuotaLedger:
    """Return a ledger that was just counted with what its objects keep now. `ended` are in no earlier count."""
    before, new = _by_keeper(ledger.reservations.keeps), tuple(ended)
    if not (before or new or ledger.keepers):
        return ledger
    ledgers = len(ledger.team_state.taken) if ledger.team_state else 1
    space = MAX_CHARACTERS // max(MIN_PARTS, ledgers)
    # An object that makes no pods any more never makes any again.
    over = {uid for uid, room in rooms.items() if room is None}
    left = (keeper for keeper in ledger.keepers if keeper.uid not in over)
    known = {keeper.uid: keeper.counted(now, keeps=keeper.uid in before) for keeper in left}
    characters = sum(keeper.largest_size for keeper in known.values())
    for keeper in (ended_pod.keeper for ended_pod in new):
        if keeper.uid not in known and characters + keeper.largest_size <= space:
            known[keeper.uid] = replace(keeper, at=now)
            characters += keeper.largest_size
    version = ledger.next_catalogue or ""
    added = _by_keeper(
        Reservation(keep_id(pod.uid, pod.keeper.uid), pod.demand, catalogue=version) for pod in new
    )
    stay = [
        reservation
        for uid, keeper in known.items()
        if keeper.left_ms > 0
        for reservation in _that_fit_room(
            before.get(uid, []), added.get(uid, []), rooms.get(uid), is_known=uid in rooms
        )
    ]
    keeps = _that_fit_space(stay, space)
    gone = (each.id for each in chain.from_iterable(before.values()) if each.id not in keeps)
    used = {keep.keeper_uid for keep in keeps}
    return replace(
        ledger,
        reservations=ledger.reservations.without(gone).plus(keeps),
        keepers=tuple(keeper for keeper in known.values() if keeper.uid in used or keeper.spent),
        spending=_spending_with_kept(ledger, before, now),
    )


def kept_for(reservations: Reservations, waiters: Iterable[Waiter]) -> dict[str, str]:
    """Return, by uid of a pod that can start, the id of a keep of its object that is large enough. First pods come first."""
    free, found = list(reservations.keeps), dict[str, str]()
    for pod in waiters if free else ():
        of_object = (reservation for reservation in free if reservation.keeper_uid == pod.keeper)
        keep = next((each for each in of_object if not positive_difference(pod.demand, each.demand)), None)
        if keep is not None and pod.obstacle is None and pod.uid not in reservations.lifts:
            free.remove(keep)
            found[pod.uid] = keep.id
    return found


def _by_keeper(keeps: Iterable[Reservation]) -> dict[str, list[Reservation]]:
    found: dict[str, list[Reservation]] = {}
    for keep in keeps:
        found.setdefault(keep.keeper_uid, []).append(keep)
    return found


def _that_fit_room(
    before: Iterable[Reservation],
    added: Iterable[Reservation],
    room: DemandOfObject | None,
    *,
    is_known: bool,
) -> Iterator[Reservation]:
    """Yield what fits into the room of their object, the first ones first."""
    if not is_known:
        yield from before
    elif room is not None:
        pods, gpus = room.pods, room.gpus
        for reservation in (*before, *added):
            pods, gpus = pods - 1, gpus - reservation.demand.get(GPUS, ZERO)
            if pods < 0 or gpus < 0:
                return
            yield reservation


def _that_fit_space(keeps: Iterable[Reservation], space: int) -> Reservations:
    fitting = Reservations({})
    for keep in keeps:
        if fitting.size + fitting.added_size(keep) <= space:
            fitting = fitting.plus([keep])
    return fitting


def _spending_with_kept(
    ledger: QuotaLedger, before: Mapping[str, Iterable[Reservation]], now: int
) -> Spending | None:
    """Return what is spent, with what was kept since the last count."""
    spending = ledger.spending
    if ledger.budget is None or spending is None:
        return spending
    for keeper in ledger.keepers:
        kept = total(reservation.demand for reservation in before.get(keeper.uid, ()))
        spending = with_held(ledger.budget, spending, kept, max(0, now - keeper.at))
    return spending

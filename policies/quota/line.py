"""The line of the pods that wait for quota in one namespace: whose gate is removed next, as a pure function of the ledger.

Order: gangs of which some pods have started; replacements of pods that ended lately; then the highest priority, the oldest
creationTimestamp, and the uid. A gang has the place of its first pod, and waits whole until one of its pods was started.

The demand of a pod is held in the ledger before its gate is removed, that of a gang in one write. What is held for a pod that
cannot start now is given back: that of a gang only as a whole, and never after one of its pods has started.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum

import msgspec
from msgspec.structs import replace

from policies.quota.amounts import Vector, exceeds, maximum, positive_difference, total
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import LIMIT, Reservation, lift_id
from policies.quota.waiting import QueueOrder, QueueSpec

LIFTS_LIMIT = LIMIT // 2
"""Characters of what is held for pods that wait, so that creations have room beside them: some 4,500 pods of equal demand."""


class Waiter(msgspec.Struct, frozen=True, kw_only=True):
    """A stored pod under our gate. `demand` is what it will need, under every catalogue version of the ledger.

    `since` is its creationTimestamp. `gang` is the key of its gang, or "". `obstacle` is why it cannot start whatever is free.
    `replaces`: a pod of its owner held as much until lately.
    """

    uid: str
    demand: Vector
    since: str
    priority: int = 0
    gang: str = ""
    obstacle: "Standing | None" = None
    replaces: bool = False


class Gang(msgspec.Struct, frozen=True):
    """A gang needs `size` pods. `present` of them exist, and `running` of those have no gate."""

    size: int
    present: int
    running: int = 0


class Standing(Enum):
    """Why a pod waits, in words for people."""

    STARTING = "it starts now"
    NEXT = "next in line: it waits until the quota has room"
    BEHIND = "others are before it in line"
    INCOMPLETE = "its gang is incomplete"
    OTHER_GATE = "it has another scheduling gate"
    DENIED = "the removal of its gate was denied"
    TOO_LARGE = "it exceeds the whole quota"
    ON_HOLD = "the queue is on hold"


class Place(msgspec.Struct, frozen=True):
    """The place of a pod in line, from 1; 0 if it has none. A gang has one place."""

    standing: Standing
    number: int = 0
    needed: Vector = {}
    """What must be free for it, of a gang the demand of all its pods."""


class Turn(msgspec.Struct, frozen=True):
    """The ledger with what is held, the uids of the pods whose gates may be removed, and the place of each pod in line."""

    ledger: QuotaLedger
    lifts: tuple[str, ...]
    places: Mapping[str, Place]


class _Unit(msgspec.Struct, frozen=True):
    """A single pod, or the pods of a gang that wait."""

    waiters: tuple[Waiter, ...]
    is_first: bool
    is_complete: bool = True

    @property
    def obstacle(self) -> Standing | None:
        return next((each.obstacle for each in self.waiters if each.obstacle is not None), None)

    @property
    def order(self) -> tuple[object, ...]:
        each = min(self.waiters, key=_place)
        return not self.is_first, *_place(each)


def _place(waiter: Waiter) -> tuple[object, ...]:
    return not waiter.replaces, -waiter.priority, waiter.since, waiter.uid


def take_turn(
    ledger: QuotaLedger,
    waiters: Iterable[Waiter],
    gangs: Mapping[str, Gang],
    queue: QueueSpec,
    starved_before: str = "",
) -> Turn:
    """Give back what cannot start now, and hold what the next pods in line need.

    `ledger` was just counted. `starved_before`: pods with an earlier creationTimestamp are not passed. The caller writes the
    ledger, then removes the gates.
    """
    units = sorted(_units(waiters, gangs, ledger), key=lambda unit: unit.order)
    ledger = _remarked(ledger, units)
    for unit in units:
        if not unit.is_first and _cannot_start(unit, ledger):
            gone = [lift_id(each.uid) for each in unit.waiters]
            ledger = replace(ledger, reservations=ledger.reservations.without(gone))
    line = _Line(ledger, queue, starved_before)
    for unit in units:
        line.stand(unit)
    changed = ledger.reservations.without(each.id for each in line.held)
    ledger = replace(ledger, reservations=changed.plus(line.held))
    held = {uid for uid, each in ledger.reservations.lifts.items() if each.is_lift}
    free = (each.uid for unit in units for each in unit.waiters if not each.demand and each.obstacle is None)
    lifts = () if queue.hold else tuple(dict.fromkeys((*free, *(uid for uid in line.places if uid in held))))
    return Turn(ledger, lifts, line.places)


def _units(waiters: Iterable[Waiter], gangs: Mapping[str, Gang], ledger: QuotaLedger) -> Iterator[_Unit]:
    lifts = ledger.reservations.lifts
    by_gang: dict[str, list[Waiter]] = {}
    for each in waiters:
        if each.gang in gangs:
            by_gang.setdefault(each.gang, []).append(each)
        else:
            yield _Unit((each,), is_first=False)
    for key, members in by_gang.items():
        gang = gangs[key]
        has_begun = any(each.uid in lifts and lifts[each.uid].is_begun_lift for each in members)
        if not gang.running and not has_begun:
            yield _Unit(tuple(members), is_first=False, is_complete=gang.present >= gang.size)
            continue
        # While something is held for the others, the gang is partly started. Later its pods are replacements.
        is_partly_started = has_begun or any(each.uid in lifts for each in members)
        yield from (_Unit((each,), is_first=is_partly_started) for each in members)


def _remarked(ledger: QuotaLedger, units: Sequence[_Unit]) -> QuotaLedger:
    """Hold the demand under both catalogue versions while the ledger moves to another one."""
    lifts, version = ledger.reservations.lifts, ledger.next_catalogue or ""
    unmarked = {
        held.id: Reservation(held.id, maximum((held.demand, each.demand)), catalogue=version)
        for unit in units
        for each in unit.waiters
        if (held := lifts.get(each.uid)) is not None and held.is_lift and version not in {"", held.catalogue}
    }
    if not unmarked:
        return ledger
    return replace(ledger, reservations=ledger.reservations.without(unmarked).plus(unmarked.values()))


def _cannot_start(unit: _Unit, ledger: QuotaLedger) -> bool:
    """Whether something is held for the unit, but it has an obstacle, or that is too little, or not for all, or above `hard`."""
    lifts = ledger.reservations.lifts
    held = [lifts[each.uid] for each in unit.waiters if each.uid in lifts]
    if not held:
        return False
    demand = total(each.demand for each in held)
    together = total((ledger.used or {}, ledger.reserved))
    is_over = any(each.key in demand for each in exceeds(together, ledger.hard))
    is_short = any(
        each.uid not in lifts or positive_difference(each.demand, lifts[each.uid].demand)
        for each in unit.waiters
        if each.demand
    )
    return is_over or is_short or unit.obstacle is not None


class _Line:
    """The line while its units are looked at in order."""

    def __init__(self, ledger: QuotaLedger, queue: QueueSpec, starved_before: str) -> None:
        self._ledger, self._queue, self._starved_before = ledger, queue, starved_before
        self._held_before = ledger.reservations.lifts
        self._together = total((ledger.used or {}, ledger.reserved))
        self._space = LIFTS_LIMIT - sum(len(each.id) + 1 for each in self._held_before.values())
        self._blocked = False
        self._number = 0
        self.held: list[Reservation] = []
        self.places: dict[str, Place] = {}

    def stand(self, unit: _Unit) -> None:
        """Give the unit its place, and hold its demand if it is its turn."""
        missing = {each.uid: self._missing(each) for each in unit.waiters}
        needed = total(missing.values())
        standing = self._standing(unit, needed)
        if standing is Standing.STARTING:
            version = self._ledger.next_catalogue or ""
            self.held += [
                Reservation(lift_id(each.uid), each.demand, catalogue=version)
                for each in unit.waiters
                if missing[each.uid]
            ]
            self._together = total((self._together, needed))
            self._space -= sum(len(lift_id(uid)) + 1 for uid, demand in missing.items() if demand)
        elif standing in {Standing.NEXT, Standing.BEHIND}:
            self._number += 1
            is_starved = min(each.since for each in unit.waiters) < self._starved_before
            self._blocked |= self._queue.order is QueueOrder.STRICT_FIFO or is_starved or unit.is_first
        number = self._number if standing in {Standing.NEXT, Standing.BEHIND} else 0
        for each in unit.waiters:
            self.places[each.uid] = Place(standing, number, total(each.demand for each in unit.waiters))

    def _missing(self, waiter: Waiter) -> Vector:
        held = self._held_before.get(waiter.uid)
        return positive_difference(waiter.demand, held.demand) if held else waiter.demand

    def _standing(self, unit: _Unit, needed: Vector) -> Standing:
        if unit.obstacle is not None:
            standing = unit.obstacle
        elif not needed:
            standing = Standing.STARTING
        elif not unit.is_complete:
            standing = Standing.INCOMPLETE
        elif exceeds(total(each.demand for each in unit.waiters), self._ledger.hard):
            standing = Standing.TOO_LARGE
        elif self._queue.hold:
            standing = Standing.ON_HOLD
        elif self._blocked:
            standing = Standing.BEHIND
        else:
            standing = Standing.STARTING if self._has_room(unit, needed) else Standing.NEXT
        return standing

    def _has_room(self, unit: _Unit, needed: Vector) -> bool:
        over = exceeds(total((self._together, needed)), self._ledger.hard)
        size = sum(len(lift_id(each.uid)) + 1 for each in unit.waiters)
        return size <= self._space and not any(each.key in needed for each in over)

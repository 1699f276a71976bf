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
from policies.quota.ledger.reservations import LIMIT, Reservation, Reservations, lift_id
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
    """A gang needs `size` pods. `running` of those that exist have no gate."""

    size: int
    running: int = 0


class Standing(Enum):
    """Why a pod waits, as the reason in the status of the GPUQuota."""

    STARTING = "Starting"
    """Quota is held for it, and its gate is being removed."""
    NEXT = "Next"
    """It starts when the quota has room."""
    BEHIND = "Behind"
    """Others are before it in line."""
    INCOMPLETE = "Incomplete"
    """Pods of its gang do not exist yet."""
    OTHER_GATE = "OtherGate"
    """It has a scheduling gate of somebody else, too."""
    DENIED = "Denied"
    """The removal of its gate was denied."""
    TOO_LARGE = "TooLarge"
    """It exceeds the whole quota."""
    ON_HOLD = "OnHold"
    """`spec.queue.hold` of the GPUQuota is true."""


class Place(msgspec.Struct, frozen=True):
    """The place of a pod in line, from 1; 0 if it has none. A gang has one place.

    `needed` is what must be free for it, of a gang the demand of all its pods. `gang` is the key of a gang that waits whole, and
    `missing` the number of its pods that do not exist yet.
    """

    standing: Standing
    number: int = 0
    needed: Vector = {}
    gang: str = ""
    missing: int = 0


class Turn(msgspec.Struct, frozen=True):
    """The ledger with what is held, the uids of the pods whose gates may be removed, and the place of each pod in line."""

    ledger: QuotaLedger
    lifts: tuple[str, ...]
    places: Mapping[str, Place]


class _Unit(msgspec.Struct, frozen=True):
    """A single pod, or the pods of a gang that waits whole, of which so many do not exist yet."""

    waiters: tuple[Waiter, ...]
    is_first: bool
    gang: str = ""
    missing: int = 0

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
    ledger = _given_back(_remarked(ledger, units), units)
    line = _Line(ledger, queue, starved_before)
    for unit in units:
        line.stand(unit)
    reservations = ledger.reservations.without(each.id for each in line.held).plus(line.held)
    begun = {uid for uid, each in reservations.lifts.items() if each.is_begun_lift}
    starting = (uid for uid, place in line.places.items() if place.standing is Standing.STARTING)
    lifts = tuple(uid for uid in starting if uid not in begun)
    return Turn(replace(ledger, reservations=reservations), lifts, line.places)


def _units(waiters: Iterable[Waiter], gangs: Mapping[str, Gang], ledger: QuotaLedger) -> Iterator[_Unit]:
    lifts = ledger.reservations.lifts
    by_gang: dict[str, list[Waiter]] = {}
    for each in sorted(waiters, key=_place):
        if each.gang in gangs:
            by_gang.setdefault(each.gang, []).append(each)
        else:
            yield _Unit((each,), is_first=False)
    for key, members in by_gang.items():
        gang = gangs[key]
        has_begun = any(each.uid in lifts and lifts[each.uid].is_begun_lift for each in members)
        if not gang.running and not has_begun:
            yield _Unit(tuple(members), is_first=False, gang=key, missing=max(gang.size - len(members), 0))
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


def _given_back(ledger: QuotaLedger, units: Sequence[_Unit]) -> QuotaLedger:
    """Hold nothing more for units that cannot start now. The last in line give back first, if `hard` was lowered."""
    lifts, together = ledger.reservations.lifts, total((ledger.used or {}, ledger.reserved))
    gone: list[str] = []
    for unit in reversed(units):
        held = [lifts[each.uid] for each in unit.waiters if each.uid in lifts]
        demand = total(each.demand for each in held)
        is_over = any(each.key in demand for each in exceeds(together, ledger.hard))
        if (
            held
            and not unit.is_first
            and (is_over or unit.obstacle or unit.missing or _is_short(unit, lifts))
        ):
            gone += [each.id for each in held]
            together = positive_difference(together, demand)
    return replace(ledger, reservations=ledger.reservations.without(gone)) if gone else ledger


def _is_short(unit: _Unit, lifts: Mapping[str, Reservation]) -> bool:
    """Whether less is held than the unit needs."""
    return any(
        positive_difference(each.demand, lifts[each.uid].demand if each.uid in lifts else {})
        for each in unit.waiters
    )


class _Line:
    """The line while its units are looked at in order."""

    def __init__(self, ledger: QuotaLedger, queue: QueueSpec, starved_before: str) -> None:
        self._ledger, self._queue, self._starved_before = ledger, queue, starved_before
        self._held_before = ledger.reservations.lifts
        self._together = total((ledger.used or {}, ledger.reserved))
        self._space = LIFTS_LIMIT - Reservations.of(*self._held_before.values()).size
        self._blocked = False
        self._number = 0
        self.held: list[Reservation] = []
        self.places: dict[str, Place] = {}

    def stand(self, unit: _Unit) -> None:
        """Give the unit its place, and hold its demand if it is its turn."""
        missing = {each.uid: self._missing(each) for each in unit.waiters}
        version = self._ledger.next_catalogue or ""
        held = [
            Reservation(lift_id(each.uid), each.demand, catalogue=version)
            for each in unit.waiters
            if missing[each.uid]
        ]
        needed, size = total(missing.values()), Reservations.of(*held).size
        standing, number = self._standing(unit, needed, size), 0
        if standing is Standing.STARTING:
            self.held += held
            self._together = total((self._together, needed))
            self._space -= size
        elif standing in {Standing.NEXT, Standing.BEHIND}:
            self._number = number = self._number + 1
            is_starved = min(each.since for each in unit.waiters) < self._starved_before
            self._blocked |= self._queue.order is QueueOrder.STRICT_FIFO or is_starved or unit.is_first
        place = Place(standing, number, total(each.demand for each in unit.waiters), unit.gang, unit.missing)
        self.places.update((each.uid, place) for each in unit.waiters)

    def _missing(self, waiter: Waiter) -> Vector:
        """Return what is to be held for the pod: nothing more if the removal of its gate was admitted."""
        held = self._held_before.get(waiter.uid)
        if held is None:
            return waiter.demand
        return {} if held.is_begun_lift else positive_difference(waiter.demand, held.demand)

    def _standing(self, unit: _Unit, needed: Vector, size: int) -> Standing:
        if unit.obstacle is not None:
            standing = unit.obstacle
        elif not needed:
            standing = Standing.ON_HOLD if self._queue.hold else Standing.STARTING
        elif unit.missing:
            standing = Standing.INCOMPLETE
        elif size > LIFTS_LIMIT or exceeds(total(each.demand for each in unit.waiters), self._ledger.hard):
            standing = Standing.TOO_LARGE
        elif self._queue.hold:
            standing = Standing.ON_HOLD
        elif self._blocked:
            standing = Standing.BEHIND
        else:
            over = exceeds(total((self._together, needed)), self._ledger.hard)
            has_room = size <= self._space and not any(each.key in needed for each in over)
            standing = Standing.STARTING if has_room else Standing.NEXT
        return standing

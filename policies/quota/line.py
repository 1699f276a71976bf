"""The line of the pods that wait for quota in one namespace: whose gate is removed next, as a pure function of the ledger.

Order: gangs of which some pods have started; replacements of pods that ended lately; then the highest priority, the oldest
creationTimestamp, and the uid. A gang has the place of its first pod, and waits whole until one of its pods was started.

The demand of a pod is held in the ledger before its gate is removed, that of a gang in one write. What is held for a pod that
cannot start now is given back: that of a gang only as a whole, and never after one of its pods has started.

Words:
    unit: a single pod, or the pods that a gang needs to start.
    head: the first unit in line that the quota of its namespace lets start.
    held: reserved in the ledger for a pod that waits.
    lift: the removal of a pod's gate, and the reservation for it. It has begun once the webhook has admitted the removal.
    obstacle: why a pod cannot start, whatever is free. Others pass it.
    kept: what stays free for replacements that have not come yet.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property

import msgspec
from msgspec.structs import replace

from policies.quota.amounts import Vector, exceeds, maximum, positive_difference, total
from policies.quota.ledger.credits import Matching, match
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import LIMIT, Reservation, Reservations, lift_id
from policies.quota.waiting import QueueOrder, QueueSpec

LIFTS_LIMIT = LIMIT // 2
"""Characters of what is held for pods that wait, so that creations have room beside them: some 4,500 pods of equal demand."""


class Waiter(msgspec.Struct, frozen=True, kw_only=True):
    """A stored pod under our gate. `demand` is what it will need, under every catalogue version of the ledger.

    `since` is its creationTimestamp. `gang` is the key of its gang, or "". `owner` is that of its credits, or "". `replaces`: it
    goes first, since a credit is matched with it.
    """

    uid: str
    demand: Vector
    since: str
    priority: int = 0
    gang: str = ""
    obstacle: "Standing | None" = None
    owner: str = ""
    replaces: bool = False


class Gang(msgspec.Struct, frozen=True):
    """A gang needs `size` pods; more line up singly. `running` of those that exist have no gate, or have succeeded.

    With size 0, which could not be read, its pods have the obstacle UNREAD_GANG.
    """

    size: int
    running: int = 0


class InLine(msgspec.Struct, frozen=True):
    """The pods of a namespace that wait, their gangs by key, `spec.queue`, and which credits let them go first.

    `kept` stays free for replacements that have not come yet.
    """

    waiters: Sequence[Waiter]
    gangs: Mapping[str, Gang]
    queue: QueueSpec = QueueSpec()
    kept: Vector = {}
    matching: Matching | None = None


def line_up(
    ledger: QuotaLedger,
    waiters: Iterable[Waiter],
    gangs: Mapping[str, Gang],
    queue: QueueSpec,
    now: int,
    *,
    in_team: bool = False,
) -> InLine:
    """Return the pods with those that replace others. `now` is in ms since 1970.

    In a team only those of owners that keep their pods: a Job with many pods would keep other namespaces from its quota.
    """
    usable = [each for each in ledger.credits if queue.prefer_replacements and (each.keeps or not in_team)]
    pods, lifts = tuple(waiters), ledger.reservations.lifts
    matching = match(tuple(usable), (each for each in pods if each.uid not in lifts), now)
    if matching.ends:
        pods = tuple(replace(each, replaces=True) if each.uid in matching.ends else each for each in pods)
    return InLine(pods, gangs, queue, matching.kept, matching)


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
    UNREAD_GANG = "UnreadGang"
    """How many pods its gang needs could not be read yet."""
    OTHER_GATE = "OtherGate"
    """It has a scheduling gate of somebody else, too."""
    DENIED = "Denied"
    """The removal of its gate was denied."""
    TOO_LARGE = "TooLarge"
    """It exceeds the whole quota."""
    TOO_MANY = "TooMany"
    """Its gang has more pods than can start together."""
    ON_HOLD = "OnHold"
    """`spec.queue.hold` of the GPUQuota is true."""
    BUDGET_SPENT = "BudgetSpent"
    """The budget of GPU-hours of something that it needs is spent. Others pass it."""


class Place(msgspec.Struct, frozen=True):
    """The place of a pod in line, from 1; 0 if it has none. A gang has one place.

    `needed` is what must be free for it, of a gang the demand of all its pods. `gang` is the key of a gang that waits whole,
    `missing` the number of its pods that do not exist yet, and `most` how many could start together if it has too many.
    `for_team`: the quota of its namespace would let it start, or the pods before it, but not that of the team.
    """

    standing: Standing
    number: int = 0
    needed: Vector = {}
    gang: str = ""
    missing: int = 0
    most: int = 0
    for_team: bool = False


class Turn(msgspec.Struct, frozen=True):
    """The ledger with what is held, the uids of the pods whose gates may be removed, and the place of each pod in line.

    A lift that has begun may be tried again: its controller may have ended.
    """

    ledger: QuotaLedger
    lifts: tuple[str, ...]
    places: Mapping[str, Place]


class Unit(msgspec.Struct, frozen=True, dict=True):
    """What has one place in line: a single pod, or the pods that a gang needs to start. `missing` of those do not exist yet.

    `others` are the pods of the gang beyond those; they line up singly once it has started. `continues_gang`: quota is held for
    the pod since its gang started.
    """

    waiters: tuple[Waiter, ...]
    continues_gang: bool
    gang: str = ""
    missing: int = 0
    others: tuple[Waiter, ...] = ()

    @property
    def obstacle(self) -> Standing | None:
        return next((each.obstacle for each in self.waiters if each.obstacle is not None), None)

    @cached_property
    def demand(self) -> Vector:
        """The demand of all its pods; of a single pod, the vector that it shares with equal pods."""
        return (
            self.waiters[0].demand if len(self.waiters) == 1 else total(each.demand for each in self.waiters)
        )

    @property
    def is_blocked(self) -> bool:
        """Whether it cannot start. A gang whose size cannot be read may have started."""
        return self.obstacle not in {None, Standing.UNREAD_GANG}

    @property
    def goes_first(self) -> bool:
        return self.continues_gang or any(each.replaces for each in self.waiters)

    @property
    def since(self) -> str:
        return min(each.since for each in self.waiters)

    @property
    def order(self) -> tuple[object, ...]:
        each = min((*self.waiters, *self.others), key=_place)
        return not self.continues_gang, *_place(each)


def _place(waiter: Waiter) -> tuple[object, ...]:
    return not waiter.replaces, -waiter.priority, waiter.since, waiter.uid


def take_turn(ledger: QuotaLedger, in_line: InLine, starved_before: str = "") -> Turn:
    """Give back what cannot start now, and hold what the next pods in line need.

    `ledger` was just counted. `starved_before`: pods with an earlier creationTimestamp are not passed. The caller writes the
    ledger, then removes the gates.
    """
    line = NamespaceLine(ledger, in_line, starved_before)
    while line.head is not None:
        line.hold()
    return line.turn()


def _units(waiters: Iterable[Waiter], gangs: Mapping[str, Gang], ledger: QuotaLedger) -> Iterator[Unit]:
    lifts = ledger.reservations.lifts
    by_gang: dict[str, list[Waiter]] = {}
    for each in sorted(waiters, key=_place):
        if each.gang in gangs:
            by_gang.setdefault(each.gang, []).append(each)
        else:
            yield Unit((each,), continues_gang=False)
    for key, members in by_gang.items():
        gang = gangs[key]
        has_begun = any(each.uid in lifts and lifts[each.uid].is_begun_lift for each in members)
        if not gang.running and not has_begun:
            size = gang.size or len(members)
            needed, others = tuple(members[:size]), tuple(members[size:])
            yield Unit(needed, continues_gang=False, gang=key, missing=size - len(needed), others=others)
            continue
        # The gang has started. What was held for all of its pods stays; pods that come later are replacements.
        yield from (Unit((each,), continues_gang=each.uid in lifts) for each in members)


def _under_both_catalogues(ledger: QuotaLedger, units: Sequence[Unit]) -> QuotaLedger:
    """Hold the demand under both catalogue versions while the ledger moves to another one."""
    lifts, version = ledger.reservations.lifts, ledger.next_catalogue
    if version is None:
        return ledger
    unmarked = {
        held.id: Reservation(held.id, maximum((held.demand, each.demand)), catalogue=version)
        for unit in units
        for each in unit.waiters
        if (held := lifts.get(each.uid)) is not None and held.is_lift and held.catalogue != version
    }
    if not unmarked:
        return ledger
    return replace(ledger, reservations=ledger.reservations.without(unmarked).plus(unmarked.values()))


def _without_blocked(ledger: QuotaLedger, units: Sequence[Unit]) -> QuotaLedger:
    """Hold nothing more for units that cannot start now. If a `hard` was lowered, the last in line give back first."""
    lifts, unheld = ledger.reservations.lifts, _Unheld(ledger)
    together = ledger.held
    over = ledger.exceeded(together)
    gone: list[str] = []
    for unit in reversed(units):
        gone += [lifts[each.uid].id for each in unit.others if each.uid in lifts]
        held = [lifts[each.uid] for each in unit.waiters if each.uid in lifts and lifts[each.uid].is_lift]
        if not held or unit.continues_gang:
            continue
        is_over = any(key in each.demand for key in over for each in held)
        if is_over or unit.is_blocked or unit.missing or any(map(unheld.of, unit.waiters)):
            gone += [each.id for each in held]
            together = positive_difference(together, total(each.demand for each in held))
            over = ledger.exceeded(together)
    return replace(ledger, reservations=ledger.reservations.without(gone)) if gone else ledger


class _Unheld:
    """What is not yet held of the demand of a pod. Equal pods share their vectors, so each pair of vectors is compared once."""

    def __init__(self, ledger: QuotaLedger) -> None:
        self._lifts = ledger.reservations.lifts
        self._known: dict[tuple[int, int], Vector] = {}

    def of(self, waiter: Waiter) -> Vector:
        """Return what is to be held for the pod: nothing if its lift has begun."""
        held = self._lifts.get(waiter.uid)
        if held is None:
            return waiter.demand
        if held.is_begun_lift:
            return {}
        pair = id(waiter.demand), id(held.demand)
        if pair not in self._known:
            self._known[pair] = positive_difference(waiter.demand, held.demand)
        return self._known[pair]


class Head(msgspec.Struct, frozen=True):
    """The head of a line. `needed` is what is not held for it yet, `held` what will be held for its pods that lack it.

    `kept` must stay free beside it.
    """

    unit: Unit
    needed: Vector
    held: Reservations
    kept: Vector


class NamespaceLine:
    """The line of one namespace: the places of the units before the head, and what is held so far.

    `ledger` was just counted. What cannot start has given back in `self.ledger`. `limit`: characters of what may be held. The
    caller holds what the head needs, or lets it wait, until there is no head.
    """

    def __init__(
        self, ledger: QuotaLedger, in_line: InLine, starved_before: str, limit: int = LIFTS_LIMIT
    ) -> None:
        units = sorted(_units(in_line.waiters, in_line.gangs, ledger), key=lambda unit: unit.order)
        self.ledger = ledger = _without_blocked(_under_both_catalogues(ledger, units), units)
        self.head: Head | None = None
        self.together = ledger.held
        """What the namespace holds."""
        self.kept, self._matching = in_line.kept, in_line.matching
        self._queue, self._starved_before = in_line.queue, starved_before
        self._limit, self._space = limit, limit - Reservations.of(*ledger.reservations.lifts.values()).size
        self._unheld = _Unheld(ledger)
        self._spent, self._most = ledger.spent_keys(), ledger.most
        self._units = units[::-1]
        self._blocked, self._behind_team = False, False
        self._waiting_for_team = 0
        self._lacking: dict[str, bool] = {}
        self._scarce: dict[str, bool] = {}
        self._number = 0
        self._never: dict[int, Standing | None] = {}
        self._waits: dict[int, Standing] = {}
        """By identity of a demand: how a head that needed it waits for the team."""
        self._held: list[Reservation] = []
        self._places: dict[str, Place] = {}
        self._find_head()

    def hold(self) -> None:
        """Hold what the head needs. The next unit becomes the head."""
        if (head := self.head) is not None:
            self._held += head.held
            self.together = total((self.together, head.needed))
            self._space -= head.held.size
            self._stand(self._units.pop(), Standing.STARTING)
            self._find_head()

    def wait_for_team(self, standing: Standing, lacking: Iterable[str]) -> bool:
        """Let the head wait for the quota of the team, which lacks these: NEXT or BEHIND. Return whether nobody may pass it."""
        # Nothing becomes free during a turn, so pods of equal demand behind it have to wait, too. One that nobody may pass
        # becomes the head all the same, so that the other namespaces wait for it.
        self._waits[id(self._units[-1].demand)] = standing
        unit, self._lacking = self._units.pop(), dict.fromkeys(lacking, True)
        blocks = self._stand(unit, standing)
        self._behind_team |= blocks
        self._waiting_for_team += blocks * len(unit.waiters)
        self._find_head()
        return blocks

    def turn(self) -> Turn:
        reservations = self.ledger.reservations.without(each.id for each in self._held).plus(self._held)
        lifts = tuple(uid for uid, place in self._places.items() if place.standing is Standing.STARTING)
        ledger = replace(
            self.ledger,
            reservations=reservations,
            waiting_for_team=self._waiting_for_team,
            scarce=self._scarce,
            credits=self._matching.left(lifts) if self._matching else self.ledger.credits,
        )
        return Turn(ledger, lifts, self._places)

    def _find_head(self) -> None:
        self.head = None
        while self._units and self.head is None:
            found = self._head_or_standing(self._units[-1])
            if isinstance(found, Head):
                self.head = found
            else:
                self._stand(self._units.pop(), found)

    def _stand(self, unit: Unit, standing: Standing) -> bool:
        """Give the unit its place. Return whether nobody may pass it."""
        number, blocks, for_team = 0, False, False
        if standing in {Standing.NEXT, Standing.BEHIND}:
            self._number = number = self._number + 1
            blocks = self._may_block(unit)
            for_team = self._behind_team or (not self._blocked and id(unit.demand) in self._waits)
        self._blocked |= blocks
        if blocks and standing is Standing.NEXT:
            self._scarce = self._lacking
        held = self._reservations(unit.waiters) if standing is Standing.TOO_MANY else None
        most = self._limit * len(held) // held.size if held else 0
        place = Place(standing, number, unit.demand, unit.gang, unit.missing, most, for_team)
        self._places.update((each.uid, place) for each in unit.waiters)
        if unit.others and standing is Standing.STARTING:
            self._number += 1
            place = Place(Standing.BEHIND, self._number, unit.others[0].demand)
        self._places.update((each.uid, place) for each in unit.others)
        return blocks

    def _may_block(self, unit: Unit) -> bool:
        """Whether nobody may pass it, if it does not fit."""
        is_starved = unit.since < self._starved_before
        return self._queue.order is QueueOrder.STRICT_FIFO or is_starved or unit.continues_gang

    def _head_or_standing(self, unit: Unit) -> Head | Standing:
        lacking = [each for each in unit.waiters if self._unheld.of(each)]
        found: Head | Standing
        if unit.obstacle is not None:
            found = unit.obstacle
        elif not lacking:
            found = Standing.ON_HOLD if self._queue.hold else Standing.STARTING
        elif unit.missing:
            found = Standing.INCOMPLETE
        elif (never := self._never_fits(unit)) is not None:
            found = never
        elif self._queue.hold:
            found = Standing.ON_HOLD
        elif self._spent and not self._spent.isdisjoint(unit.demand):
            found = Standing.BUDGET_SPENT
        elif self._blocked:
            found = Standing.BEHIND
        elif (waits := self._waits.get(id(unit.demand))) is not None and not self._may_block(unit):
            found = waits
        else:
            found = self._head(unit, lacking) or Standing.NEXT
        return found

    def _never_fits(self, unit: Unit) -> Standing | None:
        """Return why the unit can never be held, None if it can. Equal pods share their demand, so it is compared once."""
        identity = id(unit.demand)
        if identity not in self._never:
            is_over = bool(exceeds(unit.demand, self._most))
            are_too_many = not is_over and self._reservations(unit.waiters).size > self._limit
            self._never[identity] = (
                Standing.TOO_LARGE if is_over else Standing.TOO_MANY if are_too_many else None
            )
        return self._never[identity]

    def _head(self, unit: Unit, lacking: Sequence[Waiter]) -> Head | None:
        """Return the unit as the head, if there is room for all that these pods lack, and for what is kept free."""
        needed, held = total(map(self._unheld.of, lacking)), self._reservations(lacking)
        kept = {} if unit.goes_first else self.kept
        together = total((self.together, kept, needed))
        over = exceeds({key: together[key] for key in needed}, self.ledger.hard)
        self._lacking = dict.fromkeys((each.key for each in over), False)
        return None if over or held.size > self._space else Head(unit, needed, held, kept)

    def _reservations(self, waiters: Sequence[Waiter]) -> Reservations:
        version = self.ledger.next_catalogue or ""
        return Reservations.of(
            *(Reservation(lift_id(each.uid), each.demand, catalogue=version) for each in waiters)
        )

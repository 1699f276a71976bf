"""The line of the pods that wait for quota in one namespace: whose gate is removed next, as a pure function of the ledger.

Order: gangs of which some pods have started; pods for which their object keeps quota; replacements of pods that ended lately;
then the highest priority, the oldest creationTimestamp, and the uid. A gang has the place of its first pod. It waits as a whole
until one of its pods has started.

The ledger holds the demand of a pod before its gate is removed; the demand of a gang is held in one write. What is held for a pod
that cannot start now is released: for a gang as a whole, and never after one of its pods has started.

Words:
    entry: a single pod, or the pods that a gang needs to start.
    head: the first entry in line that the quota of its namespace lets start.
    held: reserved in the ledger for a pod that waits.
    lift: the removal of a pod's gate, and the reservation for it. It has begun once the webhook has admitted the removal.
    obstacle: why a pod cannot start, even if quota is free. Others pass it.
    kept: reserved in the ledger for an object, while its pods are replaced (`policies.quota.ledger.keeps`).
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from policies.quota.amounts import ZERO, Amounts, Excess, exceeded_limits, maximum, positive_difference, total
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import LIMIT, Reservation, Reservations, lift_id
from policies.quota.queue_entries import InLine, QueueEntry, entries_in_line
from policies.quota.waiting import QueueOrder, Standing, Waiter

LIFTS_LIMIT = LIMIT // 2
"""Characters of what is held for pods that wait, so that creations have room beside them: some 4,500 pods of equal demand."""


class Place(msgspec.Struct, frozen=True):
    """The place of a pod in line, from 1; 0 if it has none. A gang has one place.

    `needed` is what must be free for it; for a gang, the demand of all its pods. `gang` is the key of a gang that starts as a
    whole. `missing`: the number of its pods that do not exist yet. `can_start`: how many could start together if it has too many.
    `for_team`: the pod, or one before it, waits for quota of the team, and not of the namespace. `granted`: the most that the
    namespace can ever have, of what is too large.
    """

    standing: Standing
    number: int = 0
    needed: Amounts = {}
    gang: str = ""
    missing: int = 0
    can_start: int = 0
    for_team: bool = False
    granted: Amounts = {}


class Turn(msgspec.Struct, frozen=True):
    """The ledger with what is held, the uids of the pods whose gates may be removed, and the place of each pod in line.

    A lift that has begun may be repeated, because the controller that began it may have stopped.
    """

    ledger: QuotaLedger
    ungate_uids: tuple[str, ...]
    places: Mapping[str, Place]


def next_to_start(ledger: QuotaLedger, in_line: InLine, starved_before: str = "") -> Turn:
    """Hold quota for the next pods in line, and release what is held for pods that cannot start now.

    `ledger` was just counted. `starved_before`: nobody passes a pod with an earlier creationTimestamp. The caller writes the
    ledger, then removes the gates.
    """
    line = NamespaceLine(ledger, in_line, starved_before)
    while line.head is not None:
        line.hold()
    return line.turn()


def _under_both_catalogues(ledger: QuotaLedger, entries: Sequence[QueueEntry]) -> QuotaLedger:
    """Hold the demand under both catalogue versions while the ledger moves to another one."""
    lifts, version = ledger.reservations.lifts, ledger.next_catalogue
    if version is None:
        return ledger
    unmarked = {
        held.id: Reservation(held.id, maximum((held.demand, waiter.demand)), catalogue=version)
        for entry in entries
        for waiter in entry.waiters
        if (held := lifts.get(waiter.uid)) is not None and held.is_lift and held.catalogue != version
    }
    if not unmarked:
        return ledger
    return replace(ledger, reservations=ledger.reservations.without(unmarked).plus(unmarked.values()))


def _without_blocked(ledger: QuotaLedger, entries: Sequence[QueueEntry]) -> QuotaLedger:
    """Release what is held for entries that cannot start now. If a `hard` was lowered, release the last in line first."""
    lifts, unheld = ledger.reservations.lifts, _Unheld(ledger)
    still_held = ledger.held
    gone: list[str] = []
    for entry in reversed(entries):
        gone += [lifts[waiter.uid].id for waiter in entry.surplus if waiter.uid in lifts]
        held = [lifts[each.uid] for each in entry.waiters if each.uid in lifts and lifts[each.uid].is_lift]
        if not held or entry.continues_gang:
            continue
        over = _limits(ledger, entry).exceeded(still_held)
        is_over = any(key in reservation.demand for key in over for reservation in held)
        if is_over or entry.is_blocked or entry.missing or any(map(unheld.of, entry.waiters)):
            gone += [reservation.id for reservation in held]
            still_held = positive_difference(still_held, total(reservation.demand for reservation in held))
    return replace(ledger, reservations=ledger.reservations.without(gone)) if gone else ledger


def _limits(ledger: QuotaLedger, entry: QueueEntry) -> QuotaLedger:
    """Return the ledger as it limits the entry."""
    beyond = entry.beyond
    hard = {key: amount + beyond.get(key, ZERO) for key, amount in ledger.hard.items()}
    return replace(ledger, hard=hard) if beyond else ledger


class _Unheld:
    """The part of a pod's demand that is not held yet. Equal pods share vectors, so each pair of vectors is compared once."""

    def __init__(self, ledger: QuotaLedger) -> None:
        self._lifts = ledger.reservations.lifts
        self._known: dict[tuple[int, int], Amounts] = {}

    def of(self, waiter: Waiter) -> Amounts:
        """Return what is to be held for the pod beyond what is kept for it: nothing if its lift has begun."""
        held = self._lifts.get(waiter.uid)
        if held is None:
            return {} if waiter.keep else waiter.demand
        if held.is_begun_lift:
            return {}
        pair = id(waiter.demand), id(held.demand)
        if pair not in self._known:
            self._known[pair] = positive_difference(waiter.demand, held.demand)
        return self._known[pair]


class Head(msgspec.Struct, frozen=True):
    """The head of a line: what it still needs, and the reservations that will hold it, some of them instead of `keeps`."""

    entry: QueueEntry
    needed: Amounts
    held: Reservations
    keeps: tuple[str, ...] = ()


class NamespaceLine:
    """The line of one namespace: the places of the entries before the head, and what is held so far.

    `ledger` was just counted. `self.ledger` no longer holds quota for pods that cannot start. `limit`: characters that the
    reservations of waiting pods may take. The caller calls `hold` or `wait_for_team` until there is no head.
    """

    def __init__(
        self, ledger: QuotaLedger, in_line: InLine, starved_before: str, limit: int = LIFTS_LIMIT
    ) -> None:
        entries = sorted(
            entries_in_line(in_line.waiters, in_line.gangs, ledger), key=lambda entry: entry.order
        )
        self.ledger = ledger = _without_blocked(_under_both_catalogues(ledger, entries), entries)
        self.head: Head | None = None
        self.held_by_namespace = ledger.held
        """What the namespace holds."""
        self._queue, self._starved_before = in_line.queue, starved_before
        self._matching = in_line.matching
        self._limit, self._space = limit, limit - Reservations.of(*ledger.reservations.lifts.values()).size
        self._unheld = _Unheld(ledger)
        self._spent = ledger.spent_keys()
        self._entries = entries[::-1]
        self._blocked, self._behind_team = False, False
        self._waiting_for_team = 0
        self._lacking: dict[str, bool] = {}
        self._scarce: dict[str, bool] = {}
        self._number = 0
        self._never: dict[tuple[int, bool], Standing | None] = {}
        self._waits: dict[int, Standing] = {}
        """By `id()` of a demand: the standing of the entry with that demand that first waited for the team."""
        self._held: list[Reservation] = []
        self._used_keeps: list[str] = []
        self._places: dict[str, Place] = {}
        self._find_head()

    def hold(self) -> None:
        """Hold what the head needs. The next entry becomes the head."""
        if (head := self.head) is not None:
            self._held += head.held
            self._used_keeps += head.keeps
            self.held_by_namespace = total((self.held_by_namespace, head.needed))
            self._space -= head.held.size
            self._assign_place(self._entries.pop(), Standing.STARTING)
            self._find_head()

    def wait_for_team(self, standing: Standing, lacking: Iterable[str]) -> bool:
        """Let the head wait, as NEXT or BEHIND, until the team has quota in `lacking`. Return whether nobody may pass it."""
        # Nothing becomes free during a turn, so pods of equal demand behind it have to wait, too. One that nobody may pass
        # becomes the head all the same, so that the other namespaces wait for it.
        self._waits[id(self._entries[-1].demand)] = standing
        entry, self._lacking = self._entries.pop(), dict.fromkeys(lacking, True)
        blocks = self._assign_place(entry, standing)
        self._behind_team |= blocks
        self._waiting_for_team += blocks * len(entry.waiters)
        self._find_head()
        return blocks

    def turn(self) -> Turn:
        replaced = [*(reservation.id for reservation in self._held), *self._used_keeps]
        reservations = self.ledger.reservations.without(replaced).plus(self._held)
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
        while self._entries and self.head is None:
            head_or_standing = self._head_or_standing(self._entries[-1])
            if isinstance(head_or_standing, Head):
                self.head = head_or_standing
            else:
                self._assign_place(self._entries.pop(), head_or_standing)

    def _assign_place(self, entry: QueueEntry, standing: Standing) -> bool:
        """Place the entry in line. Return whether nobody may pass it."""
        number, blocks, for_team = 0, False, False
        if standing in {Standing.NEXT, Standing.BEHIND}:
            self._number = number = self._number + 1
            blocks = self._may_block(entry)
            for_team = self._behind_team or (not self._blocked and id(entry.demand) in self._waits)
        self._blocked |= blocks
        if blocks and standing is Standing.NEXT:
            self._scarce = self._lacking
        held = self._reservations(entry.waiters) if standing is Standing.TOO_MANY else None
        can_start = self._limit * len(held) // held.size if held else 0
        too_large = self._too_large(entry) if standing is Standing.TOO_LARGE else ()
        granted = {excess.key: excess.hard for excess in too_large}
        place = Place(standing, number, entry.demand, entry.gang, entry.missing, can_start, for_team, granted)
        self._places.update((waiter.uid, place) for waiter in entry.waiters)
        if entry.surplus and standing is Standing.STARTING:
            self._number += 1
            place = Place(Standing.BEHIND, self._number, entry.surplus[0].demand)
        self._places.update((waiter.uid, place) for waiter in entry.surplus)
        return blocks

    def _may_block(self, entry: QueueEntry) -> bool:
        """Whether nobody may pass it, if it does not fit."""
        is_starved = entry.since < self._starved_before
        return self._queue.order is QueueOrder.STRICT_FIFO or is_starved or entry.continues_gang

    def _head_or_standing(self, entry: QueueEntry) -> Head | Standing:
        lacking = [waiter for waiter in entry.waiters if waiter.keep or self._unheld.of(waiter)]
        result: Head | Standing
        if entry.obstacle is not None:
            result = entry.obstacle
        elif not lacking:
            result = Standing.ON_HOLD if self._queue.hold else Standing.STARTING
        elif entry.missing:
            result = Standing.INCOMPLETE
        elif (never := self._never_fits(entry)) is not None:
            result = never
        elif self._queue.hold:
            result = Standing.ON_HOLD
        elif self._spent and not self._spent.isdisjoint(entry.demand):
            result = Standing.BUDGET_SPENT
        elif self._blocked and not entry.may_pass_others:
            result = Standing.BEHIND
        elif (
            not entry.may_pass_others
            and (waits := self._waits.get(id(entry.demand)))
            and not self._may_block(entry)
        ):
            result = waits
        else:
            result = self._head(entry, lacking) or Standing.NEXT
        return result

    def _never_fits(self, entry: QueueEntry) -> Standing | None:
        """Return why the entry can never be held, None if it can. Equal pods share their demand, so it is compared once."""
        identity = id(entry.demand), bool(entry.beyond)
        if identity not in self._never:
            is_over = bool(self._too_large(entry))
            are_too_many = not is_over and self._reservations(entry.waiters).size > self._limit
            self._never[identity] = (
                Standing.TOO_LARGE if is_over else Standing.TOO_MANY if are_too_many else None
            )
        return self._never[identity]

    def _too_large(self, entry: QueueEntry) -> Sequence[Excess]:
        return exceeded_limits(entry.demand, _limits(self.ledger, entry).maximum_hard)

    def _head(self, entry: QueueEntry, lacking: Sequence[Waiter]) -> Head | None:
        """Return the entry as the head, if `lacking` fits."""
        needed, held = total(map(self._unheld.of, lacking)), self._reservations(lacking)
        with_head = total((self.held_by_namespace, needed))
        over = exceeded_limits({key: with_head[key] for key in needed}, _limits(self.ledger, entry).hard)
        self._lacking = dict.fromkeys((excess.key for excess in over), False)
        keeps = tuple(waiter.keep for waiter in lacking if waiter.keep)
        return None if over or held.size > self._space else Head(entry, needed, held, keeps)

    def _reservations(self, waiters: Sequence[Waiter]) -> Reservations:
        version = self.ledger.next_catalogue or ""
        return Reservations.of(
            *(Reservation(lift_id(waiter.uid), waiter.demand, catalogue=version) for waiter in waiters)
        )

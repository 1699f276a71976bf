"""The spare reservations of this replica: which demands deserve some, and what became of each.

A spare is assigned only after the swap that reserved it has succeeded, and only for SPARE_SECONDS after that began. What a swap
is to remove is assigned no more from before it begins, whatever becomes of it. The ledger's side: `policies.quota.ledger.spares`.
"""

import math
import secrets
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import count
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from policies.quota.amounts import Vector
from policies.quota.ledger.decide import ReservationRequest
from policies.quota.ledger.quota_ledger import COUNTED_SECONDS, SPARE_SECONDS, QuotaLedger
from policies.quota.ledger.reservations import Reservation
from policies.quota.ledger.spares import FEWEST, PREFIX, SettledSpares, with_spares

AHEAD_SECONDS = 0.75
"""For how long the spares of one swap should last: somewhat shorter than they may be assigned."""

MOST = 128
"""Spares of one demand: 3 KB of the row."""

SETTLE_SECONDS = 0.25
"""How often spares are looked for that a swap should settle, though nobody asks for one."""

SETTLED_WITHIN = SPARE_SECONDS + SETTLE_SECONDS + COUNTED_SECONDS + 1.0
"""Seconds until what was admitted by spares is counted once, with 1 s for the writes; before, it may be counted twice."""

PACE_SECONDS = 0.25
"""Creations are counted by intervals of so long: the pace is that of the last one and of what has begun of the next."""

SHORTEST_SECONDS = 0.02
"""The least time in which spares count as assigned."""

DEMANDS = 8
"""Of a namespace, remembered at one time."""


def spare_ids() -> Iterator[str]:
    """Yield ids that nobody else has: call it in the process that uses them, since workers are forked."""
    name = secrets.token_hex(6)
    return (f"{PREFIX}{name}-{number}" for number in count(1))


class WantedSpares(msgspec.Struct, frozen=True):
    """The ids of the spares that should be reserved beside a request, of its demand, which comes at that pace a second."""

    beside: ReservationRequest
    ids: tuple[str, ...]
    pace: float


class _Assigned(NamedTuple):
    """The reservation of the object to which a spare was assigned, and until when that could be done."""

    reservation: Reservation
    until: float


class _Demand:
    """Creations of one demand, charged by the same bases: how fast they come, and the spares for them."""

    def __init__(self, like: Reservation, bases: frozenset[str]) -> None:
        self.like = like
        self.bases = bases
        self.spares: deque[str] = deque()
        self.until = -math.inf
        self._since = self._opened = -math.inf
        self._before = self._now = self._taken = 0

    def count(self, now: float) -> None:
        passed = now - self._since
        if passed >= PACE_SECONDS:
            self._before = self._now if passed < 2 * PACE_SECONDS else 0
            self._now, self._since = 0, now
        self._now += 1

    def pace(self, now: float, together: int) -> float:
        """Return how many came in a second, with so many that have just come together."""
        passed = now - self._since
        if passed < PACE_SECONDS:
            return (self._before + self._now + together - 1) / (PACE_SECONDS + passed)
        counted = self._now if passed < 2 * PACE_SECONDS else 0
        return (counted + together - 1) / (passed if counted else PACE_SECONDS)

    def worthwhile(self, now: float, together: int) -> int:
        """Return how many spares are worth reserving if creations go on like this."""
        if self.spares:
            return 0
        # Where writes take long, creations wait for them: how fast they would come, the last spares show, if they were just used.
        passed = now - self._opened
        assigned = self._taken / max(passed, SHORTEST_SECONDS) if passed <= SPARE_SECONDS else 0
        wanted = int(max(self.pace(now, together), assigned) * AHEAD_SECONDS)
        return min(max(wanted, 2 * together), MOST)

    def open(self, spares: Collection[str], begun: float, now: float) -> None:
        """Note that these were reserved, by a swap that began then and has ended now."""
        self.spares.extend(spares)
        self.until = begun + SPARE_SECONDS
        self._taken, self._opened = len(spares), now


class Spares:
    """Those of all namespaces. Any number of threads may call it; one at a time makes the swaps of a namespace."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.reserves_ahead = False
        self._clock = clock
        self._ids = spare_ids()
        self._lock = threading.Lock()
        self._namespaces: dict[str, NamespaceSpares] = {}

    def ledger(self, namespace: str) -> QuotaLedger | None:
        """Return the ledger by which a creation must be charged to be assigned a spare; None: there is no spare."""
        with self._lock:
            spares = self._namespaces.get(namespace)
            return spares.ledger if spares is not None and spares.has_any(self._clock()) else None

    def assign(self, namespace: str, request: ReservationRequest) -> tuple[QuotaLedger, Vector] | None:
        """Assign a spare to a creation, and return the ledger that has it, and what is reserved in it; None: none is for it."""
        with self._lock:
            spares = self._namespaces.get(namespace)
            return spares.assign(request, self._clock()) if spares is not None else None

    def retire(self, namespace: str) -> SettledSpares:
        """Return what the swap that begins now is to settle. What it removes is assigned no more, whatever becomes of it."""
        with self._lock:
            return self._of(namespace).retire(self._clock())

    def reserve(
        self, namespace: str, ledger: QuotaLedger, requests: Iterable[ReservationRequest], limit: int
    ) -> tuple[QuotaLedger, list[WantedSpares]]:
        """Return the ledger with what is reserved ahead beside these requests, in at most `limit` characters."""
        if not self.reserves_ahead:
            return ledger, []
        with self._lock:
            wanted = self._of(namespace).wanted(requests, ledger.bases, self._clock())
        for each in wanted:
            coming = math.ceil(each.pace * SETTLED_WITHIN)
            ledger = with_spares(ledger, each.beside.reservation, each.ids, coming=coming, limit=limit)
        return ledger, wanted

    def written(
        self,
        namespace: str,
        ledger: QuotaLedger,
        requests: Iterable[ReservationRequest],
        wanted: Collection[WantedSpares],
        begun: float,
    ) -> None:
        """Note that the swap to `ledger` succeeded, that it began at `begun`, and reserved for these requests.

        It has as many of the wanted spares as there was room for.
        """
        # Where there is room for any, the first has it. Outside the lock: it takes milliseconds of a long ledger.
        any_taken = any(each.ids[0] in ledger.reservations for each in wanted)
        reserved = ledger.reserved if any_taken else {}
        with self._lock:
            self._of(namespace).written(ledger, reserved, requests, wanted, begun, self._clock())

    def settled(self, namespace: str, settling: SettledSpares) -> None:
        """Note that none of those is in the row any more."""
        with self._lock:
            self._of(namespace).settled(settling)

    def due(self, *, last: bool) -> list[str]:
        """Return the namespaces where a swap should settle some, though nobody asks for one.

        At the `last` time these are all that have any, and nothing is assigned any more.
        """
        with self._lock:
            now = math.inf if last else self._clock()
            due = [namespace for namespace, spares in self._namespaces.items() if spares.is_due(now)]
            if last:
                for namespace in due:
                    self._namespaces[namespace].retire(now)
        return due

    def forget(self, namespace: str) -> None:
        with self._lock:
            self._namespaces.pop(namespace, None)

    def forget_idle(self) -> None:
        """Forget the pace of all namespaces where there is nothing to settle."""
        with self._lock:
            kept = {name: spares for name, spares in self._namespaces.items() if spares.is_due(math.inf)}
            self._namespaces = kept

    def _of(self, namespace: str) -> "NamespaceSpares":
        return self._namespaces.setdefault(namespace, NamespaceSpares(self._ids))


class NamespaceSpares:
    """Not for several threads at once. Moments are those of a monotonic clock.

    `ledger` is the last one of this replica's that took spares, None when all are settled; `reserved` is what it reserves.
    """

    def __init__(self, ids: Iterator[str]) -> None:
        self.ledger: QuotaLedger | None = None
        self.reserved: Vector = {}
        self._ids = ids
        self._demands: deque[_Demand] = deque()
        self._assigned: dict[str, _Assigned] = {}
        self._unassigned: set[str] = set()

    def has_any(self, now: float) -> bool:
        """Whether a spare may be assigned."""
        return any(each.spares and now < each.until for each in self._demands)

    def is_due(self, now: float) -> bool:
        """Whether a swap should settle some, though nobody asks for one."""
        if self.ledger is None and not self._unassigned:
            return False  # without a ledger none is open or assigned
        expired = any(each.spares and now >= each.until for each in self._demands)
        waits = any(now >= each.until for each in self._assigned.values())
        return expired or waits or bool(self._unassigned)

    def assign(self, request: ReservationRequest, now: float) -> tuple[QuotaLedger, Vector] | None:
        """Assign a spare to a creation that was charged by the bases of `ledger`, and return that one; None: there is none."""
        if self.ledger is None:
            return None
        held, asked, bases = (self.ledger, self.reserved), request.reservation, self.ledger.bases
        if any(each.reservation.id == asked.id for each in self._assigned.values()):
            return held  # a repeated call
        found = self._demand_of(asked, bases)
        if asked.is_change or found is None or not found.spares or now >= found.until:
            return None
        if not bases <= request.catalogues:
            return None  # it could not be charged by all of them
        spare = found.spares.popleft()
        self._assigned[spare] = _Assigned(replace(found.like, id=asked.id, name=asked.name), found.until)
        found.count(now)
        return held

    def retire(self, now: float) -> SettledSpares:
        """Return what the swap that begins now is to settle. What it removes is assigned no more, whatever becomes of it."""
        for each in self._demands:
            if now >= each.until:
                self._drop(each)
        assigned = {spare: each.reservation for spare, each in self._assigned.items()}
        return SettledSpares(assigned, frozenset(self._unassigned))

    def wanted(
        self, requests: Iterable[ReservationRequest], bases: frozenset[str], now: float
    ) -> list[WantedSpares]:
        """Return which spares should be reserved beside the requests, which were charged by these bases.

        Until `written` they are to be removed: of a swap that fails it is not known whether it happened.
        """
        alike: dict[_Demand, list[ReservationRequest]] = {}
        for request in requests:
            if not request.reservation.is_change:
                alike.setdefault(self._remembered(request.reservation, bases), []).append(request)
        if len(self._unassigned) > MOST:
            return []  # swaps fail, and what they reserved has to go first
        wanted = []
        for demand, together in alike.items():
            number = demand.worthwhile(now, len(together))
            if number >= FEWEST:
                ids = tuple(next(self._ids) for _ in range(number))
                wanted.append(WantedSpares(together[0], ids, demand.pace(now, len(together))))
        self._unassigned.update(each for spares in wanted for each in spares.ids)
        return wanted

    def written(
        self,
        ledger: QuotaLedger,
        reserved: Vector,
        requests: Iterable[ReservationRequest],
        wanted: Iterable[WantedSpares],
        begun: float,
        now: float,
    ) -> None:
        """Note that the swap to `ledger`, in which so much is reserved, succeeded."""
        for request in requests:
            if not request.reservation.is_change:
                self._remembered(request.reservation, ledger.bases).count(begun)
        for each in wanted:
            self._unassigned.difference_update(each.ids)
            if taken := [spare for spare in each.ids if spare in ledger.reservations]:
                demand = self._remembered(each.beside.reservation, ledger.bases)
                demand.like = replace(demand.like, catalogue=ledger.next_catalogue or "")
                demand.open(taken, begun, now)
                self.ledger, self.reserved = ledger, reserved

    def settled(self, settling: SettledSpares) -> None:
        """Note that none of those is in the row any more."""
        for each in settling.assigned:
            self._assigned.pop(each, None)
        self._unassigned.difference_update(settling.unassigned)
        if not self.is_due(math.inf):
            self.ledger, self.reserved = None, {}

    def _demand_of(self, reservation: Reservation, bases: frozenset[str]) -> _Demand | None:
        alike = (each for each in self._demands if each.like.demand == reservation.demand)
        return next((each for each in alike if each.bases == bases), None)

    def _remembered(self, reservation: Reservation, bases: frozenset[str]) -> _Demand:
        found = self._demand_of(reservation, bases)
        if found is None:
            if len(self._demands) == DEMANDS:
                self._drop(self._demands.popleft())
            found = _Demand(reservation, bases)
            self._demands.append(found)
        return found

    def _drop(self, demand: _Demand) -> None:
        self._unassigned.update(demand.spares)
        demand.spares.clear()

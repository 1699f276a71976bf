"""The spare reservations of this replica in one namespace: which demands deserve some, and what became of each.

A spare is assigned only after the swap that reserved it has succeeded, and only for SPARE_SECONDS after that began. What a swap is to
remove is assigned no more from before that begins, whatever becomes of it. `policies.quota.ledger.spares` has the ledger's side.
"""

import itertools
import math
import secrets
from collections import deque
from collections.abc import Collection, Iterable

from msgspec.structs import replace

from policies.quota.amounts import Vector
from policies.quota.ledger.decide import ReservationRequest
from policies.quota.ledger.quota_ledger import SPARE_SECONDS, QuotaLedger
from policies.quota.ledger.reservations import Reservation
from policies.quota.ledger.spares import PREFIX, SettledSpares

AHEAD_SECONDS = 0.5
"""For how long the spares of one swap should last: half of how long they may be assigned."""

FEWEST, MOST = 4, 128
"""Spares of one demand: fewer save too little; 128 are 2 KB of the row."""

PACE_SECONDS = 0.25
"""Creations are counted by intervals of so long; the pace is that of the last one and what has begun of the next."""

SHORTEST_SECONDS = 0.02
"""In which spares count as assigned at least."""

DEMANDS = 8
"""Of a namespace, remembered at one time."""

_PROCESS = secrets.token_hex(4)
_numbers = itertools.count(1)


Wanted = list[tuple[ReservationRequest, tuple[str, ...]]]
"""Requests, and the ids of the spares that should be reserved beside each."""


class _Demand:
    """Creations of one demand, charged by the same bases: how fast they come, and the spares for them."""

    def __init__(self, like: Reservation, bases: frozenset[str]) -> None:
        self.like = like
        self.bases = bases
        self.spares: deque[str] = deque()
        self.until = -math.inf
        self._began = self._opened = -math.inf
        self._before = self._now = self._taken = 0

    def count(self, now: float) -> None:
        passed = now - self._began
        if passed >= PACE_SECONDS:
            self._before = self._now if passed < 2 * PACE_SECONDS else 0
            self._now, self._began = 0, now
        self._now += 1

    def wanted(self, now: float, together: int) -> int:
        """Return how many spares are worth reserving if creations go on like this; so many have just come together."""
        counted = (self._before + self._now) / (PACE_SECONDS + now - self._began)
        # Where each write takes long, creations wait for it: how fast they would come, spares show.
        assigned = self._taken / max(now - self._opened, SHORTEST_SECONDS)
        worthwhile = min(max(int(max(counted, assigned) * AHEAD_SECONDS), 2 * together), MOST)
        return worthwhile if worthwhile >= FEWEST and not self.spares else 0

    def open(self, spares: Collection[str], begun: float, now: float) -> None:
        """Note that so many were reserved, by a swap that began then and has ended now."""
        self.spares.extend(spares)
        self.until = begun + SPARE_SECONDS
        self._taken, self._opened = len(spares), now


class NamespaceSpares:
    """Not for several threads at once. Moments are those of a monotonic clock.

    `ledger` is the last one with spares that this replica wrote, None before the first; `reserved` is what was reserved in it.
    `seen`: when the row last had spares, of whichever replica.
    """

    def __init__(self) -> None:
        self.ledger: QuotaLedger | None = None
        self.reserved: Vector = {}
        self._demands: deque[_Demand] = deque()
        self._assigned: dict[str, Reservation] = {}  # the object's, by the id of the spare
        self._assigned_since = math.inf
        self._unassigned: set[str] = set()
        self.seen = -math.inf

    def has_any(self, now: float) -> bool:
        """Whether a spare may be assigned."""
        return any(each.spares and now < each.until for each in self._demands)

    def is_due(self, now: float) -> bool:
        """Whether a swap should settle some, though nobody asks for one."""
        expired = any(each.spares and now >= each.until for each in self._demands)
        return expired or bool(self._unassigned) or now >= self._assigned_since + SPARE_SECONDS

    def assign(self, request: ReservationRequest, now: float) -> bool:
        """Assign a spare to a creation, and return whether there was one."""
        asked, found = request.reservation, self._demand_of(request)
        if any(each.id == asked.id for each in self._assigned.values()):
            return True  # a repeated call
        if asked.is_change or found is None or not found.spares or now >= found.until:
            return False
        spare = found.spares.popleft()
        self._assigned_since = min(self._assigned_since, now)
        self._assigned[spare] = replace(found.like, id=asked.id, name=asked.name)
        found.count(now)
        return True

    def retire(self, now: float) -> SettledSpares:
        """Return what the swap that begins now is to settle. What it removes is assigned no more, whatever becomes of it."""
        for each in self._demands:
            if now >= each.until:
                self._drop(each)
        return SettledSpares(dict(self._assigned), frozenset(self._unassigned))

    def wanted(self, requests: Iterable[ReservationRequest], now: float) -> Wanted:
        """Return with which of the requests spares of their demand should be reserved, and their ids."""
        alike: dict[int, list[ReservationRequest]] = {}
        for request in requests:
            if not request.reservation.is_change:
                alike.setdefault(self._demands.index(self._remembered(request)), []).append(request)
        return [
            (first, tuple(f"{PREFIX}{_PROCESS}-{next(_numbers)}" for _ in range(number)))
            for each, (first, *others) in alike.items()
            if (number := self._demands[each].wanted(now, 1 + len(others)))
        ]

    def written(
        self,
        ledger: QuotaLedger,
        requests: Iterable[ReservationRequest],
        wanted: Wanted,
        settling: SettledSpares,
        begun: float,
        now: float,
    ) -> None:
        """Note that the swap to `ledger` succeeded.

        It began at `begun`, reserved for the requests and as many of the wanted spares as there was room for, and settled others.
        """
        self.settled(settling)
        for request in requests:
            self._remembered(request).count(begun)
        for request, ids in wanted:
            taken = [each for each in ids if each in ledger.reservations]
            if taken and (found := self._demand_of(request)):
                mark = ledger.next_catalogue or ""
                found.like = replace(request.reservation, name="", catalogue=mark)
                found.bases = ledger.bases
                found.open(taken, begun, now)
                self.ledger, self.reserved, self.seen = ledger, ledger.reserved, begun

    def settled(self, settling: SettledSpares) -> None:
        """Note that none of those is in the row any more."""
        for each in settling.assigned:
            self._assigned.pop(each, None)
        self._assigned_since = self._assigned_since if self._assigned else math.inf
        self._unassigned.difference_update(settling.unassigned)

    def _demand_of(self, request: ReservationRequest) -> _Demand | None:
        demand, catalogues = request.reservation.demand, request.catalogues
        return next(
            (each for each in self._demands if each.like.demand == demand and each.bases <= catalogues), None
        )

    def _remembered(self, request: ReservationRequest) -> _Demand:
        found = self._demand_of(request)
        if found is None:
            if len(self._demands) == DEMANDS:
                self._drop(self._demands.popleft())
            found = _Demand(request.reservation, request.catalogues)
            self._demands.append(found)
        return found

    def _drop(self, demand: _Demand) -> None:
        self._unassigned.update(demand.spares)
        demand.spares.clear()

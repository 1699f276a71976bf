"""Who may come in: `used + entries + demand ≤ hard`, decided on one row for everyone who waits for it.

What does not fit is refused and holds nothing; what comes after it in the order of arrival may still fit. Only the dimensions
that a request asks for are compared, as the API server's own quota does: a CPU pod passes an exceeded GPU quota.
"""

from collections.abc import Sequence
from enum import Enum
from fractions import Fraction

import msgspec

from policies.quota.amounts import NOTHING, Vector, positive_difference
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import LIMIT, Reservation


class ReservationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks of the row: the entry that it would leave, counted by that catalogue (`charge.counted_by`)."""

    entry: Reservation
    catalogue: str

    @classmethod
    def creation(cls, uid: str, demand: Vector, catalogue: str) -> "ReservationRequest":
        return cls(entry=Reservation(uid, demand), catalogue=catalogue)

    @classmethod
    def change(
        cls, uid: str, request_uid: str, before: Vector, after: Vector, catalogue: str, *, version: int
    ) -> "ReservationRequest":
        """Ask for what grows. Nothing is given back before the change is stored: it may never be.

        `version` is the resourceVersion of the object that was reviewed as the one before.
        """
        growth = positive_difference(after, before)
        return cls(entry=Reservation(f"{uid}/{request_uid}", growth, version), catalogue=catalogue)


class Reason(Enum):
    """Why a request is let in, or not."""

    RESERVED = "reserved"
    ALREADY_RESERVED = "already reserved"
    NOTHING_TO_RESERVE = "nothing to reserve"
    EXCEEDED = "exceeded"
    FULL = "full"
    UNCOUNTED = "uncounted"
    OTHER_CATALOGUE = "other catalogue"


_ALLOWED = frozenset({Reason.RESERVED, Reason.ALREADY_RESERVED, Reason.NOTHING_TO_RESERVE})


class Shortfall(msgspec.Struct, frozen=True):
    """One dimension that has no room: `held` is what creations and changes in flight hold."""

    key: str
    asked: Fraction
    used: Fraction
    held: Fraction
    hard: Fraction

    @property
    def free(self) -> Fraction:
        return max(self.hard - self.used - self.held, NOTHING)


class Verdict(msgspec.Struct, frozen=True):
    """The answer to one request, and where it is no, in which dimensions."""

    reason: Reason
    shortfalls: tuple[Shortfall, ...] = ()

    @property
    def allowed(self) -> bool:
        return self.reason in _ALLOWED


class Decided(msgspec.Struct, frozen=True):
    """Verdicts in the order of the requests, true only once `row` has replaced the row they were decided on.

    Where nothing was reserved, `row` is that row itself, and there is nothing to write.
    """

    row: QuotaLedger
    verdicts: tuple[Verdict, ...]


def decide(row: QuotaLedger, requests: Sequence[ReservationRequest], *, limit: int = LIMIT) -> Decided:
    """Decide about `requests` in their order. `limit` is how many characters the entries may take."""
    batch = _Batch(row, limit)
    verdicts = tuple(batch.decide(request) for request in requests)
    if not batch.added:
        return Decided(row, verdicts)
    entries = row.entries.plus(batch.added.values())
    return Decided(msgspec.structs.replace(row, entries=entries), verdicts)


class _Batch:
    """The row while requests are added to it."""

    def __init__(self, row: QuotaLedger, limit: int) -> None:
        self._row = row
        self._held = row.entries.demand
        self._space = limit - row.entries.size
        self.added: dict[str, Reservation] = {}

    def decide(self, request: ReservationRequest) -> Verdict:
        refused = self._refused(request)
        if refused is None:
            self._add(request.entry)
            return Verdict(Reason.RESERVED)
        return refused

    def _refused(self, request: ReservationRequest) -> Verdict | None:
        """Return the answer where nothing is to be reserved, whether it is yes or no."""
        entry, used = request.entry, self._row.used
        if not entry.demand:
            return Verdict(Reason.NOTHING_TO_RESERVE)
        if entry.id in self._row.entries or entry.id in self.added:
            return Verdict(Reason.ALREADY_RESERVED)
        if used is None or self._row.uncounted:
            return Verdict(Reason.UNCOUNTED)
        if request.catalogue != self._row.class_catalogue:
            return Verdict(Reason.OTHER_CATALOGUE)
        shortfalls = tuple(self._shortfalls(entry, used))
        if shortfalls:
            return Verdict(Reason.EXCEEDED, shortfalls)
        return Verdict(Reason.FULL) if self._row.entries.cost(entry) > self._space else None

    def _add(self, entry: Reservation) -> None:
        self.added[entry.id] = entry
        self._space -= self._row.entries.cost(entry)
        for key, amount in entry.demand.items():
            self._held[key] = self._held.get(key, NOTHING) + amount

    def _shortfalls(self, entry: Reservation, used: Vector) -> list[Shortfall]:
        held, hard = self._held, self._row.hard
        return [
            Shortfall(key, asked, used[key], held.get(key, NOTHING), hard[key])
            for key, asked in sorted(entry.demand.items())
            if key in hard and used[key] + held.get(key, NOTHING) + asked > hard[key]
        ]

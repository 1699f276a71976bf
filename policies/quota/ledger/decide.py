"""Decisions about reservations: `used + reserved + requested ≤ hard`, on one ledger for all requests to it.

A request that does not fit is denied and reserves nothing. A later request may still fit. Only the dimensions of the request are
compared, as in the API server's own quota: a CPU pod passes an exceeded GPU quota.

While pods wait in line, nobody else reserves anything. While pods wait for the quota of a team, that holds in all its namespaces,
except for demand within a guarantee. Objects that never wait under our gate pass the line, unless they need what the first pod in
line lacks: then a mark keeps a place in line for them (`policies.quota.ledger.credits`).

The controller reserves the demand of the next pod in line, and then removes its gate. That removal is allowed only while the
reservation exists, so a removal that is late is denied.
"""

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from fractions import Fraction

import msgspec

from policies.finding import Finding
from policies.quota.amounts import ZERO, Amounts, maximum, positive_difference, total
from policies.quota.ledger.credits import mark_key, with_mark
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import LIMIT, NAME_PARTS, Reservation
from policies.quota.ledger.team import TeamState


class Line(Enum):
    """How a request relates to the line of pods that wait."""

    BEHIND = auto()
    """It is denied while pods wait."""
    JOINS = auto()
    """The creation of a pod under our gate."""
    LIFTS = auto()
    """The controller removes the gate of a stored pod."""
    NEVER_WAITS = auto()
    """The object never waits under our gate. It passes the line, unless it needs what the first pod in line lacks."""


class ReservationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to reserve demand in a ledger.

    catalogue_versions: each a `CatalogueVersion` as text, by which the demand was computed; each key has the
    largest amount among them. `denials` deny the request even if it fits. `because`: why it counts for a class.
    """

    reservation: Reservation
    catalogue_versions: frozenset[str]
    denials: tuple[Finding, ...] = ()
    because: str = ""
    line: Line = Line.BEHIND
    will_need: Amounts = {}
    """The demand of a new pod under our gate once it starts."""
    owner: str | None = ""
    """The controller that recreates an object that never waits. None: the object is admitted in any case."""
    is_served: bool = True
    """Whether a controller runs that starts the pods in line. If not, only pods of its own namespace are before it."""
    may_exceed: bool = False
    """Whether the controller may hold more than the GPUQuota grants, for pods that Kueue has admitted (`kueue: respect`)."""

    @property
    def demand(self) -> Amounts:
        return self.reservation.demand

    def __post_init__(self) -> None:
        """Raise ValueError for a reservation that could not be read again, so that it never is in a shared ledger."""
        if self.demand and not self.denials:
            self.reservation.check()


class VerdictReason(Enum):
    """Why a request is allowed or denied."""

    RESERVED = "reserved"
    ALREADY_RESERVED = "already reserved"
    NOTHING_TO_RESERVE = "nothing to reserve"
    UNCOUNTABLE = "uncountable"
    """Its demand cannot be counted: `denials` says why."""
    EXCEEDED = "exceeded"
    BUDGET_SPENT = "budget spent"
    """The budget of a key of its demand is spent in this period, so waiting for free quota does not help."""
    FULL = "full"
    OTHERS_WAIT = "others wait"
    NOT_STORED = "not stored"
    """Creations admitted in its namespace were never stored, so it may reserve less of its team (`is_bound`)."""
    QUEUE_FULL = "queue full"
    NOT_HELD = "not held"
    """The controller removes a gate, and less is held for the pod than it needs."""
    UNCOUNTED = "uncounted"
    OTHER_CATALOGUE = "other catalogue"
    UNREADABLE = "unreadable"


_ALLOWED = frozenset(
    {VerdictReason.RESERVED, VerdictReason.ALREADY_RESERVED, VerdictReason.NOTHING_TO_RESERVE}
)


class Shortfall(msgspec.Struct, frozen=True):
    """One exceeded dimension. `reserved` is the demand of creations and updates in flight.

    `team` is the exceeded ClusterGPUQuota, "" if the GPUQuota is exceeded. For a team, `used` includes what its other namespaces
    hold or are guaranteed, and `guaranteed_to_others` is the part of `hard` that this namespace can never have.
    """

    key: str
    requested: Fraction
    used: Fraction
    reserved: Fraction
    hard: Fraction
    team: str = ""
    guaranteed_to_others: Fraction = ZERO

    @property
    def maximum_hard(self) -> Fraction:
        """The maximum that the namespace can have."""
        return self.hard - self.guaranteed_to_others

    @property
    def can_never_fit(self) -> bool:
        return self.requested > self.maximum_hard


class ReservationVerdict(msgspec.Struct, frozen=True):
    """The answer to one request, and the exceeded dimensions of a denial.

    `reserved` is the demand of creations and updates in flight, with this one.
    """

    reason: VerdictReason
    shortfalls: tuple[Shortfall, ...] = ()
    reserved: Amounts = {}

    @property
    def allowed(self) -> bool:
        return self.reason in _ALLOWED

    @property
    def is_spent(self) -> bool:
        """Whether a budget of GPU-hours denies it."""
        return self.reason is VerdictReason.BUDGET_SPENT

    @property
    def must_wait(self) -> bool:
        """Whether the request fits the quota, but not now, or not before others."""
        return self._can_fit(self.shortfalls)

    @property
    def may_wait_for_kueue(self) -> bool:
        """Whether it must wait, or exceeds only the GPUQuota: what Kueue admits may do so (`kueue: respect`)."""
        return self._can_fit([shortfall for shortfall in self.shortfalls if shortfall.team])

    def _can_fit(self, shortfalls: Iterable[Shortfall]) -> bool:
        can_fit = self.reason is VerdictReason.EXCEEDED and not any(each.can_never_fit for each in shortfalls)
        return can_fit or self.reason in {VerdictReason.OTHERS_WAIT, VerdictReason.NOT_STORED}


class Decided(msgspec.Struct, frozen=True):
    """Verdicts in the order of the requests. They hold only once `ledger` has replaced the old ledger.

    If nothing was reserved or marked, `ledger` is the old one, and there is nothing to write.
    """

    ledger: QuotaLedger
    verdicts: tuple[ReservationVerdict, ...]


def decide(
    ledger: QuotaLedger, requests: Sequence[ReservationRequest], *, limit: int = LIMIT, now: int = 0
) -> Decided:
    """Decide about `requests` in order. `limit` is the maximum of characters of the reservations.

    `now` is in ms since 1970: after the end of its period, a spent budget denies nothing. Without it, no period has ended.
    """
    batch = _Batch(ledger, limit, now)
    verdicts = tuple(batch.decide(request) for request in requests)
    if not batch.added and batch.marks == ledger.marks:
        return Decided(ledger, verdicts)
    reservations = ledger.reservations.without(batch.lifted).plus(batch.added.values())
    return Decided(msgspec.structs.replace(ledger, reservations=reservations, marks=batch.marks), verdicts)


class _Batch:
    """The ledger while requests are added to it."""

    def __init__(self, ledger: QuotaLedger, limit: int, now: int) -> None:
        self._ledger, self._now = ledger, now
        self._spent = ledger.spent_keys(now)
        self._reserved = ledger.reserved
        self._space, self._space_of_name = limit - ledger.size, limit // NAME_PARTS
        self._largest: dict[str, Amounts] = {}  # by name, for names with added reservations
        self._joining = ledger.joining
        self.added: dict[str, Reservation] = {}
        self.lifted: set[str] = set()
        """Ids of reservations that were held for pods whose gates are removed, and for marks."""
        self.marks = ledger.marks

    def decide(self, request: ReservationRequest) -> ReservationVerdict:
        # If there is a next catalogue version, the demand includes it.
        version = self._ledger.next_catalogue or ""
        reservation = msgspec.structs.replace(request.reservation, catalogue=version)
        shortfalls: tuple[Shortfall, ...] = ()
        reason = self._early_reason(request)
        if reason is None:
            if request.line is Line.LIFTS:
                reason, shortfalls = self._lift(reservation, may_exceed=request.may_exceed)
            elif self._spent and not self._spent.isdisjoint((*request.demand, *request.will_need)):
                reason = VerdictReason.BUDGET_SPENT
            elif request.line is Line.NEVER_WAITS:
                reason, shortfalls = self._reserve_without_gate(reservation, request)
            else:
                others_go_first = request.line is Line.BEHIND and self._others_go_first(reservation, request)
                reason, shortfalls = self._reserve(reservation, request.line, others_go_first=others_go_first)
        return ReservationVerdict(reason, shortfalls, self._reserved)

    def _early_reason(self, request: ReservationRequest) -> VerdictReason | None:
        """Return the reason that does not depend on what is free; None if that decides."""
        ledger, reservations = self._ledger, self._ledger.reservations
        reservation = request.reservation
        is_counted = ledger.catalogue_versions <= request.catalogue_versions
        if request.denials:
            return VerdictReason.UNCOUNTABLE
        if is_counted and not reservation.demand and request.line is not Line.JOINS:
            return VerdictReason.NOTHING_TO_RESERVE
        if reservation.id in reservations or reservation.id in self.added:
            return VerdictReason.ALREADY_RESERVED
        if reservations.unreadable:
            return VerdictReason.UNREADABLE
        if ledger.used is None or ledger.uncounted:
            return VerdictReason.UNCOUNTED
        return None if is_counted and ledger.class_catalogue is not None else VerdictReason.OTHER_CATALOGUE

    def _reserve_without_gate(
        self, reservation: Reservation, request: ReservationRequest
    ) -> tuple[VerdictReason, tuple[Shortfall, ...]]:
        """Reserve from what is held for the mark, or from what is free. If the object must wait for others, mark it."""
        needed = {key: amount for key, amount in reservation.demand.items() if key in self._ledger.limited}
        key, reserved = mark_key(request.owner or "", needed), self._reserved
        lifts = self._ledger.reservations.lifts
        held = {lifts[key].id} - self.lifted if key in lifts else set[str]()
        if held:
            self._reserved = positive_difference(reserved, lifts[key].demand)
        others_go_first = not held and self._others_go_first(reservation, request)
        reason, shortfalls = self._reserve(reservation, Line.NEVER_WAITS, others_go_first=others_go_first)
        if reason is VerdictReason.RESERVED:
            self.lifted |= held
            self.marks = {marked: mark for marked, mark in self.marks.items() if marked != key}
            return reason, shortfalls
        self._reserved = reserved
        is_late = request.owner is not None and (others_go_first or key in self.marks)
        if is_late and not any(shortfall.can_never_fit for shortfall in shortfalls):
            self.marks = with_mark(self.marks, key, needed, self._now, self._space)
        return reason, shortfalls

    def _reserve(
        self, reservation: Reservation, line: Line, *, others_go_first: bool
    ) -> tuple[VerdictReason, tuple[Shortfall, ...]]:
        name = reservation.name or reservation.id
        joins = line is Line.JOINS and name not in self._joining and name not in self._ledger.stored_names
        if joins and self._waiting + len(self._ledger.marks) >= self._ledger.max_waiting:
            return VerdictReason.QUEUE_FULL, ()
        if shortfalls := self._shortfalls(reservation, self._growth(reservation)):
            return VerdictReason.EXCEEDED, shortfalls
        if (reason := self._why_not_free(reservation, others_go_first=others_go_first)) is not None:
            return reason, ()
        if self._ledger.reservations.added_size(reservation) > self._space or self._is_full_of(reservation):
            return VerdictReason.FULL, ()
        self._add(reservation)
        self._joining.update([name] if joins else [])
        return VerdictReason.RESERVED, ()

    @property
    def _waiting(self) -> int:
        """The pods that wait, with those that are being created."""
        return self._ledger.waiting + len(self._joining)

    def _why_not_free(self, reservation: Reservation, *, others_go_first: bool) -> VerdictReason | None:
        """Return why it may not use free quota."""
        if self._has_uncounted(reservation):
            return VerdictReason.UNCOUNTED
        if others_go_first:
            return VerdictReason.OTHERS_WAIT
        return VerdictReason.NOT_STORED if self._leaves_too_little(reservation) else None

    def _lift(
        self, reservation: Reservation, *, may_exceed: bool
    ) -> tuple[VerdictReason, tuple[Shortfall, ...]]:
        """Take over what is held for the pod, if that is enough, and `hard` was not lowered meanwhile.

        The controller may have stopped during an earlier removal of the gate. A removal on the same resourceVersion may replace
        it, because at most one of the two is stored.
        """
        held = self._ledger.reservations.lifts.get(reservation.object_uid)
        if held is None or held.id in self.lifted:
            return VerdictReason.NOT_HELD, ()
        if held.is_begun_lift and not 0 < held.version == reservation.version:
            return VerdictReason.NOT_HELD, ()
        if positive_difference(reservation.demand, held.demand):
            return VerdictReason.NOT_HELD, ()
        taken_over = msgspec.structs.replace(reservation, demand=held.demand)
        if self._has_uncounted(taken_over):
            return VerdictReason.UNCOUNTED, ()
        shortfalls = self._shortfalls(taken_over, {})
        if may_exceed:
            shortfalls = tuple(shortfall for shortfall in shortfalls if shortfall.team)
        if shortfalls:
            return VerdictReason.EXCEEDED, shortfalls
        self.lifted.add(held.id)
        self.added[reservation.id] = taken_over
        return VerdictReason.RESERVED, ()

    def _others_go_first(self, reservation: Reservation, request: ReservationRequest) -> bool:
        """Whether others go first: in its namespace, or in its team for demand beyond the guarantee of the namespace."""
        own, demand, is_served = self._ledger, reservation.demand, request.is_served
        state = own.team_state if is_served else None
        if request.line is Line.NEVER_WAITS:
            is_behind = not demand.keys().isdisjoint(own.scarce if is_served or self._waiting else ())
            passes = state is not None and not state.scarce.isdisjoint(demand)
        else:
            is_behind = self._waiting + len(own.marks) * is_served > 0
            passes = state is not None and state.waiting > 0
        return is_behind or (passes and state is not None and not self._is_guaranteed(reservation, state))

    def _is_guaranteed(self, reservation: Reservation, state: TeamState) -> bool:
        held = total((self._ledger.used or {}, self._reserved, self._growth(reservation)))
        return state.is_guaranteed(held, reservation.demand)

    def _leaves_too_little(self, reservation: Reservation) -> bool:
        """Whether a namespace whose creations are not stored would reserve more of its team than it leaves free."""
        state = self._ledger.team_state
        if state is None or not self._ledger.is_bound(self._now) or self._is_guaranteed(reservation, state):
            return False
        reserved = total((self._reserved, self._growth(reservation)))
        own = self._ledger.reservations  # what the controller reserved is not in flight
        not_in_flight = total(reservation.demand for reservation in (*own.lifts.values(), *own.keeps))
        in_flight, held = (
            positive_difference(reserved, not_in_flight),
            total((self._ledger.used or {}, reserved)),
        )
        limited = reservation.demand.keys() & state.team.hard
        return any(in_flight.get(key, ZERO) > state.free(key, held[key]) for key in limited)

    def _has_uncounted(self, reservation: Reservation) -> bool:
        """Whether the ledger of another namespace of the team lacks one of its dimensions."""
        state = self._ledger.team_state
        return state is not None and not state.uncounted.isdisjoint(reservation.demand)

    def _is_full_of(self, reservation: Reservation) -> bool:
        """Whether the creations of its name would exceed their part of the space."""
        name = reservation.name
        if not self._held(name):
            return False  # the first one
        added = (reservation for reservation in self.added.values() if reservation.name == name)
        of_name = self._ledger.reservations.plus([*added, reservation])
        return of_name.size_of(name) > self._space_of_name

    def _held(self, name: str) -> Amounts:
        return self._largest.get(name, self._ledger.reservations.largest(name)) if name else {}

    def _growth(self, reservation: Reservation) -> Amounts:
        """Return what the reservation adds to the reserved amounts, by the rule of `Reservations.held`."""
        stored = self._ledger.stored_names.get(reservation.name, {})
        return positive_difference(reservation.demand, maximum((self._held(reservation.name), stored)))

    def _add(self, reservation: Reservation) -> None:
        self._reserved = total((self._reserved, self._growth(reservation)))
        self._largest[reservation.name] = maximum((self._held(reservation.name), reservation.demand))
        self._space -= self._ledger.reservations.added_size(reservation)
        self.added[reservation.id] = reservation

    def _shortfalls(self, reservation: Reservation, growth: Amounts) -> tuple[Shortfall, ...]:
        """Return the dimensions that are exceeded when the reservation adds `growth` to what is reserved."""
        used, hard, state = self._ledger.used or {}, self._ledger.hard, self._ledger.team_state
        own, of_team = [], []
        for key, requested in sorted(reservation.demand.items()):
            reserved = self._reserved.get(key, ZERO)
            if key in hard and used[key] + reserved + growth.get(key, ZERO) > hard[key]:
                own.append(Shortfall(key, requested, used[key], reserved, hard[key]))
            if state is None or key not in state.team.hard:
                continue
            if state.free(key, used[key] + reserved + growth.get(key, ZERO)) < 0:
                of_team.append(
                    Shortfall(
                        key,
                        requested,
                        used[key] + state.taken_by_others[key],
                        reserved,
                        state.team.hard[key],
                        team=state.team.name,
                        guaranteed_to_others=state.guaranteed_to_others[key],
                    )
                )
        return (*own, *of_team)

"""Reconcile a ledger with what is stored: `used` from a list, without the reservations that the list settles, in one swap.

A reservation goes when the list shows what became of it, or when it was seen for so long that its object can no longer be
stored. Every count is fenced: it replaces only a count from lists that are not newer.
"""

from collections.abc import Iterable, Mapping
from enum import Enum

import msgspec

from policies.quota.amounts import NOTHING, Vector, total
from policies.quota.ledger.quota_ledger import Holder, QuotaLedger, Revisions
from policies.quota.ledger.reservations import Reservation


class StoredObject(msgspec.Struct, frozen=True):
    """An object that a list shows, and what it costs where it stands now; terminal ones cost nothing any more.

    `version` is its resourceVersion.
    """

    demand: Vector
    terminal: bool = False
    version: int = 0


class Listing(msgspec.Struct, frozen=True):
    """What consistent lists showed of one namespace, and what was known when they began.

    `quota_uid` and `generation` are of the quota object as read before any of the lists began; `catalogue` is by
    what everything was counted (`catalogue.Basis`).
    """

    objects: Mapping[str, StoredObject]
    revisions: Revisions
    quota_uid: str
    generation: int
    catalogue: str
    holders: Mapping[str, tuple[Holder, ...]] = {}
    used: Vector = {}
    """Counted here once, ahead of the swap: ten thousand pods take longer than the ledger stands still."""

    def __post_init__(self) -> None:
        used = total(stored.demand for stored in self.objects.values() if not stored.terminal)
        msgspec.structs.force_setattr(self, "used", used)


class Refused(Enum):
    """Why a listing must not be counted."""

    OLDER = "one of the lists is older than one that was counted already"
    UNCOUNTED = "the quota, or a dimension of it, was never counted: it must be initialised"
    UNMARKED = "unmarked"
    OTHER_CATALOGUE = "the ledger was counted by another class catalogue or unpinned: it must be initialised"
    TOO_EARLY = "replicas may still believe that there is no quota"
    BEGUN_BEFORE = "the lists were begun before this quota, as it is now, was read"


class Reconciled(msgspec.Struct, frozen=True):
    """The ledger to swap in, and which reservations it lacks: those found stored, and those that expired."""

    ledger: QuotaLedger
    confirmed: tuple[str, ...]
    expired: tuple[str, ...]


def begin_transition(ledger: QuotaLedger, basis: str) -> QuotaLedger:
    if ledger.class_catalogue is None:
        return ledger
    return msgspec.structs.replace(ledger, next_catalogue=None if basis == ledger.class_catalogue else basis)


def basis_to_count_by(ledger: QuotaLedger) -> str | None:
    following = ledger.next_catalogue
    if following is not None and _are_charged_by(following, ledger.reservations):
        return following
    return ledger.class_catalogue


def _are_charged_by(basis: str, reservations: Iterable[Reservation]) -> bool:
    return all(each.catalogue == basis for each in reservations)


def reconcile(ledger: QuotaLedger, listing: Listing, expired: frozenset[str]) -> Reconciled | Refused:
    """Count a ledger that was initialised.

    `expired` are the ids that this very process had seen in the ledger for longer than the bound, by a clock that only runs
    forward, when the first of the lists began.
    """
    if ledger.used is None or ledger.uncounted:
        return Refused.UNCOUNTED
    if listing.catalogue not in ledger.bases:
        return Refused.OTHER_CATALOGUE
    counted = _count(ledger, listing, expired)
    if isinstance(counted, Reconciled) and counted.ledger.class_catalogue is None:
        return Refused.UNMARKED
    return counted


def initialise(
    ledger: QuotaLedger, listing: Listing, expired: frozenset[str], *, waited: bool
) -> Reconciled | Refused:
    """Count a ledger for the first time, or again because `hard` gained a dimension, or what it is counted by changed.

    `waited`: whether this process has known this quota object for NO_QUOTA_SECONDS.
    """
    if not waited:
        return Refused.TOO_EARLY
    if (listing.quota_uid, listing.generation) != (ledger.quota_uid, ledger.generation):
        return Refused.BEGUN_BEFORE
    return _count(ledger, listing, expired)


def _count(ledger: QuotaLedger, listing: Listing, expired: frozenset[str]) -> Reconciled | Refused:
    if not listing.revisions.reaches(ledger.revisions):
        return Refused.OLDER
    confirmed = tuple(each.id for each in ledger.reservations if _is_shown(each, listing.objects))
    dropped = _given_up(ledger.reservations, expired.difference(confirmed))
    reservations = ledger.reservations.without((*confirmed, *dropped))
    # What is in flight may cost more by this catalogue than was reserved by another: nothing is admitted before it is gone.
    is_flip = listing.catalogue != ledger.class_catalogue
    charged_alike = not is_flip or _are_charged_by(listing.catalogue, reservations)
    counted = msgspec.structs.replace(
        ledger,
        used={**dict.fromkeys(ledger.hard, NOTHING), **listing.used},
        reservations=reservations,
        revisions=listing.revisions,
        class_catalogue=listing.catalogue if charged_alike else None,
        next_catalogue=None if is_flip else ledger.next_catalogue,
        observed_generation=ledger.generation,
        holders=listing.holders,
    )
    return Reconciled(counted, confirmed, dropped)


def _given_up(reservations: Iterable[Reservation], expired: frozenset[str]) -> tuple[str, ...]:
    return tuple(each.id for each in reservations if each.id in expired)


def _is_shown(reservation: Reservation, objects: Mapping[str, StoredObject]) -> bool:
    """Whether `used` holds by now what the reservation was for, or it cannot be stored any more.

    A change is stored only on the very version that was reviewed: the API server reviews every attempt again, under another
    request uid. So in an object of a later version it either is, or never will be.
    """
    stored = objects.get(reservation.object_uid)
    if stored is None:
        return False
    if stored.terminal or not reservation.is_change:
        return True
    return 0 < reservation.version < stored.version

"""Reconcile a ledger with what is stored: `used` from a list, without the reservations that the list settles, in one swap.

A reservation goes when the list shows what became of it, or when it was seen for so long that its object can no longer be
stored; a line that cannot be read goes only like that. Every count is fenced: it replaces only a count from lists that are not
newer.

A ledger moves to another catalogue version without a pause: `begin_transition` names the next one, and `reconcile` goes on
counting by the old one, until every reservation bears the mark of the next; a count by that one then is the flip.
"""

from collections.abc import Mapping
from enum import Enum
from operator import attrgetter

import msgspec

from policies.quota.amounts import NOTHING, Vector
from policies.quota.ledger.quota_ledger import Holder, QuotaLedger, Revisions
from policies.quota.ledger.reservations import UNREADABLE, Reservation, Reservations

STORED_NAMES_LIMIT = 64 * 1024
"""Characters of `stored_names`: some 600 names of 63 with three dimensions."""


class StoredObject(msgspec.Struct, frozen=True):
    """An object that a list shows, and what it costs where it stands now; terminal ones cost nothing any more.

    `version` is its resourceVersion, `name` its name with its kind: `pods/train-0`.
    """

    demand: Vector
    terminal: bool = False
    version: int = 0
    name: str = ""


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """What consistent lists showed of one namespace.

    `used` is the sum of all that they showed. `objects` are those of it that the reservations of a ledger wait for: one that is
    missing here leaves its reservation, or holds its name's whole amount, until a later count.

    `catalogue` is by what everything was counted (`catalogue.CatalogueVersion`).
    """

    used: Vector
    objects: Mapping[str, StoredObject]
    revisions: Revisions
    catalogue: str
    holders: Mapping[str, tuple[Holder, ...]] = {}


class Refused(Enum):
    """Why a listing must not be counted."""

    OLDER = "one of the lists is older than one that was counted already"
    UNCOUNTED = "the quota, or a dimension of it, was never counted: it must be initialised"
    OTHER_CATALOGUE = "the ledger is counted by another catalogue version, and is not moving to this one"
    UNMARKED = "the ledger is moving to this catalogue version, but reservations are left that were not charged under it"
    TOO_EARLY = "replicas may still believe that there is no quota"


class Reconciled(msgspec.Struct, frozen=True):
    """The ledger to swap in, and which reservations it lacks: those found stored, and those that expired.

    `unreadable` are the lines that it lacks because they could not be read and have expired.
    """

    ledger: QuotaLedger
    confirmed: tuple[str, ...]
    expired: tuple[str, ...]
    unreadable: tuple[str, ...] = ()


def begin_transition(ledger: QuotaLedger, catalogue_version: str) -> QuotaLedger:
    """Return the ledger on its way to `catalogue_version`, or on no way if that is its own.

    A controller may swap it in at any moment, alone or counted by `reconcile` in the same swap, once every replica can charge
    under `catalogue_version`: the catalogue is published. It may name yet another one later: marks of an earlier
    one then count for nothing. A ledger without a catalogue version is returned as it is: it must be initialised.
    """
    if ledger.class_catalogue is None:
        return ledger
    return msgspec.structs.replace(
        ledger, next_catalogue=None if catalogue_version == ledger.class_catalogue else catalogue_version
    )


def catalogue_version_to_count_by(ledger: QuotaLedger) -> str | None:
    """Return the catalogue version by which `reconcile` counts this ledger: the next once it can flip, else its own.

    None: it has none, and must be initialised.
    """
    following = ledger.next_catalogue
    if following is not None and _are_charged_by(following, ledger.reservations):
        return following
    return ledger.class_catalogue


def reconcile(ledger: QuotaLedger, listing: Listing, expired: frozenset[str]) -> Reconciled | Refused:
    """Count a ledger that was initialised, by its own catalogue version; or by the next one, which thereby becomes its own.

    `expired` are those of `Reservations.ids` that this very process had seen in the ledger for longer than the bound, by a clock
    that only runs forward, when the first of the lists began.

    By the next catalogue version it answers UNMARKED while reservations would be left that do not bear its mark: what they were
    for may cost more than they hold. Count by the own basis until then (`catalogue_version_to_count_by`).
    """
    if ledger.used is None or ledger.uncounted:
        return Refused.UNCOUNTED
    if listing.catalogue not in ledger.catalogue_versions:
        return Refused.OTHER_CATALOGUE
    counted = _count(ledger, listing, expired)
    if isinstance(counted, Reconciled) and counted.ledger.class_catalogue is None:
        return Refused.UNMARKED
    return counted


def initialise(
    ledger: QuotaLedger, listing: Listing, expired: frozenset[str], *, waited: bool
) -> Reconciled | Refused:
    """Count a ledger for the first time, or again because `hard` gained a dimension.

    By a catalogue version that is not its own it is counted at once only where nothing is known any more by which to charge under
    its own; then it has none, and denies, while reservations are left that do not bear the mark of this one.

    `waited`: whether this process has known this ledger for NO_QUOTA_SECONDS. The lists must have begun after it first observed
    the ledger with its present spec.
    """
    if not waited:
        return Refused.TOO_EARLY
    return _count(ledger, listing, expired)


def _count(ledger: QuotaLedger, listing: Listing, expired: frozenset[str]) -> Reconciled | Refused:
    if not listing.revisions.reaches(ledger.revisions):
        return Refused.OLDER
    confirmed = tuple(each.id for each in ledger.reservations if _is_shown(each, listing.objects))
    dropped = _given_up(ledger.reservations, expired.difference(confirmed))
    reservations = ledger.reservations.without((*confirmed, *dropped))
    is_flip = listing.catalogue != ledger.class_catalogue
    is_charged = not is_flip or _are_charged_by(listing.catalogue, reservations)
    counted = msgspec.structs.replace(
        ledger,
        used={key: listing.used.get(key, NOTHING) for key in ledger.dimensions},
        stored_names=_stored_names(reservations, listing, ledger.dimensions),
        reservations=reservations,
        revisions=listing.revisions,
        class_catalogue=listing.catalogue if is_charged else None,
        next_catalogue=None if is_flip else ledger.next_catalogue,
        holders=listing.holders,
    )
    unreadable = tuple(line for line in ledger.reservations.unreadable if line not in reservations.unreadable)
    timed_out = tuple(each for each in dropped if not each.startswith(UNREADABLE))
    return Reconciled(counted, confirmed, timed_out, unreadable)


def _are_charged_by(catalogue_version: str, reservations: Reservations) -> bool:
    return not reservations.unreadable and all(each.catalogue == catalogue_version for each in reservations)


def _given_up(reservations: Reservations, expired: frozenset[str]) -> tuple[str, ...]:
    return tuple(each for each in reservations.ids if each in expired)


def _stored_names(
    reservations: Reservations, listing: Listing, dimensions: tuple[str, ...]
) -> dict[str, Vector]:
    """Return what `used` holds by the names of creations in flight. Of a name that finds no room, nothing is subtracted."""
    wanted = frozenset(each.name for each in reservations if each.name)
    objects = (each for each in listing.objects.values() if each.name in wanted and not each.terminal)
    found, space = {}, STORED_NAMES_LIMIT
    for stored in sorted(objects, key=attrgetter("name")):
        demand = {key: amount for key, amount in stored.demand.items() if key in dimensions}
        space -= len(stored.name) + sum(len(key) + len(str(amount)) for key, amount in demand.items())
        if demand and space >= 0:
            found[stored.name] = demand
    return found


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

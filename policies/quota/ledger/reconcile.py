"""Reconciliation of a ledger with the stored objects: one swap sets `used` from a list and removes the reservations it settles.

A reservation goes when the list shows its object, or when it is so old that its object can no longer be stored. An unreadable
line goes only by age. Every count is fenced: it never replaces a count from newer lists.

A ledger moves to another catalogue version without a pause. `begin_transition` names the next version. `reconcile` counts by
the old version until every reservation has the mark of the next one. Then one count by the next version completes the move.
"""

from collections.abc import Mapping
from enum import Enum
from operator import attrgetter

import msgspec

from policies.quota.amounts import NOTHING, Vector
from policies.quota.ledger.quota_ledger import Holder, QuotaLedger, Revisions
from policies.quota.ledger.reservations import UNREADABLE, Reservation, Reservations

STORED_NAMES_LIMIT = 64 * 1024
"""Characters of `stored_names` at most: some 600 names of 63 characters with three dimensions."""


class StoredObject(msgspec.Struct, frozen=True):
    """An object in a list, and its present demand; a terminal one has none.

    `version` is its resourceVersion, `name` its kind and name: `pods/train-0`.
    """

    demand: Vector
    terminal: bool = False
    version: int = 0
    name: str = ""


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """A count of one namespace from consistent lists.

    `used` is the sum over all listed objects. `objects` has only the listed objects of the ledger's reservations. The
    reservation of a missing object stays until a later count.

    `catalogue` is the catalogue version of the count (`catalogue.CatalogueVersion`).
    """

    used: Vector
    objects: Mapping[str, StoredObject]
    revisions: Revisions
    catalogue: str
    holders: Mapping[str, tuple[Holder, ...]] = {}


class Refused(Enum):
    """Why a listing must not replace the count."""

    OLDER = "one of the lists is older than one that was counted already"
    UNCOUNTED = "the quota, or a dimension of it, was never counted: it must be initialised"
    OTHER_CATALOGUE = "the ledger is counted by another catalogue version, and is not moving to this one"
    UNMARKED = "the ledger is moving to this catalogue version, but reservations are left that were not counted under it"
    TOO_EARLY = "replicas may still believe that there is no quota"


class Reconciled(msgspec.Struct, frozen=True):
    """The new ledger, and the reservations that it dropped: those found stored, and those that expired.

    `unreadable` are the unreadable lines that it dropped because they expired.
    """

    ledger: QuotaLedger
    confirmed: tuple[str, ...]
    expired: tuple[str, ...]
    unreadable: tuple[str, ...] = ()


def begin_transition(ledger: QuotaLedger, catalogue_version: str) -> QuotaLedger:
    """Return the ledger with `catalogue_version` as its next catalogue version, or with none if that is its own.

    A controller may swap it in at any time, alone or with a count, once the catalogue is published, so every replica can
    compute demand under `catalogue_version`. It may later name yet another catalogue version; then marks of the earlier one
    have no effect. A ledger without a catalogue version is returned unchanged: it must be initialised.
    """
    if ledger.class_catalogue is None:
        return ledger
    return msgspec.structs.replace(
        ledger, next_catalogue=None if catalogue_version == ledger.class_catalogue else catalogue_version
    )


def catalogue_version_to_count_by(ledger: QuotaLedger) -> str | None:
    """Return the catalogue version of the next count: the ledger's next one once all reservations have its mark, else its own.

    None if the ledger has no catalogue version and must be initialised.
    """
    following = ledger.next_catalogue
    if following is not None and _are_counted_by(following, ledger.reservations):
        return following
    return ledger.class_catalogue


def reconcile(ledger: QuotaLedger, listing: Listing, expired: frozenset[str]) -> Reconciled | Refused:
    """Count an initialised ledger by its own catalogue version, or by the next one, which then becomes its own.

    `expired`: the ids that this process had seen in the ledger for longer than the bound when the first list began, by a
    monotonic clock.

    A count by the next catalogue version returns UNMARKED while reservations without its mark are left: their objects may have
    more demand than they reserve. Count by the own catalogue version until then (`catalogue_version_to_count_by`).
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

    A count by another catalogue version is for a ledger whose own catalogue is lost. The ledger then has no catalogue version,
    and denies, while reservations without the mark of the new catalogue version are left.

    `waited`: whether this process has known this ledger object for NO_QUOTA_SECONDS. The lists must have begun after it first
    observed the object with its present spec.
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
    is_other_version = listing.catalogue != ledger.class_catalogue
    is_counted = not is_other_version or _are_counted_by(listing.catalogue, reservations)
    counted = msgspec.structs.replace(
        ledger,
        used={key: listing.used.get(key, NOTHING) for key in ledger.dimensions},
        stored_names=_stored_names(reservations, listing, ledger.dimensions),
        reservations=reservations,
        revisions=listing.revisions,
        class_catalogue=listing.catalogue if is_counted else None,
        next_catalogue=None if is_other_version else ledger.next_catalogue,
        holders=listing.holders,
    )
    unreadable = tuple(line for line in ledger.reservations.unreadable if line not in reservations.unreadable)
    timed_out = tuple(each for each in dropped if not each.startswith(UNREADABLE))
    return Reconciled(counted, confirmed, timed_out, unreadable)


def _are_counted_by(catalogue_version: str, reservations: Reservations) -> bool:
    return not reservations.unreadable and all(each.catalogue == catalogue_version for each in reservations)


def _given_up(reservations: Reservations, expired: frozenset[str]) -> tuple[str, ...]:
    return tuple(each for each in reservations.ids if each in expired)


def _stored_names(
    reservations: Reservations, listing: Listing, dimensions: tuple[str, ...]
) -> dict[str, Vector]:
    """Return the part of `used` by names of creations in flight, as far as there is room. Omitting a name is safe."""
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
    """Whether `used` includes the object of the reservation, or the object can no longer be stored.

    An update is stored only on the version that was reviewed, because the API server reviews every attempt again under another
    request uid. So an object of a later version either includes the update, or never will.
    """
    stored = objects.get(reservation.object_uid)
    if stored is None:
        return False
    if stored.terminal or not reservation.is_change:
        return True
    return 0 < reservation.version < stored.version

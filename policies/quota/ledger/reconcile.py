"""Reconciliation of a ledger with the stored objects: one swap sets `used` from a list, and removes reservations.

A removed reservation is confirmed (the list shows its object) or expired (it is so old that its object can no longer be stored).
An unreadable line can only expire. Every count is fenced: it never replaces a count from newer lists.

A catalogue version identifies the catalogue (GPUClasses, resource names, DeviceClasses) by which demand is computed. A ledger
moves to another one without a pause. `begin_transition` names the next version. From then on, serve computes demand under both,
and marks the reservation with the next version (`Reservation.catalogue`). `reconcile` counts by the old version until every
reservation has that mark. Then one count by the next version completes the move.

A reservation for a waiting pod (`uid/lift`) is removed once the pod has no gate, has ended or is deleted. If the removal of the
gate was admitted but not stored, the reservation becomes `uid/lift` again, so a gang that has started in part keeps its quota.
"""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from operator import attrgetter

import msgspec

from policies.quota.amounts import ZERO, Amounts, positive_difference
from policies.quota.budget import Spending
from policies.quota.budget import must_be_written as is_spending_news
from policies.quota.ledger.quota_ledger import UNSTORED_MS, Holder, QuotaLedger, Revisions
from policies.quota.ledger.reservations import UNREADABLE, Reservation, Reservations, lift_id

STORED_NAMES_LIMIT = 64 * 1024
"""Maximum characters of `QuotaLedger.stored_names`: some 600 names of 63 characters with three dimensions."""

SPENDING_MS = 300_000
"""Maximum time between writes of what is spent of a budget. A write takes the API server some 2 ms."""


class StoredObject(msgspec.Struct, frozen=True):
    """An object in a list, and its present demand. A terminal object has no demand, nor has a pod that `waits`.

    `version` is its resourceVersion, `name` its kind and name: `pods/train-0`.
    """

    demand: Amounts
    terminal: bool = False
    waits: bool = False
    version: int = 0
    name: str = ""


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """A count of one namespace from consistent lists.

    `used` is the sum over all listed objects, `waiting` the number of pods that wait. `objects` has only the listed objects that
    have a reservation in the ledger, by uid. A reservation whose object is missing there stays until a later count.

    `catalogue` is the catalogue version of the count (`catalogue.CatalogueVersion`). `at` is the moment of the count in ms since
    1970. `spending` is the spending of the ledger, advanced to that moment.
    """

    used: Amounts
    waiting: int = 0
    objects: Mapping[str, StoredObject]
    revisions: Revisions
    catalogue: str
    holders: Mapping[str, tuple[Holder, ...]] = {}
    spending: Spending | None = None
    at: int = 0


class Refused(Enum):
    """Why a listing must not replace the count."""

    OLDER = "one of the lists is older than one that was counted already"
    UNCOUNTED = "the quota, or a dimension of it, was never counted: it must be initialised"
    OTHER_CATALOGUE = "the ledger is counted by another catalogue version, and is not moving to this one"
    UNMARKED = "the ledger is moving to this catalogue version, but reservations are left that were not counted under it"
    TOO_EARLY = "replicas may still believe that there is no quota"


class Reconciled(msgspec.Struct, frozen=True):
    """The new ledger, and the removed reservations: ids of confirmed and of expired ones, and expired unreadable lines."""

    ledger: QuotaLedger
    confirmed: tuple[str, ...]
    expired: tuple[str, ...]
    unreadable: tuple[str, ...] = ()


def begin_transition(ledger: QuotaLedger, catalogue_version: str) -> QuotaLedger:
    """Return the ledger with `catalogue_version` as its next catalogue version, or without one if it already has this version.

    A controller may write the result at any time, alone or with a count, once the catalogue is published: then every replica can
    compute demand under it. The controller may later name a different version; marks of the earlier one then have no effect. A
    ledger without a catalogue version is returned unchanged: it must be initialised.
    """
    if ledger.class_catalogue is None:
        return ledger
    return msgspec.structs.replace(
        ledger, next_catalogue=None if catalogue_version == ledger.class_catalogue else catalogue_version
    )


def catalogue_version_to_count_by(ledger: QuotaLedger) -> str | None:
    """Return the catalogue version of the next count: the next one once all reservations have its mark, else the ledger's own.

    None if the ledger has no catalogue version and must be initialised.
    """
    next_version = ledger.next_catalogue
    if next_version is not None and _are_marked(next_version, ledger.reservations):
        return next_version
    return ledger.class_catalogue


def reconcile(ledger: QuotaLedger, listing: Listing, expired: frozenset[str]) -> Reconciled | Refused:
    """Count an initialised ledger by its own catalogue version, or by the next one, which then becomes its own.

    `expired`: the ids that this process had observed in the ledger for EXPIRY_SECONDS when the first list began, by a monotonic
    clock.

    A count by the next catalogue version returns UNMARKED while reservations without its mark are left: under that version, their
    objects may have more demand than they reserve. Until then, count by the ledger's own catalogue version
    (`catalogue_version_to_count_by`).
    """
    if ledger.used is None or ledger.uncounted:
        return Refused.UNCOUNTED
    if listing.catalogue not in ledger.catalogue_versions:
        return Refused.OTHER_CATALOGUE
    counted = _counted(ledger, listing, expired)
    if isinstance(counted, Reconciled) and counted.ledger.class_catalogue is None:
        return Refused.UNMARKED
    return counted


def initialise(
    ledger: QuotaLedger, listing: Listing, expired: frozenset[str], *, waited: bool
) -> Reconciled | Refused:
    """Count a ledger for the first time, or again because `hard` gained a dimension.

    If the catalogue of the ledger is lost, it is counted by another catalogue version. The ledger then has no catalogue version,
    and denies, until all reservations without the mark of the new one are removed.

    `waited`: whether this process raised the epoch NO_QUOTA_SECONDS ago, after it first observed this ledger object. The lists
    must have begun after it first observed the ledger object with its present spec.
    """
    if not waited:
        return Refused.TOO_EARLY
    return _counted(ledger, listing, expired)


def _counted(ledger: QuotaLedger, listing: Listing, expired: frozenset[str]) -> Reconciled | Refused:
    if not listing.revisions.reaches(ledger.revisions):
        return Refused.OLDER
    confirmed = tuple(
        each.id
        for each in ledger.reservations
        if not each.is_keep and each.object_uid not in ledger.marks and _is_confirmed(each, listing.objects)
    )
    all_expired = _expired_ids(ledger.reservations, expired.difference(confirmed))
    reservations = ledger.reservations.without((*confirmed, *all_expired))
    reservations = reservations.plus(_failed_lifts(ledger, listing, {*confirmed, *all_expired}))
    is_other_version = listing.catalogue != ledger.class_catalogue
    has_version = not is_other_version or _are_marked(listing.catalogue, reservations)
    counted = msgspec.structs.replace(
        ledger,
        used={key: listing.used.get(key, ZERO) for key in ledger.dimensions},
        waiting=listing.waiting,
        waiting_for_team=0,  # until a turn says who waits for the team
        unstored=_unstored_times(ledger, listing, all_expired),
        scarce={},
        stored_names=_stored_names(reservations, listing, ledger.dimensions),
        reservations=reservations,
        revisions=listing.revisions,
        class_catalogue=listing.catalogue if has_version else None,
        next_catalogue=None if is_other_version else ledger.next_catalogue,
        holders=listing.holders,
        spending=listing.spending,
    )
    unreadable = tuple(line for line in ledger.reservations.unreadable if line not in reservations.unreadable)
    readable = tuple(reservation for reservation in all_expired if not reservation.startswith(UNREADABLE))
    return Reconciled(counted, confirmed, readable, unreadable)


def _are_marked(catalogue_version: str, reservations: Reservations) -> bool:
    """Whether the demand of every reservation was also computed under the catalogue version."""
    return not reservations.unreadable and all(each.catalogue == catalogue_version for each in reservations)


def _expired_ids(reservations: Reservations, expired: frozenset[str]) -> tuple[str, ...]:
    return tuple(reservation for reservation in reservations.expiring_ids if reservation in expired)


def _stored_names(
    reservations: Reservations, listing: Listing, dimensions: tuple[str, ...]
) -> dict[str, Amounts]:
    """Return the demand of each stored object with the name of a creation in flight, by name; it may be empty.

    A creation in flight is a reservation of a new object. Names beyond STORED_NAMES_LIMIT are omitted, which is safe.
    """
    wanted = frozenset(reservation.name for reservation in reservations if reservation.name)
    objects = (stored_object for stored_object in listing.objects.values() if stored_object.name in wanted)
    demand_by_name, space = {}, STORED_NAMES_LIMIT
    for stored in sorted(objects, key=attrgetter("name")):
        demand = {key: amount for key, amount in stored.demand.items() if key in dimensions}
        space -= len(stored.name) + sum(len(key) + len(str(amount)) for key, amount in demand.items())
        if space >= 0:
            demand_by_name[stored.name] = demand
    return demand_by_name


def _unstored_times(ledger: QuotaLedger, listing: Listing, expired: tuple[str, ...]) -> tuple[int, int]:
    """Return `unstored` of the ledger, updated if a reservation expired whose demand no stored object of its name has."""
    stored = {stored_object.name: stored_object.demand for stored_object in listing.objects.values()}
    gone = (each for each in ledger.reservations if each.id in expired and not each.is_begun_lift)
    if not any(positive_difference(each.demand, stored.get(each.name, {})) for each in gone):
        return ledger.unstored
    first, last = ledger.unstored
    return first if listing.at < last + UNSTORED_MS else listing.at, listing.at


def _failed_lifts(ledger: QuotaLedger, listing: Listing, removed: AbstractSet[str]) -> Iterator[Reservation]:
    """Yield new reservations for pods that still wait although the removal of their gate was admitted."""
    for reservation in ledger.reservations:
        stored = listing.objects.get(reservation.object_uid)
        if reservation.is_begun_lift and reservation.id in removed and stored is not None and stored.waits:
            yield Reservation(
                lift_id(reservation.object_uid), reservation.demand, catalogue=reservation.catalogue
            )


def _is_confirmed(reservation: Reservation, objects: Mapping[str, StoredObject]) -> bool:
    """Whether `used` includes the object of the reservation, or the object can no longer be stored.

    An update is stored only on the version that was reviewed, because the API server reviews every attempt again under another
    request uid. So an object of a later version either includes the update, or never will.
    """
    stored = objects.get(reservation.object_uid)
    if stored is None:
        # A lift is reserved only for a pod that was counted, so every later list has the pod until it is deleted.
        return reservation.is_lift
    if reservation.is_lift:
        return stored.terminal or not stored.waits
    if stored.terminal or not reservation.is_change:
        return True
    return 0 < reservation.version < stored.version


def must_be_written(before: QuotaLedger, after: QuotaLedger) -> bool:
    """Whether a count has to be written. Newer revisions alone need no write, because they only must not go back.

    Neither do credits alone: each is added with a new `used`, removed when quota is held for a replacement, and ignored once too
    old. Nor does the time of keepers, which is counted from the moment that is written; but fewer keepers leave space for
    others.
    """
    same = msgspec.structs.replace(
        after, revisions=before.revisions, team_state=before.team_state, credits=before.credits
    )
    if {keeper.uid for keeper in before.keepers} == {keeper.uid for keeper in after.keepers}:
        same = msgspec.structs.replace(same, keepers=before.keepers)
    if not _is_spending_news(before, after):
        same = msgspec.structs.replace(same, spending=before.spending)
    return same != before


def _is_spending_news(before: QuotaLedger, after: QuotaLedger) -> bool:
    if after.budget is None or after.spending is None:
        return after.spending != before.spending
    return is_spending_news(
        after.budget, before.spending, after.spending, every=SPENDING_MS, used=before.used or {}
    )

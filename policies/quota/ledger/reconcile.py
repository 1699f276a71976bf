"""What is counted: `used` from a list, and the entries that it makes superfluous, in one swap.

An entry goes when the list tells what became of it, or when it was seen for so long that what it was for can no longer be
stored. Every count is fenced: it replaces only a count from lists that are not newer.
"""

from collections.abc import Iterable, Mapping
from enum import Enum

import msgspec

from policies.quota.amounts import NOTHING, Vector, total
from policies.quota.ledger.quota_ledger import Holder, QuotaLedger, Revisions
from policies.quota.ledger.reservations import Reservation


class Stored(msgspec.Struct, frozen=True):
    """An object that a list shows, and what it costs where it stands now; terminal ones cost nothing any more.

    `version` is its resourceVersion.
    """

    demand: Vector
    terminal: bool = False
    version: int = 0


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """What consistent lists showed of one namespace, and what was known when they began.

    `quota_uid` and `generation` are of the quota object as read before any of the lists began; `catalogue` is by
    what everything was counted (`charge.counted_by`).
    """

    objects: Mapping[str, Stored]
    used: Vector
    revisions: Revisions
    quota_uid: str
    generation: int
    catalogue: str
    holders: Mapping[str, tuple[Holder, ...]] = {}

    @classmethod
    def of(
        cls,
        objects: Mapping[str, Stored],
        revisions: Revisions,
        *,
        quota_uid: str,
        generation: int,
        catalogue: str,
        holders: Mapping[str, tuple[Holder, ...]] | None = None,
    ) -> "Listing":
        """Count once, ahead of the swap: ten thousand pods take longer than the row stands still."""
        return cls(
            objects=objects,
            used=total(stored.demand for stored in objects.values() if not stored.terminal),
            revisions=revisions,
            quota_uid=quota_uid,
            generation=generation,
            catalogue=catalogue,
            holders=holders or {},
        )


class Refused(Enum):
    """Why a listing must not be counted."""

    OLDER = "one of the lists is older than one that was counted already"
    UNCOUNTED = "the quota, or a dimension of it, was never counted: it has to be initialised"
    OTHER_CATALOGUE = "the row was counted by another class catalogue or unpinned: it has to be initialised"
    TOO_EARLY = "replicas may still believe that there is no quota"
    BEGUN_BEFORE = "the lists were begun before this quota, as it is now, was read"


class Reconciled(msgspec.Struct, frozen=True):
    """The row to swap in, and which entries it lacks: those found stored, and those given up."""

    row: QuotaLedger
    confirmed: tuple[str, ...]
    expired: tuple[str, ...]


def reconcile(row: QuotaLedger, listing: Listing, matured: frozenset[str]) -> Reconciled | Refused:
    """Count a row that was initialised.

    `matured` are the ids that this very process had seen in the row for longer than the bound, by a clock that only runs
    forward, when the first of the lists began.
    """
    if row.used is None or row.uncounted:
        return Refused.UNCOUNTED
    if row.class_catalogue != listing.catalogue:
        return Refused.OTHER_CATALOGUE
    return _count(row, listing, matured)


def initialise(
    row: QuotaLedger, listing: Listing, matured: frozenset[str], *, waited: bool
) -> Reconciled | Refused:
    """Count a row for the first time, or again because `hard` gained a dimension, or what it is counted by changed.

    `waited` tells whether this process has known this quota object for NO_QUOTA_SECONDS.
    """
    if not waited:
        return Refused.TOO_EARLY
    if (listing.quota_uid, listing.generation) != (row.quota_uid, row.generation):
        return Refused.BEGUN_BEFORE
    return _count(row, listing, matured)


def _count(row: QuotaLedger, listing: Listing, matured: frozenset[str]) -> Reconciled | Refused:
    if not listing.revisions.reaches(row.revisions):
        return Refused.OLDER
    confirmed = tuple(entry.id for entry in row.entries if _is_shown(entry, listing.objects))
    expired = _given_up(row.entries, matured, confirmed)
    entries = row.entries.without((*confirmed, *expired))
    # What is in flight may cost more by this catalogue than was reserved for it by another: nobody comes in before it is gone.
    charged_alike = row.class_catalogue == listing.catalogue or not entries
    counted = msgspec.structs.replace(
        row,
        used={**dict.fromkeys(row.hard, NOTHING), **listing.used},
        entries=entries,
        revisions=listing.revisions,
        class_catalogue=listing.catalogue if charged_alike else None,
        observed_generation=row.generation,
        holders=listing.holders,
    )
    return Reconciled(counted, confirmed, expired)


def _given_up(
    entries: Iterable[Reservation], matured: frozenset[str], confirmed: tuple[str, ...]
) -> tuple[str, ...]:
    shown = frozenset(confirmed)
    return tuple(entry.id for entry in entries if entry.id in matured and entry.id not in shown)


def _is_shown(entry: Reservation, objects: Mapping[str, Stored]) -> bool:
    """Whether `used` holds by now what the entry was for, or it cannot be stored any more.

    A change is stored only on the very version that was reviewed: the API server reviews every attempt again, under another
    request uid. So in an object of a later version it either is, or never will be.
    """
    stored = objects.get(entry.object_uid)
    if stored is None:
        return False
    if stored.terminal or not entry.is_change:
        return True
    return 0 < entry.version < stored.version

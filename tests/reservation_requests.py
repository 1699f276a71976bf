"""Requests to reserve demand, by the uid of an object that is created or updated."""

from policies.quota.amounts import Amounts, positive_difference
from policies.quota.ledger.decide import ReservationRequest
from policies.quota.ledger.reservations import Reservation


def creation_request(
    uid: str, demand: Amounts, *catalogue_versions: str, name: str = ""
) -> ReservationRequest:
    reservation = Reservation(uid, demand, name=name)
    return ReservationRequest(reservation=reservation, catalogue_versions=frozenset(catalogue_versions))


def change_request(
    uid: str, request_uid: str, before: Amounts, after: Amounts, *catalogue_versions: str, version: int
) -> ReservationRequest:
    """Request the growth of an update. `version` is the resourceVersion of the old object in the review."""
    reservation = Reservation(f"{uid}/{request_uid}", positive_difference(after, before), version)
    return ReservationRequest(reservation=reservation, catalogue_versions=frozenset(catalogue_versions))

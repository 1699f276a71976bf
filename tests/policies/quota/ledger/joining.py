"""Reservations of pods that join a line, and the ledger which they join."""

from fractions import Fraction

from policies.quota.amounts import Amounts
from policies.quota.ledger.decide import Line, ReservationRequest
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import Reservation
from tests.builders import quota_ledger


def gpus(amount: int) -> Amounts:
    return {"gpus": Fraction(amount)} if amount else {}


def ledger(*reservations: Reservation, hard: int = 4, used: int = 0, **fields: object) -> QuotaLedger:
    counted = {"hard": gpus(hard), "used": {"gpus": Fraction(used)}, "class_catalogue": "now"}
    return quota_ledger(*reservations, **{**counted, **fields})


def request(reservation: Reservation, line: Line, *catalogue_versions: str) -> ReservationRequest:
    versions = frozenset(catalogue_versions or ("now",))
    return ReservationRequest(reservation=reservation, catalogue_versions=versions, line=line)


def joins(uid: str) -> ReservationRequest:
    return request(Reservation(uid, {}, name=f"pods/{uid}"), Line.JOINS)


def behind(uid: str, amount: int = 1) -> ReservationRequest:
    return request(Reservation(uid, gpus(amount), name=f"pods/{uid}"), Line.BEHIND)

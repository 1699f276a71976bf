"""Reservations of pods that are created."""

from fractions import Fraction

from policies.quota.amounts import Amounts
from policies.quota.ledger.decide import ReservationRequest
from tests.reservation_requests import creation_request

AmountsByName = dict[str, int | str]


def amounts(**by_name: int | str) -> Amounts:
    return {name if name == "gpus" else f"classes/{name}": Fraction(value) for name, value in by_name.items()}


def creation(uid: str, **demand: int | str) -> ReservationRequest:
    return creation_request(uid, amounts(**demand), "c")

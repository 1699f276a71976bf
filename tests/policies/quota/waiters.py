"""Pods that wait in line, and what is held for them."""

from fractions import Fraction

from policies.quota.amounts import Amounts
from policies.quota.ledger.reservations import Reservation, lift_id
from policies.quota.waiting import Waiter


def gpus(amount: int) -> Amounts:
    return {"gpus": Fraction(amount)} if amount else {}


def waiter(uid: str, demand: int = 1, since: str = "1", **fields: object) -> Waiter:
    return Waiter(uid=uid, demand=gpus(demand), since=since, **fields)  # type: ignore[arg-type]


def member(uid: str, demand: int = 1, since: str = "1", **fields: object) -> Waiter:
    return waiter(uid, demand, since, gang="gang", **fields)


def held(uid: str, demand: int = 1, **fields: object) -> Reservation:
    return Reservation(lift_id(uid), gpus(demand), **fields)  # type: ignore[arg-type]


def begun(uid: str, demand: int = 1) -> Reservation:
    return Reservation(lift_id(uid, "request"), gpus(demand), 7)

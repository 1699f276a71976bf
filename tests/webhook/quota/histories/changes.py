"""What changes of a stored object, repeated calls and names that come again keep to."""

from unittest.mock import patch

from policies.quota.amounts import ZERO, Amounts
from policies.quota.ledger import reconcile as settling
from policies.quota.ledger.reconcile import StoredObject
from policies.quota.ledger.reservations import Reservation, Reservations
from tests.webhook.quota.histories.setting import admitted, put, stored_pod, world
from tests.webhook.quota.world import Controller, World, vector

_LARGEST = Reservations.__dict__["_largest"]


def two_changes_of_one_pod(*, rule: bool) -> World:
    """Change entry keyed uid/request.uid."""
    around = world(gpus=9, a=1, b=1)
    uid = stored_pod(around, gpus=1)
    first, second = around.change(uid, gpus=1, a=1), around.change(uid, gpus=1, b=1)
    if not rule:
        first.id = second.id = f"{uid}/"
    around.admit(first)
    around.fail(first)
    around.admit(second)
    return around


def a_change_is_listed_before_it_is_stored(*, rule: bool) -> World:
    """Change entry stays while the pod is listed in the version that was reviewed."""
    around = world(gpus=9, a=1)
    around.admit(around.change(stored_pod(around, gpus=1), gpus=1, a=1))

    def listed(reservation: Reservation, objects: dict[str, StoredObject]) -> bool:
        return reservation.object_uid in objects

    with patch.object(settling, "_is_confirmed", settling._is_confirmed if rule else listed):
        around.reconcile(around.list(Controller()))
    return around


def a_change_is_taken_back_and_made_again(*, rule: bool) -> World:
    """Show a change by the pod's version, not by what the pod asks for: a list from before shows that, too."""
    around = world(gpus=9, a=2)
    uid = stored_pod(around, gpus=1, a=1)
    old = around.list(Controller())
    back = around.change(uid, gpus=1)
    around.admit(back)
    around.be_stored(back)
    forth = around.change(uid, gpus=1, a=1)

    def by_amount(reservation: Reservation, objects: dict[str, StoredObject]) -> bool:
        shown = objects[reservation.object_uid].demand
        return all(shown.get(key, ZERO) >= amount for key, amount in forth.after.items())

    with patch.object(settling, "_is_confirmed", settling._is_confirmed if rule else by_amount):
        around.admit(forth)
        around.reconcile(old)
        around.reconcile(around.list(Controller()))
    return around


def _change_comes_to_nothing(end: str, rule: bool) -> World:
    around = world(gpus=9, a=1)
    uid = stored_pod(around, gpus=1)
    change = around.change(uid, gpus=1, a=1)
    around.admit(change)
    around.fail(change)
    if end == "finished":
        around.finish(uid)
    if end == "deleted":
        around.delete(uid)

    def never(reservation: Reservation, objects: dict[str, StoredObject]) -> bool:
        return not reservation.is_change and reservation.object_uid in objects

    with (
        patch.object(settling, "_is_confirmed", settling._is_confirmed if rule else never),
        patch.object(settling, "_expired_ids", settling._expired_ids if rule else lambda *_: ()),
    ):
        around.come_to_rest()
    return around


def a_change_of_a_pod_that_finishes(*, rule: bool) -> World:
    """Change entry goes when the pod is terminal."""
    return _change_comes_to_nothing("finished", rule)


def a_change_of_a_pod_that_is_deleted(*, rule: bool) -> World:
    """Change entry goes when the pod is gone."""
    return _change_comes_to_nothing("deleted", rule)


def a_change_that_fails(*, rule: bool) -> World:
    """Change entry goes by expiry."""
    return _change_comes_to_nothing("failed", rule)


def a_change_frees_before_it_is_stored(*, rule: bool) -> World:
    """Positive differences only."""
    around = world(a=1, b=1)
    change = around.change(stored_pod(around, a=1), b=1)
    around.admit(change)
    if not rule:
        ledger = around.read().ledger
        put(around, used={**(ledger.used or {}), **vector(a=0)})
    around.fail(change)
    around.admit(around.request(a=1))
    return around


def a_call_is_repeated(*, rule: bool) -> World:
    """Answer a retried call alike, and charge it once."""
    around = world(gpus=2)
    flight = admitted(around, gpus=1)
    if rule:
        around.admit(flight)
    else:  # an id of its own for every call
        second = Reservation(f"{flight.id}-again", flight.growth)
        put(around, reservations=around.read().ledger.reservations.plus([second]))
    if around.read().ledger.reserved != around.committed():
        around.broken.append("charged twice")
    return around


def a_repeated_call_gives_back(*, rule: bool) -> World:
    """Serve never removes an entry."""
    around = world(gpus=1)
    flight = admitted(around, gpus=1)
    around.admit(flight)
    if not rule:
        put(around, reservations=around.read().ledger.reservations.without([flight.id]))
    around.check()
    return around


def two_creations_of_one_name(*, rule: bool) -> World:
    """Creations of one name hold the largest."""
    around = world(gpus=2)
    small, large = around.named("train", gpus=1), around.named("train", gpus=2)

    def first(reservations: Reservations) -> dict[str, Amounts]:
        return {each.name: each.demand for each in reversed(list(reservations))}

    with patch.object(Reservations, "_largest", _LARGEST if rule else property(first)):
        around.admit(small)
        if not around.admit(large):
            around.broken.append("of one name only one is stored")
        around.admit(around.request(gpus=1))
    return around


def what_is_stored_under_a_name_is_deleted(*, rule: bool) -> World:
    """Subtract what is stored under a name only as `used` has it."""
    around = world(gpus=2)
    first = around.named("train", gpus=1)
    around.admit(first)
    around.be_stored(first)
    around.reconcile(around.list(Controller()))
    second = around.named("train", gpus=1)
    around.admit(second)
    around.reconcile(around.list(Controller()))  # one is stored, and the other may take its place
    around.delete(first.uid)

    def once(*_: object) -> dict[str, Amounts]:
        return {"pods/train": vector(gpus=1)}

    with patch.object(settling, "_stored_names", settling._stored_names if rule else once):
        around.reconcile(around.list(Controller()))
    around.admit(around.request(gpus=2))
    around.be_stored(second)
    return around

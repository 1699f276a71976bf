"""The worlds in which histories take place."""

from typing import Any, Protocol

import msgspec

from policies.quota.ledger.reconcile import Reconciled
from tests.webhook.quota.quota_and_ledger_object import QuotaAndLedger
from tests.webhook.quota.world import Controller, Flight, PlainLedger, World, vector


class History(Protocol):
    """Plays it, with the rule or without, and returns the world at its end."""

    __name__: str

    def __call__(self, *, rule: bool) -> World | QuotaAndLedger: ...


def world(**hard: int) -> World:
    """Return a world with an initialised quota."""
    granted = vector(**hard)
    return World(PlainLedger(granted), granted).initialised()


def plain(world: World) -> PlainLedger:
    ledger = world.ledger
    assert isinstance(ledger, PlainLedger)
    return ledger


def put(world: World, **fields: Any) -> None:
    """Write these fields of the ledger past every rule."""
    plain(world).store.put(msgspec.structs.replace(world.read().ledger, **fields))


def admitted(world: World, **demand: int | str) -> Flight:
    """Ask for a pod of that demand, once."""
    flight = world.request(**demand)
    world.admit(flight)
    return flight


def stored_pod(world: World, **demand: int | str) -> str:
    """Admit and store a pod and settle it; return its uid."""
    flight = world.request(**demand)
    assert world.admit(flight)
    world.be_stored(flight)
    assert isinstance(world.reconcile(world.list(Controller())), Reconciled)
    return flight.uid

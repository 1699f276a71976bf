"""What spares keep to."""

from collections.abc import Iterator
from itertools import count
from typing import Any
from unittest.mock import patch

from policies.quota.charge_request import LedgerError
from policies.quota.ledger.quota_ledger import (
    CREATION_SECONDS,
    EXPIRY_SECONDS,
    NO_QUOTA_SECONDS,
    SPARE_SECONDS,
    QuotaLedger,
)
from policies.quota.ledger.spares import SettledSpares, has_spares, settled
from tests.webhook.quota.histories.setting import History, plain, row_of, world
from tests.webhook.quota.replica import Replica
from tests.webhook.quota.world import Controller, World, vector
from webhook.quota.spares import NamespaceSpares, WantedSpares, spare_ids
from webhook.quota.store import VersionedLedger


def spared(around: World) -> Replica:
    """Return a replica that has just reserved ahead."""
    replica = Replica(around)
    replica.take_spares()
    return replica


def a_spare_is_assigned_before_it_is_written(*, rule: bool) -> World:
    """Assign a spare once the swap that took it has succeeded."""
    around = world(gpus=1000)
    replica = Replica(around)
    swap, wanted = plain(around).store.compare_and_swap, NamespaceSpares.wanted

    def refused(namespace: str, before: VersionedLedger, ledger: QuotaLedger, seconds: float) -> Any:
        if has_spares(ledger):
            raise LedgerError("refused", transient=False)
        return swap(namespace, before, ledger, seconds)

    def at_once(self: NamespaceSpares, *arguments: Any) -> list[WantedSpares]:
        found = wanted(self, *arguments)
        self.ledger = row_of(around).ledger
        for each in found:
            self._demands[0].open(each.ids, around.now, around.now)
        return found

    with (
        patch.object(plain(around).store, "compare_and_swap", refused),
        patch.object(NamespaceSpares, "wanted", wanted if rule else at_once),
    ):
        while replica.admit(around.request(gpus=1)):
            assert not around.broken
        replica.admit(around.request(gpus=1))
    return around


def a_spare_is_assigned_late(*, rule: bool) -> World:
    """Assign a spare for SPARE_SECONDS after its swap began."""
    around = world(gpus=1000)
    with patch("webhook.quota.spares.SPARE_SECONDS", SPARE_SECONDS if rule else EXPIRY_SECONDS * 2):
        replica, controller = spared(around), Controller()
        around.observe(controller)
        around.now += EXPIRY_SECONDS + 1
        around.reconcile(around.list(controller))
        replica.admit(around.request(gpus=1))
    return around


def a_spare_is_assigned_while_it_is_removed(*, rule: bool) -> World:
    """Assign nothing that a write removes from before it begins."""
    around = world(gpus=1000)
    replica = spared(around)
    swap, drop, late = plain(around).store.compare_and_swap, NamespaceSpares._drop, around.request(gpus=1)

    def removed(*arguments: Any) -> VersionedLedger:
        replica.admit(late, seconds=0.05)
        return swap(*arguments)

    def not_yet(self: NamespaceSpares, demand: Any) -> None:
        self._unassigned.update(demand.spares)

    with (
        patch.object(plain(around).store, "compare_and_swap", removed),
        patch.object(NamespaceSpares, "_drop", drop if rule else not_yet),
    ):
        replica.settle(last=True)
    around.check()
    return around


def a_spare_goes_alone(*, rule: bool) -> World:
    """Remove an assigned spare in the swap that adds the reservation of its pod."""
    around = world(gpus=1000)
    replica = spared(around)
    assert replica.admit_by_spares()

    def alone(ledger: QuotaLedger, settling: SettledSpares) -> QuotaLedger:
        return settled(ledger, SettledSpares({}, settling.unassigned.union(settling.assigned)))

    with patch("webhook.quota.batcher.settled", settled if rule else alone):
        replica.settle(last=True)
    around.check()
    return around


def two_replicas_have_the_same_spares(*, rule: bool) -> World:
    """Give every process spares of its own: one that was forked again must not go on with those of the one before."""
    around = world(gpus=1000)

    def of_one_name() -> Iterator[str]:
        return (f"+name-{number}" for number in count(1))

    with patch("webhook.quota.spares.spare_ids", spare_ids if rule else of_one_name):
        first, second = spared(around), spared(around)
    assert first.admit_by_spares()
    assert second.admit_by_spares()
    return around


def a_spare_expires_like_a_creation(*, rule: bool) -> World:
    """Keep a spare for as long as what it may have been assigned to may be stored."""
    around = world(gpus=1000)
    replica, controller = spared(around), Controller()
    around.observe(controller)
    around.now += 0.9 * SPARE_SECONDS
    admitted = replica.admit_by_spares()  # and it crashes
    around.now += CREATION_SECONDS - SPARE_SECONDS / 2
    with patch("tests.webhook.quota.world.EXPIRY_SECONDS", EXPIRY_SECONDS if rule else CREATION_SECONDS):
        around.reconcile(around.list(controller))
    for flight in admitted:
        around.be_stored(flight)
    return around


def a_spare_of_another_demand(*, rule: bool) -> World:
    """Assign a spare to what costs the same."""
    around = world(gpus=1000)
    replica = spared(around)

    def any_of_them(self: NamespaceSpares, *_: object) -> Any:
        return self._demands[0]

    with patch.object(NamespaceSpares, "_demand_of", NamespaceSpares._demand_of if rule else any_of_them):
        for _ in range(replica.spares):
            replica.admit(around.request(gpus=2))
    return around


def a_spare_of_the_quota_before(*, rule: bool) -> World:
    """Assign a spare for D at most: then a quota that has replaced its own is in force."""
    around = world(gpus=1000)
    with patch("webhook.quota.spares.SPARE_SECONDS", SPARE_SECONDS if rule else NO_QUOTA_SECONDS + 1):
        replica = spared(around)
        around.replace(vector(gpus=1000))
        around.initialised()
        replica.admit(around.request(gpus=1))
    return around


HISTORIES: tuple[History, ...] = (
    a_spare_is_assigned_before_it_is_written,
    a_spare_is_assigned_late,
    a_spare_is_assigned_while_it_is_removed,
    a_spare_goes_alone,
    two_replicas_have_the_same_spares,
    a_spare_expires_like_a_creation,
    a_spare_of_another_demand,
    a_spare_of_the_quota_before,
)

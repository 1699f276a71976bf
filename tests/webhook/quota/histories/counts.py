"""What reservations and counts keep to: decisions, the fence, expiry, the first count."""

from time import monotonic
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import msgspec
from prometheus_client import CollectorRegistry

from policies.quota.amounts import ZERO
from policies.quota.catalogue import CatalogueVersion
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger import reconcile as settling
from policies.quota.ledger.quota_ledger import EXPIRY_SECONDS, NO_QUOTA_SECONDS, QuotaLedger, Revisions
from policies.quota.ledger.reconcile import Reconciled, StoredObject
from policies.quota.ledger.reservations import Reservation, Reservations
from tests.webhook.quota.histories.setting import admitted, plain, put, stored_pod, world
from tests.webhook.quota.quota_and_ledger_object import NO_LINE, NO_TEAMS, unwatched
from tests.webhook.quota.world import NAMESPACE, Controller, Held, PlainLedger, World, vector
from webhook.controller.metrics import ControllerMetrics
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.controller.reconciler import QuotaReconciler
from webhook.controller.usage_counter import DELETED_OBJECT, Counted
from webhook.quota.store import VersionedLedger


def two_replicas_decide_on_one_ledger(*, rule: bool) -> World:
    """Swap by resourceVersion in serve."""
    around = world(gpus=1)
    plain(around).store.blind = not rule
    first, second, before = around.request(gpus=1), around.request(gpus=1), around.read()
    around.admit(first, before)
    around.admit(second, before)
    return around


def serve_reserves_while_a_controller_counts(*, rule: bool) -> World:
    """Swap by resourceVersion in the controller."""
    around = world(gpus=1)
    plain(around).store.blind = not rule
    held, before = around.list(Controller()), around.read()
    around.admit(around.request(gpus=1))
    around.reconcile(held, before)
    return around


def hard_is_lowered_under_a_decision(*, rule: bool) -> World:
    """`hard` read in the same ledger."""
    around = world(gpus=2)
    before = around.read()
    around.grant(vector(gpus=0))
    if not rule:
        now = around.read()
        before = VersionedLedger(msgspec.structs.replace(now.ledger, hard=before.ledger.hard), now.version)
    around.admit(around.request(gpus=1), before)
    return around


def an_old_list_comes_late(*, rule: bool) -> World:
    """Fence by list revision."""
    around = world(gpus=1)
    flight = admitted(around, gpus=1)
    old = around.list(Controller())
    around.be_stored(flight)
    around.reconcile(around.list(Controller()))
    with patch.object(Revisions, "reaches", Revisions.reaches if rule else lambda *_: True):
        around.reconcile(old)
    return around


def nothing_moves_while_an_entry_waits(*, rule: bool) -> World:
    """Fence with ≥, not >."""
    around = world(gpus=1)
    around.fail(admitted(around, gpus=1))

    def strictly(self: Revisions, other: Revisions) -> bool:
        return self.pods > other.pods

    with patch.object(Revisions, "reaches", Revisions.reaches if rule else strictly):
        around.come_to_rest()
    return around


def an_old_list_of_claims_with_a_new_one_of_pods(*, rule: bool) -> World:
    """Fence on every collection that is counted."""
    around = world(gpus=1)
    flight = around.request(gpus=1)
    flight.id = "claim1"
    around.admit(flight)
    old = around.list(Controller())
    around.be_stored(flight)
    around.reconcile(around.list(Controller()))

    def pods_only(self: Revisions, other: Revisions) -> bool:
        return self.pods >= other.pods

    with patch.object(Revisions, "reaches", Revisions.reaches if rule else pods_only):
        around.reconcile(old)
    return around


def nodes_are_fenced_too(*, rule: bool) -> World:
    """Fence on nodes: the class of a bound pod comes from them."""
    around = world(a=1)
    uid = stored_pod(around, gpus=1)
    old = around.list(Controller())
    around.pods[uid] = StoredObject(vector(gpus=1, a=1))  # its node's labels have become known
    around.revisions = msgspec.structs.replace(around.revisions, nodes=2)
    around.reconcile(around.list(Controller()))

    def without_nodes(self: Revisions, other: Revisions) -> bool:
        return self.pods >= other.pods and self.resource_claims >= other.resource_claims

    with patch.object(Revisions, "reaches", Revisions.reaches if rule else without_nodes):
        around.reconcile(old)
    return around


def an_entry_goes_before_it_is_counted(*, rule: bool) -> World:
    """Reservation removed only together with `used`."""
    around = world(gpus=1)
    flight = admitted(around, gpus=1)
    around.be_stored(flight)
    if rule:
        around.reconcile(around.list(Controller()))
    else:
        put(around, reservations=around.read().ledger.reservations.without([flight.id]))
    around.admit(around.request(gpus=1))
    return around


def a_foreign_clock_says_expired(*, rule: bool) -> World:
    """Expiry by own sight."""
    around = world(gpus=1)
    flight = admitted(around, gpus=1)
    held = around.list(Controller())  # has seen the entry just now
    if not rule:
        held.expired = frozenset({flight.id})
    around.reconcile(held)
    around.admit(around.request(gpus=1))
    around.be_stored(flight)
    return around


def a_list_from_before_the_bound(*, rule: bool) -> World:
    """Expiry by a list begun after maturity."""
    around = world(gpus=1)
    flight = admitted(around, gpus=1)
    controller = Controller()
    around.observe(controller)
    held = around.list(controller)
    around.be_stored(flight)  # the list misses it
    around.now += EXPIRY_SECONDS + 1
    if not rule:
        held.expired = controller.expired(around.now)
    around.reconcile(held)
    around.check()
    return around


def a_create_fails_after_it_was_allowed(*, rule: bool) -> World:
    """Expiry at all."""
    around = world(gpus=1)
    around.fail(admitted(around, gpus=1))
    with patch.object(settling, "_expired_ids", settling._expired_ids if rule else lambda *_: ()):
        around.come_to_rest()
    return around


def a_list_lacks_what_is_being_created(*, rule: bool) -> World:
    """Gone is what a watch reported as deleted, not what a list lacks."""
    around = world(gpus=1)
    flight = admitted(around, gpus=1)
    held = around.list(Controller())
    if not rule:
        objects = {flight.uid: DELETED_OBJECT, **held.listing.objects}
        held.listing = msgspec.structs.replace(held.listing, objects=objects)
    around.reconcile(held)
    around.admit(around.request(gpus=1))
    return around


def a_pod_is_deleted_before_it_is_counted(*, rule: bool) -> World:
    """Give back at once what a watch reported as deleted: its entry need not expire."""
    around = world(gpus=1)
    flight = admitted(around, gpus=1)
    around.be_stored(flight)
    around.delete(flight.uid, reported=rule)
    around.reconcile(around.list(Controller()))
    if not around.admit(around.request(gpus=1)):
        around.broken.append("what was deleted holds its room")
    return around


def a_quota_for_what_runs_already(*, rule: bool) -> World:
    """Uninitialised denies."""
    granted = vector(gpus=1)
    around = World(PlainLedger(granted), granted)
    around.pods["pod0"] = StoredObject(vector(gpus=1))
    if not rule:
        put(around, used=dict.fromkeys(granted, ZERO), class_catalogue=around.ledger.catalogue)
    around.admit(around.request(gpus=1))
    return around


def a_list_from_before_the_quota(*, rule: bool) -> World:
    """Initialise from a list begun after this quota was observed in the ledger."""
    around = world(gpus=1)
    flight = admitted(around, gpus=1)
    old, listed = around.list(Controller()), monotonic()
    around.be_stored(flight)
    around.replace(vector(gpus=1))
    since = ObservedLedgers.spec_since if rule else lambda *_: listed
    with patch.object(ObservedLedgers, "spec_since", since):
        reconciler_that_holds(old, listed, around).reconcile(NAMESPACE)
    assert around.read().ledger.used is not None
    around.admit(around.request(gpus=1))
    return around


def reconciler_that_holds(held: Held, listed: float, around: World) -> QuotaReconciler:
    """Return one whose informers have a list that was begun at `listed`, of the monotonic clock."""
    catalogue_version, observed = (
        CatalogueVersion("digest", UnclassifiedPods.TOTAL_ONLY),
        ObservedLedgers(no_quota=0.0),
    )
    latest = [held]
    around.costs[str(catalogue_version)] = 1

    def refresh(_namespace: str, **since: float) -> None:
        if listed < max(since.values()):
            latest[0] = around.list(Controller())

    def count(*_: object) -> Counted:
        return Counted(msgspec.structs.replace(latest[0].listing, catalogue=str(catalogue_version)), listed)

    def current(_namespace: str, **_: object) -> VersionedLedger:
        observed.observe(NAMESPACE, around.read())
        return around.read()

    def swap(_namespace: str, before: VersionedLedger, ledger: QuotaLedger) -> VersionedLedger:
        return around.store.compare_and_swap(NAMESPACE, before, ledger, 1.0)

    counter = SimpleNamespace(
        digest=catalogue_version.digest, synced=True, is_listed=lambda *_: True, refresh=refresh, count=count
    )
    usage_cache: Any = SimpleNamespace(
        own_counter=counter,
        publish=lambda _: True,
        deleted=lambda _: frozenset(),
        refresh_claims=lambda _: None,
        claims_wait=lambda _: None,
    )
    nothing: Any = None
    metrics = ControllerMetrics(CollectorRegistry())
    store: Any = SimpleNamespace(raise_epoch=lambda _seconds: None)
    reconciler: Any = QuotaReconciler(
        store,
        unwatched(observed, usage_cache=usage_cache),
        metrics,
        nothing,
        NO_LINE,
        nothing,
        nothing,
        lambda: 0,
        NO_TEAMS,
    )
    reconciler.current, reconciler.swap = current, swap
    return cast(QuotaReconciler, reconciler)


def a_replica_still_believes_in_no_quota(*, rule: bool) -> World:
    """No initialisation before D."""
    granted = vector(gpus=1)
    around = World(PlainLedger(granted), granted)
    held = around.list(Controller())
    if not rule:
        held.waited = True
    initialised = isinstance(around.reconcile(held), Reconciled)
    # By an answer that is no older than D: at this time still possible.
    flight = around.request(gpus=1)
    around.admitted(flight, new=initialised)
    flight.promised = initialised  # else its admission began before the promise
    around.now += NO_QUOTA_SECONDS
    around.be_stored(flight)
    around.reconcile(around.list(Controller()))
    return around


def a_class_is_added_that_used_lacks(*, rule: bool) -> World:
    """Missing key of `used` denies."""
    around = world(gpus=9)
    around.pods["pod0"] = StoredObject(vector(gpus=1, a=1))  # admitted before classes were counted
    around.grant(vector(gpus=9, a=1))
    if not rule:
        ledger = around.read().ledger
        put(around, used={**(ledger.used or {}), **vector(a=0)})
    around.admit(around.request(gpus=1, a=1))
    return around


def an_entry_knows_only_what_was_granted(*, rule: bool) -> World:
    """Reservations carry the full vector."""
    around = world(gpus=9)
    flight = around.request(gpus=1, a=1)
    if rule:
        around.admit(flight)
    else:
        cut = Reservations.of(Reservation(flight.id, vector(gpus=1)))
        put(around, reservations=cut)
        around.flights[flight.id] = flight
    around.grant(vector(gpus=9, a=1))
    controller = Controller()
    around.observe(controller)
    around.now += NO_QUOTA_SECONDS
    around.reconcile(around.list(controller))
    around.admit(around.request(gpus=1, a=1))
    return around

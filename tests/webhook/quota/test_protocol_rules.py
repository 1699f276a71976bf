"""Each rule of the protocol, and what happens without it.

Every case is one history. With the rule nothing is broken at its end; with the rule taken out the oracle must object, or the
case would prove nothing. Their docstrings are the rules.
"""

from collections.abc import Callable, Iterator
from itertools import count
from time import monotonic
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from policies.quota.amounts import NOTHING, Vector
from policies.quota.catalogue import Basis
from policies.quota.charge import Unpinned
from policies.quota.charge_request import LedgerError
from policies.quota.ledger import reconcile as settling
from policies.quota.ledger.decide import ReservationRequest, decide
from policies.quota.ledger.quota_ledger import (
    CREATION_SECONDS,
    EXPIRY_SECONDS,
    NO_QUOTA_SECONDS,
    SPARE_SECONDS,
    QuotaLedger,
    Revisions,
)
from policies.quota.ledger.reconcile import Reconciled, StoredObject, begin_transition, initialise
from policies.quota.ledger.reservations import Reservation, Reservations
from policies.quota.ledger.spares import SettledSpares, has_spares, settled
from tests.builders import listing, used_by
from tests.webhook.quota.quota_and_row import QuotaAndRow
from tests.webhook.quota.replica import Replica
from tests.webhook.quota.world import NAMESPACE, Controller, Flight, Held, PlainLedger, World, vector
from webhook.cluster.collection import Line, MergedCollection, Position
from webhook.controller.counting import DELETED, Counted
from webhook.controller.metrics import ControllerMetrics
from webhook.controller.observed_rows import ObservedRows
from webhook.controller.reconciler import QuotaReconciler
from webhook.quota import documents, rows
from webhook.quota.spares import NamespaceSpares, WantedSpares, spare_ids
from webhook.quota.store import VersionedLedger

NEXT = "the next catalogue"
LINE = "gpus=1 | pod pod"
FORMER_STATUS = {"used": {"gpus": "0"}, "revisions": {"pods": "1"}, "classCatalogue": "catalogue"}
_LARGEST = Reservations.__dict__["_largest"]


def world(**hard: int) -> World:
    """Return a world with an initialised quota."""
    granted = vector(**hard)
    return World(PlainLedger(granted), granted).initialised()


def counted(gpus: int) -> QuotaAndRow:
    """Return a quota whose row is counted."""
    around = QuotaAndRow(gpus)
    controller = around.controller()
    controller.keep()
    controller.count(used=vector(gpus=0))
    return around


class Pod(NamedTuple):
    """A projection of a pod."""

    uid: str
    namespace: str


def row_of(world: World) -> VersionedLedger:
    return world.read()


def plain(world: World) -> PlainLedger:
    ledger = world.ledger
    assert isinstance(ledger, PlainLedger)
    return ledger


def stored_pod(world: World, **demand: int | str) -> str:
    """Admit and store a pod and settle it; return its uid."""
    flight = world.request(**demand)
    assert world.admit(flight)
    world.be_stored(flight)
    assert isinstance(world.reconcile(world.list(Controller())), Reconciled)
    return flight.uid


def two_replicas_decide_on_one_row(*, rule: bool) -> World:
    """Swap by resourceVersion in serve."""
    around = world(gpus=1)
    plain(around).store.blind = not rule
    first, second, before = around.request(gpus=1), around.request(gpus=1), row_of(around)
    around.admit(first, before)
    around.admit(second, before)
    return around


def serve_reserves_while_a_controller_counts(*, rule: bool) -> World:
    """Swap by resourceVersion in the controller."""
    around = world(gpus=1)
    plain(around).store.blind = not rule
    held, before = around.list(Controller()), row_of(around)
    around.admit(around.request(gpus=1))
    around.reconcile(held, before)
    return around


def hard_is_lowered_under_a_decision(*, rule: bool) -> World:
    """`hard` read in the same row."""
    around = world(gpus=2)
    before = row_of(around)
    around.grant(vector(gpus=0))
    if not rule:
        now = row_of(around)
        before = VersionedLedger(msgspec.structs.replace(now.ledger, hard=before.ledger.hard), now.version)
    around.admit(around.request(gpus=1), before)
    return around


def an_old_list_comes_late(*, rule: bool) -> World:
    """Fence by list revision."""
    around = world(gpus=1)
    flight = around.request(gpus=1)
    around.admit(flight)
    old = around.list(Controller())
    around.be_stored(flight)
    around.reconcile(around.list(Controller()))
    with patch.object(Revisions, "reaches", Revisions.reaches if rule else lambda *_: True):
        around.reconcile(old)
    return around


def nothing_moves_while_an_entry_waits(*, rule: bool) -> World:
    """Fence with ≥, not >."""
    around = world(gpus=1)
    flight = around.request(gpus=1)
    around.admit(flight)
    around.fail(flight)

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
    flight = around.request(gpus=1)
    around.admit(flight)
    around.be_stored(flight)
    if rule:
        around.reconcile(around.list(Controller()))
    else:
        ledger = row_of(around).ledger
        plain(around).store.put(
            msgspec.structs.replace(ledger, reservations=ledger.reservations.without([flight.id]))
        )
    around.admit(around.request(gpus=1))
    return around


def a_foreign_clock_says_expired(*, rule: bool) -> World:
    """Expiry by own sight."""
    around = world(gpus=1)
    flight = around.request(gpus=1)
    around.admit(flight)
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
    flight = around.request(gpus=1)
    around.admit(flight)
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
    flight = around.request(gpus=1)
    around.admit(flight)
    around.fail(flight)
    with patch.object(settling, "_given_up", settling._given_up if rule else lambda *_: ()):
        around.come_to_rest()
    return around


def a_list_lacks_what_is_being_created(*, rule: bool) -> World:
    """Gone is what a watch reported as deleted, not what a list lacks."""
    around = world(gpus=1)
    flight = around.request(gpus=1)
    around.admit(flight)
    held = around.list(Controller())
    if not rule:
        objects = {flight.uid: DELETED, **held.listing.objects}
        held.listing = msgspec.structs.replace(held.listing, objects=objects)
    around.reconcile(held)
    around.admit(around.request(gpus=1))
    return around


def a_pod_is_deleted_before_it_is_counted(*, rule: bool) -> World:
    """Give back at once what a watch reported as deleted: its entry need not expire."""
    around = world(gpus=1)
    flight = around.request(gpus=1)
    around.admit(flight)
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
        ledger = row_of(around).ledger
        zeros = dict.fromkeys(ledger.hard, NOTHING)
        plain(around).store.put(
            msgspec.structs.replace(ledger, used=zeros, class_catalogue=around.ledger.catalogue)
        )
    around.admit(around.request(gpus=1))
    return around


def a_list_from_before_the_quota(*, rule: bool) -> World:
    """Initialise from a list begun after this quota was observed in the row."""
    around = world(gpus=1)
    flight = around.request(gpus=1)
    around.admit(flight)
    old, listed = around.list(Controller()), monotonic()
    around.be_stored(flight)
    around.replace(vector(gpus=1))
    since = ObservedRows.spec_since if rule else lambda *_: listed
    with patch.object(ObservedRows, "spec_since", since):
        reconciler_that_holds(old, listed, around).reconcile(NAMESPACE)
    assert row_of(around).ledger.used is not None
    around.admit(around.request(gpus=1))
    return around


def reconciler_that_holds(held: Held, listed: float, around: World) -> QuotaReconciler:
    """Return one whose informers have a list that was begun at `listed`, of the monotonic clock."""
    basis, observed, latest = Basis("digest", Unpinned.TOTAL_ONLY), ObservedRows(no_quota=0.0), [held]
    around.costs[str(basis)] = 1

    def refresh(_namespace: str, *, since: float, nodes_since: float) -> None:
        if listed < max(since, nodes_since):
            latest[0] = around.list(Controller())

    def count(*_: object) -> Counted:
        return Counted(msgspec.structs.replace(latest[0].listing, catalogue=str(basis)), listed)

    def current(_namespace: str, **_: object) -> VersionedLedger:
        observed.observe(NAMESPACE, around.read())
        return around.read()

    def swap(_namespace: str, before: VersionedLedger, ledger: QuotaLedger) -> None:
        around.store.compare_and_swap(NAMESPACE, before, ledger, 1.0)

    counting = SimpleNamespace(digest=basis.digest, synced=True, refresh=refresh, count=count)
    countings: Any = SimpleNamespace(own=counting, publish=lambda _: True, deleted=lambda _: frozenset())
    keeper: Any = SimpleNamespace(current=current, swap=swap)
    events: Any = SimpleNamespace(denied=lambda *_: None)
    return QuotaReconciler(keeper, countings, observed, ControllerMetrics(CollectorRegistry()), events)


def a_replica_still_believes_in_no_quota(*, rule: bool) -> World:
    """No initialisation before D."""
    granted = vector(gpus=1)
    around = World(PlainLedger(granted), granted)
    held = around.list(Controller())
    if not rule:
        held.waited = True
    initialised = isinstance(around.reconcile(held), Reconciled)
    uncharged = around.request(gpus=1)  # by an answer that is no older than D: at this time still possible
    around.admitted(uncharged, new=initialised)
    uncharged.promised = initialised  # else its admission began before the promise
    around.now += NO_QUOTA_SECONDS
    around.be_stored(uncharged)
    around.reconcile(around.list(Controller()))
    return around


def a_class_is_added_that_used_lacks(*, rule: bool) -> World:
    """Missing key of `used` denies."""
    around = world(gpus=9)
    around.pods["pod0"] = StoredObject(vector(gpus=1, a=1))  # admitted before classes were counted
    around.grant(vector(gpus=9, a=1))
    if not rule:
        ledger = row_of(around).ledger
        plain(around).store.put(msgspec.structs.replace(ledger, used={**(ledger.used or {}), **vector(a=0)}))
    around.admit(around.request(gpus=1, a=1))
    return around


def an_entry_knows_only_what_was_granted(*, rule: bool) -> World:
    """Reservations carry the full vector."""
    around = world(gpus=9)
    flight = around.request(gpus=1, a=1)
    if rule:
        around.admit(flight)
    else:
        ledger = row_of(around).ledger
        cut = Reservations.of(Reservation(flight.id, vector(gpus=1)))
        plain(around).store.put(msgspec.structs.replace(ledger, reservations=cut))
        around.flights[flight.id] = flight
    around.grant(vector(gpus=9, a=1))
    controller = Controller()
    around.observe(controller)
    around.now += NO_QUOTA_SECONDS
    around.reconcile(around.list(controller))
    around.admit(around.request(gpus=1, a=1))
    return around


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
    uid = stored_pod(around, gpus=1)
    around.admit(around.change(uid, gpus=1, a=1))

    def listed(reservation: Reservation, objects: dict[str, StoredObject]) -> bool:
        return reservation.object_uid in objects

    with patch.object(settling, "_is_shown", settling._is_shown if rule else listed):
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
        return all(shown.get(key, NOTHING) >= amount for key, amount in forth.after.items())

    with patch.object(settling, "_is_shown", settling._is_shown if rule else by_amount):
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
        patch.object(settling, "_is_shown", settling._is_shown if rule else never),
        patch.object(settling, "_given_up", settling._given_up if rule else lambda *_: ()),
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
    uid = stored_pod(around, a=1)
    change = around.change(uid, b=1)
    around.admit(change)
    if not rule:
        ledger = row_of(around).ledger
        plain(around).store.put(msgspec.structs.replace(ledger, used={**(ledger.used or {}), **vector(a=0)}))
    around.fail(change)
    around.admit(around.request(a=1))
    return around


def a_call_is_repeated(*, rule: bool) -> World:
    """Answer a retried call alike, and charge it once."""
    around = world(gpus=2)
    flight = around.request(gpus=1)
    around.admit(flight)
    if rule:
        around.admit(flight)
    else:  # an id of its own for every call
        ledger = row_of(around).ledger
        second = Reservation(f"{flight.id}-again", flight.growth)
        plain(around).store.put(
            msgspec.structs.replace(ledger, reservations=ledger.reservations.plus([second]))
        )
    if row_of(around).ledger.reserved != around.committed():
        around.broken.append("charged twice")
    return around


def a_repeated_call_gives_back(*, rule: bool) -> World:
    """Serve never removes an entry."""
    around = world(gpus=1)
    flight = around.request(gpus=1)
    around.admit(flight)
    around.admit(flight)
    if not rule:
        ledger = row_of(around).ledger
        plain(around).store.put(
            msgspec.structs.replace(ledger, reservations=ledger.reservations.without([flight.id]))
        )
    around.check()
    return around


def two_creations_of_one_name(*, rule: bool) -> World:
    """Creations of one name hold the largest."""
    around = world(gpus=2)
    small, large = around.named("train", gpus=1), around.named("train", gpus=2)

    def first(reservations: Reservations) -> dict[str, Vector]:
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

    def once(*_: object) -> dict[str, Vector]:
        return {"pods/train": vector(gpus=1)}

    with patch.object(settling, "_stored_names", settling._stored_names if rule else once):
        around.reconcile(around.list(Controller()))
    around.admit(around.request(gpus=2))
    around.be_stored(second)
    return around


def unreadable(around: World) -> Flight:
    """Admit a pod, and damage the line of its reservation."""
    flight = around.request(gpus=1)
    around.admit(flight)
    damaged = msgspec.structs.replace(row_of(around).ledger, reservations=Reservations.parse(LINE))
    plain(around).store.put(damaged)
    return flight


def a_line_cannot_be_read(*, rule: bool) -> World:
    """Deny while a line cannot be read."""
    around = world(gpus=1)
    unreadable(around)
    if not rule:
        ledger = row_of(around).ledger
        plain(around).store.put(msgspec.structs.replace(ledger, reservations=Reservations({})))
    around.admit(around.request(gpus=1))
    return around


def a_line_that_cannot_be_read_is_dropped(*, rule: bool) -> World:
    """Keep a line that cannot be read for the bound."""
    around = world(gpus=1)
    flight = unreadable(around)
    held = around.list(Controller())
    if not rule:
        held.expired = frozenset({f"unreadable {LINE}"})
    around.reconcile(held)
    around.admit(around.request(gpus=1))
    around.be_stored(flight)
    return around


def on_the_way(around: World) -> World:
    """Have the controller move the row to a basis under which everything costs double."""
    around.costs[NEXT] = 2
    plain(around).store.put(begin_transition(row_of(around).ledger, NEXT))
    return around


def a_creation_while_the_row_moves(*, rule: bool) -> World:
    """Charge by both bases while the row moves."""
    around = on_the_way(world(gpus=3))
    flight = around.request(gpus=1)
    around.try_admit(flight, row_of(around), cost=None if rule else 1)
    around.reconcile(around.list(Controller()))
    around.admit(around.request(gpus=1))
    return around


def a_creation_from_before_the_row_moved(*, rule: bool) -> World:
    """Flip once every reservation bears the mark."""
    around = world(gpus=3)
    around.admit(around.request(gpus=1))
    held = around.list(Controller())
    on_the_way(around)
    held.listing = msgspec.structs.replace(held.listing, catalogue=NEXT)
    marked = settling._are_charged_by if rule else lambda *_: True
    with patch.object(settling, "_are_charged_by", marked):
        around.reconcile(held)
    around.admit(around.request(gpus=1))
    return around


def a_pod_from_before_the_row_moved(*, rule: bool) -> World:
    """Flip by a count under the next basis."""
    around = world(gpus=3)
    stored_pod(around, gpus=1)
    around.reconcile(around.list(Controller()))
    held = around.list(Controller())
    on_the_way(around)
    if rule:
        held = around.list(Controller())
    held.listing = msgspec.structs.replace(held.listing, catalogue=NEXT)
    around.reconcile(held)
    around.admit(around.request(gpus=1))
    return around


def a_replica_knows_only_the_old_basis(*, rule: bool) -> World:
    """Decide on what was charged by every basis of the row."""
    around = on_the_way(world(gpus=3))
    around.reconcile(around.list(Controller()))
    flight, before = around.request(gpus=1), row_of(around)
    if rule:
        old = ReservationRequest.creation(flight.id, flight.after, around.ledger.catalogue)
        if decide(before.ledger, [old]).verdicts[0].allowed:
            around.broken.append("it was charged by another basis")
    else:
        around.try_admit(flight, before, cost=1)
    around.check()
    return around


def a_claim_is_made_for_a_pod(*, rule: bool) -> World:
    """Charge a claim from which a pod takes its devices for what it has beyond that pod."""
    around = world(gpus=2)
    stored_pod(around, gpus=1)
    claim = with_its_claim(around)
    count_claim(around, claim, as_=vector(gpus=1) if rule else {})
    return around


def a_claim_outlives_its_pod(*, rule: bool) -> World:
    """Charge a claim in full once its pod has ended."""
    around = world(gpus=2)
    pod = stored_pod(around, gpus=1)
    claim = with_its_claim(around)
    count_claim(around, claim, as_=vector(gpus=1))
    around.delete(pod)
    around.claims[claim] = StoredObject(vector(gpus=2))
    count_claim(around, claim, as_=vector(gpus=2 if rule else 1))
    return around


def with_its_claim(around: World) -> str:
    """Store a claim of 2 GPUs beside a pod that is charged for one of them; return its uid."""
    claim = Flight("claim", vector(gpus=1), vector(gpus=1), around.now)
    around.admit(claim)
    around.be_stored(claim)
    return claim.uid


def count_claim(around: World, claim: str, *, as_: Vector) -> None:
    held = around.list(Controller())
    objects = {**held.listing.objects, claim: StoredObject(as_)}
    held.listing = msgspec.structs.replace(held.listing, objects=objects, used=used_by(objects))
    around.reconcile(held)


def a_spec_that_was_read_before_the_row(*, rule: bool) -> QuotaAndRow:
    """Read the GPUQuota after the row that its spec goes into."""
    around = counted(2)
    other = around.controller()
    around.grant(1)
    early = other.granted()

    def lowered() -> None:
        around.grant(0)
        other.keep()

    if rule:
        around.before("GET", documents.PLURAL, lowered)
    else:
        lowered()
    around.controller(read=early, has_read=not rule).keep()
    return around


def a_quota_that_was_gone_before_its_row_was_read(*, rule: bool) -> QuotaAndRow:
    """Read that the GPUQuota is gone after the row that is deleted for it."""
    around = counted(1)
    around.remove()

    def replaced() -> None:
        around.grant(1)
        around.controller().keep()

    if rule:
        around.before("GET", documents.PLURAL, replaced)
    else:
        replaced()
    around.controller(has_read=not rule).keep()
    return around


def a_row_is_deleted_late(*, rule: bool) -> QuotaAndRow:
    """Delete only the version of the row after which the GPUQuota was read."""
    around = counted(1)
    around.remove()

    def replaced() -> None:
        around.grant(1)
        around.controller().keep()

    around.before("DELETE", rows.PLURAL, replaced)
    with patch.object(QuotaAndRow, "_check", QuotaAndRow._check if rule else lambda *_: None):
        around.controller().keep()
    return around


def a_row_of_a_quota_that_was_known_before(*, rule: bool) -> QuotaAndRow:
    """Wait, and list, since this very row was first seen."""
    around, now, observed = QuotaAndRow(1), [0.0], ObservedRows()
    held = listing({}, catalogue="catalogue")

    def kept() -> VersionedLedger:
        row = around.controller().keep()
        assert row is not None
        return row if rule else VersionedLedger(msgspec.structs.replace(row.ledger, row_uid=""), row.version)

    with patch("webhook.controller.observed_rows.monotonic", lambda: now[0]):
        observed.observe(NAMESPACE, VersionedLedger(kept().ledger, "1"))
        now[0] += NO_QUOTA_SECONDS
        listed = now[0]
        around.row = None  # with the quota; and who was about to create it before that does it now
        again = kept()
        now[0] += 0.1
        observed.observe(NAMESPACE, again)
        waited = observed.initialization_wait(NAMESPACE) <= 0
    if isinstance(initialise(again.ledger, held, frozenset(), waited=waited), Reconciled):
        around.broken.append("S2: counted while a replica may believe in no quota")
    if observed.spec_since(NAMESPACE) <= listed:
        around.broken.append("S2: counted by a list from before the row")
    return around


def a_row_is_created_late(*, rule: bool) -> QuotaAndRow:
    """Create every row empty, and bring in what earlier versions left in the status by a swap."""
    around = QuotaAndRow(1)
    assert around.quota is not None
    around.quota["status"] = FORMER_STATUS

    def served_and_removed() -> None:
        """Have another controller make the row; pods come and go by it, and it goes with the quota."""
        other = around.controller()
        other.keep()
        other.count(used=vector(gpus=1))
        around.remove()
        other.keep()
        around.grant(1)

    around.before("POST", rows.PLURAL, served_and_removed)
    with patch("webhook.quota.rows.uncounted", rows.uncounted if rule else lambda granted: granted):
        around.controller().keep()
    if around.ledger is not None and around.ledger.used is not None:
        around.broken.append("S2: a ledger of another time is in force")
    return around


def an_earlier_version_writes_its_ledger_still(*, rule: bool) -> World:
    """Take a ledger over from the status once nobody may reserve there any more."""
    around = world(gpus=1)
    status = World(PlainLedger(vector(gpus=1)), vector(gpus=1)).initialised()
    old, new = around.request(gpus=1), around.request(gpus=1)
    if not rule and status.try_admit(old, status.read()):  # the row has been taken over before
        around.admitted(old)
    around.admit(new)
    return around


def sums_that_lag_behind_their_revision(*, rule: bool) -> World:
    """Count by sums, objects and revisions of one moment."""
    around = world(gpus=1)
    flight = around.request(gpus=1)
    around.admit(flight)
    before = around.list(Controller())
    around.be_stored(flight)
    held = around.list(Controller())
    if not rule:
        held.listing = msgspec.structs.replace(held.listing, used=before.listing.used)
    around.reconcile(held)
    return around


def a_list_ends_while_the_watch_goes_on(*, rule: bool) -> World:
    """Hold what the watch showed later than the revision of a list."""
    around = world(gpus=1)
    things = MergedCollection[Pod]("pods", lambda *_: None)
    things.watch_from(around.revisions.pods)
    flight = around.request(gpus=1)
    around.admit(flight)
    with things.reading() as started:
        listed = around.revisions.pods
        around.be_stored(flight)
        pod = Pod(flight.uid, NAMESPACE)
        things.event(Line(NAMESPACE, hash(pod.uid), around.revisions.pods, pod), deleted=False)
        things.merge(NAMESPACE, Position(listed if rule else around.revisions.pods, started), ())
    held = around.list(Controller())
    shown = {each.uid: around.pods[each.uid] for each in things.snapshot(NAMESPACE).items}
    assert things.position(NAMESPACE).revision == around.revisions.pods
    around.reconcile(held)
    held.listing = msgspec.structs.replace(held.listing, objects=shown, used=used_by(shown))
    around.reconcile(held)
    return around


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


HISTORIES = (
    two_replicas_decide_on_one_row,
    serve_reserves_while_a_controller_counts,
    hard_is_lowered_under_a_decision,
    an_old_list_comes_late,
    nothing_moves_while_an_entry_waits,
    an_old_list_of_claims_with_a_new_one_of_pods,
    nodes_are_fenced_too,
    an_entry_goes_before_it_is_counted,
    a_foreign_clock_says_expired,
    a_list_from_before_the_bound,
    a_create_fails_after_it_was_allowed,
    a_list_lacks_what_is_being_created,
    a_pod_is_deleted_before_it_is_counted,
    a_quota_for_what_runs_already,
    a_list_from_before_the_quota,
    a_replica_still_believes_in_no_quota,
    a_class_is_added_that_used_lacks,
    an_entry_knows_only_what_was_granted,
    two_changes_of_one_pod,
    a_change_is_listed_before_it_is_stored,
    a_change_is_taken_back_and_made_again,
    a_change_of_a_pod_that_finishes,
    a_change_of_a_pod_that_is_deleted,
    a_change_that_fails,
    a_change_frees_before_it_is_stored,
    a_call_is_repeated,
    a_repeated_call_gives_back,
    two_creations_of_one_name,
    what_is_stored_under_a_name_is_deleted,
    a_line_cannot_be_read,
    a_line_that_cannot_be_read_is_dropped,
    a_creation_while_the_row_moves,
    a_creation_from_before_the_row_moved,
    a_pod_from_before_the_row_moved,
    a_replica_knows_only_the_old_basis,
    a_claim_is_made_for_a_pod,
    a_claim_outlives_its_pod,
    a_spec_that_was_read_before_the_row,
    a_quota_that_was_gone_before_its_row_was_read,
    a_row_is_deleted_late,
    a_row_of_a_quota_that_was_known_before,
    a_row_is_created_late,
    an_earlier_version_writes_its_ledger_still,
    sums_that_lag_behind_their_revision,
    a_list_ends_while_the_watch_goes_on,
    a_spare_is_assigned_before_it_is_written,
    a_spare_is_assigned_late,
    a_spare_is_assigned_while_it_is_removed,
    a_spare_goes_alone,
    two_replicas_have_the_same_spares,
    a_spare_expires_like_a_creation,
    a_spare_of_another_demand,
    a_spare_of_the_quota_before,
)


@pytest.mark.parametrize("history", [pytest.param(each, id=each.__name__) for each in HISTORIES])
def test_with_the_rule_nothing_breaks(history: Callable[..., World | QuotaAndRow]) -> None:
    assert history(rule=True).broken == []


@pytest.mark.parametrize("history", [pytest.param(each, id=each.__name__) for each in HISTORIES])
def test_without_the_rule_it_breaks(history: Callable[..., World | QuotaAndRow]) -> None:
    assert history(rule=False).broken != []

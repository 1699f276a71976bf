"""What ledgers keep to: lines that cannot be read, other catalogues and claims, quotas that come and go, what informers hold."""

from collections.abc import Mapping
from functools import partial
from time import monotonic
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec

from policies.quota.amounts import Amounts
from policies.quota.ledger import reconcile as settling
from policies.quota.ledger.decide import decide
from policies.quota.ledger.quota_ledger import NO_QUOTA_SECONDS
from policies.quota.ledger.reconcile import Reconciled, StoredObject, begin_transition, initialise
from policies.quota.ledger.reservations import Reservations
from tests.builders import listing, used_by
from tests.reservation_requests import creation_request
from tests.webhook.quota.histories.setting import admitted, plain, put, stored_pod, world
from tests.webhook.quota.quota_and_ledger_object import QuotaAndLedger
from tests.webhook.quota.world import NAMESPACE, Controller, Flight, World, vector
from webhook.cluster.collection import MergedCollection, ObjectVersion, Position
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.quota import documents, ledger_objects
from webhook.quota.counted_records import Blueprint, ClaimHistory, CountedClaim
from webhook.quota.store import VersionedLedger

NEXT = "the next catalogue"
LINE = "gpus=1 | pod pod"


def counted(gpus: int) -> QuotaAndLedger:
    """Return a quota whose ledger is counted."""
    around = QuotaAndLedger(gpus)
    controller = around.controller()
    controller.keep()
    controller.count(used=vector(gpus=0))
    return around


class Pod(NamedTuple):
    """A projection of a pod."""

    uid: str
    namespace: str


def unreadable(around: World) -> Flight:
    """Admit a pod, and damage the line of its reservation."""
    flight = admitted(around, gpus=1)
    damaged = msgspec.structs.replace(around.read().ledger, reservations=Reservations.parse(LINE))
    plain(around).store.put(damaged)
    return flight


def a_line_cannot_be_read(*, rule: bool) -> World:
    """Deny while a line cannot be read."""
    around = world(gpus=1)
    unreadable(around)
    if not rule:
        put(around, reservations=Reservations({}))
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
    """Have the controller move the ledger to a catalogue version under which everything costs double."""
    around.costs[NEXT] = 2
    plain(around).store.put(begin_transition(around.read().ledger, NEXT))
    return around


def a_creation_while_the_ledger_moves(*, rule: bool) -> World:
    """Charge by both catalogue versions while the ledger moves."""
    around = on_the_way(world(gpus=3))
    around.try_admit(around.request(gpus=1), around.read(), cost=None if rule else 1)
    around.reconcile(around.list(Controller()))
    around.admit(around.request(gpus=1))
    return around


def a_creation_from_before_the_ledger_moved(*, rule: bool) -> World:
    """Flip once every reservation bears the mark."""
    around = world(gpus=3)
    around.admit(around.request(gpus=1))
    held = around.list(Controller())
    on_the_way(around)
    held.listing = msgspec.structs.replace(held.listing, catalogue=NEXT)
    marked = settling._are_marked if rule else lambda *_: True
    with patch.object(settling, "_are_marked", marked):
        around.reconcile(held)
    around.admit(around.request(gpus=1))
    return around


def a_pod_from_before_the_ledger_moved(*, rule: bool) -> World:
    """Flip by a count under the next catalogue version."""
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


def a_replica_knows_only_the_old_version(*, rule: bool) -> World:
    """Decide on what was charged by every catalogue version of the ledger."""
    around = on_the_way(world(gpus=3))
    around.reconcile(around.list(Controller()))
    flight, before = around.request(gpus=1), around.read()
    if rule:
        old = creation_request(flight.id, flight.after, around.ledger.catalogue)
        if decide(before.ledger, [old]).verdicts[0].allowed:
            around.broken.append("it was charged by another catalogue version")
    else:
        around.try_admit(flight, before, cost=1)
    around.check()
    return around


def a_claim_is_made_for_a_pod(*, rule: bool) -> World:
    """Charge a claim from which a pod takes its devices for what it has beyond that pod."""
    around = world(gpus=2)
    stored_pod(around, gpus=1)
    count_claim(around, with_its_claim(around), as_=vector(gpus=1) if rule else {})
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


def count_claim(around: World, claim: str, *, as_: Amounts) -> None:
    held = around.list(Controller())
    objects = {**held.listing.objects, claim: StoredObject(as_)}
    held.listing = msgspec.structs.replace(held.listing, objects=objects, used=used_by(objects))
    around.reconcile(held)


def a_claim_that_is_gone_before_its_pod(*, rule: bool) -> World:
    """Charge a claim that is gone until the pods that have its devices have ended."""
    around = world(gpus=1)
    history = ClaimHistory()
    claim = taken_claim(around)
    if rule:
        history.add_deleted(claim)
    count_without(around, claim, history.gone(NAMESPACE, lambda _pod, _since: False))
    return around


def a_claim_is_gone_beside_an_old_list_of_pods(*, rule: bool) -> World:
    """Believe that a pod has ended by a list that began after its claim was gone."""
    around = world(gpus=1)
    history = ClaimHistory()
    pods_listed = monotonic()
    claim = taken_claim(around)
    history.add_deleted(claim)
    count_without(around, claim, history.gone(NAMESPACE, lambda _pod, since: pods_listed > since or not rule))
    return around


def taken_claim(around: World) -> CountedClaim:
    """Store and count a claim whose devices a pod has; return the controller's record of it."""
    uid = with_its_claim(around)
    around.reconcile(around.list(Controller()))
    names: dict[str, Any] = {
        "uid": uid,
        "namespace": NAMESPACE,
        "name": uid,
        "holder": uid,
        "since": "",
        "extended_pod": "",
    }
    return CountedClaim(**names, version=1, blueprint=Blueprint(b"", {}), reserved_for=("pod",))


def count_without(around: World, claim: CountedClaim, counted: Mapping[str, CountedClaim]) -> None:
    """Count by a list that lacks the claim, with those that are charged though they are gone; then admit a pod if it fits."""
    held = around.list(Controller())
    objects = {uid: each for uid, each in held.listing.objects.items() if uid != claim.uid or uid in counted}
    held.listing = msgspec.structs.replace(held.listing, objects=objects, used=used_by(objects))
    around.reconcile(held)
    around.admit(around.request(gpus=1))


def a_spec_that_was_read_before_the_ledger(*, rule: bool) -> QuotaAndLedger:
    """Read the GPUQuota after the ledger that its spec goes into."""
    around = counted(2)
    other = around.controller()
    around.grant(1)
    early = other.desired()

    def lowered() -> None:
        around.grant(0)
        other.keep()

    if rule:
        around.before("GET", documents.PLURAL, lowered)
    else:
        lowered()
    around.controller(read=early, has_read=not rule).keep()
    return around


def replaced(around: QuotaAndLedger) -> None:
    around.grant(1)
    around.controller().keep()


def a_quota_that_was_gone_before_its_ledger_was_read(*, rule: bool) -> QuotaAndLedger:
    """Read that the GPUQuota is gone after the ledger that is deleted for it."""
    around = counted(1)
    around.remove()

    if rule:
        around.before("GET", documents.PLURAL, partial(replaced, around))
    else:
        replaced(around)
    around.controller(has_read=not rule).keep()
    return around


def a_ledger_is_deleted_late(*, rule: bool) -> QuotaAndLedger:
    """Delete only the version of the ledger after which the GPUQuota was read."""
    around = counted(1)
    around.remove()

    around.before("DELETE", ledger_objects.PLURAL, partial(replaced, around))
    with patch.object(QuotaAndLedger, "_check", QuotaAndLedger._check if rule else lambda *_: None):
        around.controller().keep()
    return around


def a_ledger_of_a_quota_that_was_known_before(*, rule: bool) -> QuotaAndLedger:
    """Wait, and list, since this very ledger was first seen."""
    around, now, observed = QuotaAndLedger(1), [0.0], ObservedLedgers()
    held = listing({}, catalogue="catalogue")

    def kept() -> VersionedLedger:
        ledger_object = around.controller().keep()
        assert ledger_object is not None
        if rule:
            return ledger_object
        unseen = msgspec.structs.replace(ledger_object.ledger, ledger_uid="")
        return VersionedLedger(unseen, ledger_object.version)

    with patch("webhook.controller.observed_ledgers.monotonic", lambda: now[0]):
        observed.observe(NAMESPACE, VersionedLedger(kept().ledger, "1"))
        observed.raised.append((now[0], now[0]))
        now[0] += NO_QUOTA_SECONDS
        listed = now[0]
        around.ledger_object = None  # with the quota; and who was about to create it before that does it now
        again = kept()
        now[0] += 0.1
        observed.observe(NAMESPACE, again)
        waited = not observed.initialization_wait(NAMESPACE)
    if isinstance(initialise(again.ledger, held, frozenset(), waited=waited), Reconciled):
        around.broken.append("S2: counted while a replica may believe in no quota")
    if observed.spec_since(NAMESPACE) <= listed:
        around.broken.append("S2: counted by a list from before the ledger")
    return around


def sums_that_lag_behind_their_revision(*, rule: bool) -> World:
    """Count by sums, objects and revisions of one moment."""
    around = world(gpus=1)
    flight = admitted(around, gpus=1)
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
    flight = admitted(around, gpus=1)
    with things.reading() as started:
        listed = around.revisions.pods
        around.be_stored(flight)
        pod = Pod(flight.uid, NAMESPACE)
        things.event(ObjectVersion(NAMESPACE, hash(pod.uid), around.revisions.pods, pod), deleted=False)
        things.merge(NAMESPACE, Position(listed if rule else around.revisions.pods, started), ())
    held = around.list(Controller())
    shown = {each.uid: around.pods[each.uid] for each in things.items(NAMESPACE)}
    assert things.position(NAMESPACE).revision == around.revisions.pods
    around.reconcile(held)
    held.listing = msgspec.structs.replace(held.listing, objects=shown, used=used_by(shown))
    around.reconcile(held)
    return around

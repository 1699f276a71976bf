"""Reconciles the ledger of a namespace: writes a new count, and removes reservations that are confirmed or expired.

`policies.quota.ledger.reconcile` decides what a count allows. This module has the clock, the lists and the writes.
"""

import logging
import random
import threading
from time import monotonic, sleep, time

import msgspec

from policies.quota.catalogue import CatalogueVersion
from policies.quota.ledger.quota_ledger import QuotaLedger, Revisions
from policies.quota.ledger.reconcile import (
    Reconciled,
    Refused,
    begin_transition,
    catalogue_version_to_count_by,
    initialise,
    reconcile,
)
from policies.quota.quota_request import LedgerError
from webhook.cluster.collection import AT_ALL
from webhook.controller.conditions import quoted
from webhook.controller.ledger_writer import LedgerWriter
from webhook.controller.metrics import ControllerMetrics
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.controller.usage_cache import UsageCache
from webhook.controller.usage_counter import Counted, UsageCounter
from webhook.quota.events import QuotaEvents
from webhook.quota.store import LedgerConflict, VersionedLedger

log = logging.getLogger("gpu_admission.controller")

CONTEND_SECONDS = 8.0
"""How long a worker retries a ledger that others keep writing, before it takes another namespace."""
CONTEND_AGAIN = 0.5
POLL_AGAIN = 0.3
"""Seconds until the next look for lists that another thread is reading."""
GONE_BACK = (
    "the ledger was counted from newer lists than the API server has: was etcd restored from a backup? "
    "See Ledgers in docs/operations.md"
)
"""A list that begins after the ledger was read is never older than the lists of its count, unless etcd was restored."""
SOON = 0.05
"""Added to waits, so that they do not end too early."""


class _Plan(msgspec.Struct, frozen=True):
    """How to count a ledger now: the ledger, perhaps with a transition begun, the counter and the catalogue version.

    `anew`: it was never counted in full, or its catalogue is not available.
    """

    ledger: QuotaLedger
    counter: UsageCounter
    by: CatalogueVersion
    anew: bool


class QuotaReconciler:
    """For any number of threads, but only one at a time for a namespace."""

    def __init__(
        self,
        keeper: LedgerWriter,
        usage_cache: UsageCache,
        ledger_objects: ObservedLedgers,
        metrics: ControllerMetrics,
        events: QuotaEvents,
    ) -> None:
        self._usage_cache = usage_cache
        self._keeper = keeper
        self._ledger_objects = ledger_objects
        self._metrics = metrics
        self._events = events
        self._contended: set[str] = set()
        self._listing = threading.Lock()

    def reconcile(self, namespace: str) -> float | None:
        """Bring the ledger up to date. Return the seconds until the next time, None if there is none, or no quota.

        Raises `LedgerError` and `errors.ApiError`.
        """
        begun = monotonic()
        former: Revisions | None = None
        while monotonic() < begun + CONTEND_SECONDS:
            started, fresh = monotonic(), namespace in self._contended
            try:
                if not fresh and (wait := self._first_wait(namespace)) > 0:
                    return wait
                ledger_object = self._keeper.current(namespace, fresh=fresh)
                self._contended.discard(namespace)
                if ledger_object is None:
                    self._metrics.forget(namespace)
                    return None
                plan = self._plan(ledger_object.ledger)
                if (wait := self._wait(namespace, plan)) > 0:
                    return wait
                result = self._reconciled(namespace, plan, self._count(namespace, plan, begun))
                if isinstance(result, Refused):
                    revisions = plan.ledger.revisions
                    if result is Refused.OLDER and revisions == former:
                        raise LedgerError(GONE_BACK, transient=False)
                    former = revisions
                    log.info("%s: %s; listing again", namespace, result.value)
                    self._metrics.refused.labels(result.name.lower()).inc()
                    plan.counter.refresh(namespace, since=started, nodes_since=started)
                    continue
                self._write(namespace, ledger_object, plan, result)
            except LedgerConflict:
                # Others write this ledger faster than the watch shows it. Read it first, also in the next call.
                self._contended.add(namespace)
                self._metrics.conflicts.inc()
                sleep(random.uniform(0.0, 0.02))  # noqa: S311 - jitter
            else:
                return self._next(namespace, result.ledger)
        return CONTEND_AGAIN

    def _first_wait(self, namespace: str) -> float:
        """Return the seconds that a ledger has to wait if it was never counted and has the spec of its quota."""
        ledger_object = self._ledger_objects.get(namespace)
        if (
            ledger_object is None
            or ledger_object.ledger.used is not None
            or not self._keeper.has_spec(namespace, ledger_object)
        ):
            return 0.0
        wait = self._ledger_objects.initialization_wait(namespace)
        return wait + SOON if wait > 0 else POLL_AGAIN * self._listing.locked()

    def _wait(self, namespace: str, plan: _Plan) -> float:
        """Return the seconds until the ledger may be counted. Raises `errors.ApiError`."""
        if not plan.counter.synced:
            return POLL_AGAIN
        if not plan.anew:
            return 0.0
        wait = self._ledger_objects.initialization_wait(namespace)
        if wait > 0:
            return wait + SOON
        return 0.0 if self._may_list(namespace, plan.counter) else POLL_AGAIN

    def _may_list(self, namespace: str, counter: UsageCounter) -> bool:
        """List everything if many namespaces need new lists. Return False while another thread does that."""
        since = self._ledger_objects.spec_since(namespace)
        if counter.is_listed(namespace, since):
            return True
        waiting = sum(_is_anew(ledger) for ledger in self._ledger_objects.ledgers().values())
        if not counter.pods.is_longer(waiting):
            return True
        if not self._listing.acquire(blocking=False):
            return False
        try:
            counter.refresh_all(since)
        finally:
            self._listing.release()
        return True

    def _plan(self, ledger: QuotaLedger) -> _Plan:
        """Return how to count the ledger. Raises `errors.ApiError`.

        A count under another catalogue version migrates to ours without a pause, if all replicas can read both catalogues.
        Otherwise the ledger is counted anew, and denies requests until all reservations under the other version are gone.
        """
        own = self._usage_cache.own
        target = CatalogueVersion(own.digest, ledger.unclassified_pods)
        if self._usage_cache.publish(own) or ledger.class_catalogue == str(target):
            moving = begin_transition(ledger, str(target))
            by = CatalogueVersion.parse(catalogue_version_to_count_by(moving) or "")
            counter = self._usage_cache.of(by.digest) if by else None
            if by and counter:
                return _Plan(moving, counter, by, anew=_is_anew(ledger))
        return _Plan(ledger, own, target, anew=True)

    def _count(self, namespace: str, plan: _Plan, now: float) -> Counted:
        """Count from lists that are new enough. The first count needs lists that began after the ledger was first observed."""
        ledger, counter = plan.ledger, plan.counter
        since = self._ledger_objects.spec_since(namespace) if plan.anew else AT_ALL
        counter.refresh(namespace, since=since, nodes_since=since)
        counted = self._counted(namespace, plan)
        if self._may_expire_more(namespace, ledger, counted, now):
            counter.refresh(namespace, since=now, nodes_since=0.0)
            counted = self._counted(namespace, plan)
        return counted

    def _counted(self, namespace: str, plan: _Plan) -> Counted:
        deleted = self._usage_cache.deleted(namespace)
        return plan.counter.count(namespace, plan.ledger, plan.by.unclassified_pods, deleted)

    def _may_expire_more(self, namespace: str, ledger: QuotaLedger, counted: Counted, now: float) -> bool:
        """Whether a list that starts now may expire a reservation that the present lists cannot expire."""
        overdue = self._ledger_objects.expired(namespace, now) - self._ledger_objects.expired(
            namespace, counted.list_started
        )
        objects = counted.listing.objects
        shown = (each.id for each in ledger.reservations if not each.is_change and each.object_uid in objects)
        return bool(overdue.intersection(ledger.reservations.ids).difference(shown))

    def _reconciled(self, namespace: str, plan: _Plan, counted: Counted) -> Reconciled | Refused:
        if 0 in msgspec.structs.astuple(counted.listing.revisions):
            # A watch has just begun anew, so the count mixes revisions. A ledger without a count would accept it.
            return Refused.OLDER
        expired = self._ledger_objects.expired(namespace, counted.list_started)
        if not plan.anew:
            return reconcile(plan.ledger, counted.listing, expired)
        waited = self._ledger_objects.initialization_wait(namespace) <= 0
        return initialise(plan.ledger, counted.listing, expired, waited=waited)

    def _write(self, namespace: str, versioned: VersionedLedger, plan: _Plan, reconciled: Reconciled) -> None:
        ledger = reconciled.ledger
        # If only the revisions are newer, nothing is written: the protocol only needs that they never go back.
        if msgspec.structs.replace(ledger, revisions=versioned.ledger.revisions) != versioned.ledger:
            self._keeper.swap(namespace, versioned, ledger)
        if ledger.class_catalogue not in {None, versioned.ledger.class_catalogue}:
            self._metrics.recount_time.labels(namespace).set(time())
            log.info("%s: counted by %s; quota %s is in force", namespace, plan.by, ledger.quota_uid)
        self._metrics.confirmed.labels(namespace).inc(len(reconciled.confirmed))
        if reconciled.expired:
            self._metrics.expired.labels(namespace).inc(len(reconciled.expired))
            log.info("%s: %d reservations expired", namespace, len(reconciled.expired))
        if reconciled.unreadable:
            self._metrics.unreadable.labels(namespace).inc(len(reconciled.unreadable))
            dropped = f"dropped reservations that could not be read: {quoted(reconciled.unreadable)}"
            log.error("%s: %s", namespace, dropped)
            self._events.warn(namespace, ledger.quota_uid, "UnreadableReservations", dropped)

    def _next(self, namespace: str, ledger: QuotaLedger) -> float | None:
        if catalogue_version_to_count_by(ledger) != ledger.class_catalogue:
            return SOON  # all reservations are counted by the next catalogue version, too
        expiry = self._ledger_objects.next_expiry(namespace)
        return None if expiry is None else max(SOON, expiry) + SOON


def _is_anew(ledger: QuotaLedger) -> bool:
    return ledger.used is None or bool(ledger.uncounted)

"""One namespace's row brought up to date: counted from lists, and rid of entries that were kept or came to nothing.

What may be done with which list is decided by `policies.quota.ledger.reconcile`; here are the clock, the lists and the writes.
"""

import logging
import random
from datetime import UTC, datetime
from time import monotonic, sleep

import msgspec

from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reconcile import Reconciled, Refused, initialise, reconcile
from webhook.controller.conditions import conditions
from webhook.controller.counting import Counted, Counting
from webhook.controller.metrics import ControllerMetrics
from webhook.controller.reservation_ages import ReservationAges
from webhook.quota.store import LedgerConflict, QuotaGone, Store, VersionedLedger

log = logging.getLogger("gpu_admission.controller")

CALL_SECONDS = 10.0
"""For one read or write of a row."""
CONTEND_SECONDS = 8.0
"""How long to try for a row that others keep writing, before other namespaces get their turn."""
CONTEND_AGAIN = 0.5
STALE_SECONDS = 150.0
"""Silence of a watch after which counts are called stale: two and a half bookmarks."""
SOON = 0.05
"""Added to waits, so that what is waited for has come."""


class QuotaReconciler:
    """Settles, expires and initialises rows. Several threads may, not for one namespace at once."""

    def __init__(
        self,
        store: Store,
        counting: Counting,
        sights: ReservationAges,
        metrics: ControllerMetrics,
        *,
        recount_seconds: float,
    ) -> None:
        self.counting = counting
        self._store = store
        self._sights = sights
        self._metrics = metrics
        self._recount_seconds = recount_seconds
        self._recounts: dict[str, tuple[str, float]] = {}

    def reconcile(self, namespace: str) -> float | None:
        """Bring the row up to date and return in how many seconds to look again; None: there is no quota.

        Raises `LedgerError` and `errors.ApiError`.
        """
        until = monotonic() + CONTEND_SECONDS
        counted: Counted | None = None
        while monotonic() < until:
            begun = monotonic()
            versioned = self._store.read(namespace, CALL_SECONDS)
            if versioned is None:
                self._forget(namespace)
                return None
            self._sights.see(namespace, versioned.ledger)
            wait = self._waits(namespace, versioned.ledger)
            if wait > 0:
                return wait + SOON
            if counted is None or not _is_for(counted, versioned.ledger):
                counted = self._count(namespace, versioned.ledger, begun)
                # Counting took its time: the row is read again, the count stays.
                continue
            result = self._settled(namespace, versioned.ledger, counted)
            if isinstance(result, Refused):
                log.info("%s: %s; listing again", namespace, result.value)
                self._metrics.refused.labels(result.name.lower()).inc()
                self.counting.refresh(namespace, since=begun, nodes_since=begun)
                counted = self.counting.count(
                    namespace, versioned.ledger, generation=versioned.ledger.generation
                )
                continue
            try:
                self._write(namespace, versioned, result)
            except LedgerConflict:
                self._metrics.conflicts.inc()
                sleep(random.uniform(0.0, 0.02))  # noqa: S311 - jitter
            except QuotaGone:
                return SOON
            else:
                return self._next(namespace)
        return CONTEND_AGAIN

    def _forget(self, namespace: str) -> None:
        self._sights.forget(namespace)
        if self._recounts.pop(namespace, None) is not None:
            self._metrics.forget(namespace)

    def _is_counted(self, row: QuotaLedger) -> bool:
        is_full = row.used is not None and not row.uncounted
        return is_full and row.class_catalogue == self.counting.counted_by(row)

    def _waits(self, namespace: str, row: QuotaLedger) -> float:
        return 0.0 if self._is_counted(row) else self._sights.waits(namespace)

    def _count(self, namespace: str, row: QuotaLedger, now: float) -> Counted:
        """Count from lists as new as this row asks for."""
        if not self._is_counted(row):
            since = self._sights.read_at(namespace)
            self.counting.refresh(namespace, since=since, nodes_since=since)
        elif self._recount_in(namespace, row) <= 0:
            # The very first list was of all namespaces. And nodes are many, and few of them change: one list of them
            # serves all namespaces for half a period.
            since = now if namespace in self._recounts else 0.0
            self.counting.refresh(namespace, since=since, nodes_since=since - self._recount_seconds / 2)
        counted = self.counting.count(namespace, row, generation=row.generation)
        if self._has_phantoms(namespace, row, counted, now):
            self.counting.refresh(namespace, since=now, nodes_since=0.0)
            counted = self.counting.count(namespace, row, generation=row.generation)
        return counted

    def _has_phantoms(self, namespace: str, row: QuotaLedger, counted: Counted, now: float) -> bool:
        """Whether a list begun now might give up an entry that the lists at hand cannot."""
        overdue = self._sights.matured(namespace, now) - self._sights.matured(namespace, counted.begun)
        objects = counted.listing.objects
        return any(
            entry.id in overdue and (entry.is_change or entry.object_uid not in objects)
            for entry in row.reservations
        )

    def _settled(self, namespace: str, row: QuotaLedger, counted: Counted) -> Reconciled | Refused:
        matured = self._sights.matured(namespace, counted.begun)
        if self._is_counted(row):
            return reconcile(row, counted.listing, matured)
        return initialise(row, counted.listing, matured, waited=self._sights.waits(namespace) <= 0)

    def _write(self, namespace: str, versioned: VersionedLedger, settled: Reconciled) -> None:
        now = datetime.now(UTC)
        row = msgspec.structs.replace(
            settled.ledger, conditions=conditions(settled.ledger, stale=self._staleness(), now=now)
        )
        # A count that only is newer is not written: nothing depends on a fence that stays where it was.
        if msgspec.structs.replace(row, revisions=versioned.ledger.revisions) != versioned.ledger:
            self._sights.see(
                namespace, self._store.compare_and_swap(namespace, versioned, row, CALL_SECONDS).ledger
            )
        first = self._is_counted(row) and not self._is_counted(versioned.ledger)
        if first or self._recount_in(namespace, row) <= 0:
            self._recounts[namespace] = (row.quota_uid, monotonic())
            self._metrics.recounted(namespace, now)
        if first:
            log.info("%s: counted, quota %s is in force", namespace, row.quota_uid)
        self._metrics.confirmed.labels(namespace).inc(len(settled.confirmed))
        if settled.expired:
            self._metrics.expired.labels(namespace).inc(len(settled.expired))
            log.info("%s: %d reservations came to nothing", namespace, len(settled.expired))

    def _staleness(self) -> str:
        silent = [
            f"{name} not heard of for {mirror.age:.0f} s"
            for name, mirror in self.counting.mirrors.items()
            if mirror.age > STALE_SECONDS
        ]
        return "; ".join(silent)

    def _recount_in(self, namespace: str, row: QuotaLedger) -> float:
        uid, at = self._recounts.get(namespace, ("", 0.0))
        return at + self._recount_seconds - monotonic() if uid == row.quota_uid else 0.0

    def _next(self, namespace: str) -> float:
        uid_and_time = self._recounts.get(namespace)
        recount = uid_and_time[1] + self._recount_seconds - monotonic() if uid_and_time else 0.0
        maturity = self._sights.next_maturity(namespace)
        return max(SOON, recount if maturity is None else min(recount, maturity)) + SOON


def _is_for(counted: Counted, row: QuotaLedger) -> bool:
    return (counted.listing.quota_uid, counted.listing.generation) == (row.quota_uid, row.generation)

"""The quota of a review: reserve by its deadline, try out for a dry run.

Nothing is ever given back here: whether an object was stored, only a list can show.
"""

import threading
from collections.abc import Callable
from functools import cached_property
from time import monotonic, sleep

import msgspec

from policies.quota.amounts import add
from policies.quota.charge_request import (
    ChargeRequest,
    LedgerError,
    NamespaceQuota,
    QuotaGrant,
    ReservationOutcome,
)
from webhook.quota.batcher import ReservationBatcher
from webhook.quota.metrics import QuotaMetrics

PATIENT = threading.BoundedSemaphore(16)
"""Requests that wait at one time until spares are counted: each holds one of the 32 threads (`--threads`)."""

PAUSE_SECONDS = 0.15
"""Between their decisions."""

LONGEST_SECONDS = 5.0
"""How long they wait at most: a replica that was killed leaves its spares there for longer than any of them should."""

LEFT_TO_ANSWER = 0.5
"""Seconds before the deadline at which they have their last decision."""

Release = Callable[[str, str], None]
"""Gives back what the object of (namespace, uid) holds."""


class QuotaEnforcer(msgspec.Struct, frozen=True):
    """The quotas as reviews see them. `release` is there only for a store that no controller counts."""

    batcher: ReservationBatcher
    metrics: QuotaMetrics
    release: Release | None = None

    def of(self, namespace: str, deadline: float, *, dry_run: bool) -> NamespaceQuota:
        """Return the quota of a namespace, to be asked by `deadline`, a moment of `monotonic`."""
        return _ReviewQuota(self.batcher, self.metrics, namespace, deadline, dry_run)


class _ReviewQuota(msgspec.Struct, frozen=True, dict=True):
    """A `NamespaceQuota`."""

    batcher: ReservationBatcher
    metrics: QuotaMetrics
    namespace: str
    deadline: float
    dry_run: bool

    def reserve(self, charge_request: ChargeRequest) -> ReservationOutcome:
        if self.batcher.has_no_quota(self.namespace):  # of most namespaces known
            self.metrics.decided("no quota", dry_run=self.dry_run)
            return ReservationOutcome()
        if charge_request.is_free:
            return ReservationOutcome()
        try:
            outcome = self._decided(charge_request)
        except LedgerError:
            self.metrics.decided("ledger error", dry_run=self.dry_run)
            raise
        decided = outcome.verdict.reason.value if outcome.verdict else "refused"
        self.metrics.decided("no quota" if outcome.ledger is None else decided, dry_run=self.dry_run)
        return outcome

    def _decided(self, charge_request: ChargeRequest) -> ReservationOutcome:
        """Decide; and again while the request does not fit because of what is reserved ahead, or counted twice after that.

        But not for the pod of a controller, which is made again: a controller has few workers, and other objects wait for them.
        """
        ask = self.batcher.try_out if self.dry_run else self.batcher.reserve
        outcome = ask(self.namespace, charge_request.charged, self.deadline)
        waits = not charge_request.maker and self.batcher.is_denied_by_spares(outcome)
        if not waits or not PATIENT.acquire(blocking=False):
            return outcome
        try:
            until = min(monotonic() + LONGEST_SECONDS, self.deadline - LEFT_TO_ANSWER)
            while self.batcher.is_denied_by_spares(outcome) and monotonic() < until:
                sleep(PAUSE_SECONDS)
                outcome = ask(self.namespace, charge_request.charged, self.deadline)
        except LedgerError:
            return outcome  # it was decided: `onLedgerError` must not admit what did not fit
        finally:
            PATIENT.release()
        return outcome

    def grant(self) -> QuotaGrant | None:
        return self._grant

    @cached_property
    def _grant(self) -> QuotaGrant | None:
        if self.batcher.has_no_quota(self.namespace):
            return None
        try:
            ledger = self.batcher.ledger(self.namespace, self.deadline)
        except LedgerError:
            return None
        if ledger is None:
            return None
        held = None if ledger.uncounted else add(ledger.used or {}, ledger.reserved)
        return QuotaGrant(ledger.hard, ledger.unpinned, held)

"""The quota of a review: reserve by its deadline, try out for a dry run.

Nothing is ever given back here: whether an object was stored, only a list can show.
"""

from collections.abc import Callable
from functools import cached_property

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
        ask = self.batcher.try_out if self.dry_run else self.batcher.reserve
        try:
            outcome = ask(self.namespace, charge_request.charged, self.deadline)
        except LedgerError:
            self.metrics.decided("ledger error", dry_run=self.dry_run)
            raise
        decided = outcome.verdict.reason.value if outcome.verdict else "refused"
        self.metrics.decided("no quota" if outcome.ledger is None else decided, dry_run=self.dry_run)
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
        return QuotaGrant(ledger.hard, ledger.unclassified_pods, held)

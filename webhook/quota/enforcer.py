"""The quota of a review. No reservation is removed here: only a list shows whether an object was stored."""

from collections.abc import Callable
from functools import cached_property
from typing import Protocol

import msgspec

from policies.quota.amounts import total
from policies.quota.quota_request import LedgerError, QuotaGrant, QuotaRequest, ReservationOutcome
from webhook.quota.batcher import ReservationBatcher


class NamespaceQuota(Protocol):
    """The quota of a review's namespace."""

    def reserve(self, quota_request: QuotaRequest) -> ReservationOutcome:
        """Decide, and reserve the growth unless it is a dry run. Raises LedgerError."""

    def grant(self) -> QuotaGrant | None:
        """Return the limits and the usage. None without a quota, or if it could not be read in time."""


class QuotaEnforcer(msgspec.Struct, frozen=True):
    batcher: ReservationBatcher
    release: Callable[[str, str], None] | None = None
    """Removes the reservations of the object with this namespace and uid. None if a controller counts."""

    def of(self, namespace: str, deadline: float, *, dry_run: bool) -> NamespaceQuota:
        """Return the quota of a namespace. `deadline` is a time of `monotonic`."""
        return _ReviewQuota(self.batcher, namespace, deadline, dry_run)


class _ReviewQuota(msgspec.Struct, frozen=True, dict=True):
    """A `NamespaceQuota`."""

    batcher: ReservationBatcher
    namespace: str
    deadline: float
    dry_run: bool

    def reserve(self, quota_request: QuotaRequest) -> ReservationOutcome:
        if self.batcher.has_no_quota(self.namespace):  # true of most namespaces
            self.batcher.metrics.decided("no quota", dry_run=self.dry_run)
            return ReservationOutcome()
        if quota_request.is_free:
            return ReservationOutcome()
        decide = self.batcher.try_out if self.dry_run else self.batcher.reserve
        try:
            outcome = decide(self.namespace, quota_request.on, self.deadline)
        except LedgerError:
            self.batcher.metrics.decided("ledger error", dry_run=self.dry_run)
            raise
        decided = outcome.verdict.reason.value if outcome.verdict else "no quota"
        self.batcher.metrics.decided(decided, dry_run=self.dry_run)
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
        held = None if ledger.uncounted else total((ledger.used or {}, ledger.reserved))
        return QuotaGrant(ledger.hard, ledger.unclassified_pods, held)

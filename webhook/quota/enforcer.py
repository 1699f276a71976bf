"""The quota of a review. No reservation is removed here: only a list shows whether an object was stored."""

from collections.abc import Callable
from functools import cached_property
from time import monotonic, time
from typing import Protocol

import msgspec

from policies.quota.ledger.decide import Line, VerdictReason
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.quota_request import LedgerError, QuotaRequest, ReservationOutcome
from webhook.quota.batcher import ReservationBatcher


class NamespaceQuota(Protocol):
    """The quota of a review's namespace."""

    def reserve(self, quota_request: QuotaRequest) -> ReservationOutcome:
        """Decide, and reserve the growth unless it is a dry run. Raises LedgerError."""

    def ledger(self) -> QuotaLedger | None:
        """Return the ledger for advice. None without a quota, or if it could not be read in time.

        It has nothing that was spent of a budget in a former period.
        """


class QuotaEnforcer(msgspec.Struct, frozen=True):
    batcher: ReservationBatcher
    release: Callable[[str, str], None] | None = None
    """Removes the reservations of the object with this namespace and uid. None if a controller counts."""
    has_controller: Callable[[float], bool] = lambda _seconds: False
    """Whether a controller is alive, asked for at most so many seconds."""

    def of(self, namespace: str, deadline: float, *, dry_run: bool) -> "ReviewQuota":
        """Return the quota of a namespace. `deadline` is a time of `monotonic`."""
        return ReviewQuota(self.batcher, namespace, deadline, dry_run, self.has_controller)


class ReviewQuota(msgspec.Struct, frozen=True, dict=True):
    """A `NamespaceQuota`."""

    batcher: ReservationBatcher
    namespace: str
    deadline: float
    dry_run: bool
    has_controller: Callable[[float], bool]

    def queues(self, quota_request: QuotaRequest) -> ReservationOutcome | None:
        """Return the verdict for which a new pod has to wait in line. None if it does not have to, or cannot."""
        if quota_request.is_free or self.batcher.has_no_quota(self.namespace):
            return None
        try:
            outcome = self.batcher.copy(self.namespace, quota_request.on, self.deadline)
        except LedgerError:
            return None  # the review of /validate says what is wrong
        verdict = outcome.verdict
        fits = verdict is not None and verdict.reason is VerdictReason.RESERVED
        must_wait = verdict is not None and (verdict.must_wait or (fits and quota_request.in_gang))
        is_served = must_wait and self.has_controller(self.deadline - monotonic())
        return outcome if is_served else None

    def reserve(self, quota_request: QuotaRequest) -> ReservationOutcome:
        if self.batcher.has_no_quota(self.namespace):  # true of most namespaces
            self.batcher.metrics.decided("no quota", dry_run=self.dry_run)
            return ReservationOutcome()
        if quota_request.is_free:
            return ReservationOutcome()
        decide = self.batcher.try_out if self.dry_run else self.batcher.reserve
        try:
            outcome = decide(self.namespace, quota_request.on, self.deadline)
            is_behind = outcome.verdict is not None and outcome.verdict.reason is VerdictReason.OTHERS_WAIT
            if is_behind and not self.has_controller(self.deadline - monotonic()):
                request = msgspec.structs.replace(quota_request, line=Line.BEHIND_OWN)
                outcome = decide(self.namespace, request.on, self.deadline)
        except LedgerError:
            self.batcher.metrics.decided("ledger error", dry_run=self.dry_run)
            raise
        decided = outcome.verdict.reason.value if outcome.verdict else "no quota"
        self.batcher.metrics.decided(decided, dry_run=self.dry_run)
        return outcome

    def ledger(self) -> QuotaLedger | None:
        return self._ledger

    @cached_property
    def _ledger(self) -> QuotaLedger | None:
        if self.batcher.has_no_quota(self.namespace):
            return None
        try:
            ledger = self.batcher.ledger(self.namespace, self.deadline)
        except LedgerError:
            return None
        if ledger and ledger.spending and ledger.spending.end <= time() * 1000:
            return msgspec.structs.replace(ledger, spending=None)
        return ledger

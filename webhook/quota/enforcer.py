"""The quota of a review. No reservation is removed here: only a list shows whether an object was stored.

A review that meets a quota which was never counted waits for that, some 2 s, if few others do.
"""

from collections.abc import Callable
from functools import cached_property
from math import inf
from time import monotonic, sleep, time
from typing import Protocol

import msgspec

from policies.quota.ledger.decide import VerdictReason
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.quota_request import LedgerError, QuotaRequest, ReservationOutcome
from webhook.quota.batcher import NAMESPACES_REMEMBERED, RequestOf, ReservationBatcher

WAITING, WAITING_OF_NAMESPACE = 8, 4
"""Reviews that wait for a count, each in a thread. Of 32 threads, the others are for other reviews."""
COUNTED_AGAIN = 0.1
"""Seconds between two reads of a ledger for which a review waits."""
SOON, ANEW = 10.0, 60.0
"""A count takes some 3 s. What is not counted SOON may never be, so for ANEW seconds no review waits for it."""


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
    waiting: list[str] = []
    """The namespaces of the reviews that wait for a count."""
    met: dict[str, float] = {}
    """When a review first met a quota that was never counted."""

    def of(self, namespace: str, deadline: float, *, dry_run: bool) -> "ReviewQuota":
        """Return the quota of a namespace. `deadline` is a time of `monotonic`."""
        shared = self.has_controller, self.waiting, self.met
        return ReviewQuota(self.batcher, namespace, deadline, dry_run, *shared)


class ReviewQuota(msgspec.Struct, dict=True):
    """A `NamespaceQuota`."""

    batcher: ReservationBatcher
    namespace: str
    deadline: float
    dry_run: bool
    has_controller: Callable[[float], bool]
    waiting: list[str]
    met: dict[str, float]
    found_none: bool = False
    """Whether an object is stored because there is no quota, and would be denied by one."""

    def queues(self, quota_request: QuotaRequest) -> ReservationOutcome | None:
        """Return the verdict for which a new pod has to wait in line. None if it does not have to, or cannot."""
        if quota_request.is_free or self.batcher.no_quota.holds(self.namespace):
            return None
        try:
            outcome = self._counted(self.batcher.copy, quota_request)
        except LedgerError:
            return None  # the review of /validate says what is wrong
        verdict = outcome.verdict
        fits = verdict is not None and verdict.reason is VerdictReason.RESERVED
        must_wait = verdict is not None and (verdict.must_wait or (fits and quota_request.in_gang))
        is_served = must_wait and self.has_controller(self.deadline - monotonic())
        return outcome if is_served else None

    def reserve(self, quota_request: QuotaRequest) -> ReservationOutcome:
        if self.batcher.no_quota.holds(self.namespace):  # true of most namespaces
            self.found_none = self._counts(quota_request)
            self.batcher.metrics.decided("no quota", dry_run=self.dry_run)
            return ReservationOutcome()
        if quota_request.is_free:
            return ReservationOutcome()
        decide = self.batcher.try_out if self.dry_run else self.batcher.reserve
        try:
            outcome = self._counted(decide, quota_request)
            is_behind = outcome.verdict is not None and outcome.verdict.reason is VerdictReason.OTHERS_WAIT
            if is_behind and not self.has_controller(self.deadline - monotonic()):
                request = msgspec.structs.replace(quota_request, is_served=False)
                outcome = decide(self.namespace, request.on, self.deadline)
        except LedgerError:
            self.batcher.metrics.decided("ledger error", dry_run=self.dry_run)
            raise
        decided = outcome.verdict.reason.value if outcome.verdict else "no quota"
        self.batcher.metrics.decided(decided, dry_run=self.dry_run)
        self.found_none = outcome.ledger is None and self._counts(quota_request)
        return outcome

    def _counts(self, quota_request: QuotaRequest) -> bool:
        return quota_request.is_enforced and not (self.dry_run or quota_request.is_free)

    def still_holds(self) -> bool:
        """Whether the answer may be written now: no quota counts that the review did not find."""
        return not self.found_none or self.batcher.no_quota.holds(self.namespace)

    def _counted(
        self, decide: Callable[[str, RequestOf, float], ReservationOutcome], quota_request: QuotaRequest
    ) -> ReservationOutcome:
        """Decide, at first or once the quota is counted. Raises LedgerError."""
        outcome = decide(self.namespace, quota_request.on, self.deadline)
        if _is_uncounted(outcome) and quota_request.is_enforced and self._may_wait():
            self.waiting.append(self.namespace)
            try:
                while _is_uncounted(outcome) and monotonic() + 2 * COUNTED_AGAIN < self.deadline:
                    sleep(COUNTED_AGAIN)
                    outcome = decide(self.namespace, quota_request.on, self.deadline)
            finally:
                self.waiting.remove(self.namespace)
        if not _is_uncounted(outcome):
            self.met.pop(self.namespace, None)
        return outcome

    def _may_wait(self) -> bool:
        """Whether a review may wait for a count: few others do, and it is likely to come."""
        now = monotonic()
        if now - self.met.get(self.namespace, -inf) > ANEW:
            if len(self.met) >= NAMESPACES_REMEMBERED:
                self.met.clear()
            self.met[self.namespace] = now
        is_full = len(self.waiting) >= WAITING or self.waiting.count(self.namespace) >= WAITING_OF_NAMESPACE
        is_soon = now - self.met.get(self.namespace, now) < SOON
        return is_soon and not is_full and self.has_controller(self.deadline - now)

    def ledger(self) -> QuotaLedger | None:
        return self._ledger

    @cached_property
    def _ledger(self) -> QuotaLedger | None:
        if self.batcher.no_quota.holds(self.namespace):
            return None
        try:
            ledger = self.batcher.ledger(self.namespace, self.deadline)
        except LedgerError:
            return None
        if ledger and ledger.spending and ledger.spending.end <= time() * 1000:
            return msgspec.structs.replace(ledger, spending=None)
        return ledger


def _is_uncounted(outcome: ReservationOutcome) -> bool:
    return outcome.verdict is not None and outcome.verdict.reason is VerdictReason.UNCOUNTED

"""Decides a review by the quota of its namespace, and reserves what it admits. The controller removes reservations later.

A review whose quota was never counted waits some 2 s for the first count, unless too many reviews wait already.
"""

from collections.abc import Callable
from functools import cached_property, partial
from math import inf
from time import monotonic, sleep, time
from typing import Protocol

import msgspec

from policies.quota.ledger.decide import VerdictReason
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.quota_request import (
    LedgerError,
    QuotaRequest,
    ReservationOutcome,
    decide_by_own_catalogue,
)
from webhook.configuration.loader import Configuration
from webhook.quota.batcher import NAMESPACES_REMEMBERED, RequestOf, ReservationBatcher

MAX_WAITING, MAX_WAITING_OF_NAMESPACE = 8, 4
"""Maximum number of reviews that wait for a count, of all namespaces and of one. Each takes one of the 32 threads."""
READ_SECONDS = 0.1
"""Seconds between two reads of a ledger that a review waits for."""
FIRST_COUNT_SECONDS, SKIP_SECONDS = 10.0, 60.0
"""A count takes some 3 s. If a quota has none COUNT_SECONDS after a review first met it, no review waits for it until
SKIP_SECONDS have passed."""


class NamespaceQuota(Protocol):
    def reserve(self, quota_request: QuotaRequest) -> ReservationOutcome:
        """Decide, and reserve the growth unless it is a dry run. Raises LedgerError."""

    @property
    def has_controller(self) -> bool:
        """Whether a controller is known to be alive: without one, no new pod waits in line."""

    def ledger(self) -> QuotaLedger | None:
        """Return the ledger for advice. None without a quota, or if it could not be read in time.

        It has nothing that was spent of a budget in a former period.
        """


class QuotaEnforcer(msgspec.Struct, frozen=True):
    batcher: ReservationBatcher
    release: Callable[[str, str], None] | None = None
    """Removes the reservations of the object with this namespace and uid. None if a controller counts."""
    has_controller: Callable[[float], bool] = lambda _seconds: False
    """Whether a controller is alive; the argument is a timeout in seconds."""
    waiting: list[str] = []
    """The namespaces of the reviews that wait for a count."""
    first_met: dict[str, float] = {}
    """By namespace: when a review first met a quota that was never counted. The count removes it."""

    def of(self, namespace: str, deadline: float, *, dry_run: bool) -> "ReviewQuota":
        """Return the quota of a namespace. `deadline` is a time of `monotonic`."""
        return ReviewQuota(self, namespace, deadline, dry_run)


class ReviewQuota(msgspec.Struct, dict=True):
    enforcer: QuotaEnforcer
    namespace: str
    deadline: float
    dry_run: bool
    admits_without_quota: bool = False
    """Whether the review admits an object only because it found no quota."""

    def queue_outcome(self, quota_request: QuotaRequest) -> ReservationOutcome | None:
        """Return the outcome if it makes a new pod wait in line. None if the pod need not wait, or cannot."""
        if quota_request.takes_nothing or self.enforcer.batcher.no_quota.is_current(self.namespace):
            return None
        try:
            outcome = self._decide_once_counted(self.enforcer.batcher.copy, quota_request)
        except LedgerError:
            return None  # the review of /validate says what is wrong
        verdict = outcome.verdict
        if verdict is None or not self.has_controller:
            return None
        waits = verdict.may_wait_for_kueue if quota_request.by_kueue else verdict.must_wait
        return outcome if waits or (outcome.is_reserved and quota_request.in_gang) else None

    def reserve(self, quota_request: QuotaRequest) -> ReservationOutcome:
        counts = quota_request.is_enforced and not (self.dry_run or quota_request.takes_nothing)
        if self.enforcer.batcher.no_quota.is_current(self.namespace):  # true of most namespaces
            self.admits_without_quota = counts
            self.enforcer.batcher.metrics.decided("no quota", dry_run=self.dry_run)
            return ReservationOutcome()
        if quota_request.takes_nothing:
            return ReservationOutcome()
        decide = self.enforcer.batcher.try_out if self.dry_run else self.enforcer.batcher.reserve
        try:
            outcome = self._decide_once_counted(decide, quota_request)
            if _has_reason(outcome, VerdictReason.OTHERS_WAIT) and not self.has_controller:
                outcome = decide(
                    self.namespace, partial(quota_request.for_ledger, is_served=False), self.deadline
                )
        except LedgerError:
            self.enforcer.batcher.metrics.decided("ledger error", dry_run=self.dry_run)
            raise
        decided = outcome.verdict.reason.value if outcome.verdict else "no quota"
        self.enforcer.batcher.metrics.decided(decided, dry_run=self.dry_run)
        self.admits_without_quota = counts and outcome.ledger is None
        return outcome

    def still_holds(self) -> bool:
        """Whether the answer is still right: no quota was counted since the review found none."""
        admits_without_quota = self.admits_without_quota
        self.admits_without_quota = False  # unless the review is evaluated again and finds none
        return not admits_without_quota or self.enforcer.batcher.no_quota.is_current(self.namespace)

    def _decide_once_counted(
        self, decide: Callable[[str, RequestOf, float], ReservationOutcome], quota_request: QuotaRequest
    ) -> ReservationOutcome:
        """Decide now, or, if the quota was never counted, once it is. Raises LedgerError."""
        outcome = decide(self.namespace, quota_request.for_ledger, self.deadline)
        if _has_reason(outcome, VerdictReason.UNCOUNTED) and quota_request.is_enforced and self._may_wait():
            self.enforcer.waiting.append(self.namespace)
            try:
                until = self.deadline - 2 * READ_SECONDS
                while _has_reason(outcome, VerdictReason.UNCOUNTED) and monotonic() < until:
                    sleep(READ_SECONDS)
                    outcome = decide(self.namespace, quota_request.for_ledger, self.deadline)
            finally:
                self.enforcer.waiting.remove(self.namespace)
        if not _has_reason(outcome, VerdictReason.UNCOUNTED):
            self.enforcer.first_met.pop(self.namespace, None)
        return outcome

    def _may_wait(self) -> bool:
        """Whether this review may wait for a count: not too many wait already, and a controller is likely to count soon."""
        waiting, first_met, now = self.enforcer.waiting, self.enforcer.first_met, monotonic()
        if now - first_met.get(self.namespace, -inf) > SKIP_SECONDS:
            if len(first_met) >= NAMESPACES_REMEMBERED:
                first_met.clear()
            first_met[self.namespace] = now
        is_full = len(waiting) >= MAX_WAITING or waiting.count(self.namespace) >= MAX_WAITING_OF_NAMESPACE
        return (
            now - first_met.get(self.namespace, now) < FIRST_COUNT_SECONDS
            and not is_full
            and self.has_controller
        )

    @property
    def has_controller(self) -> bool:
        return self.enforcer.has_controller(self.deadline - monotonic())

    def ledger(self) -> QuotaLedger | None:
        return self._ledger

    @cached_property
    def _ledger(self) -> QuotaLedger | None:
        if self.enforcer.batcher.no_quota.is_current(self.namespace):
            return None
        try:
            # Advice takes at most half of the time: the decision needs the rest.
            ledger = self.enforcer.batcher.ledger(self.namespace, (monotonic() + self.deadline) / 2)
        except LedgerError:
            return None
        if ledger and ledger.spending and ledger.spending.end <= time() * 1000:
            return msgspec.structs.replace(ledger, spending=None)
        return ledger


def _has_reason(outcome: ReservationOutcome, reason: VerdictReason) -> bool:
    return outcome.verdict is not None and outcome.verdict.reason is reason


class ReadOnlyQuota(msgspec.Struct, frozen=True):
    """A `NamespaceQuota` that decides by a ledger, and reserves nothing.

    stored: None if the namespace has no quota. is_unused: decide as if nothing were used: only what can never fit is denied.
    """

    stored: QuotaLedger | None
    configuration: Configuration
    is_unused: bool = False
    has_controller: bool = True

    def reserve(self, quota_request: QuotaRequest) -> ReservationOutcome:
        if self.stored is None or quota_request.takes_nothing:
            return ReservationOutcome()
        ledger = self.stored.using({}) if self.is_unused else self.stored
        return decide_by_own_catalogue(ledger, quota_request, self.configuration)

    def ledger(self) -> QuotaLedger | None:
        return self.stored

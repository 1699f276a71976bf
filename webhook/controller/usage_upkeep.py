"""Starts and stops the counting over time that budgets need.

Removes counters and published catalogues that no ledger names any more.
"""

import logging
from math import inf
from time import monotonic

from webhook.cluster import errors
from webhook.cluster.leader import LeaderElector
from webhook.controller.shared_informers import SharedInformers

log = logging.getLogger("gpu_admission.controller")

TIDY_SECONDS = 60.0
"""Between removals of published catalogues that no ledger names any more."""
FOLLOW_SECONDS = 5.0
"""Seconds between two looks for ledgers with a budget. So a new process soon records what these hold over time."""


class UsageUpkeep:
    """Runs in followers, too. Only the leader removes published catalogues. For that, only the ledger objects must be listed."""

    PERIOD_SECONDS = 0.5

    def __init__(self, informers: SharedInformers, elector: LeaderElector) -> None:
        self._informers, self._elector = informers, elector
        self._tidied_at = self._followed_at = -inf

    def sync(self) -> None:
        now = monotonic()
        usage, ledgers = self._informers.usage, self._informers.observed.ledgers()
        if now - self._tidied_at >= TIDY_SECONDS and self._informers.ledger_objects.synced:
            self._tidied_at = now
            try:
                usage.prune(ledgers, is_leader=self._elector.is_leader())
            except errors.ApiError as error:
                log.warning("the published catalogues: %s", error)
        if now - self._followed_at >= FOLLOW_SECONDS and not self._informers.unready():
            self._followed_at = now
            usage.follow(ledgers)

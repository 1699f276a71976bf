"""Has the counters follow budgets, and removes counters and published catalogues that no ledger names any more."""

import logging
import threading
from dataclasses import dataclass
from time import monotonic

from webhook.cluster import errors
from webhook.cluster.leader import LeaderElector
from webhook.controller.shared_informers import SharedInformers

log = logging.getLogger("gpu_admission.controller")

POLL_SECONDS = 0.5
TIDY_SECONDS = 60.0
"""Between removals of published catalogues that no ledger names any more."""
FOLLOW_SECONDS = 5.0
"""Between two looks at the ledgers with a budget: so soon after its start, a process knows what is held over time."""


@dataclass(eq=False)
class UsageUpkeep:
    """Works in followers, too. Only the leader writes the published catalogues."""

    informers: SharedInformers
    elector: LeaderElector
    tidied_at: float = 0.0
    followed_at: float = 0.0

    def run(self, stopping: threading.Event) -> None:
        """Work until `stopping`; the body of a thread."""
        while not stopping.wait(POLL_SECONDS):
            try:
                self.look(monotonic())
            except Exception:  # a bug must not end the thread
                log.exception("the counters were not tidied up")

    def look(self, now: float) -> None:
        """Do what is due at that moment (monotonic)."""
        informers = self.informers
        if now - self.tidied_at >= TIDY_SECONDS and informers.ledger_objects.synced:
            self.tidied_at = now
            try:
                informers.usage.prune(informers.observed.ledgers(), is_leader=self.elector.is_leader())
            except errors.ApiError as error:
                log.warning("the published catalogues: %s", error)
        if now - self.followed_at >= FOLLOW_SECONDS and not informers.unready():
            self.followed_at = now
            informers.usage.follow(informers.observed.ledgers())

"""What the parts of the controller read: one informer for each kind, the counts of usage, and the configuration in force."""

import logging
import threading
from collections.abc import Callable
from functools import partial
from math import inf
from time import monotonic
from typing import Any

from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.waiting import QueueSpec
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.informer import STALE_SECONDS, Informer
from webhook.cluster.leader import LeaderElector
from webhook.cluster.namespaces import Namespaces
from webhook.configuration.loader import Configuration
from webhook.controller.device_slices import DeviceSlices
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.controller.teams import TeamMembership
from webhook.controller.usage_cache import UsageCache
from webhook.quota.documents import QUOTAS, QuotaStatus, decode_quota
from webhook.quota.ledger_objects import TeamObjects, ledger_record, ledgers
from webhook.threads import thread

log = logging.getLogger("gpu_admission.controller")


TIDY_SECONDS = 60.0
"""Between removals of published catalogues that no ledger names any more."""
FOLLOW_SECONDS = 5.0
"""Seconds between two looks for ledgers with a budget. So a new process soon records what these hold over time."""


class SharedInformers:
    """The informers of one process. Subscribe before `start`.

    Followers watch, too. So a new leader has already observed most reservations for some time, and they expire sooner.
    """

    def __init__(
        self,
        api: ApiClient,
        configuration: Configuration,
        namespace: str,
        observed: ObservedLedgers,
        clock: Callable[[], int],
    ) -> None:
        self._configuration, self.observed = configuration, observed
        self.team_objects = TeamObjects()
        self.quotas = Informer(api, QUOTAS, decode_quota)
        self.ledger_objects = Informer(api, ledgers(namespace), partial(ledger_record, self.team_objects))
        self.namespaces = Namespaces(api)
        self.membership = TeamMembership(api, self.namespaces)
        self.slices = DeviceSlices(api, self.configuration)
        # After a new watch began, list first the namespaces whose quota is full: users may wait there for freed quota.
        self.usage = UsageCache(api, namespace, configuration, self.slices, clock, awaited=observed.full)

    def start(self, stopping: threading.Event) -> None:
        self.usage.own_counter.start()
        thread("device slices", self.slices.run, stopping).start()
        for informer in self._watched():
            informer.start(stopping)

    def stop(self) -> None:
        self.usage.stop()

    def configuration(self) -> Configuration:
        return self._configuration

    def configure(self, configuration: Configuration) -> set[str]:
        """Use another configuration. Return the namespaces that must be reconciled again.

        If it raises `errors.ApiError`, usage is still counted by the old one.
        """
        self._configuration = configuration
        namespaces = self.usage.own_counter.sums.waiting_namespaces()
        if self.usage.configure(configuration):
            namespaces |= {*self.quotas.namespaces(), *self.ledger_objects.namespaces()}
        return namespaces

    def all(self) -> dict[str, Informer[Any]]:
        own = {informer.resource.plural: informer for informer in self._watched()}
        return {**own, **self.usage.own_counter.informers}

    def why_unready(self) -> str:
        """Return which kinds are not listed yet; empty if all are.

        The kind ClusterGPUQuota may be missing. Then there are no teams.
        """
        teams = self.membership.informer
        unlisted = [
            name
            for name, informer in self.all().items()
            if not (informer.synced or (informer is teams and informer.is_missing))
        ]
        return f"not listed yet: {', '.join(unlisted)}" if unlisted else ""

    def why_stale(self) -> str:
        """Return why counts may lag, empty if they do not."""
        silent = [
            f"no message about {name} for {informer.age:.0f} s"
            for name, informer in self.usage.own_counter.informers.items()
            if informer.age > STALE_SECONDS
        ]
        return "; ".join(silent)

    def statuses(self) -> dict[str, QuotaStatus]:
        return {record.namespace: record.status for record in self.quotas.all()}

    def watched_quota(self, namespace: str) -> QuotaLedger | None:
        """Return the GPUQuota of a namespace as a ledger that was never counted. None if none can be read."""
        quota = self.quotas.first(namespace)
        return quota.desired if quota else None

    def line_spec(self, namespace: str) -> QueueSpec:
        """Return `spec.queue` of the GPUQuota of a namespace."""
        quota = self.quotas.first(namespace)
        return quota.spec.queue if quota and quota.spec else QueueSpec()

    def _watched(self) -> tuple[Informer[Any], ...]:
        return self.quotas, self.ledger_objects, self.membership.informer, self.namespaces.informer


class UsageUpkeep:
    """Counts over time where budgets need it. Removes counters and published catalogues that no ledger names any more.

    Runs in followers, too. Only the leader removes published catalogues. For that, only the ledger objects must be listed.
    """

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
        if now - self._followed_at >= FOLLOW_SECONDS and not self._informers.why_unready():
            self._followed_at = now
            usage.follow(ledgers)

"""What makes a ledger due to be reconciled: changes of its object, of its quota, of its team, and of what it counts."""

import logging

from policies.quota.ledger.quota_ledger import COUNTED_SECONDS, QuotaLedger
from webhook.cluster.namespaces import NamespaceRecord
from webhook.controller.gpu_use import GPUUse
from webhook.controller.metrics import ControllerMetrics
from webhook.controller.shared_informers import SharedInformers
from webhook.controller.work_queue import WorkQueue
from webhook.quota.documents import QuotaRecord, has_another_spec
from webhook.quota.ledger_objects import LedgerRecord, is_team_object, ledgers_before, team_object_name
from webhook.quota.team_documents import TeamRecord

log = logging.getLogger("gpu_admission.controller")


class LedgerChanges:
    """Records ledgers as the watch shows them in ObservedLedgers, and queues the names of those that must be counted.

    Hears: quotas, ledger_objects, namespaces.informer, membership.moved, membership.changed, usage.events.changed,
    gpu_use.holders_changed.
    """

    def __init__(
        self, informers: SharedInformers, gpu_use: GPUUse | None, queue: WorkQueue, metrics: ControllerMetrics
    ) -> None:
        self._observed, self._usage = informers.observed, informers.usage
        self._queue, self._metrics = queue, metrics
        informers.quotas.subscribe(self.quota_changed)
        informers.ledger_objects.subscribe(self.ledger_object_changed)
        informers.namespaces.informer.subscribe(self.namespace_changed)
        informers.membership.moved.subscribe(self.namespace_moved)
        informers.membership.changed.subscribe(self.team_changed)
        informers.usage.events.changed.subscribe(self.count_changed)
        if gpu_use is not None:
            gpu_use.holders_changed.subscribe(self.idle_holders_changed)

    def quota_changed(self, before: QuotaRecord | None, after: QuotaRecord | None) -> None:
        if after is not None and after.spec is None:
            log.error("%s: %s", after.namespace, after.problem)
        if (changed := after or before) and has_another_spec(before, after):
            self._queue.add(changed.namespace)

    def team_changed(self, before: TeamRecord | None, after: TeamRecord | None) -> None:
        if (changed := after or before) and has_another_spec(before, after):
            self._queue.add(team_object_name(changed.name))

    def namespace_moved(self, namespace: str, *_teams: str) -> None:
        self._queue.add(namespace)

    def namespace_changed(self, before: NamespaceRecord | None, after: NamespaceRecord | None) -> None:
        """Look again where pods wait: another policy may be in force by other labels."""
        if (changed := after or before) and self._usage.waiting(changed.key):
            self._queue.add(changed.key)

    def count_changed(self, namespace: str, frees: bool) -> None:
        if not self._observed.knows(namespace) and not self._usage.waiting(namespace):
            return
        if frees:  # a user or a pod may wait for it
            self._queue.hurry(namespace)
        else:  # the new object is already counted by its reservation
            self._queue.add(namespace, COUNTED_SECONDS)

    def idle_holders_changed(self, namespace: str) -> None:
        if self._observed.knows(namespace):
            self._queue.add(namespace)

    def ledger_object_changed(self, before: LedgerRecord | None, after: LedgerRecord | None) -> None:
        changed = after or before
        if changed is None:
            return
        if is_team_object(changed.namespace):
            self._team_object_changed(before, after, changed.namespace)
            return
        if after is None:
            # Also in a former leader: its old metrics would say that no controller counts the namespace any more.
            self._metrics.forget(changed.namespace)
        if after is None or after.versioned is None:  # deleted, or unreadable
            self._observed.forget(changed.namespace, changed.uid)
            self._queue.add(changed.namespace)
            return
        self._observed.observe(after.namespace, after.versioned)
        if after.moved_to:
            self._queue.add(after.namespace)
        else:
            self._ledger_changed(after.namespace, before.ledger if before else None, after.versioned.ledger)

    def _team_object_changed(
        self, before: LedgerRecord | None, after: LedgerRecord | None, team_object: str
    ) -> None:
        former = before.team.team_ledgers if before and before.team else None
        if after is None or after.team is None:
            self._observed.forget_team(team_object)
            for name in (team_object, *(former.ledgers if former else ())):
                self._queue.add(name)
            return
        self._observed.observe_team(after.team)
        ledgers = after.team.team_ledgers
        if ledgers.leaving or former is None or former.ledgers.keys() != ledgers.ledgers.keys():
            self._queue.add(team_object)
        former_ledgers = ledgers_before(before, ledgers.team)
        for namespace, ledger in ledgers.ledgers.items():
            if (former_ledger := former_ledgers.get(namespace)) is not ledger:
                self._ledger_changed(namespace, former_ledger, ledger)

    def _ledger_changed(self, namespace: str, former: QuotaLedger | None, ledger: QuotaLedger) -> None:
        if former is None or former.spec != ledger.spec:
            self._queue.add(namespace)
        elif frozenset(ledger.reservations.ids).difference(former.reservations.ids):
            # Count soon: a new reservation may have the name of a stored object, which counts only once, or be unreadable.
            self._queue.add(namespace, COUNTED_SECONDS)
        elif (expiry := self._observed.next_expiry(namespace)) is not None:
            self._queue.add(namespace, expiry)

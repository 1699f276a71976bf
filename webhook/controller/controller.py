"""The quota controller. Followers watch too, so that a new leader has observed the reservations for some time."""

import logging
import random
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import partial
from socket import gethostname
from time import monotonic
from typing import Any

from policies.quota.demand import RULE_ID
from policies.quota.ledger.quota_ledger import COUNTED_SECONDS, QuotaLedger
from policies.quota.quota_request import LedgerError
from policies.quota.waiting import QueueSpec
from policies.rule import Mode
from policies.rules.gpu_quota import queues
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.events import EventQueue, EventWriter
from webhook.cluster.informer import Informer
from webhook.cluster.leader import LeaderElector
from webhook.cluster.namespaces import Namespaces, NamespaceUnknown
from webhook.cluster.objects import CONTROLLER, timestamp
from webhook.configuration.documents import CLASS
from webhook.configuration.loader import Configuration
from webhook.controller.class_capacity import CapacityWriter
from webhook.controller.gangs import Gangs
from webhook.controller.gpu_use import GPUUse, Measuring
from webhook.controller.ledger_changes import LedgerChanges
from webhook.controller.metrics import ControllerMetrics
from webhook.controller.moves import TeamMoves
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.controller.owners import Owners
from webhook.controller.quota_status import QuotaStatusWriter, staleness
from webhook.controller.reconciler import QuotaReconciler
from webhook.controller.team_reconciler import Outcome, TeamReconciler
from webhook.controller.team_status import TeamStatusWriter
from webhook.controller.teams import TeamMembership
from webhook.controller.unmapped_resources import UnmappedResourcesWatch
from webhook.controller.usage_counter import UsageCache, UsageCounter, verify
from webhook.controller.usage_history import anchored_clock
from webhook.controller.usage_log import Holding, UsageLog
from webhook.controller.waiting_line import WaitingLine
from webhook.controller.waiting_reports import WaitingReports
from webhook.controller.work_queue import WorkItem, WorkQueue
from webhook.quota.budget_notes import BudgetNotes
from webhook.quota.cluster_store import ClusterStore
from webhook.quota.counted_records import LONG_PENDING_SECONDS, ClaimHistory
from webhook.quota.documents import QUOTAS, QuotaRecord, QuotaStatus, decode_quota, has_another_spec
from webhook.quota.ledger_objects import TeamObjects, is_team_object, team_object_name
from webhook.quota.ledger_records import LedgerReader, ledgers
from webhook.quota.team_documents import TeamRecord
from webhook.quota.team_lookup import TeamLookup

log = logging.getLogger("gpu_admission.controller")

WORKERS = 16
"""Most workers wait for a list or a write. A list of tens of thousands of objects takes seconds."""
POLL_SECONDS = 0.5
RETRY_SECONDS = (0.1, 10.0)
"""First and longest pause after a failed reconciliation of a namespace. If an API server is killed, the reservations of its
unfinished creations are first observed after its return, and expire EXPIRY_SECONDS later."""
LABELS_SECONDS = 2.0
"""Within these seconds the labels of a namespace must be read."""
TIDY_SECONDS = 60.0
"""Between removals of published catalogues that no ledger names any more."""
FOLLOW_SECONDS = 5.0
"""Between two looks at the ledgers with a budget: so soon after its start, a process knows what is held over time."""
HANG_SECONDS = 120.0
"""A worker that reconciles one namespace for longer is hung: its calls to the API server end within some tens of seconds."""


class Controller:
    """The threads of a controller process. They are daemons, so a call that hangs does not keep the process alive."""

    def __init__(
        self,
        api: ApiClient,
        configuration: Configuration,
        elector: LeaderElector,
        metrics: ControllerMetrics,
        *,
        namespace: str,
        recount_seconds: float,
        write_usage: Callable[[dict[str, Any]], object] | None = None,
        measuring: Measuring | None = None,
        observed: ObservedLedgers | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._elector = elector
        self._metrics = metrics
        self.observed = observed or ObservedLedgers()
        self._queue = WorkQueue(self._group_of, rest=COUNTED_SECONDS)
        self._failures: dict[str, int] = {}
        self._busy_since: dict[str, float] = {}
        self._tidied_at = self._followed_at = 0.0
        self.quotas = Informer(api, QUOTAS, decode_quota, self._quota_changed)
        team_objects = TeamObjects()
        changes = LedgerChanges(
            self.observed,
            self._queue,
            show=lambda namespace, within: self._statuses.changed(namespace, within),  # noqa: PLW0108 - made below
            show_team=lambda team: self._team_statuses.changed(team),  # noqa: PLW0108 - made below
            forget=metrics.forget,
        )
        self.ledger_objects = Informer(
            api, ledgers(namespace), LedgerReader(team_objects).read, changes.changed
        )
        clock = clock or anchored_clock()
        counter = partial(
            UsageCounter,
            api,
            changed=self._count_changed,
            began=self._began,
            ended=self._ended,
            # Users may wait for quota that is freed where all is used up.
            awaited=self.observed.full,
            idle=lambda namespace: self.gpu_use.idle(namespace) if self.gpu_use else {},
            history=ClaimHistory(),
            clock=clock,
        )
        self.usage_cache = UsageCache(api, namespace, configuration, counter)
        self._usage = (
            UsageLog(write_usage, self._leads, replica=gethostname(), team_of=self._team_of)
            if write_usage
            else None
        )
        self._events = EventQueue(EventWriter(api, CONTROLLER), metrics.events_lost.inc)
        self.gpu_use: GPUUse | None = self._gpu_use(measuring) if measuring else None
        self._reports = WaitingReports(
            self._events.put,
            metrics,
            self._usage.started if self._usage else lambda _pod: None,
            lambda namespace: self._statuses.changed(namespace),  # noqa: PLW0108 - made below
        )
        self._statuses = QuotaStatusWriter(
            api,
            self.quotas,
            self.ledger_objects,
            leads=self._leads,
            stale=lambda: staleness(self.usage_cache.own.informers),
            unmapped_resources=lambda: self.unmapped_resources.names,
            events=self._events,
            waiting=self._reports.shown,
            idle=lambda namespace: self.gpu_use.shown(namespace) if self.gpu_use else None,
        )
        self.unmapped_resources = UnmappedResourcesWatch(
            lambda: self.usage_cache.own, lambda: self._configuration, self._statuses.all_changed
        )
        self._configuration = configuration
        self._namespaces = Namespaces(api, self._namespace_changed)
        self.teams = TeamMembership(api, self._namespaces, self._membership_changed, self._team_changed)
        self.line = WaitingLine(
            api,
            self.usage_cache,
            Gangs(api, lambda: self._configuration),
            Owners(api, lambda: self._configuration),
            self._reports,
            self._queue_of,
            partial(self._enforces, and_queues=True),
            self._queue.add,
        )
        # A TeamLookup of its own lists anew.
        store = ClusterStore(
            api, namespace, lambda name, seconds: TeamLookup(api).of(name, seconds), team_objects
        )
        moves = TeamMoves(store, self.observed, metrics, self.teams, self._events)
        self._reconciler = QuotaReconciler(
            store,
            self._watched_quota,
            self.usage_cache,
            self.observed,
            metrics,
            self._events,
            self.line,
            self._enforces,
            BudgetNotes(api, namespace),
            clock,
            moves,
        )
        self._team_statuses = TeamStatusWriter(
            api,
            self.teams,
            self.quotas,
            self.ledger_objects,
            leads=self._leads,
            stale=lambda: staleness(self.usage_cache.own.informers),
            left_out=moves.sizes.left_out,
            events=self._events,
        )
        self._team_reconciler = TeamReconciler(store, self.observed, self.teams, moves, self._reconciler)
        self._capacity = CapacityWriter(
            api,
            namespace,
            counter=lambda: self.usage_cache.own,
            documented=lambda: [each.name for each in self._configuration.documents if each.kind == CLASS],
            leads=self._leads,
        )
        self._verify = partial(
            verify,
            self.usage_cache,
            metrics,
            lambda: self.observed.ledgers() if self._leads() else (),
            self._queue.add,
            recount_seconds,
        )

    def run(self, stopping: threading.Event) -> None:
        """Work until `stopping`, then release the Lease."""
        self.usage_cache.own.start()
        self.quotas.start(stopping)
        self.ledger_objects.start(stopping)
        self.teams.informer.start(stopping)
        self._namespaces.informer.start(stopping)
        self._events.start()
        targets: dict[str, Callable[[threading.Event], object]] = {
            **{f"reconcile {number}": self._work for number in range(WORKERS)},
            "unmapped": self.unmapped_resources.run,
            "status": self._statuses.run,
            "team status": self._team_statuses.run,
            "capacity": self._capacity.run,
            "verify": self._verify,
            "election": self._elector.run,
        }
        if self._usage is not None:
            targets["usage"] = partial(self._usage.run, lambda: self.usage_cache.own.holdings())  # noqa: PLW0108 - another may become `own`
        if self.gpu_use is not None:
            targets["use"] = self.gpu_use.run
        threads = {
            name: threading.Thread(target=target, args=(stopping,), name=name, daemon=True)
            for name, target in targets.items()
        }
        for thread in threads.values():
            thread.start()
        stopping.wait()
        self.usage_cache.stop()
        threads["election"].join(timeout=5.0)
        self._events.stop()

    def configure(self, configuration: Configuration) -> None:
        """Count by another configuration from now on. If it raises `errors.ApiError`, the old configuration stays in use."""
        self._configuration = configuration
        namespaces = self.usage_cache.own.waiting_namespaces()
        if self.usage_cache.configure(configuration):
            namespaces |= {*self.quotas.namespaces(), *self.ledger_objects.namespaces()}
        for namespace in namespaces:
            self._queue.add(namespace)

    def statuses(self) -> dict[str, QuotaStatus]:
        return {record.namespace: record.status for record in self.quotas.all()}

    def pending_gpus(self) -> dict[str, Fraction]:
        """Return by namespace the GPUs of pods that have held quota without a node for LONG_PENDING_SECONDS."""
        before = timestamp(datetime.now(UTC) - timedelta(seconds=LONG_PENDING_SECONDS))
        own = self.usage_cache.own
        return {
            namespace: own.unbound_gpus(namespace, ledger.unclassified_pods, before)
            for namespace, ledger in self.observed.ledgers().items()
        }

    def informers(self) -> dict[str, Informer[Any]]:
        watched = self.quotas, self.ledger_objects, self.teams.informer, self._namespaces.informer
        own = {each.resource.plural: each for each in watched}
        return {**own, **self.usage_cache.own.informers}

    def unready(self) -> str:
        """Return why the controller is not ready, empty if it is. A follower is ready too.

        Without the kind ClusterGPUQuota there are no teams.
        """
        teams, every = self.teams.informer, self.informers().items()
        unlisted = [name for name, each in every if not (each.synced or (each is teams and each.is_missing))]
        return f"not listed yet: {', '.join(unlisted)}" if unlisted else ""

    def unhealthy(self) -> str:
        """Return why the process must be restarted, empty if not. An unavailable API server is not a reason."""
        now = monotonic()
        hanging = [name for name, since in list(self._busy_since.items()) if now - since > HANG_SECONDS]
        return f"busy for over {HANG_SECONDS:.0f} s: {', '.join(sorted(hanging))}" if hanging else ""

    def _gpu_use(self, measuring: Measuring) -> GPUUse:
        return GPUUse(
            measuring,
            held=lambda: self.usage_cache.own.demands(),  # noqa: PLW0108 - another may become `own`
            resource_mapping=lambda: self.usage_cache.own.catalogues.resource_mapping,
            stored=lambda namespace: next((each.status.idle for each in self.quotas.items(namespace)), None),
            leads=self._leads,
            recount=self._idle_changed,
            reshow=lambda: self._statuses.all_changed(),  # noqa: PLW0108 - made later
            write_event=self._events.put,
            failed=self._metrics.use_failures.inc,
        )

    def _idle_changed(self, namespace: str) -> None:
        self._statuses.changed(namespace)
        if self.observed.knows(namespace):
            self._queue.add(namespace)

    def _watched_quota(self, namespace: str) -> QuotaLedger | None:
        """Return the GPUQuota in the informer as a ledger that was never counted. None without a readable GPUQuota."""
        return next((each.desired for each in self.quotas.items(namespace)), None)

    def _queue_of(self, namespace: str) -> QueueSpec:
        spec = next((each.spec for each in self.quotas.items(namespace)), None)
        return spec.queue if spec else QueueSpec()

    def _enforces(self, namespace: str, *, and_queues: bool = False) -> bool:
        """Whether the rule gpu-quota denies anything in the namespace, or would without a pause; `and_queues`: lets pods wait."""
        policies = self._configuration.policies
        try:
            deadline = monotonic() + LABELS_SECONDS
            labels = (
                self._namespaces.labels_of(namespace, deadline) if policies.asks_labels(namespace) else ()
            )
        except NamespaceUnknown as error:
            log.warning("%s: its labels, which select its policy: %s", namespace, error)
            return True
        held = policies.for_namespace(namespace, labels).in_force(RULE_ID, datetime.now(UTC))
        if held is None or held[0].options.mode is not Mode.ENFORCE:
            return False
        return not and_queues or queues(held[0].options)

    def _namespace_changed(self, namespace: str) -> None:
        self.teams.namespace_changed(namespace)
        if self.usage_cache.own.has_waiting(namespace):
            self._queue.add(namespace)

    def _quota_changed(self, before: QuotaRecord | None, after: QuotaRecord | None) -> None:
        if after is not None and after.spec is None:
            log.error("%s: %s", after.namespace, after.problem)
        if changed := after or before:
            self._statuses.changed(changed.namespace)
            if has_another_spec(before, after):
                self._queue.add(changed.namespace)

    def _group_of(self, name: str) -> str:
        """Return the object in which a ledger stands, or that of the team that it joins: others of it may join, too."""
        place = self.observed.place(name)
        team = self.teams.last_team_of(name) if place == name else ""
        return team_object_name(team) if team else place

    def _team_of(self, namespace: str) -> str:
        return self.teams.team_of(namespace)

    def _membership_changed(self, namespace: str, *teams: str) -> None:
        self._queue.add(namespace)
        for team in teams:
            self._team_statuses.changed(team)

    def _team_changed(self, before: TeamRecord | None, after: TeamRecord | None) -> None:
        if changed := after or before:
            self._team_statuses.changed(changed.name)
            if has_another_spec(before, after):
                self._queue.add(team_object_name(changed.name))

    def _count_changed(self, namespace: str, frees: bool) -> None:
        if not self.observed.knows(namespace) and not self.usage_cache.own.has_waiting(namespace):
            return
        if frees:  # a user or a pod may wait for it
            self._queue.hurry(namespace)
        else:  # the new object is already counted by its reservation
            self._queue.add(namespace, COUNTED_SECONDS)

    def _leads(self) -> bool:
        return self._elector.is_leader and not self.unready()

    def _began(self, digest: str, holding: Holding) -> None:
        if self._usage is not None and digest == self.usage_cache.own.digest:
            self._usage.counted(holding)

    def _ended(self, digest: str, holding: Holding) -> None:
        own = self.usage_cache.own
        if digest == own.digest:
            self.line.ended(holding.record, own.pods.changed_after)
        # Until our own counter has its first list, only an older one sees what ends.
        if self._usage is not None and (digest == own.digest or not own.synced):
            self._usage.released(holding)

    def _work(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            self._metrics.leader.set(float(self._elector.is_leader))
            self._remove_old_catalogues()
            self._follow_budgets()
            if not self._leads():
                stopping.wait(POLL_SECONDS)
                continue
            item = self._queue.take(POLL_SECONDS)
            if item is not None and not stopping.is_set():
                self._reconcile(item)

    def _remove_old_catalogues(self) -> None:
        now = monotonic()
        if now - self._tidied_at < TIDY_SECONDS or not self.ledger_objects.synced:
            return
        self._tidied_at = now
        try:
            self.usage_cache.prune(self.observed.ledgers(), is_leader=self._elector.is_leader)
        except errors.ApiError as error:
            log.warning("the published catalogues: %s", error)

    def _follow_budgets(self) -> None:
        now = monotonic()
        if now - self._followed_at >= FOLLOW_SECONDS and not self.unready():
            self._followed_at = now
            self.usage_cache.follow(self.observed.ledgers())

    def _reconcile(self, item: WorkItem) -> None:
        outcomes: Mapping[str, Outcome]
        self._busy_since[item.group] = monotonic()
        try:
            if is_team_object(item.group):
                outcomes = self._team_reconciler.reconcile(item.group, item.names)
            else:
                outcomes = {name: self._reconciler.reconcile(name) for name in item.names}
        except (LedgerError, errors.ApiError) as error:
            outcomes = dict.fromkeys(item.names, error)
        except Exception as bug:  # a bug with one object must not end the work on the others
            log.exception("%s: reconciliation failed", item.group)
            outcomes = dict.fromkeys(item.names, bug)
        finally:
            self._busy_since.pop(item.group, None)
            self._queue.done(item)
        for name, outcome in outcomes.items():
            if isinstance(outcome, LedgerError | errors.ApiError):
                log.warning("%s: %s", name, outcome)
            if not isinstance(outcome, Exception):
                self._failures.pop(name, None)
            seconds = self._retry_pause(name) if isinstance(outcome, Exception) else outcome
            if seconds is not None:
                self._queue.add(name, seconds)

    def _retry_pause(self, namespace: str) -> float:
        """Count a failure. Return the seconds until the next reconciliation of the namespace."""
        self._metrics.failures.inc()
        self._failures[namespace] = min(self._failures.get(namespace, 0) + 1, 10)
        first, longest = RETRY_SECONDS
        pause = min(longest, first * 2.0 ** (self._failures[namespace] - 1))
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 - jitter

"""The quota controller: makes its parts, each with what it reads, and adds them to the manager.

A part subscribes in its constructor: `Hears:` in its class names the attributes.
The process has further parts, which read no informer: `webhook/commands/controller.py` adds them.
"""

from collections.abc import Callable
from functools import partial
from socket import gethostname
from typing import Any

from prometheus_client import CollectorRegistry

from webhook.cluster.api import ApiClient
from webhook.cluster.leader import LeaderElector
from webhook.configuration.loader import Configuration
from webhook.controller.class_capacity import CapacityWriter, granted_and_allocatable
from webhook.controller.device_slices import DeviceKindsWriter
from webhook.controller.enforcement import Enforcement
from webhook.controller.gangs import Gangs
from webhook.controller.gpu_use import GPUUse, Measuring
from webhook.controller.keepers import Keepers
from webhook.controller.kueue_admissions import KueueAdmissions
from webhook.controller.ledger_changes import LedgerChanges
from webhook.controller.manager import Manager
from webhook.controller.metrics import (
    ControllerMetrics,
    Scraped,
    device_kinds_gauges,
    grant_gauges,
    pending_gauges,
    team_gauges,
    watch_gauges,
)
from webhook.controller.moves import TeamMoves
from webhook.controller.namespace_sum import anchored_clock
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.controller.quota_status import QuotaStatusWriter, UnmappedResourcesWatch
from webhook.controller.reconciler import QuotaReconciler
from webhook.controller.replacements import Replacements
from webhook.controller.shared_informers import SharedInformers, UsageUpkeep
from webhook.controller.team_reconciler import TeamReconciler
from webhook.controller.team_status import TeamStatusWriter
from webhook.controller.teams import TeamSizes
from webhook.controller.usage_log import UsageLog
from webhook.controller.waiting_line import WaitingLine
from webhook.controller.waiting_reports import WaitingReports
from webhook.quota.cluster_store import ClusterStore
from webhook.quota.config_maps import BudgetNotes
from webhook.quota.metrics import LedgerCollector
from webhook.quota.no_quota import team_listed_now
from webhook.threads import every, while_leading


def make_manager(
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
) -> Manager:
    """Make all parts of a controller, and return its manager, which does not run yet. Raises `errors.ApiError`.

    namespace: that of the Lease, the ledgers and the ConfigMaps that the controller publishes.
    recount_seconds: the period in which every namespace with a ledger is listed and counted again (`Manager.recount`).
    write_usage: writes a line of the audit log; None for no lines about usage.
    measuring: Prometheus settings for GPU utilization; None: not measured.
    clock: returns ms since 1970, and never runs backwards.

    The order is that of the dependencies: a part gets only parts that were made before it, and subscribes to them when it is
    made.
    """
    clock = clock or anchored_clock()
    informers = SharedInformers(api, configuration, namespace, observed or ObservedLedgers(), clock)
    manager = Manager(api, elector, informers, metrics)
    is_ready_leader, events = manager.is_ready_leader, manager.events
    usage_cache = informers.usage
    gpu_use: GPUUse | None = None
    if measuring is not None:
        gpu_use = GPUUse(measuring, usage_cache, informers.quotas, events, metrics)
        seconds = measuring.every.total_seconds()
        manager.add("utilization", while_leading(is_ready_leader, seconds, gpu_use.measure, gpu_use.forget))
    reports = WaitingReports(events, metrics)
    if write_usage is not None:
        usage_log = UsageLog(
            write=write_usage,
            usage_cache=usage_cache,
            reports=reports,
            is_ready_leader=is_ready_leader,
            team_of=informers.membership.team_of,
            replica=gethostname(),
        )
        manager.add("usage audit", usage_log.run)
    unmapped = UnmappedResourcesWatch(usage_cache, informers.configuration)
    team_sizes = TeamSizes()
    _add_reconcilers(
        manager,
        api,
        namespace,
        metrics=metrics,
        clock=clock,
        reports=reports,
        gpu_use=gpu_use,
        team_sizes=team_sizes,
    )
    quota_statuses = QuotaStatusWriter(
        api=api,
        informers=informers,
        unmapped_resources=unmapped,
        reports=reports,
        gpu_use=gpu_use,
        is_ready_leader=is_ready_leader,
        events=events,
    )
    team_statuses = TeamStatusWriter(api, informers, team_sizes, is_ready_leader, events)
    capacity = CapacityWriter(api, namespace, informers)
    manager.add("unmapped", every(unmapped.PERIOD_SECONDS, unmapped.sync))
    manager.add("quota status", quota_statuses.run)
    manager.add("team status", team_statuses.run)
    manager.add(
        "capacity", while_leading(is_ready_leader, capacity.PERIOD_SECONDS, capacity.sync, capacity.forget)
    )
    kinds = DeviceKindsWriter(api, namespace, informers.slices)
    manager.add(
        "device kinds", while_leading(elector.is_leader, kinds.PERIOD_SECONDS, kinds.sync, kinds.forget)
    )
    manager.add("usage upkeep", every(UsageUpkeep.PERIOD_SECONDS, UsageUpkeep(informers, elector).sync))
    manager.add("recount", partial(manager.recount, recount_seconds))
    _register_collectors(metrics.registry, informers, gpu_use)
    return manager


def _add_reconcilers(
    manager: Manager,
    api: ApiClient,
    namespace: str,
    *,
    metrics: ControllerMetrics,
    clock: Callable[[], int],
    reports: WaitingReports,
    gpu_use: GPUUse | None,
    team_sizes: TeamSizes,
) -> None:
    """Add the workers, which reconcile ledgers and start pods that wait."""
    informers, events = manager.informers, manager.events
    observed, usage_cache, configuration = informers.observed, informers.usage, informers.configuration
    LedgerChanges(informers, gpu_use, manager.queue, metrics)  # its subscriptions keep it alive
    enforcement = Enforcement(configuration, informers.namespaces)
    gangs = Gangs(api, configuration, reports.staged)
    keepers = Keepers(gangs, usage_cache.gpus_of_new)
    replacements = Replacements(
        usage_cache,
        keepers,
        line_spec_of=informers.line_spec,
        lets_wait=enforcement.lets_wait,
        reconcile_later=manager.queue.add,
    )
    kueue = KueueAdmissions(api, usage_cache, keepers, enforcement.respects_kueue)
    line = WaitingLine(api, gangs, replacements, kueue, reports)
    store = ClusterStore(api, namespace, partial(team_listed_now, api), informers.team_objects)
    membership = informers.membership
    moves = TeamMoves(store, observed, metrics, membership, team_sizes, events)
    quotas = QuotaReconciler(
        store=store,
        watched_quota=informers.watched_quota,
        usage_cache=usage_cache,
        observed=observed,
        metrics=metrics,
        events=events,
        line=line,
        enforces=enforcement.enforces_quota,
        notes=BudgetNotes(api, namespace),
        clock=clock,
        moves=moves,
        membership=membership,
        gpu_use=gpu_use,
    )
    teams = TeamReconciler(quotas, team_sizes)
    # Also namespaces without a team: each is a group of its own.
    manager.add_workers(teams.reconcile_group)


def _register_collectors(
    registry: CollectorRegistry, informers: SharedInformers, gpu_use: GPUUse | None
) -> None:
    if gpu_use is not None:
        registry.register(gpu_use)  # it has the metrics of what it measures
    registry.register(LedgerCollector(informers.observed.ledgers, informers.statuses))
    for families in (
        lambda: team_gauges(informers.observed.teams()),
        lambda: grant_gauges(granted_and_allocatable(informers)),
        lambda: watch_gauges({**informers.all(), **informers.slices.informers}),
        lambda: device_kinds_gauges(informers.slices.inventory),
        lambda: pending_gauges(informers.usage.pending_gpus(informers.observed.ledgers)),
    ):
        registry.register(Scraped(families))

"""The quota controller: makes its parts, each with what it reads, and adds them to the manager."""

from collections.abc import Callable
from functools import partial
from socket import gethostname
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from webhook.cluster.api import ApiClient
from webhook.cluster.leader import LeaderElector
from webhook.configuration.loader import Configuration
from webhook.controller import class_capacity, unmapped_resources, usage_upkeep
from webhook.controller.class_capacity import CapacityWriter, granted_and_there
from webhook.controller.enforcement import Enforcement
from webhook.controller.gangs import Gangs
from webhook.controller.gpu_use import GPUUse, Measuring
from webhook.controller.ledger_changes import LedgerChanges
from webhook.controller.manager import Manager, while_leading
from webhook.controller.metrics import (
    ControllerMetrics,
    GrantCollector,
    PendingCollector,
    TeamCollector,
    WatchCollector,
)
from webhook.controller.moves import TeamMoves
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.controller.owners import Owners
from webhook.controller.quota_status import QuotaStatusWriter
from webhook.controller.reconciler import QuotaReconciler
from webhook.controller.shared_informers import SharedInformers
from webhook.controller.team_reconciler import TeamReconciler
from webhook.controller.team_sizes import TeamSizes
from webhook.controller.team_status import TeamStatusWriter
from webhook.controller.unmapped_resources import UnmappedResourcesWatch
from webhook.controller.usage_cache import verify
from webhook.controller.usage_history import anchored_clock
from webhook.controller.usage_log import UsageLog
from webhook.controller.usage_upkeep import UsageUpkeep
from webhook.controller.waiting_line import WaitingLine
from webhook.controller.waiting_reports import WaitingReports
from webhook.quota.budget_notes import BudgetNotes
from webhook.quota.cluster_store import ClusterStore
from webhook.quota.metrics import LedgerCollector
from webhook.quota.team_lookup import team_listed_now
from webhook.threads import every


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a controller process.

    namespace: that of the Lease, the ledgers and the ConfigMaps that the controller publishes.
    recount_seconds: the period in which every namespace with a ledger is listed again (`verify`).
    write_usage: writes a line of the audit log; None for no lines about usage.
    measuring: how to measure whether GPUs do work; None where that is not measured.
    """

    namespace: str
    recount_seconds: float
    write_usage: Callable[[dict[str, Any]], object] | None = None
    measuring: Measuring | None = None


def make_manager(
    api: ApiClient,
    configuration: Configuration,
    elector: LeaderElector,
    metrics: ControllerMetrics,
    options: Options,
    *,
    observed: ObservedLedgers | None = None,
    clock: Callable[[], int] | None = None,
) -> Manager:
    """Make all parts of a controller, and return its manager, which does not run yet. Raises `errors.ApiError`.

    The order is that of the dependencies: a part gets only parts that were made before it.
    """
    clock = clock or anchored_clock()
    informers = SharedInformers(api, configuration, options.namespace, observed or ObservedLedgers(), clock)
    manager = Manager(api, elector, informers, metrics)
    leads, events, usage = manager.leads, manager.events, informers.usage
    gpu_use: GPUUse | None = None
    if options.measuring is not None:
        gpu_use = GPUUse(options.measuring, usage, informers.quotas, events, metrics)
        metrics.registry.register(gpu_use)
        seconds = options.measuring.every.total_seconds()
        manager.add("use", while_leading(leads, seconds, gpu_use.measure, gpu_use.forget))
    reports = WaitingReports(events, metrics)
    if options.write_usage is not None:
        usage_log = UsageLog(
            options.write_usage, usage, reports, leads, informers.teams.team_of, replica=gethostname()
        )
        manager.add("usage", usage_log.run)
    unmapped = UnmappedResourcesWatch(usage, informers.configuration)
    sizes = _add_reconcilers(manager, api, options.namespace, metrics, clock, reports, gpu_use)
    statuses = QuotaStatusWriter(api, informers, unmapped, reports, gpu_use, leads, events)
    team_statuses = TeamStatusWriter(api, informers, sizes, leads, events)
    capacity = CapacityWriter(api, options.namespace, usage, informers.configuration)
    period = options.recount_seconds
    manager.add("unmapped", every(unmapped_resources.EVERY_SECONDS, unmapped.look))
    manager.add("status", statuses.run)
    manager.add("team status", team_statuses.run)
    manager.add(
        "capacity", while_leading(leads, class_capacity.EVERY_SECONDS, capacity.look, capacity.forget)
    )
    manager.add("upkeep", every(usage_upkeep.EVERY_SECONDS, UsageUpkeep(informers, elector).look))
    manager.add("verify", partial(verify, usage, metrics, manager.led_namespaces, manager.queue.add, period))
    _register_collectors(metrics.registry, informers)
    return manager


def _add_reconcilers(
    manager: Manager,
    api: ApiClient,
    namespace: str,
    metrics: ControllerMetrics,
    clock: Callable[[], int],
    reports: WaitingReports,
    gpu_use: GPUUse | None,
) -> TeamSizes:
    """Add the workers, which reconcile ledgers and start pods that wait. Return their TeamSizes, which team statuses show."""
    informers, events = manager.informers, manager.events
    observed, usage, configuration = informers.observed, informers.usage, informers.configuration
    # Nothing calls it: it subscribes to the informers, and adds names to the queue.
    LedgerChanges(informers, manager.queue, metrics, gpu_use)
    enforcement = Enforcement(configuration, informers.namespaces)
    line = WaitingLine(
        api,
        usage,
        Gangs(api, configuration),
        Owners(api, configuration),
        reports,
        informers.queue_spec,
        enforcement.lets_wait,
        manager.queue.add,
    )
    store = ClusterStore(api, namespace, partial(team_listed_now, api), informers.team_objects)
    moves = TeamMoves(store, observed, metrics, informers.teams, events)
    quotas = QuotaReconciler(
        store,
        informers.watched_quota,
        usage,
        observed,
        metrics,
        events,
        line,
        enforcement.enforces_quota,
        BudgetNotes(api, namespace),
        clock,
        moves,
        gpu_use=gpu_use,
    )
    teams = TeamReconciler(store, observed, informers.teams, moves, quotas)
    manager.add_workers(teams.reconcile_group)
    return moves.sizes


def _register_collectors(registry: CollectorRegistry, informers: SharedInformers) -> None:
    ledgers, usage = informers.observed.ledgers, informers.usage
    registry.register(LedgerCollector(ledgers, informers.statuses))
    registry.register(TeamCollector(informers.observed.teams))
    registry.register(GrantCollector(partial(granted_and_there, usage, informers.teams, informers.quotas)))
    registry.register(WatchCollector(informers.all))
    registry.register(PendingCollector(partial(usage.pending_gpus, ledgers)))

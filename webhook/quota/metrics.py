"""Prometheus metrics of quotas. Series are few: only administrators create quotas, and one has few dimensions."""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import cache, partial

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from policies.quota.amounts import GPUS
from policies.quota.budget import gpu_hours
from policies.quota.ledger.quota_ledger import QuotaLedger
from webhook.quota.documents import QuotaStatus

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


def dry_run_label(dry_run: bool) -> str:
    """Return the value of label `dry_run`, which separates the canary and other dry runs from what users create."""
    return "true" if dry_run else "false"


class QuotaMetrics:
    """Metrics of the decisions of serve, and of its reads and writes of ledgers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, registry=registry)
        decisions = counter(
            "gpu_admission_quota_decisions", "Requests decided by a quota, by reason.", ["reason", "dry_run"]
        )
        self._decisions = cache(decisions.labels)  # `labels` validates and locks at every call
        self.batch_size = histogram(
            "gpu_admission_quota_batch_size", "Requests decided on one version of a ledger.", buckets=BATCHES
        )
        self.conflicts = counter(
            "gpu_admission_quota_conflicts",
            "Writes of serve that found the ledger changed, and were decided again.",
        )
        self.errors = counter(
            "gpu_admission_quota_ledger_errors", "Reads and writes of a ledger that failed."
        )
        self.write_seconds = histogram(
            "gpu_admission_quota_write_seconds", "Duration of one write of a ledger.", buckets=SECONDS
        )

    def decided(self, reason: str, *, dry_run: bool) -> None:
        self._decisions(reason, dry_run_label(dry_run)).inc()


class LedgerCollector(Collector):
    """Limits, usage and reservations of ledgers. Every scrape reads them: in serve from memory, in the controller from watches.

    Both callables return their values by namespace. Without a cluster, a quota has no status.
    """

    def __init__(
        self,
        ledgers: Callable[[], Mapping[str, QuotaLedger]],
        statuses: Callable[[], Mapping[str, QuotaStatus]] = dict,
    ) -> None:
        self._ledgers = ledgers
        self._statuses = statuses

    def collect(self) -> Iterator[GaugeMetricFamily]:
        by_dimension = partial(GaugeMetricFamily, labels=("namespace", "dimension"))
        by_name = partial(GaugeMetricFamily, labels=("namespace",))
        used = by_dimension("gpu_admission_quota_used", "What stored pods and claims use.")
        reserved = by_dimension("gpu_admission_quota_reserved", "What creations and changes in flight hold.")
        hard = by_dimension("gpu_admission_quota_hard", "What the quota grants.")
        reservations = by_name("gpu_admission_quota_reservations", "Creations and changes in flight.")
        condition = GaugeMetricFamily(
            "gpu_admission_quota_condition",
            "1 for each condition of the quota that is true, 0 for each that is not.",
            labels=["namespace", "condition"],
        )
        waiting_pods = by_name("gpu_admission_quota_waiting_pods", "Pods that wait in line for quota.")
        waiting_gpus = by_name("gpu_admission_quota_waiting_gpus", "GPUs that the pods in line need.")
        waiting_since = by_name(
            "gpu_admission_quota_waiting_since_timestamp_seconds",
            "Creation of the pod that has waited in line for longest; 0: nobody waits.",
        )
        granted = by_dimension(
            "gpu_admission_quota_budget_granted_gpu_hours", "GPU-hours that the budget grants in a period."
        )
        spent = by_dimension(
            "gpu_admission_quota_budget_used_gpu_hours",
            "GPU-hours of the budget that are used in the present period.",
        )
        unknown = by_dimension(
            "gpu_admission_quota_budget_unknown_gpu_hours",
            "GPU-hours that may have been used besides, while no controller watched.",
        )
        for namespace, ledger in self._ledgers().items():
            if ledger.budget is not None and ledger.spending is not None:
                for key, amount in ledger.budget.granted.items():
                    granted.add_metric((namespace, key), float(gpu_hours(amount)))
                    spent.add_metric((namespace, key), float(gpu_hours(ledger.spending.spent.get(key, 0))))
                    unknown.add_metric(
                        (namespace, key), float(gpu_hours(ledger.spending.unknown.get(key, 0)))
                    )
            held = ledger.reserved_of_dimensions
            for key in ledger.dimensions:
                if ledger.used is not None:
                    used.add_metric((namespace, key), float(ledger.used.get(key, 0)))
                reserved.add_metric((namespace, key), float(held.get(key, 0)))
                if key in ledger.hard:
                    hard.add_metric((namespace, key), float(ledger.hard[key]))
            reservations.add_metric((namespace,), len(ledger.reservations))
        for namespace, status in self._statuses().items():
            for present in status.conditions:
                condition.add_metric((namespace, present.type), float(present.status == "True"))
            waiting = status.waiting
            since = datetime.fromisoformat(waiting.since).timestamp() if waiting and waiting.since else 0.0
            waiting_pods.add_metric((namespace,), waiting.pods if waiting else 0)
            waiting_gpus.add_metric((namespace,), float(waiting.demand.get(GPUS, 0)) if waiting else 0.0)
            waiting_since.add_metric((namespace,), since)
        yield from (used, reserved, hard, reservations, condition)
        yield from (waiting_pods, waiting_gpus, waiting_since)
        yield from (granted, spent, unknown)

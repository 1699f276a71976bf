"""Prometheus metrics of the controller. What the quotas hold is read from the mirror at every scrape."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from fractions import Fraction
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from policies.quota.ledger.quota_ledger import QuotaLedger
from webhook.cluster.informer import Informer
from webhook.controller.conditions import described


class ControllerMetrics:
    """Counters of the work done; `namespace` is always that of a GPUQuota, so an administrator chose it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.confirmed = Counter(
            "gpu_admission_quota_reservations_confirmed",
            "QuotaEnforcer whose object was found stored.",
            ["namespace"],
            registry=registry,
        )
        self.expired = Counter(
            "gpu_admission_quota_reservations_expired",
            "QuotaEnforcer given up: what they were for was never stored.",
            ["namespace"],
            registry=registry,
        )
        self.recount_time = Gauge(
            "gpu_admission_quota_last_recount_timestamp_seconds",
            "When the namespace was last counted from a list made for it.",
            ["namespace"],
            registry=registry,
        )
        self.conflicts = Counter(
            "gpu_admission_quota_settle_conflicts",
            "Swaps that met a row which had changed; tried again.",
            registry=registry,
        )
        self.refused = Counter(
            "gpu_admission_quota_counts_refused",
            "Counts that the protocol did not allow; counted again from newer lists.",
            ["reason"],
            registry=registry,
        )
        self.failures = Counter(
            "gpu_admission_quota_settle_failures",
            "Attempts to bring a row up to date that failed; tried again.",
            registry=registry,
        )
        self.leads = Gauge(
            "gpu_admission_controller_leader", "1 if this controller leads, else 0.", registry=registry
        )

    def recounted(self, namespace: str, now: datetime) -> None:
        self.recount_time.labels(namespace).set(now.timestamp())

    def forget(self, namespace: str) -> None:
        """Show no more when a namespace that has no quota any more was counted last."""
        self.recount_time.remove(namespace)


class QuotaCollector(Collector):
    """`rows` are the quotas as the watch showed them last, `mirrors` the watches themselves."""

    def __init__(
        self,
        rows: Callable[[], Iterable[tuple[str, QuotaLedger]]],
        mirrors: Callable[[], Mapping[str, Informer[Any]]],
    ) -> None:
        self._rows = rows
        self._mirrors = mirrors

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Name nothing ahead: collecting is cheap, but the registry shall not do it while we are being made."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        labels = ["namespace", "dimension"]
        used = GaugeMetricFamily("gpu_admission_quota_used", "What is stored and runs.", labels=labels)
        reserved = GaugeMetricFamily(
            "gpu_admission_quota_reserved", "What creations in flight hold.", labels=labels
        )
        hard = GaugeMetricFamily("gpu_admission_quota_hard", "What the quota grants.", labels=labels)
        entries = GaugeMetricFamily(
            "gpu_admission_quota_reservations", "Creations and changes in flight.", labels=["namespace"]
        )
        condition = GaugeMetricFamily(
            "gpu_admission_quota_condition",
            "1 for each condition that holds.",
            labels=["namespace", "condition"],
        )
        for namespace, row in self._rows():
            for family, vector in ((used, row.used or {}), (reserved, row.entries.demand), (hard, row.hard)):
                _add(family, namespace, vector)
            entries.add_metric([namespace], len(row.entries))
            for kind, holds in described(row.conditions).items():
                condition.add_metric([namespace, kind], float(holds))
        yield from (used, reserved, hard, entries, condition, *self._watches())

    def _watches(self) -> Iterator[GaugeMetricFamily]:
        age = GaugeMetricFamily(
            "gpu_admission_watch_age_seconds",
            "Since the API server was last heard about a collection; up to a minute is normal.",
            labels=["resource"],
        )
        objects = GaugeMetricFamily("gpu_admission_watch_objects", "Objects kept.", labels=["resource"])
        failures = GaugeMetricFamily(
            "gpu_admission_watch_failures", "Watches that failed since the start.", labels=["resource"]
        )
        for name, mirror in self._mirrors().items():
            age.add_metric([name], mirror.age)
            objects.add_metric([name], len(mirror.all()))
            failures.add_metric([name], mirror.failures)
        yield from (age, objects, failures)


def _add(family: GaugeMetricFamily, namespace: str, vector: Mapping[str, Fraction]) -> None:
    for key, amount in sorted(vector.items()):
        family.add_metric([namespace, key], float(amount))

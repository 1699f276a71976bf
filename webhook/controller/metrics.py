"""Prometheus metrics of the controller. What the quotas hold is read from the mirror at every scrape."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from webhook.cluster.informer import Informer


class ControllerMetrics:
    """Counters of the work done; `namespace` is always that of a GPUQuota, so an administrator chose it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.confirmed = Counter(
            "gpu_admission_quota_reservations_confirmed",
            "Reservations whose object was found stored.",
            ["namespace"],
            registry=registry,
        )
        self.expired = Counter(
            "gpu_admission_quota_reservations_expired",
            "Reservations that expired: what they were for was never stored.",
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


class WatchCollector(Collector):
    """What the watches `mirrors` keep, and when they last heard of it."""

    def __init__(self, mirrors: Callable[[], Mapping[str, Informer[Any]]]) -> None:
        self._mirrors = mirrors

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Name nothing ahead: the registry must not collect while the process is being built."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
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

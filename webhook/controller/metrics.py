"""Prometheus metrics of the controller. webhook/quota has the metrics of the quotas."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from policies.gpus.device_pools import Inventory
from policies.quota.amounts import GPUS, total
from policies.quota.ledger.team_ledgers import TeamLedgers
from webhook.cluster.informer import Informer

WAIT_SECONDS = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600)
"""Buckets, in seconds."""


class ControllerMetrics:
    """The label `namespace` is always the namespace of a GPUQuota, so administrators choose its values."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self.confirmed = counter(
            "gpu_admission_quota_reservations_confirmed",
            "Reservations removed because their object is stored and counted.",
            ["namespace"],
        )
        self.expired = counter(
            "gpu_admission_quota_reservations_expired",
            "Reservations removed because their object was never stored, or the replica that made them ahead was killed.",
            ["namespace"],
        )
        self.unreadable = counter(
            "gpu_admission_quota_unreadable_lines_dropped",
            "Reservations that could not be read, removed after 40 s.",
            ["namespace"],
        )
        self.recount_time = gauge(
            "gpu_admission_quota_last_recount_timestamp_seconds",
            "When the namespace was last compared with new lists, and its sums with a full count.",
            ["namespace"],
        )
        self.conflicts = counter(
            "gpu_admission_quota_reconcile_conflicts",
            "Writes of a ledger that had changed meanwhile; repeated.",
        )
        self.refused = counter(
            "gpu_admission_quota_counts_refused",
            "Counts that the quota protocol did not accept; repeated from newer lists.",
            ["reason"],
        )
        self.failures = counter(
            "gpu_admission_quota_reconcile_failures", "Failed attempts to reconcile a ledger; repeated."
        )
        self.audit_lost = counter(
            "gpu_admission_controller_audit_lines_lost",
            "Audit lines of the controller that could not be written.",
        )
        self.events_lost = counter(
            "gpu_admission_controller_events_lost",
            "Events of the controller on GPUQuotas that could not be written.",
        )
        self.wait_seconds = Histogram(
            "gpu_admission_quota_wait_seconds",
            "How long pods waited for quota until their scheduling gates were removed.",
            buckets=WAIT_SECONDS,
            registry=registry,
        )
        self.lifts_denied = counter(
            "gpu_admission_quota_lifts_denied",
            "Removals of scheduling gates that were denied or failed; repeated.",
            ["namespace"],
        )
        self.use_failures = counter(
            "gpu_admission_use_failures", "Queries for the use of GPUs that Prometheus did not answer."
        )
        self.leader = gauge("gpu_admission_controller_leader", "1 if this controller is the leader, else 0.")

    def forget(self, namespace: str) -> None:
        for counter in (self.confirmed, self.expired, self.unreadable, self.recount_time, self.lifts_denied):
            counter.remove(namespace)


class Scraped(Collector):
    """Metrics that are computed at every scrape."""

    def __init__(self, families: Callable[[], Iterator[GaugeMetricFamily]]) -> None:
        self._families = families

    def collect(self) -> Iterator[GaugeMetricFamily]:
        return self._families()


def gauges(
    name: str, documentation: str, labels: Sequence[str], rows: Iterable[tuple[Any, ...]]
) -> GaugeMetricFamily:
    """Return a metric with a sample for each row, which has the values of the labels and then that of the gauge."""
    family = GaugeMetricFamily(name, documentation, labels=labels)
    for *values, amount in rows:
        family.add_metric(values, float(amount))
    return family


def pending_gauges(gpus: Mapping[str, Fraction]) -> Iterator[GaugeMetricFamily]:
    """`gpus`: by namespace, those of pods that have held quota without a node for long."""
    yield gauges(
        "gpu_admission_pending_gpus",
        "GPUs of pods that hold quota and have had no node for more than 10 minutes.",
        ["namespace"],
        gpus.items(),
    )


def team_gauges(teams: Mapping[str, TeamLedgers]) -> Iterator[GaugeMetricFamily]:
    """Limits and usage of teams. `teams`: their ledgers by the name of the ClusterGPUQuota."""
    by_dimension = partial(GaugeMetricFamily, labels=("team", "dimension"))
    used = by_dimension(
        "gpu_admission_team_used", "What stored pods and claims of the team's namespaces use."
    )
    reserved = by_dimension(
        "gpu_admission_team_reserved",
        "What creations and changes in flight in the team's namespaces hold.",
    )
    hard = by_dimension("gpu_admission_team_hard", "What the ClusterGPUQuota grants.")
    guaranteed = by_dimension(
        "gpu_admission_team_guaranteed",
        "What the ClusterGPUQuota guarantees to single namespaces, in sum.",
    )
    for team, ledgers in teams.items():
        spec, each = ledgers.team, ledgers.ledgers.values()
        amounts = (
            (used, total(ledger.used or {} for ledger in each)),
            (reserved, total(ledger.reserved for ledger in each)),
            (guaranteed, total(spec.guaranteed.values())),
        )
        for family, vector in amounts:
            for key in {*spec.hard, GPUS}:
                family.add_metric((team, key), float(vector.get(key, 0)))
        for key, amount in spec.hard.items():
            hard.add_metric((team, key), float(amount))
    yield from (used, reserved, hard, guaranteed)
    yield gauges(
        "gpu_admission_team_namespaces",
        "Namespaces that are counted for the team.",
        ["team"],
        ((team, len(ledgers.ledgers)) for team, ledgers in teams.items()),
    )


def grant_gauges(amounts: Mapping[str, tuple[Fraction, Fraction]]) -> Iterator[GaugeMetricFamily]:
    """`amounts`: by dimension, what quotas grant together, and what the nodes have."""
    yield gauges(
        "gpu_admission_granted_gpus",
        "What ClusterGPUQuotas, and GPUQuotas outside teams, grant together; none without a ClusterGPUQuota.",
        ["dimension"],
        ((key, granted) for key, (granted, _) in amounts.items()),
    )
    yield gauges(
        "gpu_admission_node_gpus",
        "Whole GPUs of the nodes, for each dimension of gpu_admission_granted_gpus.",
        ["dimension"],
        ((key, in_nodes) for key, (_, in_nodes) in amounts.items()),
    )


def device_kinds_gauges(inventory: Inventory | None) -> Iterator[GaugeMetricFamily]:
    """`inventory`: the kinds of DRA devices, None before the ResourceSlices were listed."""
    kinds = [(len(inventory.device_types.types),)] if inventory else []
    yield gauges("gpu_admission_device_kinds", "Types of the DRA devices in ResourceSlices.", [], kinds)
    yield gauges(
        "gpu_admission_device_names_left_out",
        "1 for each attribute or capacity that types of DRA devices lack, because there are too many.",
        ["name"],
        ((name, 1) for name in (inventory.dropped_attributes if inventory else ())),
    )


def watch_gauges(informers: Mapping[str, Informer[Any]]) -> Iterator[GaugeMetricFamily]:
    """`informers`: by resource."""
    yield gauges(
        "gpu_admission_watch_age_seconds",
        "Seconds since the last message of the watch; up to 80 are normal.",
        ["resource"],
        ((name, informer.age) for name, informer in informers.items()),
    )
    yield gauges(
        "gpu_admission_watch_objects",
        "Objects in the informer's cache.",
        ["resource"],
        ((name, len(informer.all())) for name, informer in informers.items()),
    )
    yield gauges(
        "gpu_admission_watch_failures",
        "Failed watches since the start.",
        ["resource"],
        ((name, informer.failures) for name, informer in informers.items()),
    )
    yield gauges(
        "gpu_admission_watch_missed",
        "Changes that a list showed and the watch had passed over, since the start.",
        ["resource"],
        ((name, informer.missed) for name, informer in informers.items()),
    )

"""Prometheus metrics of the controller. webhook/quota has the metrics of the quotas."""

from collections.abc import Callable, Iterator, Mapping
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
        for each in (self.confirmed, self.expired, self.unreadable, self.recount_time, self.lifts_denied):
            each.remove(namespace)


class PendingCollector(Collector):
    """`gpus` returns by namespace the GPUs of pods that have held quota without a node for long. It is called at every scrape."""

    def __init__(self, gpus: Callable[[], Mapping[str, Fraction]]) -> None:
        self._gpus = gpus

    def collect(self) -> Iterator[GaugeMetricFamily]:
        pending = GaugeMetricFamily(
            "gpu_admission_pending_gpus",
            "GPUs of pods that hold quota and have had no node for more than 10 minutes.",
            labels=["namespace"],
        )
        for namespace, gpus in self._gpus().items():
            pending.add_metric([namespace], float(gpus))
        yield pending


class TeamCollector(Collector):
    """Limits and usage of teams. `teams` returns their ledgers by the name of the ClusterGPUQuota, at every scrape."""

    def __init__(self, teams: Callable[[], Mapping[str, TeamLedgers]]) -> None:
        self._teams = teams

    def collect(self) -> Iterator[GaugeMetricFamily]:
        by_dimension = partial(GaugeMetricFamily, labels=("team", "dimension"))
        by_name = partial(GaugeMetricFamily, labels=("team",))
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
        namespaces = by_name("gpu_admission_team_namespaces", "Namespaces that are counted for the team.")
        for team, ledgers in self._teams().items():
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
            namespaces.add_metric((team,), len(each))
        yield from (used, reserved, hard, guaranteed, namespaces)


class GrantCollector(Collector):
    """What quotas grant together, and what the nodes have, by dimension. `amounts` returns both at every scrape."""

    def __init__(self, amounts: Callable[[], Mapping[str, tuple[Fraction, Fraction]]]) -> None:
        self._amounts = amounts

    def collect(self) -> Iterator[GaugeMetricFamily]:
        granted = GaugeMetricFamily(
            "gpu_admission_granted_gpus",
            "What ClusterGPUQuotas, and GPUQuotas outside teams, grant together; none without a ClusterGPUQuota.",
            labels=["dimension"],
        )
        nodes = GaugeMetricFamily(
            "gpu_admission_node_gpus",
            "Whole GPUs of the nodes, for each dimension of gpu_admission_granted_gpus.",
            labels=["dimension"],
        )
        for key, (amount, in_nodes) in self._amounts().items():
            granted.add_metric([key], float(amount))
            nodes.add_metric([key], float(in_nodes))
        yield from (granted, nodes)


class DeviceKindsCollector(Collector):
    """`inventory` returns the kinds of DRA devices, None before the ResourceSlices were listed. It is called at every scrape."""

    def __init__(self, inventory: Callable[[], Inventory | None]) -> None:
        self._inventory = inventory

    def collect(self) -> Iterator[GaugeMetricFamily]:
        inventory = self._inventory()
        kinds = GaugeMetricFamily("gpu_admission_device_kinds", "Types of the DRA devices in ResourceSlices.")
        left_out = GaugeMetricFamily(
            "gpu_admission_device_names_left_out",
            "1 for each attribute or capacity that types of DRA devices lack, because there are too many.",
            labels=["name"],
        )
        if inventory is not None:
            kinds.add_metric([], len(inventory.device_kinds.kinds))
            for name in inventory.left_out:
                left_out.add_metric([name], 1)
        yield from (kinds, left_out)


class WatchCollector(Collector):
    """`informers` returns the informers by resource. They are read at every scrape."""

    def __init__(self, informers: Callable[[], Mapping[str, Informer[Any]]]) -> None:
        self._informers = informers

    def collect(self) -> Iterator[GaugeMetricFamily]:
        age = GaugeMetricFamily(
            "gpu_admission_watch_age_seconds",
            "Seconds since the last message of the watch; up to 80 are normal.",
            labels=["resource"],
        )
        objects = GaugeMetricFamily(
            "gpu_admission_watch_objects", "Objects in the informer's cache.", labels=["resource"]
        )
        failures = GaugeMetricFamily(
            "gpu_admission_watch_failures", "Failed watches since the start.", labels=["resource"]
        )
        missed = GaugeMetricFamily(
            "gpu_admission_watch_missed",
            "Changes that a list showed and the watch had passed over, since the start.",
            labels=["resource"],
        )
        for name, informer in self._informers().items():
            age.add_metric([name], informer.age)
            objects.add_metric([name], len(informer.all()))
            failures.add_metric([name], informer.failures)
            missed.add_metric([name], informer.missed)
        yield from (age, objects, failures, missed)

"""Whether the GPUs of all pods do work, as Prometheus measured it: who holds idle ones, and since when. Nothing acts on it.

One thread asks while this process leads, by one query for all pods. Counts, statuses and metrics read its last result, which is
forgotten when it is two rounds old.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from time import monotonic

import msgspec
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from policies.quota.amounts import GPUS, ZERO, Amounts
from policies.quota.idleness import Activity, activity, idle_for, measured_devices
from policies.quota.shortage_facts import amounts_in_words
from webhook.cluster.collection import Subscribers
from webhook.cluster.events import EventQueue, EventRecord, Regarding
from webhook.cluster.informer import Informer
from webhook.cluster.objects import timestamp
from webhook.controller.metrics import ControllerMetrics
from webhook.controller.usage_cache import UsageCache
from webhook.prometheus.client import Prometheus, PrometheusError
from webhook.prometheus.recorded_series import NAMESPACE, POD, RECORDED_ONLY, USE
from webhook.quota.counted_records import CountedPod, CountedRecord
from webhook.quota.documents import IdleGPUs, IdleHolder, QuotaRecord

VALID_ROUNDS = 2
"""Rounds without a new result, after which a result is forgotten."""
MIN_SAMPLE_SHARE = 0.9
"""Part of the samples of a window that a GPU must have. A longer gap may hide work."""
HOLDERS_SHOWN = 10
EVENT_SECONDS = 86400.0
"""Seconds between two Events on an idle pod."""
MAX_EVENTS = 100
"""Events of one round at most, a fifth of what waits to be written; the others come with the next rounds."""
IDLE = "GPUsIdle"
"""Reason of an Event on an idle pod."""
NOT_MEASURED_YET = "nothing was measured yet"

log = logging.getLogger("gpu_admission.controller")


class Measuring(msgspec.Struct, frozen=True, kw_only=True):
    """How to measure. `rules_interval`: between two samples that the recording rules write."""

    prometheus: Prometheus
    idle_below: float = 0.05
    idle_after: timedelta = timedelta(hours=2)
    every: timedelta = timedelta(minutes=5)
    rules_interval: timedelta = timedelta(minutes=1)

    @property
    def promql(self) -> str:
        """The query for the largest use in the window, of each GPU with enough samples."""
        window = f"{USE}{RECORDED_ONLY}[{round(self.idle_after.total_seconds())}s]"
        least = MIN_SAMPLE_SHARE * (self.idle_after / self.rules_interval)
        return f"max_over_time({window}) and count_over_time({window}) >= {least:g}"


class _Idle(msgspec.Struct):
    """An idle pod: since when, until when it was measured to be, and the time of its last Event."""

    since: datetime
    until: datetime
    event: datetime | None = None


class _Result(msgspec.Struct, frozen=True):
    """`at`: when it was measured (monotonic). `holders`: the idle ones by namespace, the largest first."""

    at: float
    measured: datetime
    holders: dict[str, tuple[IdleHolder, ...]] = {}
    pods: dict[Activity, int] = {}


_NO_RESULT = _Result(float("-inf"), datetime.min.replace(tzinfo=UTC))


@dataclass(eq=False)
class GPUUse(Collector):
    """`holders_changed` has a namespace whose idle holders differ. `outage_changed`: the statuses of all quotas differ."""

    measuring: Measuring
    usage_cache: UsageCache
    quotas: Informer[QuotaRecord]
    events: EventQueue
    metrics: ControllerMetrics

    def __post_init__(self) -> None:
        self.holders_changed = Subscribers[[str]]("idle GPUs")
        self.outage_changed = Subscribers[[]]("idle GPUs")
        self._result = self._published = _NO_RESULT
        self._problem = NOT_MEASURED_YET
        self._idle: dict[str, _Idle] = {}
        """By uid of the pod."""
        self._measured_at: float | None = None
        """When something was measured, or this process began to lead (monotonic). None: it does not lead."""

    def forget(self) -> None:
        """Forget what was measured: another process leads."""
        self._result = self._published = _NO_RESULT
        self._problem, self._measured_at = NOT_MEASURED_YET, None
        self._idle.clear()

    def measure(self, now: datetime | None = None) -> None:
        """Ask Prometheus, keep the result, and write Events on idle pods."""
        self._measured_at, now = self._measured_at or monotonic(), now or datetime.now(UTC)
        before, problem = self._problem, ""
        try:
            largest = self._read_largest_use()
        except PrometheusError as error:
            self.metrics.use_failures.inc()
            problem = str(error)
        else:
            self._result = self._evaluate(largest, now) if largest else _NO_RESULT
            if largest:
                self._measured_at = monotonic()
            else:
                problem = f"Prometheus has no series {USE} that is old enough: are the recording rules and the exporters there?"
        self._problem = problem
        if problem != before:
            level = logging.WARNING if problem else logging.INFO
            log.log(level, "%s", problem or "the use of GPUs is measured")
        former, self._published = self._published, self._current
        if problem != before or (former is _NO_RESULT) is not (self._published is _NO_RESULT):
            self.outage_changed()
        for namespace in former.holders.keys() | self._published.holders.keys():
            if former.holders.get(namespace) != self._published.holders.get(namespace):
                self.holders_changed(namespace)

    def idle(self, namespace: str) -> dict[str, str]:
        """Return since when holders of a namespace are idle, by name."""
        return {holder.name: holder.since for holder in self._current.holders.get(namespace, ())}

    def idle_status(self, namespace: str) -> IdleGPUs:
        """Return what the status of a quota says of idle GPUs."""
        result = self._current
        if self._problem == NOT_MEASURED_YET and (stored := self._stored_status(namespace)) is not None:
            return stored  # a former leader wrote it, and the first result continues it
        if result is _NO_RESULT:
            return IdleGPUs(measured=self._problem)
        holders = result.holders.get(namespace, ())
        step = self.measuring.idle_after.total_seconds() / 2
        observed = datetime.fromtimestamp(result.measured.timestamp() // step * step, UTC)
        return IdleGPUs(
            gpus=sum((holder.gpus for holder in holders), ZERO),
            holders=holders[:HOLDERS_SHOWN],
            observed=timestamp(observed) if holders else "",
        )

    def collect(self) -> Iterator[GaugeMetricFamily]:
        result = self._current
        gpus = GaugeMetricFamily("gpu_admission_idle_gpus", "GPUs of idle pods.", labels=["namespace"])
        pods = GaugeMetricFamily(
            "gpu_admission_use_pods", "Pods and claims with GPUs, by what these did.", labels=["activity"]
        )
        age = GaugeMetricFamily(
            "gpu_admission_use_age_seconds",
            "Seconds since the use of GPUs was measured, or since this controller leads.",
        )
        for namespace, holders in result.holders.items():
            gpus.add_metric([namespace], float(sum(holder.gpus for holder in holders)))
        for each, number in result.pods.items():
            pods.add_metric([each.value], number)
        if self._measured_at is not None:
            age.add_metric([], monotonic() - self._measured_at)
        yield from (gpus, pods, age)

    @property
    def _current(self) -> _Result:
        """The last result, none if it is too old."""
        valid = VALID_ROUNDS * self.measuring.every.total_seconds()
        return self._result if monotonic() - self._result.at <= valid else _NO_RESULT

    def _stored_status(self, namespace: str) -> IdleGPUs | None:
        """Return what the status of a quota says, perhaps by a former leader."""
        quota = self.quotas.first(namespace)
        return quota.status.idle if quota else None

    def _read_largest_use(self) -> dict[tuple[str, str], list[float]]:
        """Return the largest use of each GPU by namespace and name of its pod. Raises PrometheusError."""
        largest = defaultdict[tuple[str, str], list[float]](list)
        for sample in self.measuring.prometheus.query(self.measuring.promql):
            largest[sample.labels.get(NAMESPACE, ""), sample.labels.get(POD, "")].append(sample.value)
        return largest

    def _evaluate(self, largest: Mapping[tuple[str, str], list[float]], now: datetime) -> _Result:
        own = self.usage_cache.own_counter
        activities = dict.fromkeys(Activity, 0)
        holders = defaultdict[tuple[str, str], list[tuple[CountedRecord, Amounts]]](list)
        working = set[tuple[str, str]]()
        for record, demand in own.demands():
            pod_activity = self._activity(
                record, measured_devices(demand, own.catalogue.resource_mapping), largest, now
            )
            activities[pod_activity] += 1
            owner = record.namespace, record.holder
            if pod_activity is Activity.IDLE:
                holders[owner].append((record, demand))
            else:
                working.add(owner)
        idle_pods = [pod for pods in holders.values() for pod in pods]
        self._idle = {record.uid: self._idle_since(record, now) for record, _ in idle_pods}
        self._write_events(idle_pods, now)
        by_namespace = defaultdict[str, list[IdleHolder]](list)
        for (namespace, name), pods in holders.items():
            if (namespace, name) not in working:
                gpus = sum((demand.get(GPUS, ZERO) for _, demand in pods), ZERO)
                since = max(self._idle[record.uid].since for record, _ in pods)
                by_namespace[namespace].append(IdleHolder(name, gpus, timestamp(since)))
        return _Result(
            monotonic(),
            now,
            {
                name: tuple(sorted(results, key=lambda idle: (-idle.gpus, idle.name)))
                for name, results in by_namespace.items()
            },
            activities,
        )

    def _activity(
        self,
        record: CountedRecord,
        devices: int | None,
        largest: Mapping[tuple[str, str], list[float]],
        now: datetime,
    ) -> Activity:
        """Return what an object did. A pod is unknown while samples of the window may be of a former pod of its name."""
        is_old = now - datetime.fromisoformat(record.since) >= self.measuring.idle_after
        if not isinstance(record, CountedPod) or not record.node_name or not is_old:
            return Activity.UNKNOWN
        measured = largest.get((record.namespace, record.name), [])
        return activity(devices, measured, self.measuring.idle_below)

    def _idle_since(self, record: CountedRecord, now: datetime) -> _Idle:
        """Return since when a pod is idle. A pause in measuring that is longer than the window may hide work."""
        window = self.measuring.idle_after
        known = self._idle.get(record.uid)
        if known is not None and now - known.until <= window:
            return _Idle(known.since, now, known.event)
        since = now - window
        status = self._stored_status(record.namespace)
        if status and status.observed and now - datetime.fromisoformat(status.observed) <= window:
            stored = (datetime.fromisoformat(e.since) for e in status.holders if e.name == record.holder)
            since = min((since, *stored))
        return _Idle(max(since, datetime.fromisoformat(record.since)), now)

    def _write_events(self, pods: Iterable[tuple[CountedRecord, Amounts]], now: datetime) -> None:
        again = timedelta(seconds=EVENT_SECONDS)
        due = [
            (record, demand)
            for record, demand in pods
            if (noted_at := self._idle[record.uid].event) is None or now - noted_at >= again
        ]
        due.sort(key=_gpus_held, reverse=True)
        for record, demand in due[:MAX_EVENTS]:
            idle = self._idle[record.uid]
            idle.event = now
            gpus = amounts_in_words({GPUS: demand.get(GPUS, ZERO)})
            message = (
                f"has been idle for {idle_for(timestamp(idle.since), now)}: {gpus}, each under "
                f"{self.measuring.idle_below * 100:g} % busy; delete the pod, or scale its owner down, if it is no longer needed"
            )
            regarding = Regarding("v1", "Pod", record.name, record.uid, record.namespace)
            self.events.put(EventRecord(regarding=regarding, reason=IDLE, message=message))


def _gpus_held(pod: tuple[CountedRecord, Amounts]) -> Fraction:
    return pod[1].get(GPUS, ZERO)

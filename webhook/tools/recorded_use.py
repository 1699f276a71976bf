"""How busy the GPUs of each pod were (0 to 1), and their memory: averages and peaks, from the recording rules in Prometheus."""

from collections import defaultdict
from datetime import datetime, timedelta
from fractions import Fraction
from math import isfinite
from typing import NamedTuple

from policies.gpus.resource_mapping import ResourceMapping
from policies.quota.idleness import measured_devices
from webhook.prometheus.client import Prometheus, Sample
from webhook.prometheus.recorded_series import (
    LABELS,
    MEMORY,
    MEMORY_BY_HOUR,
    NAMESPACE,
    POD,
    RECORDED_ONLY,
    USE,
    USE_BY_HOUR,
)
from webhook.tools.gpu_hours import AuditLine, amount_of

MAX_QUERY_SECONDS = 86_400
"""Seconds that one query reads: a month of all series is more than Prometheus reads for one (`--query.max-samples`)."""

USE_STEPS = 10_000
"""Parts of 1 in which the peak of use is read."""
GIB = 1 << 30

PodUse = dict[tuple[str, str], float]
"""By namespace and name of a pod: 0 to 1."""


def use_of(line: AuditLine, pods: PodUse, resource_mapping: ResourceMapping) -> float | None:
    """Return the use of the pod of an audit line; None if it is not known. Raises ValueError for an invalid amount.

    A card is measured as a whole, so the use of a pod that may share one is not known.
    """
    average = pods.get((line.namespace, line.name)) if line.kind == "Pod" else None
    if average is None:
        return None
    demand = {key: amount_of(amount) for key, amount in (line.demand or {}).items()}
    return None if measured_devices(demand, resource_mapping) is None else average


def read_use(prometheus: Prometheus, since: datetime, until: datetime) -> PodUse:
    """Return the average of all GPUs of each pod over its values between the two times. Raises PrometheusError."""
    sums, values = defaultdict[tuple[str, str], float](float), defaultdict[tuple[str, str], float](float)
    while (left := int((until - since).total_seconds())) > 0:
        seconds = min(left, MAX_QUERY_SECONDS)
        for totals, function in ((sums, "sum_over_time"), (values, "count_over_time")):
            query = f"sum by ({NAMESPACE}, {POD}) ({function}({USE}{RECORDED_ONLY}[{seconds}s]))"
            for sample in prometheus.query(query, until):
                totals[_pod_of(sample)] += sample.value
        until -= timedelta(seconds=seconds)
    averages = {pod: sums[pod] / number for pod, number in values.items() if number}
    return {
        pod: average for pod, average in averages.items() if isfinite(average)
    }  # NaN: a driver did not say it


class PodPeaks(NamedTuple):
    """Of each GPU of a pod, the largest memory in GiB, and the largest use; and the hours of the window that were measured."""

    memory: list[Fraction]
    use: list[Fraction]
    hours: int


def read_peaks(
    prometheus: Prometheus, hours: int, now: datetime
) -> tuple[dict[tuple[str, str], PodPeaks], bool]:
    """Return the peaks of all pods in the hours before `now` by namespace and name, and whether they are from the hourly rules.

    Without these rules all values are read. Raises PrometheusError.
    """
    of_pods = f"min by ({NAMESPACE}, {POD})"
    counted = prometheus.query(f"{of_pods} (count_over_time({USE_BY_HOUR}{RECORDED_ONLY}[{hours}h]))", now)
    by_hour = bool(counted)
    if not by_hour:
        # A subquery of one step an hour: its points are the hours with a value.
        counted = prometheus.query(f"{of_pods} (count_over_time({USE}{RECORDED_ONLY}[{hours}h:1h]))", now)
    pods: defaultdict[tuple[str, str], PodPeaks] = defaultdict(lambda: PodPeaks([], [], 0))
    for sample in counted:
        # Both ends of a range count before Prometheus 3.
        pods[_pod_of(sample)] = PodPeaks([], [], min(int(sample.value), hours))
    names = (MEMORY_BY_HOUR, USE_BY_HOUR) if by_hour else (MEMORY, USE)
    memory, use = (
        prometheus.query(
            f"max by ({', '.join(LABELS)}) (max_over_time({name}{RECORDED_ONLY}[{hours}h]))", now
        )
        for name in names
    )
    for sample in filter(_is_finite, memory):
        pods[_pod_of(sample)].memory.append(Fraction(int(sample.value), GIB))
    for sample in filter(_is_finite, use):
        pods[_pod_of(sample)].use.append(Fraction(round(sample.value * USE_STEPS), USE_STEPS))
    return dict(pods), by_hour


def _is_finite(sample: Sample) -> bool:
    """Whether the value is one: exporters write NaN for what a driver does not say."""
    return isfinite(sample.value)


def _pod_of(sample: Sample) -> tuple[str, str]:
    return sample.labels.get(NAMESPACE, ""), sample.labels.get(POD, "")

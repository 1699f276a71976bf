"""The peaks of pods over a window, from the recording rules in Prometheus."""

from collections import defaultdict
from datetime import datetime
from fractions import Fraction
from math import isfinite
from typing import NamedTuple

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
from webhook.tools.rightsize.sizing import GIB

PRECISION = 10_000
"""Parts of 1 in which use is read."""


class Measured(NamedTuple):
    """Of each GPU of a pod, the largest memory in GiB, and the largest use; and the hours of the window that were measured."""

    memory: list[Fraction]
    use: list[Fraction]
    hours: int


def read_peaks(
    prometheus: Prometheus, hours: int, now: datetime
) -> tuple[dict[tuple[str, str], Measured], bool]:
    """Return the peaks of all pods in the hours before `now` by namespace and name, and whether they are from the hourly rules.

    Without these rules all values are read. Raises PrometheusError.
    """
    of_pods = f"min by ({NAMESPACE}, {POD})"
    counted = prometheus.query(f"{of_pods} (count_over_time({USE_BY_HOUR}{RECORDED_ONLY}[{hours}h]))", now)
    by_hour = bool(counted)
    if not by_hour:
        # A subquery of one step an hour: its points are the hours with a value.
        counted = prometheus.query(f"{of_pods} (count_over_time({USE}{RECORDED_ONLY}[{hours}h:1h]))", now)
    pods: defaultdict[tuple[str, str], Measured] = defaultdict(lambda: Measured([], [], 0))
    for sample in counted:
        # Both ends of a range count before Prometheus 3.
        pods[_pod(sample)] = Measured([], [], min(int(sample.value), hours))
    names = (MEMORY_BY_HOUR, USE_BY_HOUR) if by_hour else (MEMORY, USE)
    memory, use = (
        prometheus.query(
            f"max by ({', '.join(LABELS)}) (max_over_time({name}{RECORDED_ONLY}[{hours}h]))", now
        )
        for name in names
    )
    for sample in filter(_is_number, memory):
        pods[_pod(sample)].memory.append(Fraction(int(sample.value), GIB))
    for sample in filter(_is_number, use):
        pods[_pod(sample)].use.append(Fraction(round(sample.value * PRECISION), PRECISION))
    return dict(pods), by_hour


def _is_number(sample: Sample) -> bool:
    """Whether the value is one: exporters write NaN for what a driver does not say."""
    return isfinite(sample.value)


def _pod(sample: Sample) -> tuple[str, str]:
    return sample.labels.get(NAMESPACE, ""), sample.labels.get(POD, "")

"""The part of its time in which the GPUs of each pod worked, from a recording rule in Prometheus."""

from collections import defaultdict
from datetime import datetime, timedelta
from math import isfinite

from webhook.prometheus.client import Prometheus
from webhook.prometheus.exporters import NAMESPACE, POD, UNFORGED, USE
from webhook.tools.audit import PodUse

AT_ONCE = 86_400
"""Seconds that one query reads: a month of all series is more than Prometheus reads for one (`--query.max-samples`)."""


def read_use(prometheus: Prometheus, since: datetime, until: datetime) -> PodUse:
    """Return the average of all GPUs of each pod over its values between the two times. Raises PrometheusError."""
    sums, values = defaultdict[tuple[str, str], float](float), defaultdict[tuple[str, str], float](float)
    while (left := int((until - since).total_seconds())) > 0:
        seconds = min(left, AT_ONCE)
        for found, function in ((sums, "sum_over_time"), (values, "count_over_time")):
            query = f"sum by ({NAMESPACE}, {POD}) ({function}({USE}{UNFORGED}[{seconds}s]))"
            for sample in prometheus.query(query, until):
                found[sample.labels.get(NAMESPACE, ""), sample.labels.get(POD, "")] += sample.value
        until -= timedelta(seconds=seconds)
    averages = ((pod, sums[pod] / number) for pod, number in values.items() if number)
    return {pod: average for pod, average in averages if isfinite(average)}  # NaN: a driver did not say it

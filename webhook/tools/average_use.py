"""How busy the GPUs of each pod were on average (0 to 1), from a recording rule in Prometheus."""

from collections import defaultdict
from datetime import datetime, timedelta
from math import isfinite

from policies.gpus.resource_mapping import ResourceMapping
from policies.quota.idleness import measured_devices
from webhook.prometheus.client import Prometheus
from webhook.prometheus.recorded_series import NAMESPACE, POD, RECORDED_ONLY, USE
from webhook.tools.gpu_hours import AuditLine, amount_of

AT_ONCE = 86_400
"""Seconds that one query reads: a month of all series is more than Prometheus reads for one (`--query.max-samples`)."""

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
        seconds = min(left, AT_ONCE)
        for totals, function in ((sums, "sum_over_time"), (values, "count_over_time")):
            query = f"sum by ({NAMESPACE}, {POD}) ({function}({USE}{RECORDED_ONLY}[{seconds}s]))"
            for sample in prometheus.query(query, until):
                totals[sample.labels.get(NAMESPACE, ""), sample.labels.get(POD, "")] += sample.value
        until -= timedelta(seconds=seconds)
    averages = {pod: sums[pod] / number for pod, number in values.items() if number}
    return {
        pod: average for pod, average in averages.items() if isfinite(average)
    }  # NaN: a driver did not say it

"""The canary of the controller, and its metrics."""

import logging
from collections.abc import Iterator
from time import time

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from webhook.canary.probe import REMEDIES, CanaryResult, probe
from webhook.cluster.api import ApiClient

log = logging.getLogger("gpu_admission.canary")


class Canary(Collector):
    """Runs canaries, and exports the result of the last one as metrics."""

    def __init__(self, api: ApiClient, namespace: str, registry: CollectorRegistry) -> None:
        self._api = api
        self._namespace = namespace
        self._logged = ""
        self._last: CanaryResult | None = None
        self._succeeded_at: float | None = None
        self._failures = Counter(
            "gpu_admission_canary_failures", "Failed canaries by reason.", ["reason"], registry=registry
        )
        for reason in REMEDIES:
            self._failures.labels(reason)
        registry.register(self)

    def forget(self) -> None:
        """Forget the last result: another process leads."""
        self._last = self._succeeded_at = None

    def send(self) -> None:
        self._record(probe(self._api, self._namespace))

    def _record(self, result: CanaryResult) -> None:
        self._last = result
        text = "ok" if result.ok else f"{result.reason}: {result.message}"
        differs, self._logged = text != self._logged, text
        if result.ok:
            self._succeeded_at = time()
            if differs:
                log.info("canary: succeeded in %.3f s: %s", result.seconds, "; ".join(result.proved))
        else:
            self._failures.labels(result.reason).inc()
            if differs:
                log.error("canary: %s; %s", result.message, result.remedy)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        last, succeeded_at = self._last, self._succeeded_at
        if last is None:
            return
        yield GaugeMetricFamily(
            "gpu_admission_canary_success",
            "1 if the last canary, a GPU pod sent as a dry run, went through both webhooks with all injections, else 0.",
            value=float(last.ok),
        )
        yield GaugeMetricFamily(
            "gpu_admission_canary_duration_seconds", "Duration of the last canary.", value=last.seconds
        )
        if succeeded_at is not None:
            yield GaugeMetricFamily(
                "gpu_admission_canary_last_success_timestamp_seconds",
                "Time of the last canary that succeeded.",
                value=succeeded_at,
            )

"""The canary on a period, by whichever controller leads, and its result as metrics."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from time import monotonic, time

import msgspec
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from webhook.cluster.api import ApiClient
from webhook.controller.canary_probe import REMEDIES, Outcome, probe

LOOK_SECONDS = 0.5

log = logging.getLogger("gpu_admission.canary")


class CanaryMetrics(Collector):
    """The last outcome. Nothing of it is shown before there is one, nor by a controller that does not lead."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._last: Outcome | None = None
        self._succeeded_at: float | None = None
        self._failures = Counter(
            "gpu_admission_canary_failures",
            "Canaries that did not come through, by what was in the way.",
            ["reason"],
            registry=registry,
        )
        for reason in REMEDIES:
            self._failures.labels(reason)
        registry.register(self)

    def record(self, outcome: Outcome) -> None:
        self._last = outcome
        if outcome.ok:
            self._succeeded_at = time()
        else:
            self._failures.labels(outcome.reason).inc()

    def forget(self) -> None:
        self._last = self._succeeded_at = None

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Name nothing ahead: there may be nothing to show."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        last, succeeded_at = self._last, self._succeeded_at
        if last is None:
            return
        yield GaugeMetricFamily(
            "gpu_admission_canary_success",
            "1 if a GPU pod, tried on a dry run, went through both webhooks and came back as it should, else 0.",
            value=float(last.ok),
        )
        yield GaugeMetricFamily(
            "gpu_admission_canary_duration_seconds", "What the last one took.", value=last.seconds
        )
        if succeeded_at is not None:
            yield GaugeMetricFamily(
                "gpu_admission_canary_last_success_timestamp_seconds",
                "When one last came through.",
                value=succeeded_at,
            )


class Period(msgspec.Struct, frozen=True):
    """Where canaries are tried, and how often."""

    namespace: str
    seconds: float


class CanaryLoop:
    """Tries a canary every so many seconds while `leads` says so; `run` is the body of a thread."""

    def __init__(
        self, api: ApiClient, period: Period, leads: Callable[[], bool], registry: CollectorRegistry
    ) -> None:
        self._api = api
        self._period = period
        self._leads = leads
        self._metrics = CanaryMetrics(registry)
        self._told = ""

    def run(self, stopping: threading.Event) -> None:
        due = 0.0
        while not stopping.is_set():
            if not self._leads():
                self._metrics.forget()
                due = 0.0
            elif monotonic() >= due:
                due = monotonic() + self._period.seconds
                outcome = probe(self._api, self._period.namespace)
                self._metrics.record(outcome)
                self._tell(outcome)
            stopping.wait(LOOK_SECONDS)

    def _tell(self, outcome: Outcome) -> None:
        """Log what differs from the last one: a failure that lasts is said once."""
        told = f"{outcome.reason}: {outcome.message}" if not outcome.ok else "ok"
        if told != self._told and not outcome.ok:
            log.error("canary: %s; %s", outcome.message, outcome.remedy)
        elif told != self._told:
            log.info("canary: came through in %.3f s: %s", outcome.seconds, "; ".join(outcome.proved))
        self._told = told

"""A Prometheus that knows the recorded series of some pods."""

import re
from datetime import datetime

import msgspec

from webhook.prometheus.client import Prometheus, Sample
from webhook.prometheus.recorded_series import MEMORY_BY_HOUR, USE_BY_HOUR

GIB = 1 << 30


class Pod(msgspec.Struct):
    """A pod that was measured for some hours. gpus: of each GPU, the largest memory in GiB, and the largest use."""

    name: str
    gpus: list[tuple[float, float]]
    hours: float = 336
    namespace: str = "ml"


class Recorded(Prometheus):
    """Answers what `rightsize` asks. by_hour: whether there are hourly series. `asked` has the queries."""

    def __init__(self, *pods: Pod, by_hour: bool = True) -> None:
        super().__init__("http://localhost")
        self._pods, self._by_hour = pods, by_hour
        self.asked: list[str] = []

    def query(self, promql: str, at: datetime | None = None) -> list[Sample]:  # noqa: ARG002
        self.asked.append(promql)
        name = re.findall(r"gpu_admission:[a-z_0-9:]+", promql)[0]
        if name in {USE_BY_HOUR, MEMORY_BY_HOUR} and not self._by_hour:
            return []
        if "count_over_time" in promql:
            return [Sample(_labels(pod), pod.hours) for pod in self._pods]
        is_memory = "memory" in name
        return [
            Sample({**_labels(pod), "gpu": f"GPU-{number}"}, memory * GIB if is_memory else use)
            for pod in self._pods
            for number, (memory, use) in enumerate(pod.gpus)
        ]


def _labels(pod: Pod) -> dict[str, str]:
    return {"namespace": pod.namespace, "pod": pod.name}

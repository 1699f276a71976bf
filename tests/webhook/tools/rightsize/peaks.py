"""Measured peaks of pods."""

import re
from datetime import datetime
from fractions import Fraction

import msgspec

from policies.gpus.mapping_spec import NVIDIA_GPU
from webhook.configuration.loader import load_directory
from webhook.prometheus.client import Prometheus, Sample
from webhook.prometheus.recorded_series import MEMORY_BY_HOUR, USE_BY_HOUR
from webhook.tools.rightsize.sizing import Peaks, Size

CLASSES = load_directory(None).classes

H100, A100, L4, T4 = "nvidia-h100-80gb", "nvidia-a100-80gb", "nvidia-l4", "nvidia-t4"

MIG = "nvidia.com/mig-"
ALL_SLICES = frozenset(f"{MIG}{each}" for each in ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb"))


def whole(gpu_class: str, gpus: int = 1) -> Size:
    known = CLASSES.get(gpu_class)
    assert known is not None
    return Size(gpu_class=gpu_class, resource=NVIDIA_GPU, gpus=gpus, memory_gib=known.memory_gib)


def peaks(memory: str, use: str, of_pod: tuple[str, str] | None = None) -> Peaks:
    """Return peaks of one GPU, and of all GPUs of a pod, which are the same where there is one."""
    memory_of_pod, use_of_pod = of_pod or (memory, use)
    return Peaks(
        memory_gib=Fraction(memory),
        use=Fraction(use),
        memory_gib_of_pod=Fraction(memory_of_pod),
        use_of_pod=Fraction(use_of_pod),
    )


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

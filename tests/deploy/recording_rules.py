"""Exporters of GPUs, and the recording rules that make one shape of all of them (webhook/prometheus/recorded_series.py).

The chart's `files/recording-rules.yaml` is written from here (`make manifests`). The pod that holds a GPU is in the labels
`exported_namespace` and `exported_pod` where those of the target win (`honorLabels: false`), else in `namespace` and `pod`.
"""

import msgspec

from webhook.prometheus.recorded_series import GPU, GPU_INSTANCE, LABELS, NAMESPACE, POD

_MIB = 1024 * 1024


class Metric(msgspec.Struct, frozen=True):
    """A metric of an exporter, by the matchers that select it. It is divided by `divisor`, or multiplied by `factor`."""

    matchers: str
    divisor: int = 1
    factor: int = 1

    @property
    def arithmetic(self) -> str:
        return f" / {self.divisor}" * (self.divisor > 1) + f" * {self.factor}" * (self.factor > 1)


class Exporter(msgspec.Struct, frozen=True):
    """`gpu` and `gpu_instance`: the labels that tell the GPUs of a node apart, and the MIG slices of a GPU."""

    title: str
    use: tuple[Metric, ...]
    memory: Metric
    gpu: str
    gpu_instance: str = ""


EXPORTERS = (
    # https://github.com/NVIDIA/dcgm-exporter: etc/default-counters.csv, internal/pkg/rendermetrics/render_metrics.go.
    # Of MIG slices DCGM measures no utilization, but the activity of engines.
    Exporter(
        title="NVIDIA dcgm-exporter",
        use=(
            Metric('__name__="DCGM_FI_DEV_GPU_UTIL", GPU_I_ID=""', divisor=100),
            Metric('__name__="DCGM_FI_PROF_GR_ENGINE_ACTIVE", GPU_I_ID!=""'),
        ),
        memory=Metric('__name__="DCGM_FI_DEV_FB_USED"', factor=_MIB),
        gpu="UUID",
        gpu_instance="GPU_I_ID",
    ),
    # https://github.com/ROCm/device-metrics-exporter: docs/configuration/metricslist.md. Its MB of memory are MiB
    # (pkg/amdgpu/fsysdevice/device.go); example/configmap.yaml sets the prefix. A partition has a gpu_id of its own.
    Exporter(
        title="AMD device-metrics-exporter",
        use=(Metric('__name__=~"(amd_)?gpu_gfx_activity"', divisor=100),),
        memory=Metric('__name__=~"(amd_)?gpu_used_vram"', factor=_MIB),
        gpu="gpu_id",
    ),
)


def use_expression(selector: str, interval: str) -> str:
    """Return the PromQL of USE from what the exporters write.

    `selector`: the matchers of series that are trusted, `job="…"`. `interval`: between two evaluations; no scrape is lost in it.
    """
    metrics = [(exporter, metric) for exporter in EXPORTERS for metric in exporter.use]
    return _united(metrics, selector, interval)


def memory_expression(selector: str, interval: str) -> str:
    """Return the PromQL of MEMORY, as `use_expression` does."""
    return _united([(exporter, exporter.memory) for exporter in EXPORTERS], selector, interval)


def _united(metrics: list[tuple[Exporter, Metric]], selector: str, interval: str) -> str:
    parts = [
        _renamed(exporter, metric, selector, interval, prefix)
        for exporter, metric in metrics
        for prefix in ("exported_", "")
    ]
    union = "\n  or\n  ".join(parts)
    return f"max by ({', '.join(LABELS)}) (\n  {union}\n)"


def _renamed(exporter: Exporter, metric: Metric, selector: str, interval: str, prefix: str) -> str:
    """Return the largest value of each GPU of a pod under our labels, of the series whose labels have the prefix."""
    named = {NAMESPACE: prefix + NAMESPACE, POD: prefix + POD, GPU: exporter.gpu}
    if exporter.gpu_instance:
        named[GPU_INSTANCE] = exporter.gpu_instance
    # Grouped first: two exporters that overlap in a restart differ in labels that the next step overwrites, and two equal series
    # are an error.
    of_pods = 'exported_pod!=""' if prefix else 'exported_pod="", pod!=""'
    series = f"{{{metric.matchers}, {of_pods}, {selector}}}"
    # The second part is for exporters that are scraped less often than the rules are evaluated.
    found = f"max by ({', '.join(named.values())}) (max_over_time({series}[{interval}]) or {series}){metric.arithmetic}"
    for label, source in named.items():
        if label != source:
            found = f'label_replace({found}, "{label}", "$1", "{source}", "(.+)")'
    return found

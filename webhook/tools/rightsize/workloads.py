"""The workloads of a cluster with the sizes that would do, from its stored pods and the peaks that Prometheus has of them."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from policies.gpus.classes import GPUClass
from policies.gpus.mapping_spec import Measure
from policies.gpus.resource_mapping import GPUResource, ResourceMapping
from policies.pods.pod import Metadata, decode_pod
from policies.quota.amounts import ZERO, format_amount
from webhook.cluster.api import ApiClient
from webhook.cluster.capacity import GPUNode, capacity_by_class
from webhook.configuration.loader import Configuration
from webhook.prometheus.client import Prometheus
from webhook.prometheus.recorded_series import USE_BY_HOUR
from webhook.quota.counted_records import PODS
from webhook.tools.classes import class_permission
from webhook.tools.prices import Prices, money
from webhook.tools.recorded_use import PodPeaks, read_peaks
from webhook.tools.rightsize.sizing import (
    MONTHLY_HOURS,
    ONE_CARD,
    Peaks,
    Size,
    Sizing,
    Suggestion,
    slice_size,
)
from webhook.tools.status.listed_capacity import gpu_amounts
from webhook.tools.status.tolerant_reader import TolerantReader

WINDOW_HOURS = 14 * 24
"""How far back peaks are read by default."""
LEAST_HOURS = 24
"""Measured hours after which a peak counts: most services reach their peak once a day."""
LEAST_HOURS_TO_THE_END = 1
"""Measured hours after which the peak of a pod that succeeded counts: it has done all its work."""

# Why pods are not judged, after their number: `3 pods on a shared GPU, …`.
SHARED = "on a shared GPU, or with GPUs of several kinds"
NO_CLASS = "on no node, or on one of no known class"
NOT_MEASURED = "with GPUs that Prometheus does not know"
TOO_SHORT = f"measured for less than {LEAST_HOURS} h"


class GPUPod(NamedTuple):
    """A stored pod with GPUs. resource: None unless it has whole GPUs or slices of one kind."""

    namespace: str
    name: str
    owner: str
    node: str
    resource: GPUResource | None
    gpus: int
    has_succeeded: bool


class SizedWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """Pods of one owner and one size. pod_hours: what they run in a month, added up."""

    namespace: str
    owner: str
    pods: int
    size: Size
    peaks: Peaks
    pod_hours: Fraction
    suggestions: tuple[Suggestion, ...]

    @property
    def best(self) -> Suggestion:
        return self.suggestions[0]

    @property
    def title(self) -> str:
        return f"{self.namespace} {self.owner}: {_number_of(self.pods, 'pod')} with {self.size.written}"

    def advice(self, currency: str = "") -> str:
        """Return what to write, and what a month saves."""
        return f"{self.best.advice(self.size)}: {self.best.saving(self.size, currency)}"

    @property
    def gpu_hours(self) -> Fraction:
        return self.pod_hours * self.size.cards


class SizeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The workloads of a cluster that could be smaller.

    hours: the window. by_hour: whether the hourly rules were read. workloads: those with suggestions, the best saving first.
    fitting: the number of others whose size is right. unjudged: the number of pods that were not judged, by reason. omitted:
    missing rights, in the words of `kubectl auth can-i`.
    """

    hours: int
    by_hour: bool
    workloads: tuple[SizedWorkload, ...]
    fitting: int
    unjudged: Mapping[str, int]
    omitted: tuple[str, ...]

    @property
    def saved_gpu_hours(self) -> Fraction:
        return sum((workload.best.saved_gpu_hours for workload in self.workloads), ZERO)

    @property
    def saved_cents(self) -> int:
        return sum(workload.best.saved_cents or 0 for workload in self.workloads)

    def notes(self, currency: str = "") -> Iterator[str]:
        """Yield what holds for all: sums, what was not judged and why, and what the figures are from."""
        if self.workloads:
            money_text = f", {money(self.saved_cents)} {currency}" if currency else ""
            workloads = _number_of(len(self.workloads), "workload")
            yield f"{workloads} could be smaller: {format_amount(self.saved_gpu_hours)} GPU-hours a month{money_text}"
        if self.fitting:
            yield f"{_number_of(self.fitting, 'workload')} of the right size"
        for reason, pods in sorted(self.unjudged.items()):
            yield f"not judged: {_number_of(pods, 'pod')} {reason}"
        if not self.by_hour:
            yield (
                f"Prometheus has no series {USE_BY_HOUR}: the peaks are the largest of all values that it keeps. "
                "The chart's recording rules make that series, which is cheaper to keep and to read"
            )


def _number_of(number: int, singular: str) -> str:
    return f"{number} {singular}{'s' * (number != 1)}"


def read_sizes(
    api: ApiClient,
    prometheus: Prometheus,
    now: datetime,
    *,
    hours: int = WINDOW_HOURS,
    namespaces: Sequence[str] = (),
    prices: Prices | None = None,
    config: Path | None = None,
) -> SizeReport:
    """Return the report for the namespaces, or for all. Raises PrometheusError, ConfigurationError and `errors.ApiError`."""
    reader = TolerantReader(api)
    configuration = reader.configuration(config)
    nodes = {gpu_node.name: gpu_node for gpu_node in reader.gpu_nodes(configuration) or ()}
    read = partial(_gpu_pod, mapping=configuration.resource_mapping)
    listed = reader.by_namespace("pods", namespaces, lambda each: api.list(PODS.path(each), read).items)
    peaks, by_hour = read_peaks(prometheus, hours, now)
    unjudged: Counter[str] = Counter()
    groups: defaultdict[tuple[str, str, Size], list[tuple[GPUPod, PodPeaks]]] = defaultdict(list)
    for pod in (pod for pods in listed.values() for pod in pods or ()):
        size = _size_or_reason(pod, nodes.get(pod.node), configuration)
        measured = peaks.get((pod.namespace, pod.name))
        if isinstance(size, str):
            unjudged[size] += 1
        elif measured is None or min(len(measured.memory), len(measured.use)) < pod.gpus:
            unjudged[NOT_MEASURED] += 1
        else:
            groups[pod.namespace, pod.owner, size].append((pod, measured))
    offers = {name: frozenset(each.resources) for name, each in capacity_by_class(nodes.values()).items()}
    sizing = cache(
        lambda namespace: Sizing(
            classes=configuration.classes,
            offers=offers,
            allows=_allowed_classes(reader, configuration, namespace, now),
            prices=prices,
        )
    )
    workloads = []
    for (namespace, owner, size), pods in groups.items():
        if not any(_ran_long_enough(*measured) for measured in pods):
            unjudged[TOO_SHORT] += len(pods)
            continue
        largest, pod_hours = _largest_peaks([measured for _, measured in pods]), _pod_hours(pods, hours)
        workloads.append(
            SizedWorkload(
                namespace=namespace,
                owner=owner,
                pods=len(pods),
                size=size,
                peaks=largest,
                pod_hours=pod_hours,
                suggestions=sizing(namespace).suggestions(size, largest, pod_hours),
            )
        )
    too_large = [workload for workload in workloads if workload.suggestions]
    return SizeReport(
        hours=hours,
        by_hour=by_hour,
        workloads=tuple(sorted(too_large, key=_by_saving)),
        fitting=len(workloads) - len(too_large),
        unjudged=unjudged,
        omitted=tuple(reader.omitted),
    )


def _gpu_pod(raw: msgspec.Raw, mapping: ResourceMapping) -> GPUPod | None:
    """Return a pod with GPUs that has not failed."""
    pod = decode_pod(raw)
    amounts, fractions = gpu_amounts(pod, mapping), mapping.fraction_annotations_of(pod)
    if not (amounts or fractions) or (pod.is_terminal and not pod.has_succeeded):
        return None
    resource, amount = next(iter(amounts.items()), (None, ZERO))
    is_plain = resource is not None and resource.measure in {Measure.DEVICES, Measure.SLICES}
    metadata = pod.metadata or Metadata()
    name = metadata.name or ""
    return GPUPod(
        namespace=metadata.namespace or "",
        name=name,
        owner=metadata.controlled_by or f"Pod/{name}",
        node=pod.spec.node_name or "",
        resource=resource if is_plain and len(amounts) == 1 and not fractions else None,
        gpus=int(amount),
        has_succeeded=pod.has_succeeded,
    )


def _size_or_reason(pod: GPUPod, node: GPUNode | None, configuration: Configuration) -> Size | str:
    """Return the size of the pod, or why it cannot be judged."""
    resource, gpu_class = pod.resource, configuration.classes.get(node.kind) if node else None
    if resource is None:
        return SHARED
    if node is None or gpu_class is None:
        return NO_CLASS
    if resource.profile in gpu_class.mig_profiles:
        size = slice_size(configuration.classes, gpu_class, resource.profile or "")
        return msgspec.structs.replace(size, gpus=pod.gpus)
    if resource.name != gpu_class.resource or node.weights.get(resource.name) != ONE_CARD:
        return SHARED
    return Size(
        gpu_class=gpu_class.name, resource=resource.name, gpus=pod.gpus, memory_gib=gpu_class.memory_gib
    )


def _ran_long_enough(pod: GPUPod, measured: PodPeaks) -> bool:
    return measured.hours >= (LEAST_HOURS_TO_THE_END if pod.has_succeeded else LEAST_HOURS)


def _largest_peaks(pods: Sequence[PodPeaks]) -> Peaks:
    return Peaks(
        memory_gib=max(max(pod.memory) for pod in pods),
        use=max(max(measured.use) for measured in pods),
        memory_gib_of_pod=max(sum(measured.memory, ZERO) for measured in pods),
        use_of_pod=max(sum(measured.use, ZERO) for measured in pods),
    )


def _pod_hours(pods: Sequence[tuple[GPUPod, PodPeaks]], window: int) -> Fraction:
    """Return the hours that the pods run in a month: all of it while they run, else as many as in the window."""
    return sum(
        (
            Fraction(measured.hours * MONTHLY_HOURS, window)
            if pod.has_succeeded
            else MONTHLY_HOURS * ONE_CARD
            for pod, measured in pods
        ),
        ZERO,
    )


def _allowed_classes(
    reader: TolerantReader, configuration: Configuration, namespace: str, now: datetime
) -> Callable[[GPUClass], bool]:
    """Return whether pods of the namespace may use a class; where that cannot be read, they may."""
    policy = reader.policy_of(configuration, namespace)
    quota = reader.quota(namespace)
    hard = quota.spec.amounts if quota and quota.spec else None

    def allows(gpu_class: GPUClass) -> bool:
        return class_permission(gpu_class, policy, now, hard)[0] is not False

    return allows


def _by_saving(workload: SizedWorkload) -> tuple[int, Fraction, str, str]:
    best = workload.best
    return -(best.saved_cents or 0), -best.saved_gpu_hours, workload.namespace, workload.owner

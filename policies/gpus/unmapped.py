"""Accelerators that no GPUResourceMapping has and no quota counts: by resource name, or by another scheduler's annotation."""

import re

from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.pod import Container, Pod
from policies.pods.quantity import parse_or_none

ACCELERATOR = (
    r"(^|[^a-z])([a-z]?gpu|v?cuda|rocm|[dh]cu|v?npu|(edge)?tpu|v?xpu|v?gcu|[vs]?mlu|ppu|ipu|lpu|rdu|hpu|accel|accelerator|"
    r"gaudi|neuron|ascend|davinci|qaic|dri|directx|tensor)(s|num|mem|memory|cores?|devices?)?([^a-z]|$)"
)
"""Fits a name in small letters with a word that means an accelerator, as device plugins name theirs.

The word stands alone: `output` contains tpu, and does not fit.
"""

_ACCELERATOR = re.compile(ACCELERATOR)

ZERO_VALUES = ("", "0")
"""Values of an annotation of another scheduler that request nothing."""
VIRTUAL_NODE = ("type", "virtual-kubelet")
"""The label of Virtual Kubelet's nodes (its Helm chart). They stand for clouds (RunPod, Salad), without GPUs of the cluster."""


def other_resources(container: Container, resource_mapping: ResourceMapping) -> list[str]:
    """Return the extended resources besides GPUs that the container requests. 0 requests none; limits precede requests."""
    resources = container.resources
    if resources is None:
        return []
    names = [
        name
        for amounts in (resources.limits, resources.requests)
        for name in amounts or ()
        if "/" in name and resource_mapping.resource(name) is None
    ]
    if not names:  # as in most containers
        return names
    effective = {**container.requests, **container.limits}
    amounts = {name: parse_or_none(effective[name]) for name in names}
    return [name for name, amount in amounts.items() if amount is not None and amount.nano > 0]


def is_unmapped_accelerator(name: str, resource_mapping: ResourceMapping) -> bool:
    return _ACCELERATOR.search(name.lower()) is not None and not resource_mapping.knows(name)


def other_scheduler_request(pod: Pod, resource_mapping: ResourceMapping) -> tuple[str, str] | None:
    """Return the first annotation that requests a GPU from one of `otherSchedulers`, and the name of that scheduler."""
    requesting = (
        (key, scheduler)
        for scheduler, prefixes in resource_mapping.other_schedulers.items()
        for key, amount in pod.annotations.items()
        if amount not in ZERO_VALUES and key.startswith(prefixes)
    )
    return next(requesting, None)


def gets_other_gpus(pod: Pod, resource_mapping: ResourceMapping) -> bool:
    """Whether another scheduler gives the pod its GPUs, or a virtual node runs it. A pod with a nodeName bypasses schedulers."""
    key, value = VIRTUAL_NODE
    _, scheduler = other_scheduler_request(pod, resource_mapping) or ("", "")
    is_scheduled = scheduler and scheduler == pod.spec.scheduler_name and not pod.spec.node_name
    return bool(is_scheduled) or (pod.spec.node_selector or {}).get(key) == value

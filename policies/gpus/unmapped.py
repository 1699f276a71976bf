"""Accelerators that a container requests by a name that no GPUResourceMapping has. Nothing counts them."""

import re

from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.pod import Container
from policies.pods.quantity import readable

ACCELERATOR = (
    r"(^|[^a-z])([a-z]?gpu|v?cuda|rocm|[dh]cu|v?npu|(edge)?tpu|v?xpu|v?gcu|[vs]?mlu|ppu|ipu|lpu|rdu|hpu|accel|accelerator|"
    r"gaudi|neuron|ascend|davinci|qaic|dri|directx|tensor)(s|num|mem|memory|cores?|devices?)?([^a-z]|$)"
)
"""Fits a name in small letters with a word that means an accelerator, as device plugins name theirs.

The word stands alone: `output` contains tpu, and does not fit.
"""

_ACCELERATOR = re.compile(ACCELERATOR)


def other_resources(container: Container, resource_mapping: ResourceMapping) -> list[str]:
    """Return the extended resources, other than GPUs, of which the container requests more than 0, as the kubelet reads it."""
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
    amounts = {name: readable(effective[name]) for name in names}
    return [name for name, amount in amounts.items() if amount is not None and amount.nano > 0]


def is_unmapped_accelerator(name: str, resource_mapping: ResourceMapping) -> bool:
    return _ACCELERATOR.search(name.lower()) is not None and not resource_mapping.knows(name)

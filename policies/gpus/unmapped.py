"""Accelerators that a container requests by a name that no GPUResourceMapping has. Nothing counts them."""

import re

from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.pod import Container
from policies.pods.quantity import readable

ACCELERATOR = (
    r"(^|[^a-z])([a-z]?gpu|v?cuda|rocm|[dh]cu|v?npu|(edge)?tpu|v?xpu|v?gcu|[vs]?mlu|ppu|ipu|lpu|rdu|hpu|accel|accelerator|"
    r"gaudi|neuron|ascend|davinci|qaic|dri|directx|tensor)(s|num|mem|memory|cores?|devices?)?([^a-z]|$)"
)
"""Fits a name in small letters with a word that means an accelerator, as device plugins name theirs; not `output`."""

_ACCELERATOR = re.compile(ACCELERATOR)


def unmapped_accelerators(container: Container, resource_mapping: ResourceMapping) -> list[str]:
    """Return the names of such resources of which the container requests more than 0, as the kubelet reads it."""
    return [
        name
        for name, raw in {**container.requests, **container.limits}.items()
        if "/" in name
        and resource_mapping.resource(name) is None
        and _ACCELERATOR.search(name.lower())
        and not resource_mapping.knows(name)
        and (quantity := readable(raw)) is not None
        and quantity.nano > 0
    ]

"""Annotations that request a part of one GPU from a fraction scheduler (KAI, Run:ai).

They are validated as the schedulers do: KAI's `validateGpuFractionAnnotation` and `validateMemoryAnnotation`
(`pkg/binder/plugins/gpusharing/gpu-request`) accept a decimal number between 0 and 1, and a whole number of MiB.
"""

import re
from collections.abc import Iterator
from fractions import Fraction

from policies.finding import Edit, either
from policies.gpus.mapping_spec import NVIDIA_GPU, AnnotationKey, Measure
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.annotations import BYTES, MIB, BadAnnotation, whole_number
from policies.pods.field_paths import annotation_path
from policies.pods.pod import Pod

FRACTION_DEVICE = NVIDIA_GPU
"""The resource of the divided card: KAI reserves it by a pod that requests it (pkg/binder/binding/resourcereservation)."""
FRACTION_CONTAINER = "gpu-fraction-container-name"
"""Annotation with the name of the container that gets the part. The default is the first one (`GetFractionContainerRef`)."""

LEAST_PART = Fraction(1, 100)
"""A smaller part takes this much of the quota (`cards.py`), and rule gpu-requests warns of it.

KAI accepts less, but its scheduler then counts no GPU (`minGPUs` in
`pkg/scheduler/api/resource_info`): any number of such pods would share a card, without limits of memory."""

_DECIMAL = re.compile(r"[0-9]{0,9}(\.[0-9]{0,9})?")
_UNITS = {Measure.MEMORY_MIB: MIB, Measure.MEMORY_BYTES: BYTES}
_LARGEST = 10**12
"""More than the bytes of any GPU's memory. It keeps numbers short."""


def fraction_problems(pod: Pod, resource_mapping: ResourceMapping) -> Iterator[BadAnnotation]:
    """Yield every fraction annotation that is invalid or contradicts another."""
    annotations = [(key, pod.annotations[key.key]) for key in resource_mapping.fractions_of(pod)]
    for key, text in annotations:
        problem = _problem(key, text)
        if problem is not None:
            yield problem
    # An annotation that counts says how many devices are shared, by fraction or memory.
    parts = [each for each in annotations if not each[0].measure.is_count]
    for key, text in parts:
        first = parts[0][0]
        if key.measure is not first.measure:
            message = f"must not be set beside {first.key}: a GPU is shared by a fraction or by memory"
            choices = either(*(Edit(annotation_path(each.key)) for each in (key, first)))
            yield BadAnnotation(key.key, text, message, f"remove it, or {first.key}", choices=choices)


def fraction_container(pod: Pod, resource_mapping: ResourceMapping) -> str | None:
    """Return the name of the container to which a fraction scheduler assigns GPUs. None if no such scheduler places the pod."""
    spec = pod.spec
    if spec.node_name or spec.scheduler_name not in resource_mapping.fraction_schedulers:
        return None
    if resource_mapping.pod_fraction(pod) is None:
        return None
    first = spec.containers[0].name if spec.containers else ""
    return pod.annotations.get(FRACTION_CONTAINER, first)


def _problem(key: AnnotationKey, text: str) -> BadAnnotation | None:
    if key.measure is not Measure.FRACTION:
        number = whole_number(key.key, text, _UNITS.get(key.measure, "units"), maximum=_LARGEST)
        return number if isinstance(number, BadAnnotation) else None
    if _DECIMAL.fullmatch(text) and text.strip(".") and 0 < float(text) < 1:
        return None
    remedy = 'set the part of one GPU, such as "0.5", or remove it and request whole GPUs in resources.limits'
    path = annotation_path(key.key)
    return BadAnnotation(
        key.key,
        text,
        "must be a decimal number between 0 and 1",
        remedy,
        example="0.5",
        choices=either(Edit(path, "0.5"), Edit(path)),
    )

"""Annotations that request a part of one GPU from a fraction scheduler (KAI, Run:ai).

Validated as the schedulers do: KAI's `validateGpuFractionAnnotation` and `validateMemoryAnnotation`
(`pkg/binder/plugins/gpusharing/gpu-request`) take a decimal number between 0 and 1, and a whole number of MiB.
"""

import re
from collections.abc import Iterator

from policies.gpus.resource_mapping import AnnotationKey, Measure, ResourceMapping
from policies.pods.annotations import BadAnnotation, whole_number
from policies.pods.pod import Pod

_DECIMAL = re.compile(r"[0-9]{0,9}(\.[0-9]{0,9})?")
_UNITS = {Measure.MEMORY_MIB: "MiB", Measure.MEMORY_BYTES: "bytes"}
_LARGEST = 10**12
"""More than the bytes of any GPU's memory; the point is only that numbers stay short."""


def fraction_problems(pod: Pod, resource_mapping: ResourceMapping) -> Iterator[BadAnnotation]:
    """Yield every fraction annotation that has no usable value, or stands beside one that says something else."""
    annotations = pod.annotations
    present = [key for key in resource_mapping.fraction_annotations if key.key in annotations]
    for key in present:
        problem = _problem(key, annotations[key.key])
        if problem is not None:
            yield problem
    amounts = [key for key in present if not key.measure.is_count]
    for key in amounts[1:]:
        first = amounts[0]
        if key.measure is not first.measure:
            yield BadAnnotation(
                key.key,
                annotations[key.key],
                f"must not be set beside {first.key}: a GPU is shared by a fraction or by memory",
                "keep one of the two",
            )


def _problem(key: AnnotationKey, text: str) -> BadAnnotation | None:
    if key.measure is not Measure.FRACTION:
        number = whole_number(key.key, text, _UNITS.get(key.measure, "units"), maximum=_LARGEST)
        return number if isinstance(number, BadAnnotation) else None
    if _DECIMAL.fullmatch(text) and text.strip(".") and 0 < float(text) < 1:
        return None
    return BadAnnotation(
        key.key,
        text,
        "must be a decimal number between 0 and 1",
        'set the part of one GPU, such as "0.5"; request a whole GPU in the resources of a container',
    )

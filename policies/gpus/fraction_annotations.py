"""Annotations that request a part of one GPU from a fraction scheduler (KAI, Run:ai), and findings about them.

They are validated as the schedulers do: KAI's `validateGpuFractionAnnotation` and `validateMemoryAnnotation`
(`pkg/binder/plugins/gpusharing/gpu-request`) accept a decimal number between 0 and 1, and a whole number of MiB.
"""

import re
from collections.abc import Iterator
from fractions import Fraction
from functools import partial

from policies.finding import Edit, Finding, Reason, one_choice, separate_choices, truncate, warning
from policies.gpus.amount import MAX_QUOTED
from policies.gpus.mapping_spec import DEFAULT_SCHEDULER, NVIDIA_GPU, AnnotationKey, Measure
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.annotations import BYTES, INEFFECTIVE_ANNOTATION, MIB, BadAnnotation, parse_whole_number
from policies.pods.field_paths import annotation_path
from policies.pods.pod import Pod

FRACTION_DEVICE = NVIDIA_GPU
"""The resource of the divided card: KAI reserves it by a pod that requests it (pkg/binder/binding/resourcereservation)."""
FRACTION_CONTAINER = "gpu-fraction-container-name"
"""Annotation with the name of the container that gets the part. The default is the first one (`GetFractionContainerRef`)."""

MIN_FRACTION = Fraction(1, 100)
"""A smaller part takes this much of the quota (`cards.py`), and rule gpu-requests warns of it.

KAI accepts less, but its scheduler then counts no GPU (`minGPUs` in
`pkg/scheduler/api/resource_info`): any number of such pods would share a card, without limits of memory."""

_DECIMAL = re.compile(r"[0-9]{0,9}(\.[0-9]{0,9})?")
_UNITS = {Measure.MEMORY_MIB: MIB, Measure.MEMORY_BYTES: BYTES}
_MAX_NUMBER = 10**12
"""More than the bytes of any GPU's memory. It keeps numbers short."""


def fraction_problems(pod: Pod, resource_mapping: ResourceMapping) -> Iterator[BadAnnotation]:
    """Yield every fraction annotation that is invalid or contradicts another."""
    annotations = [(key, pod.annotations[key.key]) for key in resource_mapping.fraction_annotations_of(pod)]
    for key, text in annotations:
        problem = _annotation_problem(key, text)
        if problem is not None:
            yield problem
    # An annotation that counts says how many devices are shared, by fraction or memory.
    fractions = [annotation for annotation in annotations if not annotation[0].measure.is_count]
    for key, text in fractions:
        first = fractions[0][0]
        if key.measure is not first.measure:
            message = f"must not be set beside {first.key}: a GPU is shared by a fraction or by memory"
            choices = separate_choices(*(Edit(annotation_path(each.key)) for each in (key, first)))
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


def _annotation_problem(key: AnnotationKey, text: str) -> BadAnnotation | None:
    if key.measure is not Measure.FRACTION:
        number = parse_whole_number(key.key, text, _UNITS.get(key.measure, "units"), maximum=_MAX_NUMBER)
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
        choices=separate_choices(Edit(path, "0.5"), Edit(path)),
    )


FRACTION_BESIDE_GPUS = Reason("FractionBesideGPUs", "a fraction annotation stands beside whole GPUs")
FRACTION_TOO_SMALL = Reason("FractionTooSmall", "a fraction annotation counts as more than it says")


def fraction_findings(pod: Pod, mapping: ResourceMapping, *, has_scheduler: bool) -> Iterator[Finding]:
    """Yield the problems of fraction annotations: invalid, beside whole GPUs, or without effect.

    `has_scheduler`: the scheduler of the pod is known. Before validation another webhook may still set it.
    """
    if not mapping.fraction_annotations_of(pod):
        return
    bad = list(fraction_problems(pod, mapping))
    for problem in bad:
        yield problem.finding()
    fraction = mapping.pod_fraction(pod)
    requests = [*mapping.requests(pod)]
    whole = [requested.place for requested in requests if requested.resource.measure is Measure.DEVICES]
    if fraction is None or bad:
        return
    key, text = fraction
    is_served = fraction_container(pod, mapping) is not None
    about = partial(warning, path=annotation_path(key.key), value=truncate(text, MAX_QUOTED))
    if key.measure is Measure.FRACTION and Fraction(text) < MIN_FRACTION:
        yield about(
            reason=FRACTION_TOO_SMALL,
            message=f"counts as {float(MIN_FRACTION)}: schedulers treat a smaller fraction as 0, and enforce no limit",
            choices=one_choice(Edit(annotation_path(key.key), f"{float(MIN_FRACTION)}")),
            remedy=f'set "{float(MIN_FRACTION)}" or more',
        )
    if whole:
        names = ", ".join(dict.fromkeys(f'"{place.container.name}"' for place in whole))
        yield about(
            reason=FRACTION_BESIDE_GPUS,
            message="should not stand beside whole GPUs: schedulers that know the annotation reject such pods, the others "
            "ignore it",
            choices=(
                (Edit(annotation_path(key.key)),),
                tuple(
                    Edit(path)
                    for request in requests
                    if request.resource.measure is Measure.DEVICES
                    for path in request.place.amount_paths(request.resource.name)
                ),
            ),
            remedy=f"remove it, or the whole GPUs of container {names}",
        )
    elif has_scheduler and not is_served:
        scheduler = pod.spec.scheduler_name or DEFAULT_SCHEDULER
        why = "nodeName bypasses schedulers" if pod.spec.node_name else f"{scheduler} does not share GPUs"
        scheduler_name = next(iter(mapping.fraction_schedulers), "")
        yield about(
            reason=INEFFECTIVE_ANNOTATION,
            message=f"has no effect: {truncate(why, MAX_QUOTED)}, so the pod gets none",
            choices=(
                (Edit("spec.schedulerName", scheduler_name), Edit("spec.nodeName")),
                *(
                    (
                        Edit(annotation_path(key.key)),
                        Edit(f"{place.path}.resources.limits[{key.resource}]", 1),
                    )
                    for place in pod.apps[:1]
                ),
            ),
            remedy=f"set schedulerName: {scheduler_name} and no nodeName, or request a GPU in resources.limits",
        )

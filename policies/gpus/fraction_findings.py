"""Findings about the annotations by which a pod requests a part of a GPU."""

from collections.abc import Iterator
from fractions import Fraction
from functools import partial

from policies.finding import Edit, Finding, Reason, together, truncate, warning
from policies.gpus.amount import QUOTED
from policies.gpus.fraction_annotations import LEAST_PART, fraction_container, fraction_problems
from policies.gpus.mapping_spec import DEFAULT_SCHEDULER, Measure
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.annotations import INEFFECTIVE_ANNOTATION
from policies.pods.field_paths import annotation_path
from policies.pods.pod import Pod

FRACTION_BESIDE_GPUS = Reason("FractionBesideGPUs", "a fraction annotation stands beside whole GPUs")
FRACTION_TOO_SMALL = Reason("FractionTooSmall", "a fraction annotation counts as more than it says")


def fraction_findings(pod: Pod, mapping: ResourceMapping, *, has_scheduler: bool) -> Iterator[Finding]:
    """Yield the problems of fraction annotations: invalid, beside whole GPUs, or without effect.

    `has_scheduler`: the scheduler of the pod is known. Before validation another webhook may still set it.
    """
    if not mapping.fractions_of(pod):
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
    about = partial(warning, path=annotation_path(key.key), value=truncate(text, QUOTED))
    if key.measure is Measure.FRACTION and Fraction(text) < LEAST_PART:
        yield about(
            reason=FRACTION_TOO_SMALL,
            message=f"counts as {float(LEAST_PART)}: schedulers take less for nothing, and nothing limits what the pod uses",
            choices=together(Edit(annotation_path(key.key), f"{float(LEAST_PART)}")),
            remedy=f'set "{float(LEAST_PART)}" or more',
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
            message=f"has no effect: {truncate(why, QUOTED)}, so the pod gets none",
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

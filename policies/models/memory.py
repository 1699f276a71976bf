"""GPU memory of the model that a pod declares by its annotations, on the cards that the pod requests."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from policies.gpus.classes import ClassCatalogue, GPUClass
from policies.gpus.resource_mapping import IMPLICIT_DEVICE_CLASS, Measure, ResourceMapping, gpu_requests
from policies.models import estimate as estimates
from policies.models.estimate import GIB, Estimate, EstimateError, ModelShape, gib
from policies.pods import annotations
from policies.pods.annotations import MODEL_PARAMS, BadAnnotation
from policies.pods.pod import Pod
from policies.pods.quantity import QuantityError

_FIELDS: Mapping[str, tuple[str, Callable[[str], Any], str]] = {
    "params": (MODEL_PARAMS, estimates.parse_params, "70b"),
    "precision": (annotations.MODEL_PRECISION, estimates.parse_precision, "bf16"),
    "phase": (annotations.MODEL_PHASE, estimates.parse_phase, "serving"),
    "batch": (annotations.MODEL_BATCH, partial(estimates.parse_count, what="batch size"), "8"),
    "sequence": (annotations.MODEL_SEQUENCE, partial(estimates.parse_count, what="sequence length"), "4096"),
    "checkpointing": (annotations.MODEL_CHECKPOINTING, estimates.parse_flag, "true"),
}
"""By field of a `ModelShape`: its annotation, how that is read, and an example."""

MOST_WAYS = 3


class ModelNeed(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that the model needs on what the pod asks for: so many whole cards, or one MIG slice of a profile."""

    model: str
    estimate: Estimate
    gpus: int
    profile: str | None = None

    @property
    def words(self) -> str:
        """For example `70b bf16 serving needs 336.0 GiB over 4 GPUs = 84.0 GiB each`."""
        needs = f"{self.model} needs {gib(self.estimate.total)}"
        if self.gpus == 1:
            return needs
        return f"{needs} over {self.gpus} GPUs = {gib(-(-self.estimate.total // self.gpus))} each"

    def fits(self, gpu_class: GPUClass, catalogue: ClassCatalogue) -> bool:
        """Whether the cards, or the slice, have the memory. Slices cannot work together, so one holds the whole model."""
        if self.profile is None:
            return self.estimate.total <= gpu_class.memory_gib * GIB * self.gpus
        profile = catalogue.mig_profile(gpu_class, self.profile)
        return profile is not None and self.estimate.total <= profile.memory_gib * GIB


def advice(need: ModelNeed, classes: Iterable[GPUClass]) -> str:
    """Return what to ask for instead so that the model fits on `classes`: a larger slice, or so many whole cards."""
    found = estimates.placement(need.estimate, classes, need.gpus)
    ways = [str(card) for card in found.in_one_node[-MOST_WAYS:]]
    if need.profile is not None and found.slices:
        ways.insert(0, f"a slice {found.slices[0].profile}")
    return f"request {' or '.join(ways)}" if ways else "ask the platform team for larger cards"


def model_need(pod: Pod, resource_mapping: ResourceMapping) -> ModelNeed | tuple[BadAnnotation, ...] | None:
    """Return what the declared model needs of what the pod asks for, or everything that is wrong with its annotations.

    None where no model is declared, or where the pod asks for something whose memory is not known from its class: shares,
    fractions, cores, DRA devices, or several kinds of resource at once.
    """
    shape = model_shape(pod)
    if shape is None or isinstance(shape, tuple):
        return shape
    try:
        requests = gpu_requests(pod, resource_mapping)
    except QuantityError:
        return None  # gpu-requests refuses the pod for it
    if len(requests) != 1:
        return None
    ((resource, quantity),) = requests.items()
    model = f"{pod.annotations[MODEL_PARAMS].strip()} {shape.precision.value} {shape.phase.value}"
    need = ModelNeed(model=model, estimate=estimates.estimate(shape), gpus=1, profile=resource.profile)
    if resource.measure is Measure.DEVICES and not resource.name.startswith(IMPLICIT_DEVICE_CLASS):
        return replace(need, gpus=quantity.value)
    return need if resource.measure is Measure.SLICES else None


def model_shape(pod: Pod) -> ModelShape | tuple[BadAnnotation, ...] | None:
    """Return the model that the annotations declare, everything that is wrong with them, or None where they declare none."""
    fields: dict[str, Any] = {}
    bad: list[BadAnnotation] = []
    for field, (key, parse, example) in _FIELDS.items():
        text = pod.annotations.get(key)
        if text is not None:
            try:
                fields[field] = parse(text)
            except EstimateError as error:
                bad.append(BadAnnotation(key, text, str(error), f'set for example "{example}"'))
    return tuple(bad) or (ModelShape(**fields) if "params" in fields else None)

"""GPU memory of the model that a pod declares by its annotations, on the cards that the pod requests."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import msgspec

from policies.gpus.classes import ClassCatalogue, GPUClass
from policies.gpus.resource_mapping import IMPLICIT_DEVICE_CLASS, Measure, ResourceMapping, gpu_requests
from policies.models.estimate import (
    GIB,
    Estimate,
    EstimateError,
    ModelShape,
    Phase,
    Precision,
    estimate,
    gib,
    parse_count,
    parse_params,
    parse_phase,
    parse_precision,
    placement,
)
from policies.pods.annotations import (
    MODEL_BATCH,
    MODEL_CHECKPOINTING,
    MODEL_PARAMS,
    MODEL_PHASE,
    MODEL_PRECISION,
    MODEL_SEQUENCE,
    BadAnnotation,
)
from policies.pods.pod import Pod
from policies.pods.quantity import QuantityError

T = TypeVar("T")

_ANNOTATIONS = frozenset(
    (MODEL_PARAMS, MODEL_PRECISION, MODEL_PHASE, MODEL_BATCH, MODEL_SEQUENCE, MODEL_CHECKPOINTING)
)

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
    found = placement(need.estimate, classes, need.gpus)
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
    if resource.measure is Measure.DEVICES and not resource.name.startswith(IMPLICIT_DEVICE_CLASS):
        return ModelNeed(model=model, estimate=estimate(shape), gpus=quantity.value)
    if resource.measure is Measure.SLICES:
        return ModelNeed(model=model, estimate=estimate(shape), gpus=1, profile=resource.profile)
    return None


def model_shape(pod: Pod) -> ModelShape | tuple[BadAnnotation, ...] | None:
    """Return the model that the annotations declare, everything that is wrong with them, or None where they declare none."""
    if _ANNOTATIONS.isdisjoint(pod.annotations):
        return None
    read = _Reader(pod.annotations)
    shape = ModelShape(
        params=read(MODEL_PARAMS, parse_params, 0, "70b"),
        precision=read(MODEL_PRECISION, parse_precision, Precision.BF16, "bf16"),
        phase=read(MODEL_PHASE, parse_phase, Phase.SERVING, "serving"),
        batch=read(MODEL_BATCH, lambda text: parse_count(text, "batch size"), 1, "8"),
        sequence=read(MODEL_SEQUENCE, lambda text: parse_count(text, "sequence length"), 2048, "4096"),
        checkpointing=read(MODEL_CHECKPOINTING, _parse_flag, False, "true"),
    )
    if read.bad:
        return tuple(read.bad)
    return shape if MODEL_PARAMS in pod.annotations else None


class _Reader:
    """Reads annotations one by one and remembers what is wrong with them; a bad one counts as its default meanwhile."""

    def __init__(self, annotations: Mapping[str, str]) -> None:
        self._annotations = annotations
        self.bad: list[BadAnnotation] = []

    def __call__(self, key: str, parse: Callable[[str], T], default: T, example: str) -> T:
        text = self._annotations.get(key)
        if text is None:
            return default
        try:
            return parse(text)
        except EstimateError as error:
            self.bad.append(BadAnnotation(key, text, str(error), f'set for example "{example}"'))
            return default


def _parse_flag(text: str) -> bool:
    word = text.strip().lower()
    if word not in {"true", "false"}:
        raise EstimateError(f'must be true or false, not "{text[:40]}"')
    return word == "true"

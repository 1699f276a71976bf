"""GPU memory of the model that a pod declares by its annotations, on the cards that the pod requests."""

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from fractions import Fraction
from functools import partial
from math import ceil
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from policies.finding import Edit
from policies.gpus.cards import gpu_requests
from policies.gpus.claimed_devices import GPUCount
from policies.gpus.classes import GPUClass, GPUClasses
from policies.gpus.mapping_spec import DEVICE_CLASS_PREFIX, Measure
from policies.gpus.resource_mapping import GPUResource, ResourceMapping
from policies.models import shapes
from policies.models.estimate import Estimate, class_fit, estimate, gib
from policies.models.shapes import Attention, EstimateError, ModelShape
from policies.pods import annotations
from policies.pods.annotations import BOOLEAN_WORDS, MODEL_FAMILY, MODEL_PARAMS, BadAnnotation
from policies.pods.field_paths import annotation_path
from policies.pods.pod import Pod
from policies.pods.quantity import QuantityError


class _Field(NamedTuple):
    annotation: str
    parse: Callable[[str], Any]
    example: str


_ANNOTATION_FIELDS: Mapping[str, _Field] = {
    "family": _Field(MODEL_FAMILY, shapes.parse_family, "llama-3.1-8b"),
    "params": _Field(MODEL_PARAMS, shapes.parse_params, "70b"),
    "precision": _Field(annotations.MODEL_PRECISION, shapes.parse_precision, "bf16"),
    "phase": _Field(annotations.MODEL_PHASE, shapes.parse_phase, "serving"),
    "batch": _Field(annotations.MODEL_BATCH, partial(shapes.parse_count, what="batch size"), "8"),
    "sequence": _Field(
        annotations.MODEL_SEQUENCE, partial(shapes.parse_count, what="sequence length"), "4096"
    ),
    "checkpointing": _Field(annotations.MODEL_CHECKPOINTING, shapes.parse_flag, "true"),
    "layers": _Field(annotations.MODEL_LAYERS, partial(shapes.parse_count, what="number of layers"), "32"),
    "kv_heads": _Field(
        annotations.MODEL_KV_HEADS, partial(shapes.parse_count, what="number of KV heads"), "8"
    ),
    "head_size": _Field(annotations.MODEL_HEAD_SIZE, partial(shapes.parse_count, what="head size"), "128"),
}
"""By field of `ModelShape` or `Attention`, and for the family."""
_KEYS = frozenset(field.annotation for field in _ANNOTATION_FIELDS.values())
_ATTENTION = ("layers", "kv_heads", "head_size")

_SEPARATORS = re.compile(r"(?<=\w)[\s_-]+(?=\w)")
_NUMBER = re.compile(r"(?<![-.\d])([0-9]{1,10}(?:\.[0-9]{1,3})?)([kmbt]?)")

MAX_CARD_COUNTS = 3
"""Numbers of cards in one remedy: the smallest ones, which `in_one_node` has last."""


class ModelNeed(msgspec.Struct, frozen=True, kw_only=True):
    """The memory that a model needs on the cards or the MIG slice that the pod requests."""

    model: str
    declared: tuple[str, str]
    """Key and value of the annotation that names the model."""
    estimate: Estimate
    gpus: int
    profile: str | None = None

    @property
    def text(self) -> str:
        """For example `70b bf16 serving needs 195.6 GiB over 4 GPUs = 48.9 GiB each by rule of thumb`."""
        by = "" if self.estimate.knows_kv_cache else " by rule of thumb"
        return f"{self.model} needs {self._text_per_gpu(self.estimate.total)}{by}"

    @property
    def weights_text(self) -> str:
        """For example `the weights of 70b bf16 serving take 130.4 GiB over 4 GPUs = 32.6 GiB each`."""
        return f"the weights of {self.model} take {self._text_per_gpu(self.estimate.weights)}"

    def _text_per_gpu(self, size: int) -> str:
        per_gpu = f" over {self.gpus} GPUs = {gib(-(-size // self.gpus))} each"
        return gib(size) + (per_gpu if self.gpus > 1 else "")

    def memory_gib(self, gpu_class: GPUClass, gpu_classes: GPUClasses) -> int:
        """Return the size of one card, or of the slice; 0 if the class does not have the slice."""
        if self.profile is None:
            return gpu_class.memory_gib
        profile = gpu_classes.mig_profile(gpu_class, self.profile)
        return profile.memory_gib if profile is not None else 0

    def usable_text(self, gpu_class: GPUClass, gpu_classes: GPUClasses) -> str:
        """For example `72.0 GiB usable`: the memory of one card, or of the slice."""
        return f"{gib(int(self.estimate.usable(self.memory_gib(gpu_class, gpu_classes))))} usable"

    def fits(self, gpu_class: GPUClass, gpu_classes: GPUClasses) -> bool:
        """Whether the cards, or the one slice, hold everything. Slices cannot work together."""
        return self.estimate.fits(self.memory_gib(gpu_class, gpu_classes), self.gpus)

    def weights_fit(self, gpu_class: GPUClass, gpu_classes: GPUClasses) -> bool:
        """Whether the cards, or the slice, hold at least the weights, which are certain."""
        return self.estimate.weights_fit(self.memory_gib(gpu_class, gpu_classes), self.gpus)


def sufficient_card_counts(need: ModelNeed, classes: Iterable[GPUClass]) -> tuple[int, ...]:
    """Return how many GPUs of one node hold the model, for several classes."""
    return tuple(
        count.gpus for count in class_fit(need.estimate, classes, need.gpus).in_one_node[-MAX_CARD_COUNTS:]
    )


def enough_in_words(need: ModelNeed, classes: Iterable[GPUClass]) -> str:
    """Return a larger slice, or a number of cards, on which the model fits: `8 GPUs of 141 GiB`. "" if there is none."""
    fit = class_fit(need.estimate, classes, need.gpus)
    counts = fit.in_one_node[-MAX_CARD_COUNTS:]
    ways = [f"{count.gpus} GPU{'' if count.gpus == 1 else 's'} of {count.memory_gib} GiB" for count in counts]
    if need.profile is not None and fit.slices:
        ways.insert(0, f"a slice {fit.slices[0].profile}")
    return " or ".join(ways)


def model_need(
    pod: Pod, resource_mapping: ResourceMapping, claimed_gpus: GPUCount | None = None
) -> ModelNeed | tuple[BadAnnotation, ...] | None:
    """Return the need of the declared model, or the invalid annotations.

    None if no model is declared, or if the class does not say the memory of the requested resource: shares, fractions, cores, or
    several kinds of resource at once. claimed_gpus: the GPUs of its claim (DRA), if known.
    """
    shape = model_shape(pod)
    if shape is None or isinstance(shape, tuple):
        return shape
    try:
        requests = gpu_requests(pod, resource_mapping)
    except QuantityError:
        return None  # rule gpu-requests denies the pod
    gpus = _gpus_of_requests(requests) if requests else claimed_gpus
    if gpus is None:
        return None
    key = MODEL_PARAMS if MODEL_PARAMS in pod.annotations else MODEL_FAMILY
    text = pod.annotations[key]
    return ModelNeed(
        model=f"{text.strip()} {shape.precision.value} {shape.phase.value}",
        declared=(key, text),
        estimate=estimate(shape),
        gpus=1 if gpus.profile else gpus.number,  # slices cannot work together
        profile=gpus.profile,
    )


def _gpus_of_requests(requests: Mapping[GPUResource, Fraction]) -> GPUCount | None:
    """Return the cards or slices of the only resource."""
    if len(requests) > 1:
        return None
    ((resource, amount),) = requests.items()
    if resource.measure is Measure.SLICES:
        return GPUCount(1, resource.profile)
    is_card = resource.measure is Measure.DEVICES and not resource.name.startswith(DEVICE_CLASS_PREFIX)
    return GPUCount(ceil(amount)) if is_card else None


def model_shape(pod: Pod) -> ModelShape | tuple[BadAnnotation, ...] | None:
    """Return the model that the annotations declare, or the invalid annotations. None if they declare no model."""
    if _KEYS.isdisjoint(pod.annotations):
        return None
    fields: dict[str, Any] = {}
    invalid: list[BadAnnotation] = []
    for field, (key, parse, example) in _ANNOTATION_FIELDS.items():
        text = pod.annotations.get(key)
        if text is not None:
            try:
                fields[field] = parse(text)
            except EstimateError as error:
                near = shapes.near_families(text) if field == "family" else ()
                instead = next(iter(near), example)
                remedy = f'set for example {key}: "{instead}"'
                invalid.append(
                    BadAnnotation(key, text, str(error), remedy, _intended_value(text, parse), instead)
                )
    if invalid:
        return tuple(invalid)
    attention = {field: fields.pop(field) for field in _ATTENTION if field in fields}
    if 0 < len(attention) < len(_ATTENTION):
        missing = " and ".join(
            _ANNOTATION_FIELDS[field].annotation for field in _ATTENTION if field not in attention
        )
        key = _ANNOTATION_FIELDS[next(iter(attention))].annotation
        paths = {field: annotation_path(_ANNOTATION_FIELDS[field].annotation) for field in _ATTENTION}
        added = tuple(Edit(paths[f], _ANNOTATION_FIELDS[f].example) for f in _ATTENTION if f not in attention)
        removed = tuple(Edit(paths[field]) for field in _ATTENTION if field in attention)
        message = f"must stand beside {missing}"
        value = pod.annotations[key]
        return (BadAnnotation(key, value, message, "set all three, or none", choices=(added, removed)),)
    if attention:
        fields["attention"] = Attention(**attention)
    family: ModelShape | None = fields.pop("family", None)
    if family is not None:
        return replace(family, **fields)
    return ModelShape(**fields) if "params" in fields else None


def _intended_value(text: str, parse: Callable[[str], Any]) -> str:
    """Return what the author of an invalid value probably means: `fp16` of fp-16, `70b` of 70 billion, `4096` of 4k."""
    joined = _SEPARATORS.sub("", text.lower())
    candidates = [joined, BOOLEAN_WORDS.get(joined, "")]
    if number := _NUMBER.search(joined):
        thousands = str(int(Fraction(number[1]) * 1024)) if number[2] == "k" else ""
        precision = f"int{number[1]}"  # of 4bit
        candidates += [number[0], thousands, number[1], precision]
    for candidate in candidates:
        with suppress(EstimateError):
            parse(candidate)
            return candidate
    return ""

"""Estimates the GPU memory that a transformer needs, and finds the GPU classes that have it.

It is exact enough to choose a card, but not to fill it to the last byte. If the attention of the model is known:

    weights     = parameters * bytes of the precision
    KV cache    = 2 * layers * KV heads * head size * bytes of a cached number * batch * sequence
    activations = 0.8 * weights * batch in training, times 0.3 with gradient checkpointing; none in serving
    total       = weights + KV cache + activations, and the server needs a tenth of each GPU

Else, by a rule of thumb, which ignores grouped-query attention, and so is too high for long sequences:

    KV cache    = 0.25 * weights * batch * sequence / 512
    total       = 1.2 * (weights + KV cache + activations)

The total is divided evenly over the GPUs of the pod. It omits the optimizer: Adam's states and the gradients can take several
times the weights, so full fine-tuning or pre-training needs far more. It also omits quantised caches, LoRA and uneven sharding.
Sizes of cards and slices are nominal GiB. All arithmetic is exact.
"""

from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction
from math import ceil

import msgspec
from msgspec.structs import replace

from policies.gpus.classes import SEVENTHS, GPUClass
from policies.models.shapes import ModelPhase, ModelShape

GIB = 2**30

_KV_CACHE = Fraction(1, 4)
_KV_CACHE_TOKENS = 512
_ACTIVATIONS = Fraction(4, 5)
_CHECKPOINTING = Fraction(3, 10)
_OVERHEAD = Fraction(6, 5)
_USABLE = Fraction(9, 10)
"""The part of a GPU that vLLM uses by default (gpu_memory_utilization). The rest is for ECC (a sixteenth of GDDR6), the CUDA
context and the buffers of a server."""
_MIN_CACHED_BYTES = 2
"""Fewest bytes of a number in the KV cache. Servers cache 16 bits, even if the weights have fewer (vLLM: kv_cache_dtype auto)."""

_MAX_GPUS_PER_NODE = 8
"""Maximum of cards in a usual node."""


class Estimate(msgspec.Struct, frozen=True, rename="camel"):
    """Bytes, rounded up, over all GPUs of the pod. `total` is the sum of the parts.

    If `knows_kv_cache`, the KV cache is calculated from the attention of the model, and `overhead` is 0.
    """

    weights: int
    kv_cache: int
    activations: int
    overhead: int
    total: int
    knows_kv_cache: bool = msgspec.field(default=False, name="knowsCache")

    def usable(self, memory_gib: int) -> Fraction:
        """Return the bytes that `total` may use: without the server's part, unless the overhead in `total` includes that."""
        return memory_gib * GIB * (_USABLE if self.knows_kv_cache else Fraction(1))

    def fits(self, memory_gib: int, gpus: int = 1) -> bool:
        return self.total <= self.usable(memory_gib) * gpus

    def weights_fit(self, memory_gib: int, gpus: int = 1) -> bool:
        return self.weights <= memory_gib * GIB * gpus


class Slice(msgspec.Struct, frozen=True, rename="camel"):
    class_name: str
    profile: str


class CardCount(msgspec.Struct, frozen=True, rename="camel"):
    """How many cards of one size hold the model together."""

    gpus: int
    memory_gib: int
    class_names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.gpus} × {self.memory_gib} GiB"


class ClassFit(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The classes whose GPUs or slices hold the model."""

    gpus: int
    per_gpu: int
    """In bytes."""
    fits: tuple[str, ...]
    """Names of the classes whose memory on `gpus` cards is enough, smallest memory first."""
    slices: tuple[Slice, ...]
    """The smallest slice of each class that holds the whole model. Slices cannot share a model."""
    cards: tuple[CardCount, ...]
    """One for each memory size, smallest first."""

    @property
    def advice(self) -> str:
        if not self.fits:
            needed = " or ".join(map(str, self.in_one_node or self.cards[-1:])) or "another class"
            return f"no class holds {gib(self.per_gpu)} per GPU; needs {needed}"
        text = f"fits {self.fits[0]}"
        if len(self.fits) > 1:
            text += f" and {len(self.fits) - 1} larger"
        if self.slices:
            text += f"; a MIG slice would do: fits {self.slices[0].profile} of {self.slices[0].class_name}"
        return text

    @property
    def in_one_node(self) -> tuple[CardCount, ...]:
        """The smallest card for each number of cards of one node that can share a model, largest number first.

        1, 2, 4 or 8: a server divides the attention heads of a model evenly over its cards (vLLM: tensor_parallel_size), and
        their number is rarely a multiple of 3, 5 or 7.
        """
        # From the largest card to the smallest: of equal numbers, the smallest card is kept.
        sharing = [replace(card, gpus=_next_power_of_two(card.gpus)) for card in reversed(self.cards)]
        smallest = {card.gpus: card for card in sharing if card.gpus <= _MAX_GPUS_PER_NODE}
        return tuple(card for _, card in sorted(smallest.items(), reverse=True))


def _next_power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def estimate(shape: ModelShape) -> Estimate:
    """Return the memory that a model of this shape needs, by the formulas in this module's docstring."""
    weights = shape.params * shape.precision.size
    if shape.attention is None:
        factor, per_token = _OVERHEAD, _KV_CACHE * weights / _KV_CACHE_TOKENS
    else:
        cached = max(shape.precision.size, Fraction(_MIN_CACHED_BYTES))
        factor, per_token = Fraction(1), shape.attention.cached_per_token * cached
    kv_cache = shape.batch * shape.sequence * per_token
    activations = Fraction(0)
    if shape.phase is ModelPhase.TRAINING:
        activations = _ACTIVATIONS * weights * shape.batch * (_CHECKPOINTING if shape.checkpointing else 1)
    parts = ceil(weights), ceil(kv_cache), ceil(activations)
    # Each part is rounded up, so that their sum may exceed the rounded total.
    total = max(ceil(factor * (weights + kv_cache + activations)), sum(parts))
    return Estimate(*parts, total - sum(parts), total, shape.attention is not None)


def class_fit(needed: Estimate, classes: Iterable[GPUClass], gpus: int) -> ClassFit:
    """Return the classes, slices and numbers of cards that hold the model. `classes` are those that the pod can use."""
    ordered = sorted(classes, key=lambda gpu_class: (gpu_class.memory_gib, gpu_class.name))
    slices = (_smallest_slice(needed, gpu_class) for gpu_class in ordered)
    by_size: dict[int, list[str]] = defaultdict(list)
    for gpu_class in ordered:
        by_size[gpu_class.memory_gib].append(gpu_class.name)
    return ClassFit(
        gpus=gpus,
        per_gpu=ceil(Fraction(needed.total, gpus)),
        fits=tuple(c.name for c in ordered if needed.fits(c.memory_gib, gpus)),
        slices=tuple(mig_slice for mig_slice in slices if mig_slice is not None),
        cards=tuple(
            CardCount(ceil(needed.total / needed.usable(size)), size, tuple(names))
            for size, names in by_size.items()
        ),
    )


def _smallest_slice(needed: Estimate, gpu_class: GPUClass) -> Slice | None:
    # Of two equal slices, prefer the shorter name: such a slice has no media engines, and a card has more of them.
    candidates = sorted(
        (profile.memory_gib, profile.sevenths, len(name), name)
        for name, profile in gpu_class.mig_profiles.items()
        # Do not recommend a slice that is the whole card.
        if profile.sevenths != SEVENTHS
        and profile.memory_gib < gpu_class.memory_gib
        and needed.fits(profile.memory_gib)
    )
    return Slice(gpu_class.name, candidates[0][3]) if candidates else None


def gib(size: int) -> str:
    """Return bytes as text, rounded up to a tenth: `13.1 GiB`."""
    tenths = ceil(Fraction(size * 10, GIB))
    return f"{tenths // 10}.{tenths % 10} GiB"

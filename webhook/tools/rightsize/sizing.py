"""The sizes that would do for a workload, by its peaks, with the arithmetic: a pure calculation.

Memory and compute must each hold the peak times HEADROOM. Compute is compared within a card and within a family only: no
GPUClass says how fast a class is. Of another family, a card is taken to be as much slower as its memory is smaller.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from fractions import Fraction
from itertools import chain

import msgspec
from msgspec.structs import replace

from policies.gpus.classes import GPUClass, GPUClasses
from policies.gpus.vendors import MIG_SLICE
from policies.pods.annotations import GPU_CLASS
from policies.quota.amounts import ZERO, format_amount
from webhook.tools.prices import Prices, in_cents, money

HEADROOM = Fraction(5, 4)
MONTHLY_HOURS = 365 * 24 // 12
IDLE_BELOW = Fraction(5, 100)
ONE_CARD = Fraction(1)

Offers = Mapping[str, Collection[str]]
"""By class, the resources that nodes offer."""


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs of a pod: `gpus` of a resource.

    memory_gib: of one. compute: the part of the card's compute that one has. weight: the part of a card that a quota counts.
    """

    gpu_class: str
    resource: str
    gpus: int
    memory_gib: int
    compute: Fraction = ONE_CARD
    weight: Fraction = ONE_CARD

    @property
    def cards(self) -> Fraction:
        return self.gpus * self.weight

    @property
    def written(self) -> str:
        """What a container's limits say: `nvidia.com/gpu: 2`."""
        return f"{self.resource}: {self.gpus}"


class Peaks(msgspec.Struct, frozen=True, kw_only=True):
    """The largest values of pods: of one GPU, and of all GPUs of a pod together. Memory in GiB; a busy GPU or slice has use 1."""

    memory_gib: Fraction
    use: Fraction
    memory_gib_of_pod: Fraction
    use_of_pod: Fraction

    @property
    def are_idle(self) -> bool:
        return self.use < IDLE_BELOW


class Suggestion(msgspec.Struct, frozen=True):
    """A sufficient size, the arithmetic, and what to mind. Hours of whole cards, and money in cents, are those of a month."""

    size: Size
    because: str
    remark: str = ""
    gpu_hours: Fraction = ZERO
    saved_gpu_hours: Fraction = ZERO
    """0 where the cards are as many, of a smaller class."""
    saved_cents: int | None = None

    def advice(self, current: Size) -> str:
        """Return what to write in place of the present size."""
        if self.size.gpu_class != current.gpu_class:
            return f"set annotation {GPU_CLASS}: {self.size.gpu_class} (the pods are on {current.gpu_class})"
        return f"set {self.size.written} instead of {current.written}"

    def saving(self, current: Size, currency: str = "") -> str:
        """Return what a month saves: `547.5 of 730 GPU-hours a month, 1095.00 EUR`."""
        all_hours = format_amount(self.gpu_hours + self.saved_gpu_hours)
        if self.saved_gpu_hours:
            hours = f"saves {format_amount(self.saved_gpu_hours)} of {all_hours} GPU-hours a month"
        else:
            hours = f"{all_hours} GPU-hours a month of {self.size.gpu_class} instead of {current.gpu_class}"
        return hours if self.saved_cents is None else f"{hours}: {money(self.saved_cents)} {currency} less"


class Sizing(msgspec.Struct, frozen=True, kw_only=True):
    """What suggestions depend on besides the workload. allows: whether its pods may use a class."""

    classes: GPUClasses
    offers: Offers
    allows: Callable[[GPUClass], bool]
    prices: Prices | None = None

    def suggestions(self, size: Size, peaks: Peaks, pod_hours: Fraction) -> tuple[Suggestion, ...]:
        """Return what would do for a workload whose pods run `pod_hours` in a month, added up; the best saving first."""
        current = self.classes.get(size.gpu_class)
        if current is None:
            return ()
        sufficient = []
        for suggestion in chain(
            _fewer_gpus_candidates(size, peaks),
            self._slice_candidates(size, peaks, current),
            self._smaller_class_candidates(size, peaks, current),
        ):
            saved = self._saved_cents(size, suggestion.size, pod_hours)
            if saved is None or saved > 0:
                hours, before = pod_hours * suggestion.size.cards, pod_hours * size.cards
                sufficient.append(
                    replace(suggestion, gpu_hours=hours, saved_gpu_hours=before - hours, saved_cents=saved)
                )
        return tuple(sorted(sufficient, key=_by_saving))

    def _slice_candidates(self, size: Size, peaks: Peaks, current: GPUClass) -> Iterator[Suggestion]:
        """Yield the smallest slice that would do in place of one GPU, if there is one; those that nodes offer come first."""
        if size.gpus != 1:
            return
        offered, fitting = self.offers.get(current.name, ()), []
        for name in current.mig_profiles:
            # "+me" has engines for media that most do not need; "1c.3g.40gb" shares the memory of others.
            if "+" in name or "c." in name:
                continue
            slice_ = slice_size(self.classes, current, name)
            has_room = _has_headroom(peaks.memory_gib, slice_.memory_gib)
            if (
                has_room
                and _has_headroom(peaks.use * size.compute, slice_.compute)
                and slice_.weight < size.weight
            ):
                fitting.append(
                    (slice_.resource not in offered, slice_.weight, slice_.memory_gib, name, slice_)
                )
        if fitting:
            is_missing, *_, slice_ = min(fitting, key=lambda candidate: candidate[:4])
            remark = "no node offers this slice yet: a node must be partitioned for it" if is_missing else ""
            memory = _memory_text(peaks.memory_gib, slice_.memory_gib)
            use = _use_text(peaks.use * size.compute, slice_.compute)
            yield Suggestion(slice_, f"{memory}; {use}", remark)

    def _smaller_class_candidates(self, size: Size, peaks: Peaks, current: GPUClass) -> Iterator[Suggestion]:
        """Yield the classes with less memory that nodes offer, in place of whole cards."""
        if size.resource != current.resource or size.weight != ONE_CARD:
            return
        for other in self.classes:
            if (
                other.memory_gib >= current.memory_gib
                or not self._offers_enough(other, size)
                or not self.allows(other)
            ):
                continue
            smaller = Size(
                gpu_class=other.name, resource=other.resource, gpus=size.gpus, memory_gib=other.memory_gib
            )
            memory, compute = (
                _memory_text(peaks.memory_gib, other.memory_gib),
                other.memory_gib * ONE_CARD / current.memory_gib,
            )
            if not _has_headroom(peaks.memory_gib, other.memory_gib):
                continue
            if other.family == current.family:
                yield Suggestion(smaller, f"{memory}; the same family")
            elif _has_headroom(peaks.use, compute):
                remark = "another family is faster or slower: try one pod first"
                yield Suggestion(smaller, f"{memory}; {_use_text(peaks.use, compute)}", remark)

    def _offers_enough(self, other: GPUClass, size: Size) -> bool:
        """Whether nodes of the class offer the resource, and enough of it, if that is known."""
        is_enough = other.gpus_per_node is None or other.gpus_per_node >= size.gpus
        return (
            is_enough and other.resource == size.resource and size.resource in self.offers.get(other.name, ())
        )

    def _saved_cents(self, size: Size, other: Size, pod_hours: Fraction) -> int | None:
        if self.prices is None or self.prices.missing((size.gpu_class, other.gpu_class)):
            return None
        cost_now, cost_then = (
            self.prices.cost({of_size.gpu_class: of_size.cards * pod_hours}) for of_size in (size, other)
        )
        return in_cents([cost_now - cost_then])[0] if cost_now > cost_then else 0


def slice_size(classes: GPUClasses, gpu_class: GPUClass, profile: str) -> Size:
    """Return one MIG slice of a class. An A30 has four sevenths of compute, which are all of it."""
    slice_profile = gpu_class.mig_profiles[profile]
    all_sevenths = max(mig_profile.sevenths for mig_profile in gpu_class.mig_profiles.values())
    return Size(
        gpu_class=gpu_class.name,
        resource=f"{MIG_SLICE}{profile}",
        gpus=1,
        memory_gib=slice_profile.memory_gib,
        compute=Fraction(slice_profile.sevenths, all_sevenths),
        weight=classes.mig_weight(gpu_class, profile),
    )


def _fewer_gpus_candidates(size: Size, peaks: Peaks) -> Iterator[Suggestion]:
    """Yield the smallest number that would do and divides the present one: parallel programs split their work evenly."""
    for gpus in range(1, size.gpus):
        memory = gpus * size.memory_gib
        has_room = _has_headroom(peaks.memory_gib_of_pod, memory) and _has_headroom(
            peaks.use_of_pod, gpus * ONE_CARD
        )
        if size.gpus % gpus == 0 and has_room:
            because = f"{_memory_text(peaks.memory_gib_of_pod, memory)}; {_use_text(peaks.use_of_pod, gpus * ONE_CARD)}"
            yield Suggestion(replace(size, gpus=gpus), f"all GPUs of a pod together: {because}")
            return


def _has_headroom(peak: Fraction, room: Fraction | int) -> bool:
    return peak * HEADROOM <= room


def _memory_text(peak: Fraction, gib: int) -> str:
    return f"peak memory {number(peak)} GiB × 1.25 = {number(peak * HEADROOM)} of {gib} GiB"


def _use_text(peak: Fraction, compute: Fraction) -> str:
    """Say both in percent of one card of the present class; several cards have more than 100 %."""
    return f"peak use {number(peak * 100)} % × 1.25 = {number(peak * HEADROOM * 100)} of {number(compute * 100)} %"


def number(value: Fraction) -> str:
    """Return a number with one decimal at most."""
    whole, tenths = divmod(int(value * 10 + Fraction(1, 2)), 10)
    return f"{whole}.{tenths}" if tenths else str(whole)


def _by_saving(suggestion: Suggestion) -> tuple[int, int, str]:
    """Sort by the money that is saved; where no price is known, by the memory that would still be held."""
    size = suggestion.size
    return -(suggestion.saved_cents or 0), size.gpus * size.memory_gib, f"{size.written} {size.gpu_class}"

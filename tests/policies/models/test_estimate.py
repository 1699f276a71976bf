"""The memory estimate: the formula to the byte, and where it says a model fits."""

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.models.attention import Attention, EstimateError
from policies.models.estimate import (
    GIB,
    CardCount,
    Estimate,
    ModelPhase,
    ModelShape,
    Precision,
    Slice,
    estimate,
    gib,
    parse_count,
    parse_params,
    parse_phase,
    parse_precision,
    placement,
)
from tests.builders import CLASSES, gpu_class

SHAPES = st.builds(
    ModelShape,
    params=st.integers(1, 10**15),
    precision=st.sampled_from(Precision),
    phase=st.sampled_from(ModelPhase),
    batch=st.integers(1, 10**4),
    sequence=st.integers(1, 10**7),
    checkpointing=st.booleans(),
)


TRAINED = {"params": 10**9, "phase": ModelPhase.TRAINING, "batch": 4, "sequence": 512}


@pytest.mark.parametrize(
    ("shape", "want"),
    [
        pytest.param(
            # 7e9 * 2 = 14e9; * 0.25 * 1 * 2048/512 = 14e9; 1.2 * 28e9 = 33.6e9
            {"params": 7 * 10**9, "sequence": 2048},
            (14 * 10**9, 14 * 10**9, 0, 5_600_000_000, 33_600_000_000),
            id="7b-served-in-bf16",
        ),
        pytest.param(
            # activations: 0.8 * 2e9 * 4 = 6.4e9; KV cache: 0.25 * 2e9 * 4 * 1 = 2e9; 1.2 * 10.4e9 = 12.48e9
            TRAINED,
            (2 * 10**9, 2 * 10**9, 6_400_000_000, 2_080_000_000, 12_480_000_000),
            id="1b-trained-in-batches-of-four",
        ),
        pytest.param(
            # activations: 6.4e9 * 0.3 = 1.92e9; 1.2 * 5.92e9 = 7.104e9
            {**TRAINED, "checkpointing": True},
            (2 * 10**9, 2 * 10**9, 1_920_000_000, 1_184_000_000, 7_104_000_000),
            id="checkpointing-keeps-three-tenths-of-the-activations",
        ),
        pytest.param(
            {"params": 10**9, "batch": 4, "sequence": 512, "checkpointing": True},
            (2 * 10**9, 2 * 10**9, 0, 800_000_000, 4_800_000_000),
            id="checkpointing-means-nothing-when-serving",
        ),
        pytest.param(
            # half a byte each: weights 1.5 -> 2, KV cache 1.5 * 0.25 = 0.375 -> 1, total 1.2 * 1.875 = 2.25 -> 3
            {"params": 3, "precision": Precision.INT4, "sequence": 512},
            (2, 1, 0, 0, 3),
            id="parts-are-rounded-up-and-still-add-up",
        ),
    ],
)
def test_formula(shape: dict[str, Any], want: tuple[int, int, int, int, int]) -> None:
    assert estimate(ModelShape(**shape)) == Estimate(*want)


def test_bytes_of_a_parameter() -> None:
    half = Fraction(1, 2)
    want = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1, "fp4": half, "int4": half}

    assert {each.value: each.size for each in Precision} == want


@given(SHAPES)
def test_parts_add_up_and_exceed_the_exact_number_by_bytes(shape: ModelShape) -> None:
    got = estimate(shape)
    kept = Fraction(3, 10) if shape.checkpointing else Fraction(1)
    activations = Fraction(8, 10) * shape.batch * kept if shape.phase is ModelPhase.TRAINING else 0
    exact = Fraction(12, 10) * shape.params * shape.precision.size
    exact *= 1 + Fraction(shape.batch * shape.sequence, 4 * 512) + activations

    assert got.weights + got.kv_cache + got.activations + got.overhead == got.total
    assert exact <= got.total < exact + 3
    assert min(got.weights, got.kv_cache, got.activations, got.overhead) >= 0


ATTENTION = st.builds(
    Attention, layers=st.integers(1, 200), kv_heads=st.integers(1, 128), head_size=st.integers(1, 512)
)


@given(SHAPES, ATTENTION)
def test_a_known_cache_has_no_overhead_and_grows_with_each_of_its_numbers(
    shape: ModelShape, attention: Attention
) -> None:
    got = estimate(replace(shape, attention=attention))
    deeper = replace(attention, layers=attention.layers + 1)

    assert got.overhead == 0
    assert got.weights + got.kv_cache + got.activations + got.overhead == got.total
    assert got.kv_cache < estimate(replace(shape, attention=deeper)).kv_cache
    assert got.weights == estimate(shape).weights


@given(SHAPES, ATTENTION, st.integers(1, 300), st.integers(1, 16))
def test_what_fits_fits_on_more_and_has_room_for_its_weights(
    shape: ModelShape, attention: Attention, memory_gib: int, gpus: int
) -> None:
    for each in (estimate(shape), estimate(replace(shape, attention=attention))):
        if each.fits(memory_gib, gpus):
            assert each.fits(memory_gib + 1, gpus)
            assert each.fits(memory_gib, gpus + 1)
            assert each.weights_fit(memory_gib, gpus)


def needing(total_gib: Fraction | int) -> Estimate:
    total = int(total_gib * GIB)
    return Estimate(weights=total, kv_cache=0, activations=0, overhead=0, total=total)


LARGER = ("nvidia-a100-40gb", "nvidia-a100-80gb", "amd-mi300x")


@pytest.mark.parametrize(
    ("total", "gpus", "want"),
    [
        pytest.param(16, 1, ("nvidia-t4", *LARGER), id="to-the-brim"),
        pytest.param(Fraction(161, 10), 1, LARGER, id="a-bit-more"),
        pytest.param(160, 4, LARGER, id="over-four-gpus"),
        pytest.param(200, 1, (), id="nowhere"),
    ],
)
def test_fits_smallest_first(total: Fraction | int, gpus: int, want: tuple[str, ...]) -> None:
    assert placement(needing(total), CLASSES, gpus).fits == want


@pytest.mark.parametrize(
    ("total", "want"),
    [
        pytest.param(5, ["1g.5gb", "1g.10gb"], id="smallest-without-media-engines"),
        pytest.param(11, ["3g.20gb", "1g.20gb"], id="more-memory-before-more-compute"),
        pytest.param(41, [], id="a-slice-that-is-the-whole-card-is-not-recommended"),
    ],
)
def test_slices(total: int, want: list[str]) -> None:
    of_classes = zip(("nvidia-a100-40gb", "nvidia-a100-80gb"), want, strict=False)

    assert placement(needing(total), CLASSES, 1).slices == tuple(Slice(*each) for each in of_classes)


@pytest.mark.parametrize(
    ("total", "gpus", "want"),
    [
        pytest.param(
            200,
            1,
            "no class holds 200.0 GiB per GPU; needs 5 × 40 GB or 3 × 80 GB or 2 × 192 GB",
            id="cards-needed",
        ),
        pytest.param(
            4000, 8, "no class holds 500.0 GiB per GPU; needs 21 × 192 GB", id="more-than-a-node-has"
        ),
        pytest.param(
            9,
            1,
            "fits nvidia-t4 and 3 larger; a MIG slice would do: fits 3g.20gb of nvidia-a100-40gb",
            id="slice-offered",
        ),
        pytest.param(150, 1, "fits amd-mi300x", id="one-class"),
    ],
)
def test_advice(total: int, gpus: int, want: str) -> None:
    assert placement(needing(total), CLASSES, gpus).advice == want


def test_cards_of_one_size_are_counted_together() -> None:
    classes = [gpu_class("nvidia-h100", "nvidia-h100", 80), gpu_class("nvidia-a100", "nvidia-a100", 80)]

    found = placement(needing(240), classes, 1)

    assert found.cards == (CardCount(gpus=3, memory_gib=80, class_names=("nvidia-a100", "nvidia-h100")),)
    assert str(found.cards[0]) == "3 × 80 GB"


def test_no_class_at_all_still_says_something() -> None:
    assert placement(needing(1), [], 1).advice == "no class holds 1.0 GiB per GPU; needs another class"


def test_sizes_are_rounded_up() -> None:
    assert [gib(0), gib(1), gib(GIB), gib(GIB + 1)] == ["0.0 GiB", "0.1 GiB", "1.0 GiB", "1.1 GiB"]


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("70b", 70 * 10**9, id="billions"),
        pytest.param("7B", 7 * 10**9, id="upper-case"),
        pytest.param("1.5T", 1_500_000_000_000, id="trillions"),
        pytest.param("350M", 350 * 10**6, id="millions"),
        pytest.param("350 m", 350 * 10**6, id="space"),
        pytest.param("1.3e9", 1_300_000_000, id="exponent"),
        pytest.param("1.3E+9", 1_300_000_000, id="signed-exponent"),
        pytest.param("7000000000", 7 * 10**9, id="plain"),
        pytest.param("125k", 125_000, id="thousands"),
    ],
)
def test_params(text: str, want: int) -> None:
    assert parse_params(text) == want


batch = partial(parse_count, what="batch size")


@pytest.mark.parametrize(
    ("parse", "text", "want"),
    [
        pytest.param(parse_params, "", 'not ""', id="no-params"),
        pytest.param(parse_params, "-7b", 'not "-7b"', id="negative-params"),
        pytest.param(parse_params, "7g", 'not "7g"', id="unknown-unit"),
        pytest.param(parse_params, "7_0b", 'not "7_0b"', id="underscore"),
        pytest.param(parse_params, "0b", 'parameters, not "0b"', id="zero-params"),
        pytest.param(parse_params, "1e99", "more than 0 and at most 1e+15", id="too-many-params"),
        pytest.param(parse_precision, "fp64", "must be one of fp32, tf32, fp16", id="precision"),
        pytest.param(parse_phase, "inference", 'must be training or serving, not "inference"', id="phase"),
        pytest.param(batch, "0", 'a batch size, a whole number from 1 to 1000000000, not "0"', id="zero"),
        pytest.param(batch, "1.5", 'not "1.5"', id="fraction"),
        pytest.param(batch, "9" * 99, "from 1 to 1000000000", id="too-large"),
    ],
)
def test_refuses_with_a_sentence(parse: Callable[[str], object], text: str, want: str) -> None:
    with pytest.raises(EstimateError) as refused:
        parse(text)

    assert want in str(refused.value)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("BF16", Precision.BF16, id="upper-case"),
        pytest.param("bfloat16", Precision.BF16, id="pytorch-name"),
        pytest.param("half", Precision.FP16, id="half"),
        pytest.param(" int4 ", Precision.INT4, id="spaces"),
    ],
)
def test_precision_names(text: str, want: Precision) -> None:
    assert parse_precision(text) is want


def test_phase_and_count() -> None:
    assert parse_phase("Training") is ModelPhase.TRAINING
    assert parse_count(" 8 ", "batch size") == 8

"""The memory estimate: the formula to the byte, and where it says a model fits."""

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.models.estimate import CardCount, Estimate, Slice, class_fit, estimate, gib
from policies.models.shapes import (
    FAMILIES,
    Attention,
    EstimateError,
    ModelPhase,
    ModelShape,
    Precision,
    parse_count,
    parse_family,
    parse_params,
    parse_phase,
    parse_precision,
)
from tests.builders import CLASSES, gpu_class
from tests.cases import cases

GIB = 2**30

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


@cases(
    ("shape", "want"),
    {
        # 7e9 * 2 = 14e9; * 0.25 * 1 * 2048/512 = 14e9; 1.2 * 28e9 = 33.6e9
        "7b-served-in-bf16": (
            {"params": 7 * 10**9, "sequence": 2048},
            (14 * 10**9, 14 * 10**9, 0, 5_600_000_000, 33_600_000_000),
        ),
        # activations: 0.8 * 2e9 * 4 = 6.4e9; KV cache: 0.25 * 2e9 * 4 * 1 = 2e9; 1.2 * 10.4e9 = 12.48e9
        "1b-in-fours": (TRAINED, (2 * 10**9, 2 * 10**9, 6_400_000_000, 2_080_000_000, 12_480_000_000)),
        # activations: 6.4e9 * 0.3 = 1.92e9; 1.2 * 5.92e9 = 7.104e9
        "checkpointing-keeps-three-tenths-of-the-activations": (
            {**TRAINED, "checkpointing": True},
            (2 * 10**9, 2 * 10**9, 1_920_000_000, 1_184_000_000, 7_104_000_000),
        ),
        "checkpointing-means-nothing-when-serving": (
            {"params": 10**9, "batch": 4, "sequence": 512, "checkpointing": True},
            (2 * 10**9, 2 * 10**9, 0, 800_000_000, 4_800_000_000),
        ),
        # half a byte each: weights 1.5 -> 2, KV cache 1.5 * 0.25 = 0.375 -> 1, total 1.2 * 1.875 = 2.25 -> 3
        "parts-still-add-up": ({"params": 3, "precision": Precision.INT4, "sequence": 512}, (2, 1, 0, 0, 3)),
    },
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
def test_a_known_cache_has_no_overhead_and_grows_by_layers(shape: ModelShape, attention: Attention) -> None:
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


@cases(
    ("total", "gpus", "want"),
    to_the_brim=(16, 1, ("nvidia-t4", *LARGER)),
    a_bit_more=(Fraction(161, 10), 1, LARGER),
    over_four_gpus=(160, 4, LARGER),
    nowhere=(200, 1, ()),
)
def test_fits_smallest_first(total: Fraction | int, gpus: int, want: tuple[str, ...]) -> None:
    assert class_fit(needing(total), CLASSES, gpus).fits == want


@cases(
    ("total", "want"),
    smallest_without_media_engines=(5, ["1g.5gb", "1g.10gb"]),
    more_memory_before_more_compute=(11, ["3g.20gb", "1g.20gb"]),
    a_slice_that_is_the_whole_card_is_not_recommended=(41, []),
)
def test_slices(total: int, want: list[str]) -> None:
    of_classes = zip(("nvidia-a100-40gb", "nvidia-a100-80gb"), want, strict=False)

    assert class_fit(needing(total), CLASSES, 1).slices == tuple(Slice(*each) for each in of_classes)


@cases(
    ("total", "gpus", "want"),
    cards=(320, 1, "no class holds 320.0 GiB per GPU; needs 8 × 40 GiB or 4 × 80 GiB or 2 × 192 GiB"),
    nine_cards_are_no_node=(720, 1, "no class holds 720.0 GiB per GPU; needs 4 × 192 GiB"),
    more_than_a_node_has=(4000, 8, "no class holds 500.0 GiB per GPU; needs 21 × 192 GiB"),
    mig=(9, 1, "fits nvidia-t4 and 3 larger; a MIG slice would do: fits 3g.20gb of nvidia-a100-40gb"),
    one_class=(150, 1, "fits amd-mi300x"),
)
def test_advice(total: int, gpus: int, want: str) -> None:
    assert class_fit(needing(total), CLASSES, gpus).advice == want


def test_cards_of_one_size_are_counted_together() -> None:
    classes = [gpu_class("nvidia-h100", "nvidia-h100", 80), gpu_class("nvidia-a100", "nvidia-a100", 80)]

    found = class_fit(needing(240), classes, 1)

    assert found.cards == (CardCount(gpus=3, memory_gib=80, class_names=("nvidia-a100", "nvidia-h100")),)
    assert str(found.cards[0]) == "3 × 80 GiB"


def test_no_class_at_all_still_says_something() -> None:
    assert class_fit(needing(1), [], 1).advice == "no class holds 1.0 GiB per GPU; needs another class"


def test_sizes_are_rounded_up() -> None:
    assert [gib(0), gib(1), gib(GIB), gib(GIB + 1)] == ["0.0 GiB", "0.1 GiB", "1.0 GiB", "1.1 GiB"]


@cases(
    ("text", "want"),
    billions=("70b", 70 * 10**9),
    upper_case=("7B", 7 * 10**9),
    trillions=("1.5T", 1_500_000_000_000),
    millions=("350M", 350 * 10**6),
    space=("350 m", 350 * 10**6),
    exponent=("1.3e9", 1_300_000_000),
    signed_exponent=("1.3E+9", 1_300_000_000),
    plain=("7000000000", 7 * 10**9),
    thousands=("125k", 125_000),
)
def test_params(text: str, want: int) -> None:
    assert parse_params(text) == want


batch = partial(parse_count, what="batch size")


def test_attention_in_words() -> None:
    assert str(Attention(layers=32, kv_heads=8, head_size=128)) == "32 layers, 8 KV heads, head size 128"
    assert str(Attention(layers=2, kv_heads=1, head_size=64)) == "2 layers, 1 KV head, head size 64"


@cases(
    ("parse", "text", "want"),
    no_params=(parse_params, "", 'not ""'),
    unknown_unit=(parse_params, "7g", 'not "7g"'),
    zero_params=(parse_params, "0b", 'parameters, not "0b"'),
    too_many_params=(parse_params, "1e99", "more than 0 and at most 1e+15"),
    precision=(parse_precision, "fp64", "must be one of fp32, tf32, fp16"),
    cut=(parse_precision, "x" * 41, f'not "{"x" * 40}"'),
    family=(parse_family, "llama-3.1-9b", "a built-in family such as llama-3.1-8b, "),
    zero=(batch, "0", 'a batch size, a whole number from 1 to 1000000000, not "0"'),
    fraction=(batch, "1.5", 'not "1.5"'),
    too_large=(batch, "9" * 99, "from 1 to 1000000000"),
)
def test_refuses_with_a_sentence(parse: Callable[[str], object], text: str, want: str) -> None:
    with pytest.raises(EstimateError) as refused:
        parse(text)

    assert want in str(refused.value)


@cases(
    ("text", "want"),
    upper_case=("BF16", Precision.BF16),
    pytorch_name=("bfloat16", Precision.BF16),
    half=("half", Precision.FP16),
    spaces=(" int4 ", Precision.INT4),
)
def test_precision_names(text: str, want: Precision) -> None:
    assert parse_precision(text) is want


def test_family_phase_and_count() -> None:
    assert parse_family(" Phi-4 ") == FAMILIES["phi-4"]
    assert parse_phase("Training") is ModelPhase.TRAINING
    assert parse_count(" 8 ", "batch size") == 8

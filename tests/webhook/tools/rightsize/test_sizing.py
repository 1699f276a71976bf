"""Sizes that would do for a workload, with numbers that were checked by hand."""

from fractions import Fraction

import pytest

from policies.gpus.mapping_spec import NVIDIA_GPU
from tests.cases import cases
from tests.webhook.tools.rightsize.peaks import A100, ALL_SLICES, CLASSES, H100, L4, MIG, T4, peaks, whole
from webhook.tools.prices import Prices
from webhook.tools.rightsize.sizing import Peaks, Size, Sizing, Suggestion, slice_size

MONTH = Fraction(730)
CARDS = frozenset({NVIDIA_GPU})
OTHER_FAMILY = "another family is faster or slower: try one pod first"


def slice_of(gpu_class: str, profile: str) -> Size:
    known = CLASSES.get(gpu_class)
    assert known is not None
    return slice_size(CLASSES, known, profile)


def suggested(
    size: Size, found: Peaks, offers: dict[str, frozenset[str]], **tweaks: object
) -> list[Suggestion]:
    sizing = Sizing(classes=CLASSES, offers=offers, allows=lambda _: True)
    for name, value in tweaks.items():
        sizing = Sizing(**{**{each: getattr(sizing, each) for each in sizing.__struct_fields__}, name: value})
    return list(sizing.suggestions(size, found, MONTH))


def sizes(found: list[Suggestion]) -> list[str]:
    return [f"{each.size.written} {each.size.gpu_class}" for each in found]


@cases(
    ("memory", "use", "profile", "hours"),
    # 8 × 1.25 = 10 GiB; 11 % × 1.25 = 13.75 % of 1/7 = 14.3 %
    the_smallest_to_the_last_byte=("8", "0.11", "1g.10gb", Fraction(730, 7)),
    # 8.1 × 1.25 = 10.125 GiB: a quarter of the card's memory, so a quarter of the card
    more_memory=("8.1", "0.11", "1g.20gb", Fraction(730, 4)),
    # 12 % × 1.25 = 15 % is more than 1/7, less than 2/7
    more_compute=("8", "0.12", "2g.20gb", Fraction(730 * 2, 7)),
    # 16.1 × 1.25 = 20.125 GiB
    half_of_a_card=("16.1", "0.11", "3g.40gb", Fraction(730, 2)),
    # 40 % × 1.25 = 50 % is more than 3/7, less than 4/7
    half_the_memory_and_more_compute=("16.1", "0.40", "4g.40gb", Fraction(730 * 4, 7)),
)
def test_a_slice_in_place_of_a_card(memory: str, use: str, profile: str, hours: Fraction) -> None:
    (best,) = suggested(whole(H100), peaks(memory, use), {H100: ALL_SLICES})

    assert (best.size, best.gpu_hours, best.saved_gpu_hours) == (
        slice_of(H100, profile),
        hours,
        MONTH - hours,
    )


@cases(
    ("size", "found"),
    # 33 × 1.25 = 41.25 GiB
    memory_of_more_than_half=(whole(H100), peaks("33", "0.1")),
    # 50 % × 1.25 = 62.5 % is more than 4/7
    compute_of_more_than_four_sevenths=(whole(H100), peaks("8", "0.5")),
    no_slices_of_its_class=(whole(T4), peaks("1", "0.01")),
    the_smallest_slice=(slice_of(H100, "1g.10gb"), peaks("1", "0.01")),
    # 2 × 70 × 1.25 = 175 GiB of one card's 80
    two_full_cards=(whole(H100, 2), peaks("70", "0.9", ("140", "1.8"))),
    # Three cards would have room; no number but 1 divides 5.
    five_cards_of_which_three_would_do=(whole(H100, 5), peaks("40", "0.4", ("170", "2"))),
)
def test_no_other_size_would_do(size: Size, found: Peaks) -> None:
    assert suggested(size, found, {H100: ALL_SLICES | CARDS, T4: CARDS}) == []


@cases(
    ("gpus", "of_pod", "want"),
    # 100 × 1.25 = 125 of 2 × 80 GiB; 120 % × 1.25 = 150 of 200 %
    half=(4, ("100", "1.2"), 2),
    # 50 × 1.25 = 62.5 of 80 GiB; 80 % × 1.25 = 100 %
    one_to_the_last_percent=(4, ("50", "0.8"), 1),
    # 180 × 1.25 = 225 GiB need three cards; 3 does not divide 8
    a_number_that_divides=(8, ("180", "2"), 4),
    # 170 % × 1.25 = 212.5 % need three of four
    none_for_compute=(4, ("50", "1.7"), None),
)
def test_fewer_gpus(gpus: int, of_pod: tuple[str, str], want: int | None) -> None:
    found = suggested(whole(H100, gpus), peaks("40", "0.5", of_pod), {H100: CARDS})

    assert [each.size.gpus for each in found] == ([want] if want else [])
    assert [each.saved_gpu_hours for each in found] == ([MONTH * (gpus - want)] if want else [])


@cases(
    ("size", "found", "want"),
    # 30 × 1.25 = 37.5 of 40 GiB; the family is the same, so it may be busy
    half_the_memory_of_a_busy_card=(whole(A100), peaks("30", "1"), ["nvidia.com/gpu: 1 nvidia-a100-40gb"]),
    # 33 × 1.25 = 41.25 GiB
    more_than_that=(whole(A100), peaks("33", "1"), []),
    # 13 × 1.25 = 16.25 of 24 GiB; 24 % × 1.25 = 30 % = 24/80. A T4 has 16 GiB.
    other_families=(
        whole(H100),
        peaks("13", "0.24"),
        ["nvidia.com/gpu: 1 nvidia-l4", "nvidia.com/gpu: 1 nvidia-a100-40gb"],
    ),
    # 25 % × 1.25 = 31.25 %: more than 24/80, less than 40/80
    too_busy_for_the_smallest=(whole(H100), peaks("13", "0.25"), ["nvidia.com/gpu: 1 nvidia-a100-40gb"]),
    # 10 × 1.25 = 12.5 of 16 GiB; 10 % × 1.25 = 12.5 of 20 %: the least memory first
    several=(
        whole(H100),
        peaks("10", "0.1"),
        ["nvidia.com/gpu: 1 nvidia-t4", "nvidia.com/gpu: 1 nvidia-l4", "nvidia.com/gpu: 1 nvidia-a100-40gb"],
    ),
    more_cards_than_a_node_has=(whole(A100, 20), peaks("30", "1", ("600", "20")), []),
    of_a_slice_only_a_smaller_slice=(
        slice_of(A100, "3g.40gb"),
        peaks("8", "0.2"),
        ["nvidia.com/mig-1g.10gb: 1 nvidia-a100-80gb"],
    ),
)
def test_a_smaller_class_that_nodes_have(size: Size, found: Peaks, want: list[str]) -> None:
    offers = {**dict.fromkeys((H100, "nvidia-a100-40gb", L4, T4), CARDS), A100: CARDS | ALL_SLICES}

    others = suggested(size, found, offers)

    assert sizes([each for each in others if each.remark in {"", OTHER_FAMILY}]) == want
    assert {each.remark for each in others if each.size.gpu_class == L4} <= {OTHER_FAMILY}


def test_use_of_a_slice_is_a_part_of_the_slice() -> None:
    """40 % of 3/7 × 1.25 = 21.4 % of a card: more than 1/7, less than 2/7."""
    (best,) = suggested(slice_of(H100, "3g.40gb"), peaks("8", "0.4"), {H100: ALL_SLICES})

    assert best.size == slice_of(H100, "2g.20gb")
    assert best.saved_gpu_hours == MONTH * (Fraction(1, 2) - Fraction(2, 7))


def test_four_sevenths_are_all_compute_of_an_a30() -> None:
    """20 % × 1.25 = 25 % = 1g.6gb of four."""
    (best,) = suggested(whole("nvidia-a30"), peaks("4.8", "0.2"), {"nvidia-a30": frozenset({f"{MIG}1g.6gb"})})

    assert (best.size.resource, best.size.compute) == (f"{MIG}1g.6gb", Fraction(1, 4))


def test_slices_that_nodes_offer_come_first_and_others_are_remarked() -> None:
    small = peaks("8", "0.1")

    (offered,) = suggested(whole(H100), small, {H100: frozenset({f"{MIG}3g.40gb"})})
    (missing,) = suggested(whole(H100), small, {H100: CARDS})

    assert (offered.size.resource, offered.remark) == (f"{MIG}3g.40gb", "")
    assert missing.size.resource == f"{MIG}1g.10gb"
    assert missing.remark == "no node offers this slice yet: a node must be partitioned for it"


def test_a_class_that_the_namespace_may_not_use_is_not_suggested() -> None:
    offers = {A100: CARDS, "nvidia-a100-40gb": CARDS}

    assert (
        suggested(whole(A100), peaks("30", "1"), offers, allows=lambda each: each.name != "nvidia-a100-40gb")
        == []
    )


PRICES = Prices("EUR", Fraction(2), {H100: Fraction(4), L4: Fraction("0.80"), T4: Fraction(5)})


def test_prices_decide_what_is_best() -> None:
    """730 h × 4 EUR = 2,920: an L4 costs 584, 1g.20gb a quarter of 2,920 = 730, and a T4 more than the H100."""
    found = suggested(
        whole(H100), peaks("8.1", "0.1"), {H100: ALL_SLICES, L4: CARDS, T4: CARDS}, prices=PRICES
    )

    assert sizes(found) == ["nvidia.com/gpu: 1 nvidia-l4", f"{MIG}1g.20gb: 1 {H100}"]
    assert [each.saved_cents for each in found] == [233_600, 219_000]


def test_without_a_price_of_its_class_the_money_is_not_known() -> None:
    prices = Prices("EUR", None, {L4: Fraction(1)})

    (best,) = suggested(whole(H100), peaks("8", "0.1"), {H100: ALL_SLICES}, prices=prices)

    assert best.saved_cents is None


@cases(
    ("size", "found", "prices", "advice", "saving", "because"),
    a_slice=(
        whole(H100),
        peaks("9.2", "0.1"),
        PRICES,
        "set nvidia.com/mig-1g.20gb: 1 instead of nvidia.com/gpu: 1",
        "saves 547.5 of 730 GPU-hours a month: 2190.00 EUR less",
        "peak memory 9.2 GiB × 1.25 = 11.5 of 20 GiB; peak use 10 % × 1.25 = 12.5 of 14.3 %",
    ),
    fewer=(
        whole(H100, 4),
        peaks("25", "0.3", ("100", "1.2")),
        None,
        "set nvidia.com/gpu: 2 instead of nvidia.com/gpu: 4",
        "saves 1460 of 2920 GPU-hours a month",
        "all GPUs of a pod together: peak memory 100 GiB × 1.25 = 125 of 160 GiB; peak use 120 % × 1.25 = 150 of 200 %",
    ),
    a_class=(
        whole(A100),
        peaks("30", "0.9"),
        None,
        "set annotation gpu-admission.dev/gpu-class: nvidia-a100-40gb (the pods are on nvidia-a100-80gb)",
        "730 GPU-hours a month of nvidia-a100-40gb instead of nvidia-a100-80gb",
        "peak memory 30 GiB × 1.25 = 37.5 of 40 GiB; the same family",
    ),
)
def test_the_words(
    size: Size, found: Peaks, prices: Prices | None, advice: str, saving: str, because: str
) -> None:
    offers = {H100: ALL_SLICES | CARDS, A100: CARDS, "nvidia-a100-40gb": CARDS}

    best = suggested(size, found, offers, prices=prices)[0]

    assert (best.advice(size), best.saving(size, "EUR"), best.because) == (advice, saving, because)


@pytest.mark.parametrize(("use", "idle"), [("0", True), ("0.0499", True), ("0.05", False)])
def test_idle_is_under_five_percent(use: str, idle: bool) -> None:
    assert peaks("1", use).are_idle is idle

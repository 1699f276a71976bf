"""Vectors: exact sums, what exceeds what, and the text of amounts."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.quota import amounts as vector
from policies.quota.amounts import Amounts, Excess
from policies.quota.spec import QuotaSpec
from tests.cases import cases

HALF = Fraction(1, 2)
KEYS = st.sampled_from(["gpus", "classes/nvidia-t4", "classes/nvidia-a100", "resources/nvidia.com/gpu"])
AMOUNTS = st.fractions(min_value=0, max_value=1000, max_denominator=10**6)
VECTORS = st.dictionaries(KEYS, AMOUNTS.filter(bool))


def of(**amounts: Any) -> Amounts:
    return {key: Fraction(amount) for key, amount in amounts.items()}


@cases(
    ("vectors", "want"),
    nothing=([], {}),
    key_by_key=([of(a=1), of(a=2, b=3)], of(a=3, b=3)),
    zeros_are_left_out=([of(a=0)], {}),
    seven_sevenths_are_one=([of(a="1/7")] * 7, of(a=1)),
)
def test_total(vectors: list[Amounts], want: Amounts) -> None:
    assert vector.total(vectors) == want


def test_maximum() -> None:
    assert vector.maximum([of(a=1, b=4), of(a=2), of(c=0)]) == of(a=2, b=4)


@cases(
    ("after", "before", "want"),
    more=(of(a=3), of(a=1), of(a=2)),
    less_is_nothing=(of(a=1), of(a=3), {}),
    the_same_is_nothing=(of(a=1), of(a=1), {}),
    another_class_now=(of(b=2), of(a=2), of(b=2)),
)
def test_positive_difference(after: Amounts, before: Amounts, want: Amounts) -> None:
    assert vector.positive_difference(after, before) == want


@cases(
    ("amounts", "hard", "want"),
    exactly_full=(of(a=3), of(a=3), []),
    a_seventh_over=(of(a="22/7"), of(a=3), [Excess("a", Fraction(22, 7), Fraction(3))]),
    what_hard_lacks_is_unlimited=(of(a=9), of(b=1), []),
    nothing_is_granted=(of(a=1), of(a=0), [Excess("a", Fraction(1), Fraction(0))]),
    all_of_them_sorted=(
        of(b=2, a=2),
        of(b=1, a=1),
        [Excess("a", Fraction(2), Fraction(1)), Excess("b", Fraction(2), Fraction(1))],
    ),
)
def test_exceeds(amounts: Amounts, hard: Amounts, want: list[Excess]) -> None:
    assert list(vector.exceeded_limits(amounts, hard)) == want
    assert all(excess.over > 0 for excess in want)


@cases(
    ("amount", "want"),
    largest_valid=("3", "3"),
    half=("1/2", "0.5"),
    more_than_two_decimals_rounded=("9/8", "1.13"),
    sevenths=("2/7", "0.29"),
    more_than_one_in_sevenths=("23/7", "3.29"),
    eighths_of_sevenths=("121/56", "2.16"),
    just_below_a_whole=("799/800", "1"),
    a_hundredth=("1/100", "0.01"),
    less_than_a_hundredth=("1/101", "<0.01"),
    nothing=("0", "0"),
)
def test_shown(amount: str, want: str) -> None:
    assert vector.format_amount(Fraction(amount)) == want


def test_shown_keeps_every_digit_of_a_large_amount() -> None:
    assert vector.format_amount(Fraction(10**17 + 1) + HALF) == "100000000000000001.5"


@cases(
    ("text", "want"),
    largest_valid=("16", Fraction(16)),
    number_of_400_digits=(10**400 - 1, Fraction(10**400 - 1)),
    the_number_zero=(0, Fraction(0)),
    zero=("0", Fraction(0)),
    leading_zeros=("007", Fraction(7)),
    decimal=("0.25", Fraction(1, 4)),
    fraction=("2/7", Fraction(2, 7)),
    not_in_lowest_terms=("4/2", Fraction(2)),
    as_long_as_sums_get=(f"1/{'9' * 400}", Fraction(1, int("9" * 400))),
)
def test_amounts_are_read(text: str | int, want: Fraction) -> None:
    assert vector.parse_amount(text) == want


@cases(
    ("raw", "want"),
    decimal_number=(0.5, 'must be a whole number or text, such as 16, "0.5" or "2/7": quote 0.5'),
    negative_number=(-16, 'must be an amount such as 16, "0.5" or "2/7", not -16'),
    number_of_401_digits=(10**400, 'must be an amount such as 16, "0.5" or "2/7", not this number'),
    boolean=(True, 'must be an amount such as 16, "0.5" or "2/7", not True'),
    null=(None, 'must be an amount such as 16, "0.5" or "2/7", not "None"'),
    empty=("", 'must be an amount such as 16, "0.5" or "2/7", not ""'),
    negative=("-1", 'must be an amount such as 16, "0.5" or "2/7", not "-1"'),
    space=(" 1", 'must be an amount such as 16, "0.5" or "2/7", not " 1"'),
    newline=("1\n", 'must be an amount such as 16, "0.5" or "2/7", not "1\n"'),
    underscore=("1_0", 'must be an amount such as 16, "0.5" or "2/7", not "1_0"'),
    digit_of_another_script=("٣", 'must be an amount such as 16, "0.5" or "2/7", not "٣"'),
    no_whole_part=(".5", 'must be an amount such as 16, "0.5" or "2/7", not ".5"'),
    decimal_and_fraction=("1.5/2", 'must be an amount such as 16, "0.5" or "2/7", not "1.5/2"'),
    divides_by_zero=("1/0", 'must not divide by zero, as "1/0" does'),
    too_long=("9" * 401, f'must be an amount such as 16, "0.5" or "2/7", not "{"9" * 40}…"'),
)
def test_amounts_that_are_none(raw: Any, want: str) -> None:
    with pytest.raises(ValueError) as error:
        vector.parse_amount(raw)
    assert str(error.value) == want


@cases(
    ("raw", "want"),
    a_list=([], "must be a map of amounts"),
    unknown_key=({"cpu": "1"}, 'must be gpus, classes/<name> or resources/<name>, not "cpu"'),
    no_name=({"classes/": "1"}, 'must be gpus, classes/<name> or resources/<name>, not "classes/"'),
    no_amount=({"gpus": "many"}, 'must be an amount such as 16, "0.5" or "2/7", not "many"'),
)
def test_what_is_no_vector(raw: Any, want: str) -> None:
    with pytest.raises(ValueError) as error:
        vector.parse_amounts(raw)
    assert str(error.value) == want


def test_what_a_quota_grants_is_one_vector() -> None:
    classes: dict[str, int | str] = {"nvidia-a100": "8", "nvidia-t4": 0}
    resources = {"nvidia.com/mig-1g.10gb": "14"}
    hard = QuotaSpec(hard=vector.Hard(gpus=16, classes=classes, resources=resources)).amounts

    assert vector.amount_texts(hard) == {
        "classes/nvidia-a100": "8",
        "classes/nvidia-t4": "0",
        "gpus": "16",
        "resources/nvidia.com/mig-1g.10gb": "14",
    }
    assert QuotaSpec(hard=vector.Hard()).amounts == {}


def test_what_a_quota_cannot_grant_is_told_with_its_path() -> None:
    [problem] = QuotaSpec(hard=vector.Hard(gpus="1", classes={"nvidia-t4": "2.5x"})).problems()
    assert problem == (
        "hard.classes[nvidia-t4]",
        'must be an amount such as 16, "0.5" or "2/7", not "2.5x"',
    )


@given(VECTORS)
def test_texts_are_read_back_exactly(amounts: Amounts) -> None:
    assert vector.parse_amounts(vector.amount_texts(amounts)) == amounts


@given(VECTORS, VECTORS)
def test_what_was_before_and_the_increase_cover_what_is_after(after: Amounts, before: Amounts) -> None:
    increase = vector.positive_difference(after, before)

    assert vector.total([before, increase]) == vector.maximum([before, after])
    assert all(amount > 0 for amount in increase.values())


@given(VECTORS, VECTORS)
def test_nothing_exceeds_the_sum_that_it_is_part_of(one: Amounts, other: Amounts) -> None:
    assert vector.exceeded_limits(one, vector.total([one, other])) == ()

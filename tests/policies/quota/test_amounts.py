"""Vectors: exact sums, what exceeds what, and the text of amounts."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.quota import amounts as vector
from policies.quota.amounts import Excess, Vector, VectorError

HALF = Fraction(1, 2)
KEYS = st.sampled_from(["gpus", "classes/nvidia-t4", "classes/nvidia-a100", "resources/nvidia.com/gpu"])
AMOUNTS = st.fractions(min_value=0, max_value=1000, max_denominator=10**6)
VECTORS = st.dictionaries(KEYS, AMOUNTS.filter(bool))


def of(**amounts: Any) -> Vector:
    return {key: Fraction(amount) for key, amount in amounts.items()}


@pytest.mark.parametrize(
    ("vectors", "want"),
    [
        pytest.param([], {}, id="nothing"),
        pytest.param([of(a=1), of(a=2, b=3)], of(a=3, b=3), id="key-by-key"),
        pytest.param([of(a=0)], {}, id="zeros-are-left-out"),
        pytest.param([of(a="1/7")] * 7, of(a=1), id="seven-sevenths-are-one"),
    ],
)
def test_add(vectors: list[Vector], want: Vector) -> None:
    assert vector.add(*vectors) == want
    assert vector.total(vectors) == want


def test_maximum() -> None:
    assert vector.maximum(of(a=1, b=4), of(a=2), of(c=0)) == of(a=2, b=4)


@pytest.mark.parametrize(
    ("after", "before", "want"),
    [
        pytest.param(of(a=3), of(a=1), of(a=2), id="more"),
        pytest.param(of(a=1), of(a=3), {}, id="less-is-nothing"),
        pytest.param(of(a=1), of(a=1), {}, id="the-same-is-nothing"),
        pytest.param(of(b=2), of(a=2), of(b=2), id="another-class-now"),
    ],
)
def test_positive_difference(after: Vector, before: Vector, want: Vector) -> None:
    assert vector.positive_difference(after, before) == want


@pytest.mark.parametrize(
    ("amounts", "hard", "want"),
    [
        pytest.param(of(a=3), of(a=3), [], id="exactly-full"),
        pytest.param(of(a="22/7"), of(a=3), [Excess("a", Fraction(22, 7), Fraction(3))], id="a-seventh-over"),
        pytest.param(of(a=9), of(b=1), [], id="what-hard-lacks-is-unlimited"),
        pytest.param(of(a=1), of(a=0), [Excess("a", Fraction(1), Fraction(0))], id="nothing-is-granted"),
        pytest.param(
            of(b=2, a=2),
            of(b=1, a=1),
            [Excess("a", Fraction(2), Fraction(1)), Excess("b", Fraction(2), Fraction(1))],
            id="all-of-them-sorted",
        ),
    ],
)
def test_exceeds(amounts: Vector, hard: Vector, want: list[Excess]) -> None:
    assert list(vector.exceeds(amounts, hard)) == want
    assert all(excess.over > 0 for excess in want)


@pytest.mark.parametrize(
    ("amount", "want"),
    [
        pytest.param("3", "3", id="whole"),
        pytest.param("1/2", "0.5", id="half"),
        pytest.param("9/8", "1.125", id="eighths"),
        pytest.param("2/7", "2/7", id="sevenths"),
        pytest.param("9/7", "1 2/7", id="more-than-one-in-sevenths"),
        pytest.param("0", "0", id="nothing"),
    ],
)
def test_shown(amount: str, want: str) -> None:
    assert vector.format_amount(Fraction(amount)) == want


def test_shown_keeps_every_digit_of_a_large_amount() -> None:
    assert vector.format_amount(Fraction(10**17 + 1) + HALF) == "100000000000000001.5"


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("16", Fraction(16), id="whole"),
        pytest.param(16, Fraction(16), id="number"),
        pytest.param(0, Fraction(0), id="the-number-zero"),
        pytest.param("0", Fraction(0), id="zero"),
        pytest.param("007", Fraction(7), id="leading-zeros"),
        pytest.param("0.25", Fraction(1, 4), id="decimal"),
        pytest.param("2/7", Fraction(2, 7), id="fraction"),
        pytest.param("4/2", Fraction(2), id="not-in-lowest-terms"),
        pytest.param(f"1/{'9' * 400}", Fraction(1, int("9" * 400)), id="as-long-as-sums-get"),
    ],
)
def test_amounts_are_read(text: str | int, want: Fraction) -> None:
    assert vector.parse_amount(text) == want


@pytest.mark.parametrize(
    ("raw", "want"),
    [
        pytest.param(
            0.5, 'must be a whole number or text, such as 16, "0.5" or "2/7": quote 0.5', id="decimal-number"
        ),
        pytest.param(-16, 'must be an amount such as 16, "0.5" or "2/7", not -16', id="negative-number"),
        pytest.param(
            10**5000, 'must be an amount such as 16, "0.5" or "2/7", not this number', id="endless-number"
        ),
        pytest.param(True, 'must be an amount such as 16, "0.5" or "2/7", not True', id="boolean"),
        pytest.param(None, 'must be an amount such as 16, "0.5" or "2/7", not "None"', id="null"),
        pytest.param("", 'not ""', id="empty"),
        pytest.param("-1", 'must be an amount such as 16, "0.5" or "2/7", not "-1"', id="negative"),
        pytest.param("+1", 'not "+1"', id="sign"),
        pytest.param(" 1", 'not " 1"', id="space"),
        pytest.param("1\n", 'not "1\n"', id="newline"),
        pytest.param("1k", 'not "1k"', id="suffix-of-a-quantity"),
        pytest.param("1e3", 'not "1e3"', id="exponent"),
        pytest.param("1_0", 'not "1_0"', id="underscore"),
        pytest.param("٣", 'not "٣"', id="digit-of-another-script"),
        pytest.param(".5", 'not ".5"', id="no-whole-part"),
        pytest.param("1.5/2", 'not "1.5/2"', id="decimal-and-fraction"),
        pytest.param("1/0", 'must not divide by zero, as "1/0" does', id="divides-by-zero"),
        pytest.param("nan", 'not "nan"', id="not-a-number"),
        pytest.param("9" * 401, f'not "{"9" * 40}…"', id="too-long"),
    ],
)
def test_amounts_that_are_none(raw: Any, want: str) -> None:
    with pytest.raises(ValueError) as error:
        vector.parse_amount(raw)
    assert want in str(error.value)


@pytest.mark.parametrize(
    ("raw", "path", "want"),
    [
        pytest.param([], "", "must be a map of amounts", id="a-list"),
        pytest.param({"cpu": "1"}, "cpu", 'not "cpu"', id="unknown-key"),
        pytest.param({"classes/": "1"}, "classes/", 'not "classes/"', id="no-name"),
        pytest.param({"gpus": "many"}, "gpus", 'not "many"', id="no-amount"),
    ],
)
def test_what_is_no_vector(raw: Any, path: str, want: str) -> None:
    with pytest.raises(VectorError) as error:
        vector.parse_vector(raw)
    assert error.value.path == path
    assert want in str(error.value)


def test_what_a_quota_grants_is_one_vector() -> None:
    classes: dict[str, int | str] = {"nvidia-a100": "8", "nvidia-t4": 0}
    resources = {"nvidia.com/mig-1g.10gb": "14"}
    hard = vector.flattened(vector.Hard(gpus=16, classes=classes, resources=resources))

    assert vector.texts(hard) == {
        "classes/nvidia-a100": "8",
        "classes/nvidia-t4": "0",
        "gpus": "16",
        "resources/nvidia.com/mig-1g.10gb": "14",
    }
    assert vector.flattened(vector.Hard()) == {}


def test_what_a_quota_cannot_grant_is_told_with_its_path() -> None:
    with pytest.raises(VectorError) as error:
        vector.flattened(vector.Hard(gpus="1", classes={"nvidia-t4": "2.5x"}))
    assert error.value.path == "classes[nvidia-t4]"
    assert str(error.value) == 'must be an amount such as 16, "0.5" or "2/7", not "2.5x"'


@given(VECTORS)
def test_texts_are_read_back_exactly(amounts: Vector) -> None:
    assert vector.parse_vector(vector.texts(amounts)) == amounts


@given(VECTORS, VECTORS)
def test_what_was_before_and_the_increase_cover_what_is_after(after: Vector, before: Vector) -> None:
    increase = vector.positive_difference(after, before)

    assert vector.add(before, increase) == vector.maximum(before, after)
    assert all(amount > 0 for amount in increase.values())


@given(VECTORS, VECTORS)
def test_nothing_exceeds_the_sum_that_it_is_part_of(one: Vector, other: Vector) -> None:
    assert vector.exceeds(one, vector.add(one, other)) == ()

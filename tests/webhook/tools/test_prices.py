"""Files of prices: what they may say, every problem of one at once, and amounts of money."""

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import cases
from webhook.configuration.loader import ConfigurationError
from webhook.tools.prices import Prices, in_cents, money, read_prices


@cases(
    ("text", "gpu_class", "price"),
    a_class=("currency: EUR\nclasses: {nvidia-l4: 0.8}\n", "nvidia-l4", "4/5"),
    a_price_in_quotes=('currency: EUR\nclasses: {nvidia-l4: "0.80"}\n', "nvidia-l4", "4/5"),
    a_price_that_no_binary_number_has=("currency: EUR\ndefault: 0.1\n", "nvidia-l4", "1/10"),
    as_many_digits_as_may_be=("currency: EUR\ndefault: 123456789.123456\n", "x", "123456789123456/1000000"),
    a_small_price=("currency: EUR\ndefault: 0.00005\n", "nvidia-l4", "1/20000"),
    a_whole_number=("currency: USD\ndefault: 2\n", "nvidia-l4", "2"),
    nothing_to_pay=("currency: USD\ndefault: 0\n", "nvidia-l4", "0"),
    a_class_before_the_default=("currency: USD\ndefault: 2\nclasses: {nvidia-l4: 1}\n", "nvidia-l4", "1"),
    as_json=('{"currency": "EUR", "default": "3.5"}', "nvidia-l4", "7/2"),
)
def test_a_price_is_what_was_written(tmp_path: Path, text: str, gpu_class: str, price: str) -> None:
    assert read_prices(written(tmp_path, text)).of(gpu_class) == Fraction(price)


def written(folder: Path, text: str) -> Path:
    file = folder / "prices.yaml"
    file.write_text(text)
    return file


NOT_A_PRICE = "must be a price such as 2.50, with at most 6 decimals, not"


@cases(
    ("text", "problems"),
    all_at_once=(
        "currency: eur\ndefualt: 1\nclasses:\n  NV_1: 1\n  nvidia-l4: -3\n  nvidia-t4: [2]\n",
        [
            ':1: currency: must be a code of ISO 4217 such as EUR, not "eur"',
            ":2: defualt: unknown field; did you mean default?",
            ":4: classes.NV_1: must be the name of a GPU class or family such as nvidia-l4",
            f':5: classes.nvidia-l4: {NOT_A_PRICE} "-3"',
            f':6: classes.nvidia-t4: {NOT_A_PRICE} "[2]"',
        ],
    ),
    no_currency=("default: 1\n", [":1: currency: Required value"]),
    no_price=("currency: EUR\n", [":1: default: Required value, where no class has a price"]),
    too_many_decimals=("currency: EUR\ndefault: 0.0000001\n", [f':2: default: {NOT_A_PRICE} "0.0000001"']),
    too_many_digits=("currency: EUR\ndefault: '1234567890'\n", [f':2: default: {NOT_A_PRICE} "1234567890"']),
    no_number=("currency: EUR\ndefault: yes\n", [f':2: default: {NOT_A_PRICE} "True"']),
    a_price_twice=(
        "currency: EUR\ndefault: 1\ndefault: 2\n",
        [':3: Duplicate value: key "default"'],
    ),
    no_map=("- 1\n", [":1: must be a map, not a list"]),
    classes_in_a_list=("currency: EUR\nclasses: [nvidia-l4]\n", [":2: classes: must be a map, not a list"]),
    two_documents=(
        "currency: EUR\ndefault: 1\n---\ncurrency: USD\ndefault: 1\n",
        [": must be one document, not 2"],
    ),
    nothing=("", [": must be one document, not 0"]),
    no_yaml=("currency: [\n", [":1: while parsing a flow node, did not find expected node content"]),
)
def test_every_problem_of_a_file(tmp_path: Path, text: str, problems: list[str]) -> None:
    file = written(tmp_path, text)

    with pytest.raises(ConfigurationError) as error:
        read_prices(file)

    assert [str(each).removeprefix(str(file)) for each in error.value.problems] == problems


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as error:
        read_prices(tmp_path / "prices.yaml")

    problems = [str(each) for each in error.value.problems]
    assert problems == [f"{tmp_path}/prices.yaml: No such file or directory"]


@cases(
    ("hours", "cost"),
    by_class=({"nvidia-l4": "1/7", "nvidia-t4": "2"}, "141/70"),
    by_the_default=({"other": "3"}, "6"),
    nothing=({}, "0"),
)
def test_what_hours_cost_exactly(hours: dict[str, str], cost: str) -> None:
    prices = Prices("EUR", Fraction(2), {"nvidia-l4": Fraction("0.1"), "nvidia-t4": Fraction(1)})

    assert prices.cost({name: Fraction(each) for name, each in hours.items()}) == Fraction(cost)


@cases(
    ("amounts", "cents"),
    exactly=(["0.10"], [10]),
    half_a_cent_up=(["0.005"], [1]),
    less_than_half_a_cent_down=(["0.00499"], [0]),
    the_largest_remainder_up=(["0.001", "0.004", "1.002"], [0, 1, 100]),
    of_equal_ones_the_first=(["0.004"] * 5, [1, 1, 0, 0, 0]),
    all_up=(["0.009"] * 3, [1, 1, 1]),
    nothing=([], []),
)
def test_rounded_amounts_add_up_to_the_exact_sum(amounts: list[str], cents: list[int]) -> None:
    assert in_cents([Fraction(each) for each in amounts]) == cents


@given(st.lists(st.fractions(min_value=0, max_value=1000), max_size=30))
def test_no_amount_is_off_by_a_cent(amounts: list[Fraction]) -> None:
    cents = in_cents(amounts)

    assert sum(cents) == int(sum(amounts) * 100 + Fraction(1, 2))
    assert all(abs(each - amount * 100) < 1 for each, amount in zip(cents, amounts, strict=True))


@cases(("cents", "text"), nothing=(0, "0.00"), cents=(7, "0.07"), thousands=(123456789, "1234567.89"))
def test_money_has_two_decimals_and_no_separators(cents: int, text: str) -> None:
    assert money(cents) == text

"""Quantities: what apimachinery v0.37.2 accepts, what it refuses, and what a number is worth to it.

The expectations come from running its ParseQuantity over the same texts.
"""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from policies.pods.quantity import Quantity, QuantityError, parse_quantity
from tests.cases import cases

NANO, LARGEST = 10**9, 2**63 - 1


@cases(
    ("raw", "want"),
    zero=("0", "0"),
    one=("1", "1"),
    milli=("500m", "0.5"),
    a_thousand_milli_is_one=("1000m", "1"),
    kilo=("1k", "1000"),
    mega=("2M", "2000000"),
    micro=("1u", "0.000001"),
    nano=("7n", "0.000000007"),
    giga=("3G", "3000000000"),
    tera=("1T", "1000000000000"),
    peta=("1P", "1000000000000000"),
    e_alone_is_exa=("1E", "1000000000000000000"),
    e_with_digits_is_an_exponent=("1E3", "1000"),
    negative_exponent=("1e-3", "0.001"),
    signed_exponent=("1e+3", "1000"),
    exponent_with_leading_zeros=("1e007", "10000000"),
    kibi=("3Ki", "3072"),
    fractional_gibi=("1.5Gi", "1610612736"),
    mebi=("2Mi", "2097152"),
    tebi=("1Ti", "1099511627776"),
    pebi=("1Pi", "1125899906842624"),
    exbi=("1Ei", str(2**60)),
    plus_sign=("+1", "1"),
    negative=("-1", "-1"),
    leading_zero=("01", "1"),
    point_without_fraction=("1.", "1"),
    fraction_without_whole=(".5", "0.5"),
    point_before_suffix=("1.G", "1000000000"),
    point_alone_is_zero=(".", "0"),
    sign_alone_is_zero=("+", "0"),
    suffix_alone_is_zero=("k", "0"),
    binary_suffix_alone_is_zero=("Ti", "0"),
    no_digits_is_zero_down_to_nano=(".e-9", "0"),
    json_decoding_trims_spaces=(" 1Gi ", "1073741824"),
    json_decoding_trims_no_break_space=("\u00a01", "1"),
    finer_than_nano_rounds_up=("0.1n", "0.000000001"),
    finer_than_nano_rounds_away_from_zero=("-0.1n", "-0.000000001"),
    the_tenth_place_rounds_up=("1.0000000001", "1.000000001"),
    binary_is_cut_to_int64=("100Ei", str(LARGEST)),
    negative_binary_is_cut_to_int64=("-100Ei", str(-LARGEST)),
    zero_with_a_huge_exponent=("0e2147483647", "0"),
    the_smallest_exponent_of_32_bits=("0e-2147483648", "0"),
    the_largest=(str(LARGEST), str(LARGEST)),
    json_integer=(1, "1"),
    json_negative_integer=(-2, "-2"),
    json_number=(1.5, "1.5"),
    json_number_with_exponent=(1e3, "1000"),
    json_number_that_no_float_holds=(0.1, "0.1"),
    null_is_zero=(None, "0"),
)
def test_accepts_what_the_api_server_accepts(raw: str | float | None, want: str) -> None:
    assert parse_quantity(raw) == Quantity(int(Decimal(want).scaleb(9)))


NO_QUANTITY = "is not a Kubernetes quantity:"
NO_NUMBER = f"{NO_QUANTITY} expected a number and perhaps a suffix, such as 2, 500m or 16Gi"
UNKNOWN = f"{NO_QUANTITY} unknown suffix"
NO_EXPONENT = "an exponent needs digits, as in 1e3"
SUFFIXES = "the suffixes are n, u, m, k, M, G, T, P, E and Ki, Mi, Gi, Ti, Pi, Ei"
OUT_OF_RANGE = "is out of range: the most that Kubernetes counts is 9223372036854775807 (2^63-1)"


@cases(
    ("raw", "want"),
    empty=("", f'"" {NO_NUMBER}'),
    only_spaces=("   ", f'"" {NO_NUMBER}'),
    capital_k=("1K", f'"1K" {UNKNOWN} "K"; write k for 1000 or Ki for 1024'),
    e_alone=("1e", f'"1e" {UNKNOWN} "e"; {NO_EXPONENT}'),
    e_minus=("1e-", f'"1e-" {UNKNOWN} "e-"; {NO_EXPONENT}'),
    no_digits_anywhere=("E-", f'"E-" {UNKNOWN} "E-"; {NO_EXPONENT}'),
    a_word=("1gpu", f'"1gpu" {NO_NUMBER}'),
    lower_case_mebi=("1mi", f'"1mi" {UNKNOWN} "mi"; {SUFFIXES}'),
    i_alone=(".5i", f'".5i" {UNKNOWN} "i"; {SUFFIXES}'),
    range=("1-5", f'"1-5" {UNKNOWN} "-5"; {SUFFIXES}'),
    two_points=("1.1.M", f'"1.1.M" {NO_NUMBER}'),
    space_inside=("1 Gi", f'"1 Gi" {NO_NUMBER}'),
    newline_is_an_escape_in_json=("1\n", f'"1\n" {NO_NUMBER}'),
    tab_is_an_escape_in_json=("\t1", f'"\t1" {NO_NUMBER}'),
    underscore_that_python_takes=("1_0", f'"1_0" {NO_NUMBER}'),
    digit_of_another_script=("\u0661", f'"\u0661" {NO_NUMBER}'),
    superscript=("1²", f'"1²" {NO_NUMBER}'),
    nan=("NaN", f'"NaN" {NO_NUMBER}'),
    infinity=("inf", f'"inf" {NO_NUMBER}'),
    the_slow_path_needs_digits_above_ti=("Pi", f'"Pi" {NO_QUANTITY} it has no digits'),
    the_slow_path_needs_digits_below_nano=(".e-10", f'".e-10" {NO_QUANTITY} it has no digits'),
    json_true_after_the_number_that_equals_it=(
        parse_quantity(1).nano > 0,
        f'"true" {NO_QUANTITY} it is a boolean',
    ),
    json_true=(True, f'"true" {NO_QUANTITY} it is a boolean'),
    float_nan=(float("nan"), f'"nan" {NO_QUANTITY} it is not a finite number'),
    float_infinity=(float("inf"), f'"inf" {NO_QUANTITY} it is not a finite number'),
    beyond_int64=("1e30", f'"1e30" {OUT_OF_RANGE}'),
    ten_exa=("10E", f'"10E" {OUT_OF_RANGE}'),
    minus_ten_exa=("-10E", f'"-10E" {OUT_OF_RANGE}'),
    json_integer_beyond_int64=(LARGEST + 1, f"this number {OUT_OF_RANGE}"),
    json_integer_of_400_digits=(10**400, f"this number {OUT_OF_RANGE}"),
    json_number_beyond_int64=(1e300, f'"1e+300" {OUT_OF_RANGE}'),
    exponent_wraps_around=(
        "1e4294967296",
        f'"1e4294967296" {NO_QUANTITY} the exponent 4294967296 does not fit 32 bits',
    ),
    exponent_above_32_bits=(
        "0e2147483648",
        f'"0e2147483648" {NO_QUANTITY} the exponent 2147483648 does not fit 32 bits',
    ),
    exponent_below_32_bits=(
        "0e-2147483649",
        f'"0e-2147483649" {NO_QUANTITY} the exponent -2147483649 does not fit 32 bits',
    ),
    exponent_bomb=("1e2147483647", f'"1e2147483647" {OUT_OF_RANGE}'),
    too_long=("9" * 257, f'"{"9" * 40}…" is not a Kubernetes quantity: it is longer than 256 characters'),
)
def test_refuses_with_a_sentence(raw: Any, want: str) -> None:
    with pytest.raises(QuantityError) as refused:
        parse_quantity(raw)

    assert str(refused.value) == want


@cases(
    ("text", "whole", "value", "milli"),
    one=("1", True, 1, 1000),
    a_thousand_milli=("1000m", True, 1, 1000),
    half=("500m", False, 1, 500),
    a_little_more_than_one=("1.0001", False, 2, 1001),
    a_little_less_than_one_counts_as_one=("0.99999", True, 1, 1000),
    the_smallest_there_is=("1e-2147483647", False, 1, 1),
    negative_rounds_away_from_zero=("-1500m", False, -2, -1500),
    binary=("3Ki", True, 3072, 3072000),
)
def test_whole_and_milli_value_are_the_api_servers(text: str, whole: bool, value: int, milli: int) -> None:
    quantity = parse_quantity(text)

    assert (quantity.is_whole, quantity.value, quantity.milli_value) == (whole, value, milli)


@cases(
    ("text", "want"),
    whole=("2000m", "2"),
    half=("0.5", "500m"),
    negative=("-1.5", "-1500m"),
    nano=("1500n", "1500n"),
    micro=("2u", "2u"),
    binary=("1Ki", "1024"),
    zero=(".", "0"),
)
def test_prints_shortly(text: str, want: str) -> None:
    assert str(parse_quantity(text)) == want


def test_compares_as_numbers_not_as_texts() -> None:
    assert parse_quantity("500m") == parse_quantity("0.5")
    assert parse_quantity("9") < parse_quantity("10") < parse_quantity("1k")


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_every_int64_reads_back(number: int) -> None:
    assert parse_quantity(str(number)) == parse_quantity(number) == Quantity(number * NANO)


@given(st.integers(0, 10**27).map(Quantity))
def test_what_is_printed_reads_back(quantity: Quantity) -> None:
    assert parse_quantity(str(quantity)) == quantity


@given(st.text("0123456789.+-eEinumkKMGTP _", max_size=300) | st.text(max_size=20))
@example("1e" + "9" * 250)
@example("-." + "0" * 240 + "1e-9")
def test_any_text_is_a_bounded_number_or_a_sentence(text: str) -> None:
    try:
        answer: Quantity | QuantityError = parse_quantity(text)
    except QuantityError as refused:
        answer = refused

    if isinstance(answer, Quantity):
        assert abs(answer.nano) <= LARGEST * NANO
    else:
        assert len(str(answer)) < 200

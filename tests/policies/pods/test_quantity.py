"""Quantities: what apimachinery v0.36.3 accepts, what it refuses, and what a number is worth to it.

The expectations come from running its ParseQuantity over the same texts.
"""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from policies.pods.quantity import LARGEST, NANO, Quantity, QuantityError, parse_quantity


@pytest.mark.parametrize(
    ("raw", "want"),
    [
        pytest.param("0", "0", id="zero"),
        pytest.param("1", "1", id="one"),
        pytest.param("500m", "0.5", id="milli"),
        pytest.param("1000m", "1", id="a-thousand-milli-is-one"),
        pytest.param("1k", "1000", id="kilo"),
        pytest.param("2M", "2000000", id="mega"),
        pytest.param("1u", "0.000001", id="micro"),
        pytest.param("7n", "0.000000007", id="nano"),
        pytest.param("1T", "1000000000000", id="tera"),
        pytest.param("1P", "1000000000000000", id="peta"),
        pytest.param("1E", "1000000000000000000", id="e-alone-is-exa"),
        pytest.param("1E3", "1000", id="e-with-digits-is-an-exponent"),
        pytest.param("1e-3", "0.001", id="negative-exponent"),
        pytest.param("1e+3", "1000", id="signed-exponent"),
        pytest.param("1e007", "10000000", id="exponent-with-leading-zeros"),
        pytest.param("3Ki", "3072", id="kibi"),
        pytest.param("1.5Gi", "1610612736", id="fractional-gibi"),
        pytest.param("1Ei", str(2**60), id="exbi"),
        pytest.param("+1", "1", id="plus-sign"),
        pytest.param("-1", "-1", id="negative"),
        pytest.param("01", "1", id="leading-zero"),
        pytest.param("1.", "1", id="point-without-fraction"),
        pytest.param(".5", "0.5", id="fraction-without-whole"),
        pytest.param("1.G", "1000000000", id="point-before-suffix"),
        pytest.param(".", "0", id="point-alone-is-zero"),
        pytest.param("+", "0", id="sign-alone-is-zero"),
        pytest.param("k", "0", id="suffix-alone-is-zero"),
        pytest.param("Ti", "0", id="binary-suffix-alone-is-zero"),
        pytest.param(".e-9", "0", id="no-digits-is-zero-down-to-nano"),
        pytest.param(" 1Gi ", "1073741824", id="json-decoding-trims-spaces"),
        pytest.param("\u00a01", "1", id="json-decoding-trims-no-break-space"),
        pytest.param("0.1n", "0.000000001", id="finer-than-nano-rounds-up"),
        pytest.param("-0.1n", "-0.000000001", id="finer-than-nano-rounds-away-from-zero"),
        pytest.param("1.0000000001", "1.000000001", id="the-tenth-place-rounds-up"),
        pytest.param("100Ei", str(LARGEST), id="binary-is-cut-to-int64"),
        pytest.param("-100Ei", str(-LARGEST), id="negative-binary-is-cut-to-int64"),
        pytest.param("0e2147483647", "0", id="zero-with-a-huge-exponent"),
        pytest.param("0e-2147483648", "0", id="the-smallest-exponent-of-32-bits"),
        pytest.param(str(LARGEST), str(LARGEST), id="the-largest"),
        pytest.param(1, "1", id="json-integer"),
        pytest.param(-2, "-2", id="json-negative-integer"),
        pytest.param(1.5, "1.5", id="json-number"),
        pytest.param(1e3, "1000", id="json-number-with-exponent"),
        pytest.param(0.1, "0.1", id="json-number-that-no-float-holds"),
        pytest.param(None, "0", id="null-is-zero"),
    ],
)
def test_accepts_what_the_api_server_accepts(raw: str | float | None, want: str) -> None:
    assert parse_quantity(raw) == Quantity(int(Decimal(want).scaleb(9)))


@pytest.mark.parametrize(
    ("raw", "want"),
    [
        pytest.param("", '"" is not a Kubernetes quantity: expected a number', id="empty"),
        pytest.param("   ", '"" is not a Kubernetes quantity: expected a number', id="only-spaces"),
        pytest.param("1K", 'unknown suffix "K"; write k for 1000 or Ki for 1024', id="capital-k"),
        pytest.param("1e", 'unknown suffix "e"; an exponent needs digits, as in 1e3', id="e-alone"),
        pytest.param("1e-", 'unknown suffix "e-"; an exponent needs digits', id="e-minus"),
        pytest.param("E-", 'unknown suffix "E-"; an exponent needs digits', id="no-digits-anywhere"),
        pytest.param("1gpu", "expected a number and perhaps a suffix, such as 2, 500m or 16Gi", id="a-word"),
        pytest.param("1mi", 'unknown suffix "mi"; the suffixes are n, u, m, k, M', id="lower-case-mebi"),
        pytest.param(".5i", 'unknown suffix "i"', id="i-alone"),
        pytest.param("1-5", 'unknown suffix "-5"', id="range"),
        pytest.param("1.1.M", "expected a number", id="two-points"),
        pytest.param("1 Gi", "expected a number", id="space-inside"),
        pytest.param("1\n", "expected a number", id="newline-is-an-escape-in-json"),
        pytest.param("\t1", "expected a number", id="tab-is-an-escape-in-json"),
        pytest.param("1_0", "expected a number", id="underscore-that-python-takes"),
        pytest.param("\u0661", "expected a number", id="digit-of-another-script"),
        pytest.param("1²", "expected a number", id="superscript"),
        pytest.param("NaN", '"NaN" is not a Kubernetes quantity', id="nan"),
        pytest.param("inf", '"inf" is not a Kubernetes quantity', id="infinity"),
        pytest.param("Pi", "it has no digits", id="the-slow-path-needs-digits-above-ti"),
        pytest.param(".e-10", "it has no digits", id="the-slow-path-needs-digits-below-nano"),
        pytest.param(True, '"true" is not a Kubernetes quantity: it is a boolean', id="json-true"),
        pytest.param(float("nan"), "it is not a finite number", id="float-nan"),
        pytest.param(float("inf"), "it is not a finite number", id="float-infinity"),
        pytest.param("1e30", '"1e30" is out of range: the most that Kubernetes counts is', id="beyond-int64"),
        pytest.param("10E", '"10E" is out of range', id="ten-exa"),
        pytest.param("-10E", '"-10E" is out of range', id="minus-ten-exa"),
        pytest.param(LARGEST + 1, "this number is out of range", id="json-integer-beyond-int64"),
        pytest.param(10**400, "this number is out of range", id="json-integer-of-400-digits"),
        pytest.param(1e300, "is out of range", id="json-number-beyond-int64"),
        pytest.param(
            "1e4294967296", "the exponent 4294967296 does not fit 32 bits", id="exponent-wraps-around"
        ),
        pytest.param("0e2147483648", "does not fit 32 bits", id="exponent-above-32-bits"),
        pytest.param("0e-2147483649", "does not fit 32 bits", id="exponent-below-32-bits"),
        pytest.param("1e2147483647", "is out of range", id="exponent-bomb"),
        pytest.param("9" * 257, "it is longer than 256 characters", id="too-long"),
    ],
)
def test_refuses_with_a_sentence(raw: Any, want: str) -> None:
    with pytest.raises(QuantityError) as refused:
        parse_quantity(raw)

    assert want in str(refused.value)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("text", "whole", "value", "milli"),
    [
        pytest.param("1", True, 1, 1000, id="one"),
        pytest.param("1000m", True, 1, 1000, id="a-thousand-milli"),
        pytest.param("500m", False, 1, 500, id="half"),
        pytest.param("1.0001", False, 2, 1001, id="a-little-more-than-one"),
        pytest.param("0.99999", True, 1, 1000, id="a-little-less-than-one-counts-as-one"),
        pytest.param("1e-2147483647", False, 1, 1, id="the-smallest-there-is"),
        pytest.param("-1500m", False, -2, -1500, id="negative-rounds-away-from-zero"),
        pytest.param("3Ki", True, 3072, 3072000, id="binary"),
    ],
)
def test_whole_value_and_milli_value_are_the_api_servers(
    text: str, whole: bool, value: int, milli: int
) -> None:
    quantity = parse_quantity(text)

    assert (quantity.is_whole, quantity.value, quantity.milli_value) == (whole, value, milli)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("2000m", "2", id="whole"),
        pytest.param("0.5", "500m", id="half"),
        pytest.param("-1.5", "-1500m", id="negative"),
        pytest.param("1500n", "1500n", id="nano"),
        pytest.param("2u", "2u", id="micro"),
        pytest.param("1Ki", "1024", id="binary"),
        pytest.param(".", "0", id="zero"),
    ],
)
def test_prints_shortly(text: str, want: str) -> None:
    assert str(parse_quantity(text)) == want


def test_adds_and_compares_as_numbers_not_as_texts() -> None:
    assert parse_quantity("500m") + parse_quantity("0.5") == Quantity(NANO)
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

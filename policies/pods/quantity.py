"""Kubernetes quantities, read as the API server reads them.

The syntax is that of `ParseQuantity` in k8s.io/apimachinery v0.37.2 (`pkg/api/resource/quantity.go`, `suffix.go`). It accepts
more than its documentation says: `+1`, `01`, `1.`, `.5`, `.`, and a bare `k` (zero). Four differences are on purpose:

- More than 2^63-1 units are refused. The API server accepts `1e30` and then counts it as 0 (`Value()` overflows).
- An exponent that does not fit 32 bits is refused. The API server wraps it: there, `1e4294967296` is 1.
- A text of more than 256 characters is refused, so every call is fast.
- A rounded negative number is exact. `MilliValue()` is wrong for `-1.5n`, but no negative request is admitted.

A JSON number arrives as a Python float, so digits after the 17th are lost.
"""

import math
import re
from functools import cached_property, lru_cache

import msgspec

from policies.finding import truncate

QuantityText = str | int | float | None
NANO = 10**9
LARGEST = 2**63 - 1
"""The most units that Kubernetes counts (int64). Larger binary quantities are cut to it."""

_LONGEST_TEXT = 256
_QUOTED = 41
_TEXT = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[+-]?[0-9]*)")
_EXPONENT = re.compile(r"[eE]([+-]?[0-9]+)")
_POWERS_OF_TEN = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_POWERS_OF_TWO = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
# `strings.TrimSpace` removes these from the raw JSON literal. Tabs and newlines are escaped there, so they are refused.
_SPACES = (
    " \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)


class QuantityError(ValueError):
    """The text is not a quantity. The message quotes it."""


class Quantity(msgspec.Struct, frozen=True, order=True, dict=True):
    """An exact amount in units of 1e-9, the smallest unit of Kubernetes."""

    nano: int

    @cached_property
    def value(self) -> int:
        """Whole units, rounded away from zero (`Value()`)."""
        return _divide_away_from_zero(self.nano, NANO)

    @cached_property
    def milli_value(self) -> int:
        """Thousandths of a unit, rounded away from zero (`MilliValue()`)."""
        return _divide_away_from_zero(self.nano, NANO // 1000)

    @property
    def is_whole(self) -> bool:
        """Whether it is a whole number of an extended resource: 0.99999 is, 1.0001 is not."""
        return self.milli_value % 1000 == 0

    def __str__(self) -> str:
        """Return the shortest text: `2`, `500m`, `1500m`."""
        for suffix, unit in (("", NANO), ("m", 10**6), ("u", 10**3)):
            if self.nano % unit == 0:
                return f"{self.nano // unit}{suffix}"
        return f"{self.nano}n"


@lru_cache(maxsize=4096, typed=True)
def parse_quantity(raw: QuantityText) -> Quantity:
    """Read a quantity of JSON or YAML: a string, a number, or null (zero). Round fractions of a nano away from zero.

    Raises QuantityError.
    """
    if isinstance(raw, str):
        if len(raw) > _LONGEST_TEXT:
            raise _error(raw, f"it is longer than {_LONGEST_TEXT} characters")
        return _parse(raw.strip(_SPACES))
    if raw is None:
        return Quantity(0)
    if isinstance(raw, bool):
        raise _error(str(raw).lower(), "it is a boolean")
    if isinstance(raw, int):
        if abs(raw) > LARGEST:
            raise _too_large("this number")
        return Quantity(raw * NANO)
    if not math.isfinite(raw):
        raise _error(str(raw), "it is not a finite number")
    return _parse(repr(raw))


def in_mebibytes(size: int) -> str:
    """Return a number of bytes as a quantity of whole MiB, rounded down: `2560Mi`, `32Gi`."""
    mebibytes = size // 2**20
    return f"{mebibytes // 1024}Gi" if mebibytes % 1024 == 0 else f"{mebibytes}Mi"


def parse_or_none(raw: QuantityText) -> Quantity | None:
    """Return the quantity, or None if it cannot be read."""
    try:
        return parse_quantity(raw)
    except QuantityError:
        return None


def _parse(text: str) -> Quantity:
    match = _TEXT.fullmatch(text)
    if match is None or not text:
        raise _error(text, "expected a number and perhaps a suffix, such as 2, 500m or 16Gi")
    sign, whole, fraction, suffix = match[1], match[2], match[3] or "", match[4]
    if suffix in _POWERS_OF_TWO:
        power, shift = 0, _POWERS_OF_TWO[suffix]
        digits_needed = shift > _POWERS_OF_TWO["Ti"]
    else:
        power, shift = _power_of_ten(text, suffix), 0
        digits_needed = power < _POWERS_OF_TEN["n"]
    if digits_needed and not whole and not fraction:
        # Only the fast path of ParseQuantity reads "no digits" as zero, and it ends at nano and at Ti.
        raise _error(text, "it has no digits")
    mantissa = int(f"0{whole}{fraction}") << shift
    nano = _scaled(text, mantissa, power - len(fraction) + 9)
    if nano > LARGEST * NANO:
        if not shift:
            raise _too_large(f'"{truncate(text, _QUOTED)}"')
        nano = LARGEST * NANO
    return Quantity(-nano if sign == "-" else nano)


def _power_of_ten(text: str, suffix: str) -> int:
    if suffix in _POWERS_OF_TEN:
        return _POWERS_OF_TEN[suffix]
    match = _EXPONENT.fullmatch(suffix)
    if match is None:
        raise _error(text, _suffix_advice(suffix))
    power = int(match[1])
    if not -(2**31) <= power < 2**31:
        raise _error(text, f"the exponent {truncate(match[1], _QUOTED)} does not fit 32 bits")
    return power


def _scaled(text: str, mantissa: int, power: int) -> int:
    """Return mantissa times 10^power, rounded up. A power of any size is fast."""
    if mantissa == 0:
        return 0
    if power >= 0:
        # 10^28 nano is more than 2^63-1 units with any mantissa.
        if power > 28:  # noqa: PLR2004  the comment above is its name
            raise _too_large(f'"{truncate(text, _QUOTED)}"')
        return mantissa * int(10**power)
    # A mantissa has at most the digits of the text, and 19 more by the shift of 60 bits. Smaller results round up to 1.
    if -power > _LONGEST_TEXT + 20:
        return 1
    return _divide_away_from_zero(mantissa, 10**-power)


def _divide_away_from_zero(amount: int, divisor: int) -> int:
    return -(-amount // divisor) if amount >= 0 else amount // divisor


def _suffix_advice(suffix: str) -> str:
    advice = f'unknown suffix "{truncate(suffix, _QUOTED)}"'
    if suffix == "K":
        return advice + "; write k for 1000 or Ki for 1024"
    if suffix.lower() in {"e", "e+", "e-"}:
        return advice + "; an exponent needs digits, as in 1e3"
    return advice + "; the suffixes are n, u, m, k, M, G, T, P, E and Ki, Mi, Gi, Ti, Pi, Ei"


def _too_large(subject: str) -> QuantityError:
    return QuantityError(f"{subject} is out of range: the most that Kubernetes counts is {LARGEST} (2^63-1)")


def _error(text: str, reason: str) -> QuantityError:
    return QuantityError(f'"{truncate(text, _QUOTED)}" is not a Kubernetes quantity: {reason}')

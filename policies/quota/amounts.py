"""Amounts by name (demand, usage, limits of a quota), exact and never negative.

Keys are flat: `gpus` (whole GPUs over everything), `classes/<class or family>` (whole GPUs of that kind), and
`resources/<resource name>` (plain counts). A missing key is zero. The text of an amount is `str(Fraction)`: "3", "2/7". People
may also write decimals.
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any

import msgspec

Vector = dict[str, Fraction]

GPUS = "gpus"
CLASSES = "classes/"
RESOURCES = "resources/"

NOTHING = Fraction(0)

_MOST_DIGITS = 400
"""Digits of one number at most. Sums of shares have long denominators: that of 40 odd weights has 360 digits."""

_MOST = 10**_MOST_DIGITS
_AMOUNT = re.compile(rf"[0-9]{{1,{_MOST_DIGITS}}}([./][0-9]{{1,{_MOST_DIGITS}}})?")
_LONGEST_QUOTED = 40


class VectorError(ValueError):
    """The data is not a vector. `path` names the place (`classes[nvidia-t4]`), and the message quotes the value."""

    def __init__(self, path: str, message: str) -> None:
        self.path = path
        super().__init__(message)


class Excess(msgspec.Struct, frozen=True):
    """A key whose amount exceeds its limit."""

    key: str
    amount: Fraction
    hard: Fraction

    @property
    def over(self) -> Fraction:
        return self.amount - self.hard


def add(*vectors: Mapping[str, Fraction]) -> Vector:
    """Return the sum."""
    return total(vectors)


def total(vectors: Iterable[Mapping[str, Fraction]]) -> Vector:
    """Return the sum of any number of vectors."""
    return _combined(vectors, operator.add)


def maximum(*vectors: Mapping[str, Fraction]) -> Vector:
    """Return the largest amount of each key."""
    return _combined(vectors, max)


def _combined(
    vectors: Iterable[Mapping[str, Fraction]], combine: Callable[[Fraction, Fraction], Fraction]
) -> Vector:
    found: Vector = {}
    for vector in vectors:
        for key, amount in vector.items():
            found[key] = combine(found[key], amount) if key in found else amount
    return {key: amount for key, amount in found.items() if amount}


def positive_difference(after: Mapping[str, Fraction], before: Mapping[str, Fraction]) -> Vector:
    """Return the growth of each key from `before` to `after`, without keys that did not grow."""
    growth = {key: amount - before[key] if key in before else amount for key, amount in after.items()}
    return {key: amount for key, amount in growth.items() if amount > 0}


def exceeds(amounts: Mapping[str, Fraction], hard: Mapping[str, Fraction]) -> tuple[Excess, ...]:
    """Return every key of `hard` whose amount exceeds it, sorted. Keys that `hard` lacks are unlimited."""
    return tuple(
        Excess(key, amounts.get(key, NOTHING), limit)
        for key, limit in sorted(hard.items())
        if amounts.get(key, NOTHING) > limit
    )


def texts(vector: Mapping[str, Fraction]) -> dict[str, str]:
    """Return the vector for JSON, sorted by key."""
    return {key: str(amount) for key, amount in sorted(vector.items())}


def format_amount(amount: Fraction) -> str:
    """Return the amount for people: `3`, `0.5`, `2/7`, `1 2/7`."""
    whole, rest = divmod(amount, 1)
    if not rest:
        return str(whole)
    if 1000 % rest.denominator == 0:
        return f"{whole}.{int(rest * 1000):03}".rstrip("0")
    return f"{whole} {rest}" if whole else str(rest)


def parse_amount(raw: Any) -> Fraction:
    """Read an amount such as 3, "0.5" or "2/7": no sign, no exponent, no suffix. Raises ValueError with a sentence."""
    if isinstance(raw, int) and not isinstance(raw, bool) and 0 <= raw < _MOST:
        return Fraction(raw)
    if isinstance(raw, float):
        raise ValueError(f'must be a whole number or text, such as 16, "0.5" or "2/7": quote {raw}')  # noqa: TRY004  one error for all
    if not isinstance(raw, str) or not _AMOUNT.fullmatch(raw):
        raise ValueError(f'must be an amount such as 16, "0.5" or "2/7", not {_quoted(raw)}')
    if "." in raw:
        return Fraction(raw)
    numerator, _, denominator = raw.partition("/")
    if denominator and not int(denominator):
        raise ValueError(f"must not divide by zero, as {_quoted(raw)} does")
    return Fraction(int(numerator), int(denominator or "1"))


def parse_vector(raw: Any) -> Vector:
    """Read a vector that `texts` wrote. Keep zeros, because a limit of zero forbids. Raises VectorError."""
    if not isinstance(raw, Mapping):
        raise VectorError("", "must be a map of amounts")
    vector: Vector = {}
    for key, amount in raw.items():
        if not isinstance(key, str) or not _is_key(key):
            names = "gpus, classes/<name> or resources/<name>"
            raise VectorError(str(key), f"must be {names}, not {_quoted(key)}")
        vector[key] = _parsed(key, amount)
    return vector


def flattened(gpus: Any, classes: Mapping[str, Any] | None, resources: Mapping[str, Any] | None) -> Vector:
    """Return the `hard` of a GPUQuota as a vector. Keep zeros. Raises VectorError."""
    vector = {} if gpus is None else {GPUS: _parsed(GPUS, gpus)}
    for prefix, members in ((CLASSES, classes), (RESOURCES, resources)):
        for name, amount in (members or {}).items():
            vector[prefix + name] = _parsed(f"{prefix.removesuffix('/')}[{name}]", amount)
    return vector


def _is_key(key: str) -> bool:
    return key == GPUS or any(key.startswith(prefix) and key != prefix for prefix in (CLASSES, RESOURCES))


def _parsed(path: str, raw: Any) -> Fraction:
    try:
        return parse_amount(raw)
    except ValueError as error:
        raise VectorError(path, str(error)) from None


def _quoted(raw: Any) -> str:
    if isinstance(raw, int):
        return "this number" if abs(raw) >= _MOST else str(raw)
    text = str(raw)
    return f'"{text}"' if len(text) <= _LONGEST_QUOTED else f'"{text[:_LONGEST_QUOTED]}…"'

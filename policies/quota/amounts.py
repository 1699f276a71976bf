"""Amounts by name (demand, usage, limits of a quota), exact and never negative.

Keys are flat, by the dimensions of `Hard`: `gpus`, `classes/<class or family>`, `resources/<resource name>`. A key that is left
out is zero. The text of an amount is that of `str(Fraction)`: "3", "2/7". People may also write a decimal.
"""

import operator
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import msgspec

from policies.gpus.classes import GPUClasses
from policies.pods.requests import combined

Amounts = dict[str, Fraction]

GPUS = "gpus"
CLASSES = "classes/"
RESOURCES = "resources/"


class Hard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a quota grants. Each field is a dimension: of one amount, or of amounts by name.

    An amount is a whole number, or text with a decimal or a fraction; what is left out is unlimited. A zero forbids.

    gpus: whole-GPU equivalents over everything.
    classes: the same, of a class or family.
    resources: plain counts of a resource.
    """

    gpus: int | str | None = None
    classes: Mapping[str, int | str] = {}
    resources: Mapping[str, int | str] = {}


DIMENSIONS: tuple[str, ...] = Hard.__struct_fields__
"""In the order in which people read them."""
_BY_NAME = frozenset(dimension for dimension in DIMENSIONS if getattr(Hard(), dimension) is not None)
"""Dimensions with an amount for each name."""

ZERO = Fraction(0)
_WHOLE_HOURS_FROM = 10
_MIN_SHOWN = Fraction(1, 100)

_MAX_DIGITS = 400
"""Maximum of digits of a number. Sums of shares have long denominators: for 40 odd weights, 360 digits."""

_TOO_LARGE = 10**_MAX_DIGITS
_AMOUNT = re.compile(rf"[0-9]{{1,{_MAX_DIGITS}}}([./][0-9]{{1,{_MAX_DIGITS}}})?")
_MAX_QUOTED = 40


class Excess(msgspec.Struct, frozen=True):
    """A key whose amount exceeds its limit."""

    key: str
    amount: Fraction
    hard: Fraction

    @property
    def over(self) -> Fraction:
        return self.amount - self.hard


def total(vectors: Iterable[Mapping[str, Fraction]]) -> Amounts:
    return {key: amount for key, amount in combined(vectors, operator.add).items() if amount}


def total_of_shared(vectors: Iterable[Amounts]) -> Amounts:
    """Return the sum of many vectors. Most are the same object: a thousand pods of one Job share their vector."""
    counts: Counter[int] = Counter()
    by_identity: dict[int, Amounts] = {}
    for vector in vectors:
        by_identity[id(vector)] = vector
        counts[id(vector)] += 1
    return total(
        {key: amount * counts[identity] for key, amount in vector.items()}
        for identity, vector in by_identity.items()
    )


def maximum(vectors: Iterable[Mapping[str, Fraction]]) -> Amounts:
    """Return the largest amount of each key."""
    return {key: amount for key, amount in combined(vectors, max).items() if amount}


def positive_difference(after: Mapping[str, Fraction], before: Mapping[str, Fraction]) -> Amounts:
    """Return the growth of each key from `before` to `after`, without keys that did not grow."""
    growth = {key: amount - before[key] if key in before else amount for key, amount in after.items()}
    return {key: amount for key, amount in growth.items() if amount > 0}


def exceeded_limits(amounts: Mapping[str, Fraction], hard: Mapping[str, Fraction]) -> tuple[Excess, ...]:
    """Return every key of `hard` whose amount exceeds it, sorted. Keys that `hard` lacks are unlimited."""
    return tuple(
        Excess(key, amounts.get(key, ZERO), limit)
        for key, limit in sorted(hard.items())
        if amounts.get(key, ZERO) > limit
    )


def amount_texts(vector: Mapping[str, Fraction]) -> dict[str, str]:
    """Return the vector for JSON, sorted by key."""
    return {key: str(amount) for key, amount in sorted(vector.items())}


def format_amount(amount: Fraction) -> str:
    """Return the amount for people, with at most two decimals: `3`, `0.5`, `3.29`; `<0.01` for a smaller one."""
    if amount and amount < _MIN_SHOWN:
        return f"<{float(_MIN_SHOWN)}"
    whole, hundredths = divmod(int(amount * 100 + Fraction(1, 2)), 100)
    return f"{whole}.{hundredths:02}".rstrip("0") if hundredths else str(whole)


def format_gpu_hours(amount: Fraction) -> str:
    """Return GPU-hours for people: `0.5 GPU-hours`, `1 GPU-hour`, from 10 on whole ones: `318 GPU-hours`."""
    shown = format_amount(Fraction(round(amount)) if amount >= _WHOLE_HOURS_FROM else amount)
    return f"{shown} GPU-hour{'' if shown == '1' else 's'}"


def key_order(key: str) -> tuple[int, str]:
    """Sort keys of amounts in the order of the dimensions."""
    dimension = key.partition("/")[0]
    return (DIMENSIONS.index(dimension) if dimension in DIMENSIONS else len(DIMENSIONS)), key


def unit_name(key: str, amount: Fraction = ZERO) -> str:
    """Return what a key counts, for people: `GPUs`, the class, or the resource."""
    if key == GPUS:
        return "GPU" if amount == 1 else "GPUs"
    return key.partition("/")[2] or key


def parse_amount(raw: Any) -> Fraction:
    """Read an amount such as 3, "0.5" or "2/7": no sign, no exponent, no suffix. Raises ValueError with a sentence."""
    if isinstance(raw, int) and not isinstance(raw, bool) and 0 <= raw < _TOO_LARGE:
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


def parse_amounts(raw: Any) -> Amounts:
    """Read a vector that `amount_texts` wrote. Keep zeros, because a limit of zero forbids. Raises ValueError."""
    if not isinstance(raw, Mapping):
        raise ValueError("must be a map of amounts")  # noqa: TRY004  one error for all
    vector: Amounts = {}
    for key, amount in raw.items():
        if not isinstance(key, str) or not _is_key(key):
            *names, last = (f"{each}/<name>" if each in _BY_NAME else each for each in DIMENSIONS)
            raise ValueError(f"must be {', '.join(names)} or {last}, not {_quoted(key)}")
        vector[key] = parse_amount(amount)
    return vector


def raw_limits(hard: Hard) -> Iterator[tuple[str, str, int | str]]:
    """Yield each amount of `hard`, zeros too: its key, its field and the text."""
    for dimension in DIMENSIONS:
        value = getattr(hard, dimension)
        if isinstance(value, Mapping):
            yield from ((f"{dimension}/{name}", f"{dimension}[{name}]", raw) for name, raw in value.items())
        elif value is not None:
            yield dimension, dimension, value


def limits_of(hard: Hard) -> Amounts:
    """Return the amounts by key, zeros too. Raises ValueError if one is `amount_problems`."""
    return {key: parse_amount(raw) for key, _, raw in raw_limits(hard)}


def amount_problems(hard: Hard, at: str) -> Iterator[tuple[str, str]]:
    """Yield (path, message) for each invalid amount. `at` is the path of `hard`."""
    for _, path, raw in raw_limits(hard):
        try:
            parse_amount(raw)
        except ValueError as error:
            yield f"{at}.{path}", str(error)


def total_granted(limits_of_quotas: Collection[Amounts], classes: GPUClasses) -> Amounts:
    """Return the sum of the limits of these quotas, for all GPUs and for each class and family that one of them limits.

    If a quota has no limit for `gpus` or a family, its limits of the classes in it are added up instead.
    """
    limited = {key for hard in limits_of_quotas for key in hard if not key.startswith(RESOURCES)}
    return {key: sum((_granted_by(key, hard, classes) for hard in limits_of_quotas), ZERO) for key in limited}


def _granted_by(key: str, hard: Amounts, classes: GPUClasses) -> Fraction:
    if key in hard:
        return hard[key]
    families = {each: _family(each, classes) for each in hard if each.startswith(CLASSES)}
    parts = set(families.values())
    if key != GPUS:
        parts = {class_key for class_key, family in families.items() if family == key}
    return sum((_granted_by(part, hard, classes) for part in parts), ZERO)


def _family(key: str, classes: GPUClasses) -> str:
    """Return the dimension of the family of a class. A family, or an unknown class, is its own family."""
    gpu_class = classes.get(key.removeprefix(CLASSES))
    return f"{CLASSES}{gpu_class.family}" if gpu_class else key


def _is_key(key: str) -> bool:
    dimension, slash, name = key.partition("/")
    return bool(name) if dimension in _BY_NAME else dimension in DIMENSIONS and not slash


def _quoted(raw: Any) -> str:
    if isinstance(raw, int):
        return "this number" if abs(raw) >= _TOO_LARGE else str(raw)
    text = str(raw)
    return f'"{text}"' if len(text) <= _MAX_QUOTED else f'"{text[:_MAX_QUOTED]}…"'

"""Prices of GPU-hours by class, from a file, and amounts of money, which are exact until they are rounded to cents."""

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec

from policies.pods.names import is_class_name
from policies.quota.amounts import ZERO
from webhook.configuration.decoding import REQUIRED, Problem, decode
from webhook.configuration.documents import LocatedProblem, documents_in, reading
from webhook.configuration.files import read_file
from webhook.configuration.loader import FILE_LIMIT, ConfigurationError

_CURRENCY = re.compile("[A-Z]{3}")
_PRICE = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")
"""With at most 15 digits, YAML's number in decimals is the one that was written."""


class _File(msgspec.Struct, frozen=True):
    """The fields; `_checked` says what is wrong with their values, so that all is said at once."""

    currency: Any = None
    default: Any = None
    classes: Mapping[str, Any] = {}


class Prices(msgspec.Struct, frozen=True):
    """The price of one hour of one whole GPU, by class or family as audit lines name it; `default` is for all others."""

    currency: str
    default: Fraction | None
    classes: Mapping[str, Fraction]

    def of(self, gpu_class: str) -> Fraction | None:
        return self.classes.get(gpu_class, self.default)

    def missing(self, classes: Iterable[str]) -> list[str]:
        return sorted(gpu_class for gpu_class in set(classes) if self.of(gpu_class) is None)

    def cost(self, hours: Mapping[str, Fraction]) -> Fraction:
        """Return what GPU-hours by class cost, exactly. No class may lack a price."""
        return sum(((self.of(gpu_class) or ZERO) * amount for gpu_class, amount in hours.items()), ZERO)


def in_cents(amounts: Sequence[Fraction]) -> list[int]:
    """Round amounts so that their sum is the exact sum, rounded half a cent up: the largest remainders are rounded up."""
    cents = [int(amount * 100) for amount in amounts]
    missing = int(sum(amounts, ZERO) * 100 + Fraction(1, 2)) - sum(cents)
    by_remainder = sorted(range(len(cents)), key=lambda at: cents[at] - amounts[at] * 100)
    for at in by_remainder[:missing]:
        cents[at] += 1
    return cents


def money(cents: int) -> str:
    """Return an amount with two decimals, and nothing between thousands."""
    return f"{cents // 100}.{cents % 100:02}"


def read_prices(path: Path) -> Prices:
    """Read a file of prices. Raises ConfigurationError with all problems."""
    located: list[LocatedProblem] = []
    prices: list[Prices] = []
    with reading(str(path), located):
        documents = list(documents_in(str(path), read_file(path, FILE_LIMIT)[0], located))
        for document in documents:
            problems: list[Problem] = []
            decoded = decode(_File, document.data, (), problems)
            # Beside unknown fields, the values are checked, too.
            decoded = decoded or decode(_File, document.data, (), [], strict=False)
            if decoded is not None:
                prices.append(_checked(decoded, problems))
            located += [
                LocatedProblem(str(path), document.line_of(problem.parts), "", problem.path, problem.message)
                for problem in problems
            ]
        if len(documents) != 1 and not located:
            located.append(LocatedProblem.of_file(str(path), f"must be one document, not {len(documents)}"))
    if located:
        raise ConfigurationError(located)
    return prices[0]


def _checked(file: _File, problems: list[Problem]) -> Prices:
    currency = str(file.currency)
    if file.currency is None:
        problems.append(Problem(("currency",), REQUIRED))
    elif not _CURRENCY.fullmatch(currency):
        problems.append(
            Problem(("currency",), f'must be a code of ISO 4217 such as EUR, not "{currency[:40]}"')
        )
    if file.default is None and not file.classes:
        problems.append(Problem(("default",), f"{REQUIRED}, where no class has a price"))
    for name in file.classes:
        if not is_class_name(name):
            message = "must be the name of a GPU class or family such as nvidia-l4"
            problems.append(Problem(("classes", name), message))
    return Prices(
        currency=currency,
        default=None if file.default is None else _price(file.default, ("default",), problems),
        classes={name: _price(each, ("classes", name), problems) for name, each in file.classes.items()},
    )


def _price(raw: Any, at: tuple[str, ...], problems: list[Problem]) -> Fraction:
    text = f"{Decimal(str(raw)):f}" if isinstance(raw, float) else str(raw)  # not 5e-05
    if _PRICE.fullmatch(text):
        return Fraction(text)
    problems.append(Problem(at, f'must be a price such as 2.50, with at most 6 decimals, not "{text[:40]}"'))
    return ZERO

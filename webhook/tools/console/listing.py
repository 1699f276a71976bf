"""Searches, sorts and pages the quotas of the overview and the problems of Why?, by the query of the URL."""

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from fractions import Fraction
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import urlencode

from policies.quota.amounts import NOTHING
from webhook.tools.status.report import QuotaSummary
from webhook.tools.why.problems import Problem

ROWS = 50
"""Lines of one page."""

T = TypeVar("T")


class Order(Enum):
    """How quotas are sorted, in the words of the page; equal ones by namespace."""

    WORST = "worst first"
    NAMESPACE = "by namespace"
    PENDING = "most pending first"
    FULLEST = "fullest first"
    LARGEST = "most GPUs first"
    DENIED = "most denied first"


class Page(NamedTuple, Generic[T]):
    """At most ROWS of `total` items. `query` is the query of the URL without the page number, as pairs."""

    items: Sequence[T]
    number: int
    last: int
    total: int
    query: tuple[tuple[str, str], ...]

    def address(self, number: int) -> str:
        return "?" + urlencode([*self.query, *([("page", str(number))] if number > 1 else [])])


def page_of(items: Sequence[T], arguments: Mapping[str, str]) -> Page[T]:
    """Return the page whose number is in `arguments`; the nearest one if there are not so many."""
    last = max(1, -(-len(items) // ROWS))
    text = arguments.get("page", "")
    number = min(max(int(text), 1), last) if re.fullmatch("[0-9]{1,6}", text) else 1
    query = tuple((key, value) for key, value in sorted(arguments.items()) if key != "page" and value)
    return Page(items[(number - 1) * ROWS : number * ROWS], number, last, len(items), query)


def problem_page(problems: Sequence[Problem], arguments: Mapping[str, str]) -> Page[Problem]:
    """Return a page of the problems whose owner or message contains each word of `search`."""
    found = [each for each in problems if _matches(f"{each.owner} {each.message}", arguments)]
    return page_of(found, arguments)


def _matches(text: str, arguments: Mapping[str, str]) -> bool:
    return all(word in text.lower() for word in arguments.get("search", "").lower().split())


def quota_page(quotas: Sequence[QuotaSummary], arguments: Mapping[str, str]) -> Page[QuotaSummary]:
    """Return a page of the quotas: filtered by `search` (namespace or holder) and `problems`, in the order of `sort`."""
    found = [
        quota
        for quota in quotas
        if _matches(" ".join([quota.namespace, *(each.name for each in quota.holders)]), arguments)
        if quota.has_problem or not arguments.get("problems")
    ]
    return page_of(sorted(found, key=lambda quota: _key(quota, order_of(arguments))), arguments)


def order_of(arguments: Mapping[str, str]) -> Order:
    try:
        return Order(arguments.get("sort", ""))
    except ValueError:
        return Order.WORST


def _key(quota: QuotaSummary, order: Order) -> tuple[Any, ...]:
    most: Fraction | int
    match order:
        case Order.NAMESPACE:
            most = 0
        case Order.WORST:
            return quota.urgency
        case Order.DENIED:
            most = quota.denied or 0
        case Order.FULLEST:
            most = max((row.held / row.hard for row in quota.rows if row.hard), default=NOTHING)
        case Order.LARGEST:
            most = quota.row.held if quota.row else 0
        case Order.PENDING:
            most = quota.pending_gpus
    return -most, quota.namespace

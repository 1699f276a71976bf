"""PodDisruptionBudgets of a namespace, read when a review needs them."""

from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import TypeVar

import msgspec

from policies.pods.label_selector import LabelSelector
from webhook.cluster import errors
from webhook.cluster.api import READ_SECONDS, REVIEW_READ_SECONDS, ApiClient, Page, api_path, decoded

MAX_BUDGETS = 50
MAX_BUDGETS_BYTES = 1024 * 1024
"""Of the PodDisruptionBudgets of a namespace: 20 KB of each, which usually has 2. A tenant can store 1.5 MB in one."""

T = TypeVar("T")


class _Budget(msgspec.Struct, frozen=True):
    selector: LabelSelector | None = None


class _StoredBudget(msgspec.Struct, frozen=True):
    spec: _Budget = _Budget()


_BUDGETS = msgspec.json.Decoder(Page[_StoredBudget])


def read_budgets(
    api: ApiClient, namespace: str, seconds: float | None = None
) -> tuple[LabelSelector, ...] | None:
    """Return the selectors of the PodDisruptionBudgets; None if they are more than is read. Raises `errors.ApiError`."""
    path = api_path("/apis/policy/v1", "namespaces", namespace, "poddisruptionbudgets")
    items = bounded_items(api, path, _BUDGETS.decode, seconds or READ_SECONDS)
    if items is None:
        return None
    return tuple(each.spec.selector for each in items if each.spec.selector is not None)


def bounded_items(
    api: ApiClient, path: str, decode: Callable[[bytes], Page[T]], seconds: float
) -> list[T] | None:
    """Return the objects of a collection; None if they are more than is read. Raises `errors.ApiError`."""
    with api.stream(path, query={"limit": str(MAX_BUDGETS)}, read_seconds=seconds) as answer:
        document = answer.read(MAX_BUDGETS_BYTES + 1)
    if len(document) > MAX_BUDGETS_BYTES:
        return None
    try:
        page = decoded(decode, document)
    except msgspec.MsgspecError:
        return None
    return None if page.metadata.continue_token else page.items or []


def budgets_by(api: ApiClient, namespace: str, deadline: float) -> tuple[LabelSelector, ...] | None:
    """Return the same, None also if they cannot be read by a `monotonic` deadline."""
    if (seconds := min(deadline - monotonic(), REVIEW_READ_SECONDS)) > 0:
        with suppress(errors.ApiError):
            return read_budgets(api, namespace, seconds)
    return None

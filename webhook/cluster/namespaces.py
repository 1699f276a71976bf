"""What reviews read of a namespace: its labels, by which policies select it, its LimitRanges and its PodDisruptionBudgets.

Labels come from a watch. A pod may come right after its namespace (`kubectl apply` of both), so absence from the watch proves
nothing: the namespace is read. LimitRanges are watched from the first review that needs them on, and budgets only read.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TypeVar

import msgspec

from policies.pods.label_selector import LabelSelector
from policies.pods.limit_ranges import (
    NO_LIMITS,
    LimitRange,
    NamespaceLimits,
    decode_limit_range,
    namespace_limits,
)
from policies.policy import Labels
from policies.rules.disruption import PDBSpec
from webhook.cluster import errors
from webhook.cluster.api import (
    METADATA,
    READ_SECONDS,
    REVIEW_READ_SECONDS,
    ApiClient,
    Page,
    api_path,
    decode_bounded,
)
from webhook.cluster.collection import CLUSTER, update_by_key
from webhook.cluster.informer import Informer, Resource
from webhook.cluster.objects import decode_metadata

NAMESPACES = Resource("/api/v1", "namespaces", metadata_only=True)

LIMIT_RANGES = Resource("/api/v1", "limitranges")
LIMIT_RANGES_SECONDS = 1.0
"""Longest read in a review, shorter than REVIEW_READ_SECONDS: without an answer, the rule only adds less."""

MAX_PDBS = 50
MAX_PDBS_BYTES = 1024 * 1024
"""Of the PodDisruptionBudgets of a namespace: 20 KB of each, which usually has 2. A tenant can store 1.5 MB in one."""

T = TypeVar("T")


class NamespaceUnknown(Exception):  # noqa: N818 - no bug
    """The labels could not be read; the message says why."""


class NamespaceRecord(msgspec.Struct, frozen=True):
    uid: str
    key: str
    labels: Labels
    namespace: str = CLUSTER


def namespace_record(raw: bytes | msgspec.Raw) -> NamespaceRecord:
    metadata = decode_metadata(raw)
    return NamespaceRecord(metadata.uid, metadata.name, metadata.sorted_labels)


def read_labels(api: ApiClient, name: str, seconds: float) -> Labels:
    """Return the labels of a namespace. Raises `errors.ApiError` and msgspec.MsgspecError."""
    return namespace_record(api.get(NAMESPACES.path(CLUSTER, name), timeout=seconds, accept=METADATA)).labels


class Namespaces:
    """All namespaces, once `informer` is started. While the API server does not answer, the last labels hold."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._by_name: dict[str, NamespaceRecord] = {}
        self.informer = Informer(api, NAMESPACES, namespace_record, partial(update_by_key, self._by_name))

    def labels_of(self, name: str, deadline: float) -> Labels:
        """Return the labels; those of a namespace that the watch lacks are read by `deadline`. Raises NamespaceUnknown."""
        known = self._by_name.get(name)
        if known is not None:
            return known.labels
        seconds = min(deadline - monotonic(), REVIEW_READ_SECONDS)
        if seconds <= 0:
            raise NamespaceUnknown("no time was left to ask the API server")
        try:
            return read_labels(self._api, name, seconds)
        except (errors.ApiError, msgspec.MsgspecError) as error:
            raise NamespaceUnknown(str(error)) from None

    def watched_labels(self, name: str) -> Labels | None:
        """Return the labels in the watch. None if it shows no such namespace."""
        record = self._by_name.get(name)
        return record.labels if record else None

    def names(self) -> list[str]:
        """Return the namespaces in the watch. Takes no lock, unlike `all`."""
        return list(self._by_name)

    def all(self) -> dict[str, Labels] | None:
        """Return the labels of every namespace, None before they were listed."""
        if not self.informer.synced:
            return None
        return {record.key: record.labels for record in self.informer.all()}


_LIMIT_RANGES = msgspec.json.Decoder(Page[LimitRange])


class LimitRanges:
    """What LimitRanges say of each namespace, from an informer that runs from the first review that needs it until `stopping`.

    Until it has listed everything, a review reads the LimitRanges of its own namespace.
    """

    def __init__(self, api: ApiClient, stopping: threading.Event) -> None:
        self._api, self._stopping = api, stopping
        self._limits: dict[str, NamespaceLimits] = {}
        self._informer = Informer(api, LIMIT_RANGES, decode_limit_range, self._changed)
        self._starting = threading.Lock()
        self._is_started = False

    def limits_of(self, namespace: str, deadline: float) -> NamespaceLimits | None:
        """Return what holds in the namespace; None if it cannot be read by `deadline`, a moment of `monotonic`."""
        with self._starting:
            if not self._is_started:
                self._is_started = True
                self._informer.start(self._stopping)
        if self._informer.is_current:
            return self._limits.get(namespace, NO_LIMITS)
        seconds = min(deadline - monotonic(), LIMIT_RANGES_SECONDS)
        return read_limits(self._api, namespace, seconds) if seconds > 0 else None

    def _changed(self, before: LimitRange | None, after: LimitRange | None) -> None:
        namespace = after.namespace if after is not None else before.namespace if before is not None else ""
        if limit_ranges := self._informer.items(namespace):
            self._limits[namespace] = namespace_limits(limit_ranges)
        else:
            self._limits.pop(namespace, None)


def read_limits(api: ApiClient, namespace: str, seconds: float) -> NamespaceLimits | None:
    try:
        document = api.get(LIMIT_RANGES.path(namespace), timeout=seconds)
        return namespace_limits(_LIMIT_RANGES.decode(document).items or ())
    except (errors.ApiError, msgspec.MsgspecError):
        return None


class StoredBudget(msgspec.Struct, frozen=True):
    """The fields that are read of a PodDisruptionBudget."""

    spec: PDBSpec = PDBSpec()


decode_budget = msgspec.json.Decoder(StoredBudget).decode
_PDBS = msgspec.json.Decoder(Page[StoredBudget])


def read_pdb_selectors(
    api: ApiClient, namespace: str, seconds: float | None = None
) -> tuple[LabelSelector, ...] | None:
    """Return the selectors of the PodDisruptionBudgets; None if they are more than is read. Raises `errors.ApiError`."""
    path = api_path("/apis/policy/v1", "namespaces", namespace, "poddisruptionbudgets")
    items = bounded_items(api, path, _PDBS.decode, seconds or READ_SECONDS)
    if items is None:
        return None
    return tuple(item.spec.selector for item in items if item.spec.selector is not None)


def bounded_items(
    api: ApiClient, path: str, decode: Callable[[bytes], Page[T]], seconds: float
) -> list[T] | None:
    """Return the objects of a collection; None if they are more than is read. Raises `errors.ApiError`."""
    with api.stream(path, query={"limit": str(MAX_PDBS)}, read_seconds=seconds) as answer:
        document = answer.read(MAX_PDBS_BYTES + 1)
    if len(document) > MAX_PDBS_BYTES:
        return None
    try:
        page = decode_bounded(decode, document)
    except msgspec.MsgspecError:
        return None
    return None if page.metadata.continue_token else page.items or []


def pdb_selectors_by(api: ApiClient, namespace: str, deadline: float) -> tuple[LabelSelector, ...] | None:
    """Return the same, None also if they cannot be read by a `monotonic` deadline."""
    if (seconds := min(deadline - monotonic(), REVIEW_READ_SECONDS)) > 0:
        with suppress(errors.ApiError):
            return read_pdb_selectors(api, namespace, seconds)
    return None

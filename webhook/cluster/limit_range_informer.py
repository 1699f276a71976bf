"""The LimitRanges of namespaces: followed from the first review of a template, or of a pod that one gave something, on."""

import threading
from time import monotonic

import msgspec

from policies.pods.limit_ranges import (
    NO_LIMITS,
    LimitRange,
    NamespaceLimits,
    decode_limit_range,
    namespace_limits,
)
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.informer import Informer, Resource

LIMIT_RANGES = Resource("/api/v1", "limitranges")
LONGEST_SECONDS = 1.0
"""Longest read in a review, shorter than REVIEW_READ_SECONDS: without an answer, the rule only adds less."""


class _List(msgspec.Struct, frozen=True):
    items: tuple[LimitRange, ...] = ()


_decode_list = msgspec.json.Decoder(_List).decode


class LimitRanges:
    """What LimitRanges say of each namespace, from an informer that runs from the first review that needs it until `stopping`.

    Until it has listed everything, a review reads the LimitRanges of its own namespace.
    """

    def __init__(self, api: ApiClient, stopping: threading.Event) -> None:
        self._api, self._stopping = api, stopping
        self._by_namespace: dict[str, dict[str, LimitRange]] = {}
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
        seconds = min(deadline - monotonic(), LONGEST_SECONDS)
        return read_limits(self._api, namespace, seconds) if seconds > 0 else None

    def _changed(self, before: LimitRange | None, after: LimitRange | None) -> None:
        namespace = after.namespace if after is not None else before.namespace if before is not None else ""
        limit_ranges = self._by_namespace.setdefault(namespace, {})
        if before is not None:
            limit_ranges.pop(before.uid, None)
        if after is not None:
            limit_ranges[after.uid] = after
        if limit_ranges:
            self._limits[namespace] = namespace_limits(limit_ranges.values())
        else:
            del self._by_namespace[namespace]
            self._limits.pop(namespace, None)


def read_limits(api: ApiClient, namespace: str, seconds: float) -> NamespaceLimits | None:
    try:
        return namespace_limits(_decode_list(api.get(LIMIT_RANGES.path(namespace), timeout=seconds)).items)
    except (errors.ApiError, msgspec.MsgspecError):
        return None

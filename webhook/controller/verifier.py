"""Verifies what is held of each namespace with a quota against a new list of it, and its sums against a full count.

Namespace by namespace, in turn, so that a period's lists come evenly and never all at once. What a list shows that the watch has
not shown is counted from then on, as after any other change.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection
from time import monotonic, time

from webhook.cluster import errors
from webhook.controller.metrics import ControllerMetrics
from webhook.controller.usage_cache import UsageCache

log = logging.getLogger("gpu_admission.controller")

POLL_SECONDS = 1.0
TURN, RECENT = 0.8, 0.1
"""Parts of the period: all namespaces have their turn within the one; what was listed within the other is passed over. So no list
gets older than the period."""


class Verifier:
    """`namespaces` returns those with a quota while this process leads, else none. `verified` is called with each of them."""

    def __init__(
        self,
        usage_cache: UsageCache,
        metrics: ControllerMetrics,
        namespaces: Callable[[], Collection[str]],
        verified: Callable[[str], object],
        period: float,
    ) -> None:
        self._usage_cache = usage_cache
        self._metrics = metrics
        self._namespaces = namespaces
        self._verified = verified
        self._period = period
        self._turns: deque[str] = deque()

    def run(self, stopping: threading.Event) -> None:
        """Verify until `stopping`; the body of a thread."""
        last = monotonic()
        while not stopping.is_set():
            turns = self._turns
            namespaces, waiting = self._namespaces(), frozenset(turns)
            turns.extend(name for name in namespaces if name not in waiting)
            rest = last + TURN * self._period / max(1, len(turns)) - monotonic()
            if not turns or rest > 0:
                stopping.wait(min(rest, POLL_SECONDS) if turns else POLL_SECONDS)
                continue
            last = monotonic()
            namespace = turns.popleft()
            if namespace in namespaces:
                self._verify(namespace)
                turns.append(namespace)

    def _verify(self, namespace: str) -> None:
        now = monotonic()
        try:
            self._usage_cache.verify(
                namespace, since=now - RECENT * self._period, nodes_since=now - TURN * self._period
            )
        except errors.ApiError as error:
            log.warning("%s: not verified: %s", namespace, error)
            return
        if namespace in self._namespaces():
            self._metrics.recount_time.labels(namespace).set(time())
            self._verified(namespace)

"""Compares the objects in the informers with a new list of each namespace, and the sums with a full count.

Namespaces are verified one after the other, evenly spread over the period. An object that the watch missed counts from then on.
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
"""Parts of the period. Every namespace has its turn within TURN, and a list younger than RECENT is not repeated. So no list gets
older than the period."""


class Verifier:
    """`namespaces` returns the namespaces with a quota, and nothing unless this process leads. Calls `verified` after each."""

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
        """Verify until `stopping` is set; the body of a thread."""
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

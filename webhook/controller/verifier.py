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


def verify(
    usage_cache: UsageCache,
    metrics: ControllerMetrics,
    namespaces: Callable[[], Collection[str]],
    verified: Callable[[str], object],
    period: float,
    stopping: threading.Event,
) -> None:
    """Verify until `stopping` is set; the body of a thread. Calls `verified` after each namespace.

    `namespaces` returns the namespaces with a quota, and nothing unless this process leads.
    """
    turns: deque[str] = deque()
    last = monotonic()
    while not stopping.is_set():
        current, waiting = namespaces(), frozenset(turns)
        turns.extend(name for name in current if name not in waiting)
        rest = last + TURN * period / max(1, len(turns)) - monotonic()
        if not turns or rest > 0:
            stopping.wait(min(rest, POLL_SECONDS) if turns else POLL_SECONDS)
            continue
        last = monotonic()
        namespace = turns.popleft()
        if namespace not in current:
            continue
        turns.append(namespace)
        try:
            usage_cache.verify(namespace, since=last - RECENT * period, nodes_since=last - TURN * period)
        except errors.ApiError as error:
            log.warning("%s: not verified: %s", namespace, error)
            continue
        if namespace in namespaces():
            metrics.recount_time.labels(namespace).set(time())
            verified(namespace)

"""The UsageCounter of our own catalogue, and of each published catalogue that a ledger object names.

Every namespace is verified by new lists, one after the other, evenly spread over a period. An object that the watch missed counts
from then on.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from time import monotonic, time

from policies.quota.catalogue import CatalogueVersion, catalogue_digest
from policies.quota.demand import Catalogues, UnclassifiedPods
from policies.quota.ledger.quota_ledger import QuotaLedger
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.controller.metrics import ControllerMetrics
from webhook.controller.usage_counter import UsageCounter
from webhook.quota.catalogues import PublishedCatalogues, digests_of

log = logging.getLogger("gpu_admission.controller")

POLL_SECONDS = 1.0
TURN, RECENT = 0.8, 0.1
"""Parts of the period. Every namespace has its turn within TURN, and a list younger than RECENT is not repeated. So no list gets
older than the period."""


class UsageCache:
    """The UsageCounters of a process by catalogue digest. For any number of threads. Holds no lock during a call to the API.

    `make` returns the UsageCounter of a catalogue.
    """

    def __init__(
        self,
        api: ApiClient,
        namespace: str,
        catalogues: Catalogues,
        make: Callable[[Catalogues], UsageCounter],
    ) -> None:
        self._make = make
        self._lock = threading.Lock()
        self.own = self._make(catalogues)
        self._all = {self.own.digest: self.own}
        self._published = PublishedCatalogues(api, namespace, lambda: self.own.catalogues)

    def start(self) -> None:
        self.own.start()

    def configure(self, catalogues: Catalogues) -> bool:
        """Replace our own catalogue, and return whether it changed. Raises `errors.ApiError`; then the old one stays."""
        if catalogue_digest(catalogues) == self.own.digest:
            return False  # policies do not change demand
        self._kept(catalogues, is_own=True)
        return True

    def of(self, digest: str) -> UsageCounter | None:
        """Return the running UsageCounter of a catalogue, None if the catalogue is not published. Raises `errors.ApiError`."""
        with self._lock:
            found = self._all.get(digest)
        if found is None and (catalogues := self._published.get(digest)) is not None:
            log.info("counting by class catalogue %s, too", digest)
            found = self._kept(catalogues)
        return found

    def deleted(self, namespace: str) -> frozenset[str]:
        """Return the uids of the objects that any watch lately showed as deleted. An older watch may know more."""
        with self._lock:
            every = list(self._all.values())
        return frozenset().union(*(each.deleted(namespace) for each in every))

    def verify(self, namespace: str, *, since: float, nodes_since: float) -> None:
        """Verify objects and sums of a namespace by lists that began at these moments or later. Raises `errors.ApiError`."""
        for counter in list(self._all.values()):
            if counter.synced:
                counter.refresh(namespace, since=since, nodes_since=nodes_since)
                counter.recount(namespace)

    def publish(self, counter: UsageCounter) -> bool:
        return self._published.publish(counter.catalogues)

    def tidy(self, ledgers: Mapping[str, QuotaLedger], *, leads: bool) -> None:
        """Stop the counters and drop the sums that no ledger names. The leader also publishes and removes catalogues.

        Raises `errors.ApiError`.
        """
        in_ledgers = frozenset().union(*map(digests_of, ledgers.values()))
        with self._lock:
            named = in_ledgers | {self.own.digest}
            gone = [self._all.pop(each) for each in self._all.keys() - named]
        for counter in gone:
            counter.stop()
        summed = {
            (namespace, each)
            for namespace, ledger in ledgers.items()
            for each in _unclassified_pods_of(ledger)
        }
        for counter in list(self._all.values()):
            counter.keep(summed)
        if leads:
            self._published.tidy(named)
            for counter in list(self._all.values()):
                self.publish(counter)
        else:
            self._published.follow()

    def stop(self) -> None:
        for counter in list(self._all.values()):
            counter.stop()

    def _kept(self, catalogues: Catalogues, *, is_own: bool = False) -> UsageCounter:
        made = self._make(catalogues)
        with self._lock:
            kept = self._all.setdefault(made.digest, made)
            if is_own:  # under the lock, because `tidy` would stop a counter that no ledger names
                self.own = kept
        if kept is made:
            kept.start()
        return kept


def _unclassified_pods_of(ledger: QuotaLedger) -> frozenset[UnclassifiedPods]:
    catalogue_versions = filter(None, map(CatalogueVersion.parse, ledger.catalogue_versions))
    return frozenset({ledger.unclassified_pods, *(each.unclassified_pods for each in catalogue_versions)})


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

"""The UsageCounter of our own catalogue, and of each published catalogue that a ledger object names."""

import logging
import threading
from collections.abc import Callable, Mapping

from policies.quota.catalogue import CatalogueVersion, catalogue_digest
from policies.quota.demand import Catalogues, UnclassifiedPods
from policies.quota.ledger.quota_ledger import QuotaLedger
from webhook.cluster.api import ApiClient
from webhook.controller.usage_counter import UsageCounter
from webhook.quota.catalogues import PublishedCatalogues, digests_of

log = logging.getLogger("gpu_admission.controller")


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

"""The Counting of our own catalogue, and the Countings of published catalogues that ledger objects name."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from policies.quota.catalogue import Basis, catalogue_digest
from policies.quota.charge import Catalogues, Unpinned
from policies.quota.ledger.quota_ledger import QuotaLedger
from webhook.cluster.api import ApiClient
from webhook.cluster.informer import WatchTimings
from webhook.controller.counting import Counting
from webhook.controller.gone_claims import GoneClaims
from webhook.controller.records import ExtendedClaims
from webhook.controller.usage_log import Holding
from webhook.quota.catalogues import PublishedCatalogues, digests_of

log = logging.getLogger("gpu_admission.controller")


class Countings:
    """All Countings of a process, by catalogue digest. Safe for threads; holds no lock during a call to the API."""

    def __init__(
        self,
        api: ApiClient,
        namespace: str,
        catalogues: Catalogues,
        changed: Callable[[str, bool], object],
        *,
        ended: Callable[[str, Holding], object] = lambda _digest, _holding: None,
        awaited: Callable[[], Iterable[str]] = tuple,
        timings: WatchTimings | None = None,
    ) -> None:
        self._make = partial(
            Counting,
            api,
            changed=changed,
            ended=ended,
            awaited=awaited,
            given=ExtendedClaims(),
            gone=GoneClaims(),
            timings=timings,
        )
        self._lock = threading.Lock()
        self.own = self._make(catalogues)
        self._all = {self.own.digest: self.own}
        self._published = PublishedCatalogues(api, namespace, lambda: self.own.catalogues)

    def start(self) -> None:
        self.own.start()

    def configure(self, catalogues: Catalogues) -> bool:
        """Replace our own catalogue, and return whether it changed. Raises `errors.ApiError` and then keeps the old one."""
        if catalogue_digest(catalogues) == self.own.digest:
            return False  # policies do not change demand
        self._kept(catalogues, is_own=True)
        return True

    def of(self, digest: str) -> Counting | None:
        """Return the Counting of a catalogue; start it if needed. None if nobody published it. Raises `errors.ApiError`."""
        with self._lock:
            found = self._all.get(digest)
        if found is None and (catalogues := self._published.get(digest)) is not None:
            log.info("counting by class catalogue %s, too", digest)
            found = self._kept(catalogues)
        return found

    def deleted(self, namespace: str) -> frozenset[str]:
        """Return the uids of the objects that any watch lately showed as deleted. An older watch may know more than a new one."""
        with self._lock:
            every = list(self._all.values())
        return frozenset().union(*(each.deleted(namespace) for each in every))

    def verify(self, namespace: str, *, since: float, nodes_since: float) -> None:
        """Compare all held objects with lists that began at these moments or later. Raises `errors.ApiError`."""
        for counting in list(self._all.values()):
            if counting.synced:
                counting.refresh(namespace, since=since, nodes_since=nodes_since)
                counting.recount(namespace)

    def publish(self, counting: Counting) -> bool:
        """Publish its catalogue, and return whether that succeeded. Raises `errors.ApiError`."""
        return self._published.publish(counting.catalogues)

    def tidy(self, ledgers: Mapping[str, QuotaLedger], *, leads: bool) -> None:
        """Stop Countings and drop sums that no ledger names. The leader also publishes and removes catalogues.

        Raises `errors.ApiError`.
        """
        of_rows = frozenset().union(*map(digests_of, ledgers.values()))
        with self._lock:
            named = of_rows | {self.own.digest}
            gone = [self._all.pop(each) for each in self._all.keys() - named]
        for counting in gone:
            counting.stop()
        summed = {(namespace, each) for namespace, ledger in ledgers.items() for each in _unpinned_of(ledger)}
        for counting in list(self._all.values()):
            counting.keep(summed)
        if leads:
            self._published.tidy(named)
            for counting in list(self._all.values()):
                self.publish(counting)
        else:
            self._published.follow()

    def stop(self) -> None:
        for counting in list(self._all.values()):
            counting.stop()

    def _kept(self, catalogues: Catalogues, *, is_own: bool = False) -> Counting:
        made = self._make(catalogues)
        with self._lock:
            kept = self._all.setdefault(made.digest, made)
            if is_own:  # under the lock: no ledger names it yet, so `tidy` would stop it
                self.own = kept
        if kept is made:
            kept.start()
        return kept


def _unpinned_of(ledger: QuotaLedger) -> frozenset[Unpinned]:
    """Return the values of `unpinned` in the bases of a ledger."""
    bases = filter(None, map(Basis.parse, ledger.bases))
    return frozenset({ledger.unpinned, *(each.unpinned for each in bases)})

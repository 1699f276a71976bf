"""The UsageCounter of our own catalogue, and that of each published catalogue that a ledger object names."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import partial

from policies.pods.pod import Pod
from policies.quota.amounts import GPUS, ZERO
from policies.quota.catalogue import CatalogueVersion, catalogue_digest
from policies.quota.demand import Catalogue, UnclassifiedPods, pod_demand
from policies.quota.ledger.quota_ledger import QuotaLedger
from webhook.cluster.api import ApiClient
from webhook.cluster.objects import timestamp
from webhook.controller.device_slices import DeviceSlices
from webhook.controller.usage_counter import UsageCounter, UsageEvents
from webhook.quota.config_maps import PublishedCatalogues, digests_of
from webhook.quota.counted_records import LONG_PENDING_SECONDS, ClaimHistory, CountedPod

log = logging.getLogger("gpu_admission.controller")


class UsageCache:
    """The UsageCounters of a process by catalogue digest. Thread-safe; it holds no lock while it calls the API.

    Hears: slices.
    """

    def __init__(
        self,
        api: ApiClient,
        namespace: str,
        catalogue: Catalogue,
        slices: DeviceSlices,
        clock: Callable[[], int],
        *,
        awaited: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """`awaited`, `clock` and `slices` are those of every UsageCounter."""
        self.events = UsageEvents()
        self._new_counter = partial(
            UsageCounter,
            api,
            events=self.events,
            history=ClaimHistory(),
            awaited=awaited,
            clock=clock,
            slices=slices,
        )
        self._lock = threading.Lock()
        self.own_counter = self._new_counter(catalogue)
        self._counters = {self.own_counter.digest: self.own_counter}
        self._published = PublishedCatalogues(api, namespace, self.own_catalogue)
        slices.subscribe(self._slices_changed)

    def waiting(self, namespace: str) -> list[CountedPod]:
        return self.own_counter.sums.waiting(namespace)

    def own_catalogue(self) -> Catalogue:
        return self.own_counter.catalogue

    def gpus_of_new(self, pod: Pod) -> Fraction:
        """Return the GPUs of a pod that is not stored yet."""
        return pod_demand(pod, self.own_catalogue(), UnclassifiedPods.TOTAL_ONLY).vector.get(GPUS, ZERO)

    def configure(self, catalogue: Catalogue) -> bool:
        """Replace our own catalogue, and return whether it changed. Keeps the old one if it raises `errors.ApiError`."""
        if catalogue_digest(catalogue) == self.own_counter.digest:
            return False  # only policies changed, on which demand does not depend
        self._add(catalogue, is_own=True)
        return True

    def of(self, digest: str) -> UsageCounter | None:
        """Return the running counter of a catalogue, None if that is not published. Raises `errors.ApiError`."""
        with self._lock:
            counter = self._counters.get(digest)
        if counter is None and (catalogue := self._published.get(digest)) is not None:
            log.info("counting by class catalogue %s, too", digest)
            counter = self._add(catalogue)
        return counter

    def deleted(self, namespace: str) -> frozenset[str]:
        """Return the uids of objects that were deleted lately, by the watches of all counters: an older watch may know more."""
        with self._lock:
            every = list(self._counters.values())
        return frozenset().union(*(counter.deleted(namespace) for counter in every))

    def refresh_claims(self, namespace: str) -> None:
        """List claims again whose pod was bound after what is held of them. Raises `errors.ApiError`."""
        for counter in list(self._counters.values()):
            counter.refresh_claims(namespace)

    def claims_wait(self, namespace: str) -> float | None:
        """Return the seconds until `refresh_claims` is due, None if it is not needed."""
        waits = (counter.claims_wait(namespace) for counter in list(self._counters.values()))
        return min((wait for wait in waits if wait is not None), default=None)

    def _slices_changed(self) -> None:
        for counter in list(self._counters.values()):
            counter.slices_changed()

    def recount(self, namespace: str, *, since: float, nodes_since: float) -> None:
        """Recount a namespace by lists that began at these times or later. Raises `errors.ApiError`."""
        for counter in list(self._counters.values()):
            if counter.synced:
                counter.refresh(namespace, since=since, nodes_since=nodes_since)
                counter.recount(namespace)

    def pending_gpus(self, ledgers: Callable[[], Mapping[str, QuotaLedger]]) -> dict[str, Fraction]:
        """Return by namespace the GPUs of pods that have held quota without a node for LONG_PENDING_SECONDS."""
        before = timestamp(datetime.now(UTC) - timedelta(seconds=LONG_PENDING_SECONDS))
        own = self.own_counter
        return {
            namespace: own.sums.unbound_gpus(namespace, ledger.unclassified_pods, before)
            for namespace, ledger in ledgers().items()
        }

    def publish(self, counter: UsageCounter) -> bool:
        return self._published.publish(counter.catalogue)

    def follow(self, ledgers: Mapping[str, QuotaLedger]) -> None:
        """Have the counters of all ledgers with a budget keep what it needs."""
        with self._lock:
            counters = dict(self._counters)
        for namespace, ledger in ledgers.items():
            versions = ledger.catalogue_versions if ledger.budget is not None else ()
            for version in filter(None, map(CatalogueVersion.parse, versions)):
                if version.digest in counters:
                    counters[version.digest].follow(namespace, ledger, version.unclassified_pods)

    def prune(self, ledgers: Mapping[str, QuotaLedger], *, is_leader: bool) -> None:
        """Remove counters and sums that no ledger needs. The leader writes the catalogues. Raises `errors.ApiError`."""
        ledger_digests = frozenset().union(*map(digests_of, ledgers.values()))
        with self._lock:
            needed = ledger_digests | {self.own_counter.digest}
            gone = [self._counters.pop(counter) for counter in self._counters.keys() - needed]
        for counter in gone:
            counter.stop()
        summed = {
            (namespace, pod) for namespace, ledger in ledgers.items() for pod in _unclassified_pods_of(ledger)
        }
        for counter in list(self._counters.values()):
            counter.keep(summed)
        if is_leader:
            self._published.prune(needed)
            for counter in list(self._counters.values()):
                self.publish(counter)
        else:
            self._published.forget()

    def stop(self) -> None:
        for counter in list(self._counters.values()):
            counter.stop()

    def _add(self, catalogue: Catalogue, *, is_own: bool = False) -> UsageCounter:
        counter = self._new_counter(catalogue)
        with self._lock:
            registered = self._counters.setdefault(counter.digest, counter)
            if is_own:  # under the lock, because `prune` would stop a counter that no ledger names
                self.own_counter = registered
        if registered is counter:
            registered.start()
        return registered


def _unclassified_pods_of(ledger: QuotaLedger) -> frozenset[UnclassifiedPods]:
    catalogue_versions = filter(None, map(CatalogueVersion.parse, ledger.catalogue_versions))
    return frozenset({ledger.unclassified_pods, *(each.unclassified_pods for each in catalogue_versions)})

"""The count of a namespace: its stored pods and claims, and what they cost, from informers of pods, claims and nodes.

A count is of what the informers have; `refresh` lists again where the protocol needs a list that began after some moment. Bound
pods are charged by the labels of their node, others by those of the nodes that they select.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import msgspec

from policies.placement.named_nodes import NamedNode
from policies.quota.catalogue import CatalogueVersion, catalogue_digest
from policies.quota.charge import Catalogues, UnclassifiedPods
from policies.quota.ledger.quota_ledger import QuotaLedger, Revisions
from policies.quota.ledger.reconcile import Listing, StoredObject
from webhook.cluster.api import ApiClient
from webhook.cluster.collection import CLUSTER
from webhook.cluster.informer import Informer, WatchTimings
from webhook.cluster.nodes import NODES, node_reader
from webhook.configuration.dynamic_resources import served_resource
from webhook.controller.gone_claims import GoneClaims
from webhook.controller.records import PODS, ClaimRecord, CountedRecord, ExtendedClaims, PodRecord
from webhook.controller.usage_log import Holding
from webhook.controller.usage_sums import UsageSums
from webhook.serving.audit_line import charged

log = logging.getLogger("gpu_admission.controller")

DELETED = StoredObject({}, terminal=True)
"""A deleted object, perhaps never counted: treated as terminal, so that its reservation does not wait to expire."""


class Counted(msgspec.Struct, frozen=True):
    """A listing, and when the older one of the lists of pods and claims behind it began."""

    listing: Listing
    list_started: float


class UsageCounter:
    """Informers of all that is counted by one catalogue.

    `changed` is called with every namespace whose count may differ, and whether the change frees quota; `ended` with the digest
    of the catalogue, and what an object held that holds nothing any more. `awaited` returns the namespaces whose counts somebody
    waits for: they are listed first.
    """

    def __init__(
        self,
        api: ApiClient,
        catalogues: Catalogues,
        changed: Callable[[str, bool], object],
        *,
        ended: Callable[[str, Holding], object] = lambda _digest, _holding: None,
        awaited: Callable[[], Iterable[str]] = tuple,
        given: ExtendedClaims | None = None,
        gone: GoneClaims | None = None,
        timings: WatchTimings | None = None,
    ) -> None:
        self.catalogues = catalogues
        self.digest = catalogue_digest(catalogues)
        self._changed, self._ended = changed, ended
        self._gone = gone or GoneClaims()
        self._stopping = threading.Event()
        self.sums = UsageSums(catalogues, given or ExtendedClaims())
        self._lock: AbstractContextManager[bool] = threading.RLock()
        """Of the sums and of all three informers: what changes in one is charged by what the others have."""
        claims, nodes = served_resource(api, "resourceclaims"), node_reader(catalogues.classes.label_keys)
        pod_reader, claim_reader = self.sums.pod_reader, self.sums.claim_reader
        watch = partial(Informer, api, timings=timings, lock=self._lock)
        self.pods: Informer[PodRecord] = watch(PODS, pod_reader.record, self._pod_changed, awaited=awaited)
        self.nodes: Informer[NamedNode] = watch(NODES, nodes, self._node_changed)
        self.claims: Informer[ClaimRecord] | None = (
            watch(claims, claim_reader.record, self._claim_changed, awaited=awaited) if claims else None
        )

    @property
    def informers(self) -> dict[str, Informer[Any]]:
        """The informers by the plural of their resource."""
        return {each.resource.plural: each for each in (self.pods, self.nodes, self.claims) if each}

    def start(self) -> None:
        for informer in self.informers.values():
            informer.start(self._stopping)

    def stop(self) -> None:
        self._stopping.set()

    @property
    def synced(self) -> bool:
        return all(informer.synced for informer in self.informers.values())

    def is_listed(self, namespace: str, since: float) -> bool:
        """Whether counts rest on lists that began at that moment or later."""
        spaces = {self.nodes.resource.plural: CLUSTER}
        return all(
            informer.position(spaces.get(name, namespace)).list_started >= since
            for name, informer in self.informers.items()
        )

    def refresh_all(self, since: float) -> None:
        """Make the counts of all namespaces rest on lists that began at that moment or later. Raises `errors.ApiError`."""
        for informer in self.informers.values():
            informer.refresh(since=since)

    def refresh(self, namespace: str, *, since: float, nodes_since: float) -> None:
        """Make counts rest on lists that began at these moments or later. Raises `errors.ApiError`."""
        self.pods.refresh(namespace, since=since)
        if self.claims is not None:
            self.claims.refresh(namespace, since=since)
        self.nodes.refresh(since=nodes_since)

    def deleted(self, namespace: str) -> frozenset[str]:
        """Return the uids of what the watches showed deleted lately."""
        return frozenset().union(*(each.deleted(namespace) for each in (self.pods, self.claims) if each))

    def count(
        self,
        namespace: str,
        ledger: QuotaLedger,
        unclassified_pods: UnclassifiedPods,
        deleted: Collection[str],
    ) -> Counted:
        """Return what is stored, by this catalogue and `unclassifiedPods`.

        `ledger` has the reservations that wait. `deleted` is what any watch showed deleted: this one may have begun later.
        """
        with self._lock:
            pods, nodes = self.pods.position(namespace), self.nodes.position()
            # Where claims are not served there are none, at the revision of the pods too.
            claims = self.claims.position(namespace) if self.claims else pods
            summed = self.sums.sum(namespace, unclassified_pods, ledger, self._gone_claims(namespace))
        settled = (each.object_uid for each in ledger.reservations if each.object_uid in deleted)
        listing = Listing(
            used=summed.used,
            objects={**dict.fromkeys(settled, DELETED), **summed.objects},
            revisions=Revisions(pods=pods.revision, resource_claims=claims.revision, nodes=nodes.revision),
            catalogue=str(CatalogueVersion(self.digest, unclassified_pods)),
            holders=summed.holders,
        )
        return Counted(listing, min(pods.list_started, claims.list_started))

    def recount(self, namespace: str) -> None:
        """Sum up everything in a namespace once more. It should change nothing."""
        with self._lock:
            is_same = self.sums.recount(namespace)
        if not is_same:
            log.error("%s: the sums of its pods and claims were not those of a full count", namespace)

    def holdings(self) -> Iterator[Holding]:
        """Yield what each stored pod and claim is charged."""
        for informer in (self.pods, self.claims):
            records: Iterable[CountedRecord] = informer.all() if informer else ()
            held = (self._holding(record) for record in records if _is_charged(record))
            yield from (each for each in held if each is not None)

    def keep(self, wanted: Collection[tuple[str, UnclassifiedPods]]) -> None:
        """Go on summing these namespaces only, each under this `unclassifiedPods`."""
        with self._lock:
            self.sums.keep(wanted)
            for namespace in self._gone.namespaces():
                self._gone_claims(namespace)

    def _gone_claims(self, namespace: str) -> dict[str, ClaimRecord]:
        """Return the claims that are gone while pods have their devices."""
        listed, deleted = self.pods.position(namespace).list_started, self.pods.deleted(namespace)

        def has_ended(uid: str, since: float) -> bool:
            # A pod that is not held is perhaps not seen yet, until a list shows that it is not there.
            pod = self.sums.pod(namespace, uid)
            return pod.is_terminal if pod is not None else uid in deleted or listed > since

        return self._gone.held(namespace, has_ended)

    # Called by the informers, with the lock held.

    def _pod_changed(self, before: PodRecord | None, after: PodRecord | None) -> None:
        self._object_changed(before, after, lambda: self.sums.pod_changed(before, after))

    def _claim_changed(self, before: ClaimRecord | None, after: ClaimRecord | None) -> None:
        if before is not None and after is None:
            self._gone.add(before)
        self._object_changed(before, after, lambda: self.sums.claim_changed(before, after))

    def _node_changed(self, before: NamedNode | None, after: NamedNode | None) -> None:
        with self._all_or_anew():
            namespaces = self.sums.node_changed(before, after)
        for namespace in namespaces:
            self._changed(namespace, False)

    def _object_changed(
        self,
        before: CountedRecord | None,
        after: CountedRecord | None,
        change: Callable[[], frozenset[str]],
    ) -> None:
        frees = _is_charged(before) and not _is_charged(after)
        # First: what it held may be by a node that is forgotten with it.
        held = self._holding(before) if before is not None and frees else None
        with self._all_or_anew():
            namespaces = change()
        if held is not None:
            self._ended(self.digest, held)
        for namespace in namespaces:
            self._changed(namespace, frees)

    @contextmanager
    def _all_or_anew(self) -> Iterator[None]:
        """Have all summed up anew where a change was summed up in part only: a bug met with one object must not admit others."""
        try:
            yield
        except Exception:
            self.sums.keep(())
            raise

    def _holding(self, record: CountedRecord) -> Holding | None:
        """Return what an object is charged; None of a claim that the scheduler made: its pod is charged."""
        if isinstance(record, ClaimRecord) and record.made_for:
            return None
        vector = self.sums.charge(record)
        kind = "Pod" if isinstance(record, PodRecord) else "ResourceClaim"
        return Holding(kind, record, charged(vector, self.catalogues.classes)) if vector else None


def _is_charged(record: CountedRecord | None) -> bool:
    return record is not None and not (isinstance(record, PodRecord) and record.is_terminal)

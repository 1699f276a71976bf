"""Counts the demand of the stored pods and claims of a namespace, from informers of pods, claims and nodes.

A count uses what the informers hold. `refresh` lists again if the protocol needs a list that began after some moment. The node of
a bound pod decides its class, and the nodes that another pod selects decide the class of that pod.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import msgspec

from policies.placement.named_nodes import NamedNode
from policies.quota.catalogue import CatalogueVersion, catalogue_digest
from policies.quota.demand import Catalogues, UnclassifiedPods
from policies.quota.ledger.quota_ledger import QuotaLedger, Revisions
from policies.quota.ledger.reconcile import Listing, StoredObject
from webhook.cluster.api import ApiClient
from webhook.cluster.collection import CLUSTER
from webhook.cluster.informer import Informer
from webhook.cluster.nodes import NODES, node_reader
from webhook.configuration.dynamic_resources import served_resource
from webhook.controller.records import PODS, ClaimHistory, ClaimRecord, CountedRecord, PodRecord
from webhook.controller.usage_log import Holding
from webhook.controller.usage_sums import UsageSums
from webhook.serving.audit import demand_fields

log = logging.getLogger("gpu_admission.controller")

DELETED = StoredObject({}, terminal=True)
"""A deleted object, which was perhaps never counted. It counts as terminal, so its reservation goes at once."""


_Change = Callable[[Any, Any], frozenset[str]]


class Counted(msgspec.Struct, frozen=True):
    """A listing, and when its older list (of pods or claims) began."""

    listing: Listing
    list_started: float


class UsageCounter:
    """The informers and sums of one catalogue.

    Calls `changed` with a namespace whose count may differ, and whether that frees quota. Calls `began` for an object that is new
    since the first list, and `ended` for one that ended, each with the digest of the catalogue and the demand of the object.
    `awaited` returns the namespaces that are listed first, because a caller waits for their counts.
    """

    def __init__(
        self,
        api: ApiClient,
        catalogues: Catalogues,
        changed: Callable[[str, bool], object],
        *,
        began: Callable[[str, Holding], object] = lambda _digest, _holding: None,
        ended: Callable[[str, Holding], object] = lambda _digest, _holding: None,
        awaited: Callable[[], Iterable[str]] = tuple,
        history: ClaimHistory | None = None,
    ) -> None:
        self.catalogues = catalogues
        self.digest = catalogue_digest(catalogues)
        self._changed, self._began, self._ended = changed, began, ended
        self._history = history or ClaimHistory()
        self._stopping = threading.Event()
        self.sums = UsageSums(catalogues, self._history)
        self._lock: AbstractContextManager[bool] = threading.RLock()
        """Shared by the sums and all three informers: the demand of an object in one depends on the others."""
        claims, nodes = served_resource(api, "resourceclaims"), node_reader(catalogues.classes.label_keys)
        reader = self.sums.reader
        watch = partial(Informer, api, lock=self._lock)
        self.pods: Informer[PodRecord] = watch(
            PODS, reader.read_pod, partial(self._object_changed, self.sums.pod_changed), awaited=awaited
        )
        self.nodes: Informer[NamedNode] = watch(NODES, nodes, self._node_changed)
        self.claims: Informer[ClaimRecord] | None = (
            watch(claims, reader.read_claim, self._claim_changed, awaited=awaited) if claims else None
        )

    @property
    def informers(self) -> dict[str, Informer[Any]]:
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
        """Whether all lists behind a count of the namespace began at `since` or later."""
        spaces = {self.nodes.resource.plural: CLUSTER}
        return all(
            informer.position(spaces.get(name, namespace)).list_started >= since
            for name, informer in self.informers.items()
        )

    def refresh_all(self, since: float) -> None:
        """List everything again, unless the lists began at `since` or later. Raises `errors.ApiError`."""
        for informer in self.informers.values():
            informer.refresh(since=since)

    def refresh(self, namespace: str, *, since: float, nodes_since: float) -> None:
        """List the namespace and the nodes again if their lists began before these moments. Raises `errors.ApiError`."""
        self.pods.refresh(namespace, since=since)
        if self.claims is not None:
            self.claims.refresh(namespace, since=since)
        self.nodes.refresh(since=nodes_since)

    def deleted(self, namespace: str) -> frozenset[str]:
        """Return the uids of the objects that the watches lately showed as deleted."""
        return frozenset().union(*(each.deleted(namespace) for each in (self.pods, self.claims) if each))

    def count(
        self,
        namespace: str,
        ledger: QuotaLedger,
        unclassified_pods: UnclassifiedPods,
        deleted: Collection[str],
    ) -> Counted:
        """Count a namespace. `deleted` are the deletions of the watches of all catalogues, because ours may have begun later."""
        with self._lock:
            pods, nodes = self.pods.position(namespace), self.nodes.position()
            # If the API server does not serve claims, there are none at the revision of the pods.
            claims = self.claims.position(namespace) if self.claims else pods
            gone = self._gone_claims(namespace)
            used, holders, objects = self.sums.sum(namespace, unclassified_pods, ledger, gone)
        settled = (each.object_uid for each in ledger.reservations if each.object_uid in deleted)
        listing = Listing(
            used=used,
            objects={**dict.fromkeys(settled, DELETED), **objects},
            revisions=Revisions(pods=pods.revision, resource_claims=claims.revision, nodes=nodes.revision),
            catalogue=str(CatalogueVersion(self.digest, unclassified_pods)),
            holders=holders,
        )
        return Counted(listing, min(pods.list_started, claims.list_started))

    def recount(self, namespace: str) -> None:
        """Sum up the namespace from its objects, and log an error if that changes the sums."""
        with self._lock:
            is_same = self.sums.recount(namespace)
        if not is_same:
            log.error("%s: the sums of its pods and claims were not those of a full count", namespace)

    def holdings(self) -> Iterator[Holding]:
        for informer in (self.pods, self.claims):
            records: Iterable[CountedRecord] = informer.all() if informer else ()
            held = (self._holding(record) for record in records if _is_counted(record))
            yield from (each for each in held if each is not None)

    def keep(self, wanted: Collection[tuple[str, UnclassifiedPods]]) -> None:
        with self._lock:
            self.sums.keep(wanted)
            for namespace in self._history.namespaces():
                self._gone_claims(namespace)

    def _gone_claims(self, namespace: str) -> dict[str, ClaimRecord]:
        listed, deleted = self.pods.position(namespace).list_started, self.pods.deleted(namespace)

        def has_ended(uid: str, since: float) -> bool:
            # The watch may not have shown an unknown pod yet. Only a later list proves that it does not exist.
            pod = self.sums.pod(namespace, uid)
            return pod.is_terminal if pod is not None else uid in deleted or listed > since

        return self._history.gone(namespace, has_ended)

    # Called by the informers, with the lock held.

    def _claim_changed(self, before: ClaimRecord | None, after: ClaimRecord | None) -> None:
        if before is not None and after is None:
            self._history.add_gone(before)
        self._object_changed(self.sums.claim_changed, before, after)

    def _node_changed(self, before: NamedNode | None, after: NamedNode | None) -> None:
        for namespace in self._summed(self.sums.node_changed, before, after):
            self._changed(namespace, False)

    def _object_changed(
        self, change: _Change, before: CountedRecord | None, after: CountedRecord | None
    ) -> None:
        frees = _is_counted(before) and not _is_counted(after)
        # Compute this first: the demand may depend on a node that is forgotten with the object.
        held = self._holding(before) if before is not None and frees else None
        namespaces = self._summed(change, before, after)
        if held is not None:
            self._ended(self.digest, held)
        # The first list is not news: the log has a line for everything that is held, in portions.
        begins = self.synced and _is_counted(after) and not _is_counted(before)
        if after is not None and begins and (new := self._holding(after)) is not None:
            self._began(self.digest, new)
        for namespace in namespaces:
            self._changed(namespace, frees)

    def _summed(self, change: _Change, before: object, after: object) -> frozenset[str]:
        """Drop all sums if a change fails halfway. The next count makes new ones, so a bug cannot lead to too low a sum."""
        try:
            return change(before, after)
        except Exception:
            self.sums.keep(())
            raise

    def _holding(self, record: CountedRecord) -> Holding | None:
        """Return the demand of an object. None without demand, and for a claim that the scheduler made for a pod."""
        if isinstance(record, ClaimRecord) and record.made_for:
            return None
        vector = self.sums.demand(record)
        kind = "Pod" if isinstance(record, PodRecord) else "ResourceClaim"
        return Holding(kind, record, demand_fields(vector, self.catalogues.classes)) if vector else None


def _is_counted(record: CountedRecord | None) -> bool:
    return record is not None and not (isinstance(record, PodRecord) and record.is_terminal)

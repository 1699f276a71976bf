"""A namespace with a quota, without an API server: what the reconciler of its ledger sees."""

from collections.abc import Mapping
from fractions import Fraction
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import CollectorRegistry

from policies.quota.catalogue import CatalogueVersion
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.quota_ledger import EXPIRY_SECONDS, QuotaLedger, Revisions
from policies.quota.ledger.reconcile import StoredObject
from tests.builders import listing, quota_ledger
from tests.webhook.quota.quota_and_ledger_object import (
    NO_LINE,
    NO_TEAMS,
    unwatched,
)
from webhook.controller.metrics import ControllerMetrics
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.controller.reconciler import QuotaReconciler
from webhook.controller.usage_counter import Counted
from webhook.quota.cluster_store import ClusterStore
from webhook.quota.store import LedgerConflict, VersionedLedger

DIGEST = "0123456789abcdef"
NEW = quota_ledger(ledger_uid="ledger", quota_uid="quota", hard={"gpus": Fraction(1)})


class Cluster:
    """A ledger, and what the informers count one after the other: these objects at these revisions."""

    def __init__(
        self,
        *revisions: Revisions,
        ledger: QuotaLedger = NEW,
        objects: Mapping[str, StoredObject] | None = None,
        conflicts: int = 0,
    ) -> None:
        self.ledger_object = VersionedLedger(ledger, "1")
        self.objects = objects or {}
        self.observed = ObservedLedgers()
        self.conflicts = conflicts
        self.another_lists = False
        self.by = BY
        self.watched: QuotaLedger | None = None
        self.reads: list[bool] = []
        self.warned: list[str] = []
        self.registry = CollectorRegistry()
        self.refreshed: list[float] = []
        self.raised: list[float] = []
        self.notes: Any = None
        self.now = 0
        counts = iter(revisions)
        self.counter: Any = SimpleNamespace(
            digest=DIGEST,
            synced=True,
            is_listed=lambda *_: True,
            refresh=lambda _namespace, **since: self.refreshed.append(min(since.values())),
            count=lambda _namespace, ledger, *_: self._counted(next(counts), ledger),
        )
        self.usage_cache: Any = SimpleNamespace(
            own_counter=self.counter,
            of=lambda _digest: self.counter,
            publish=lambda _: True,
            deleted=lambda _: frozenset(),
            refresh_claims=lambda _: None,
            claims_wait=lambda _: None,
        )

    def current(self, _namespace: str, *, fresh: bool) -> VersionedLedger:
        self.reads.append(fresh)
        return self.ledger_object

    def swap(self, _namespace: str, before: VersionedLedger, ledger: QuotaLedger) -> VersionedLedger:
        assert before == self.ledger_object
        if self.conflicts:
            self.conflicts -= 1
            raise LedgerConflict
        self.ledger_object = VersionedLedger(ledger, "2")
        self.observed.observe("team", self.ledger_object)
        return self.ledger_object

    def reconcile(self, no_quota: float = 0.0, expiry: float = EXPIRY_SECONDS) -> float | None:
        self.observed = ObservedLedgers(no_quota=no_quota, expiry=expiry)
        events: Any = SimpleNamespace(put=lambda record: self.warned.append(record.message))
        self.observed.observe("team", self.ledger_object)
        metrics = ControllerMetrics(self.registry)
        nothing: Any = None
        made: Any = QuotaReconciler(
            cast(ClusterStore, SimpleNamespace(raise_epoch=self.raised.append)),
            unwatched(self.observed, lambda _: self.watched, self.usage_cache),
            metrics,
            events,
            NO_LINE,
            *[nothing, self.notes, lambda: self.now, NO_TEAMS],
        )
        made.current, made.swap = self.current, self.swap
        if self.another_lists:
            made._listing.acquire()
        wait: float | None = made.reconcile("team")
        return wait

    def _counted(self, revisions: Revisions, ledger: QuotaLedger) -> Counted:
        found = listing(self.objects, revisions, catalogue=self.by, spending=ledger.spending)
        return Counted(found, list_started=monotonic())

    def counted(self, what: str) -> float | None:
        return self.registry.get_sample_value(f"gpu_admission_quota_{what}_total", {"namespace": "team"})


BY = str(CatalogueVersion(DIGEST, UnclassifiedPods.TOTAL_ONLY))

OLD, LATER = Revisions(pods=5, resource_claims=5, nodes=5), Revisions(pods=7, resource_claims=7, nodes=7)

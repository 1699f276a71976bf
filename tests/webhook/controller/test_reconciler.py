"""What a reconciliation writes, by counts that are given to it."""

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from policies.quota.catalogue import CatalogueVersion
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.quota_ledger import QuotaLedger, Revisions
from tests.builders import listing, quota_ledger
from webhook.controller.metrics import ControllerMetrics
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.controller.reconciler import QuotaReconciler
from webhook.controller.usage_counter import Counted
from webhook.quota.store import VersionedLedger

DIGEST = "0123456789abcdef"
NEW = quota_ledger(ledger_uid="ledger", quota_uid="quota", hard={"gpus": Fraction(1)})


class Cluster:
    """A new ledger, and what the informers count one after the other."""

    def __init__(self, *revisions: Revisions) -> None:
        self.ledger_object = VersionedLedger(NEW, "1")
        self.refreshed: list[float] = []
        counts = iter(revisions)
        self.counter: Any = SimpleNamespace(
            digest=DIGEST,
            synced=True,
            is_listed=lambda *_: True,
            refresh=lambda _namespace, since, nodes_since: self.refreshed.append(min(since, nodes_since)),
            count=lambda *_: self._counted(next(counts)),
        )
        self.usage_cache: Any = SimpleNamespace(
            own=self.counter, publish=lambda _: True, deleted=lambda _: frozenset()
        )

    def current(self, _namespace: str, *, fresh: bool) -> VersionedLedger:
        assert not fresh
        return self.ledger_object

    def has_spec(self, _namespace: str, _ledger_object: VersionedLedger) -> bool:
        return False

    def swap(self, _namespace: str, before: VersionedLedger, ledger: QuotaLedger) -> VersionedLedger:
        assert before == self.ledger_object
        self.ledger_object = VersionedLedger(ledger, "2")
        return self.ledger_object

    def reconcile(self, no_quota: float = 0.0) -> float | None:
        ledger_objects = ObservedLedgers(no_quota=no_quota)
        events: Any = SimpleNamespace(denied=lambda *_: None)
        ledger_objects.observe("team", self.ledger_object)
        metrics = ControllerMetrics(CollectorRegistry())
        keeper: Any = self
        reconciler = QuotaReconciler(keeper, self.usage_cache, ledger_objects, metrics, events)
        return reconciler.reconcile("team")

    def _counted(self, revisions: Revisions) -> Counted:
        catalogue_version = str(CatalogueVersion(DIGEST, UnclassifiedPods.TOTAL_ONLY))
        return Counted(listing({}, revisions, catalogue=catalogue_version), list_started=1.0)


def test_a_new_ledger_takes_no_count_at_no_revision() -> None:
    whole = Revisions(pods=7, resource_claims=7, nodes=7)
    cluster = Cluster(Revisions(pods=0, resource_claims=7, nodes=7), whole)

    cluster.reconcile()

    assert cluster.ledger_object.ledger.revisions == whole
    assert len(cluster.refreshed) == 3, "before each count, and after the one that was refused"


def test_a_new_ledger_needs_no_call_until_it_may_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    monkeypatch.setattr(cluster, "has_spec", lambda *_: True)
    monkeypatch.setattr(cluster, "current", None)

    wait = cluster.reconcile(no_quota=60.0)

    assert wait is not None
    assert 30 < wait <= 61

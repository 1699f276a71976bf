"""Ledgers on an API server in miniature; on a real one: tests/cluster/test_cluster_store.py."""

from typing import cast

from tests.builders import quota_ledger
from tests.cases import cases
from tests.webhook.quota.quota_and_ledger_object import INSTALLATION, NAMESPACE, QuotaAndLedger
from webhook.cluster.api import ApiClient
from webhook.quota.cluster_store import ClusterStore


@cases(
    ("gpus", "has_ledger", "want"),
    neither=(None, False, False),
    its_quota_is_gone=(None, True, True),
    its_quota_is_there=(4, True, False),
)
def test_a_ledger_is_discarded_after_its_quota(gpus: int | None, has_ledger: bool, want: bool) -> None:
    around = QuotaAndLedger(gpus)
    if has_ledger:
        around.write(quota_ledger())

    assert ClusterStore(cast(ApiClient, around), INSTALLATION).discard(NAMESPACE, 1.0) is want
    assert (around.ledger is not None) is (has_ledger and not want)

"""Ledgers on an API server in miniature; on a real one: tests/cluster/test_cluster_store.py."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from policies.quota.quota_request import LedgerError
from tests.builders import quota_ledger
from tests.cases import cases
from tests.webhook.quota.quota_and_ledger_object import INSTALLATION, NAMESPACE, QuotaAndLedger
from webhook.cluster import errors
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


@cases(
    ("failure", "want"),
    the_kind_is_not_installed=(
        errors.NotFound("404 page not found"),
        "the API server does not know the kind gpuquotaledgers.gpu-admission.dev: 404 page not found",
    ),
    no_right=(errors.Forbidden("may not"), "the ledger of the quota could not be read: may not"),
)
def test_a_ledger_that_could_not_be_read(failure: errors.ApiError, want: str) -> None:
    def fail(*_: Any, **__: Any) -> bytes:
        raise failure

    with pytest.raises(LedgerError) as raised:
        ClusterStore(cast(ApiClient, SimpleNamespace(get=fail)), INSTALLATION).epoch(1.0)

    assert str(raised.value) == want

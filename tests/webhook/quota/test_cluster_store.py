"""Ledgers on an API server in miniature; on a real one: tests/cluster/test_cluster_store.py."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from policies.quota.quota_request import LedgerError
from tests.builders import quota_ledger
from tests.cases import cases
from tests.webhook.cluster.apiserver import Answer, ApiServer, status
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


READ = "the ledger of the quota could not be read: GET /apis/gpu-admission.dev/v1alpha1/namespaces/team/gpuquotas/default"
STUCK = threading.Event()


@cases(
    ("answer", "seconds", "want"),
    silence=(Answer(stream=[], wait=STUCK), 0.05, f"{READ}: the API server did not answer in time"),
    no_time_left=(Answer(), 0.0, f"{READ}: the API server did not answer in time"),
    a_cut=(Answer(cut=True), 5.0, f"{READ}: the API server closed the connection"),
    a_page=(Answer(b"<html>log in</html>"), 5.0, "the API server sent an answer that cannot be read"),
    another_form=(
        Answer(b'{"spec": 7, "metadata": 1}'),
        5.0,
        "the API server sent an answer that cannot be read",
    ),
    overload=(status(503, "etcd is away"), 5.0, "the ledger of the quota could not be read: etcd is away"),
    no_right=(status(403, "may not"), 5.0, "the ledger of the quota could not be read: may not"),
    a_proxy=(
        Answer(b"<h1>Bad Gateway</h1>", 502),
        5.0,
        "the ledger of the quota could not be read: HTTP 502",
    ),
)
def test_each_fault_is_said_in_the_words_of_who_reads_a_denial(
    answer: Answer, seconds: float, want: str, tmp_path: Path
) -> None:
    with ApiServer(tmp_path, lambda _: answer) as server:
        with pytest.raises(LedgerError) as raised:
            ClusterStore(server.client(), INSTALLATION).read_desired("team", seconds)
        STUCK.set()

    assert str(raised.value) == want

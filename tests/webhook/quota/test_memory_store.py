"""The store without a cluster."""

import pytest

from tests.webhook.quota.contract import StoreContract, read, reserve
from tests.webhook.quota.ledgers import MemoryLedger, configuration
from tests.webhook.quota.world import NAMESPACE, SECONDS, vector
from webhook.quota.store import Gone


@pytest.fixture
def ledger() -> MemoryLedger:
    return MemoryLedger(vector(gpus=4))


class TestMemoryStore(StoreContract):
    pass


def test_it_begins_at_zero_and_initialised(ledger: MemoryLedger) -> None:
    row = read(ledger).row
    assert (row.used, row.uncounted, row.class_catalogue) == (vector(gpus=0), (), ledger.catalogue)


def test_a_class_that_is_granted_later_counts_what_is_held_already(ledger: MemoryLedger) -> None:
    reserve(ledger, read(ledger), "pod1")
    ledger.grant(vector(gpus=4, **{"nvidia-t4": 1}))
    row = read(ledger).row
    assert (row.uncounted, row.entries.demand) == ((), vector(gpus=1))


@pytest.mark.parametrize(
    ("deleted", "left"),
    [
        pytest.param("pod1", [], id="the-pod-itself"),
        pytest.param("pod", ["pod1"], id="a-pod-whose-uid-begins-alike"),
    ],
)
def test_a_deleted_object_gives_back(ledger: MemoryLedger, deleted: str, left: list[str]) -> None:
    before = reserve(ledger, read(ledger), "pod1")
    ledger.store.release(NAMESPACE, deleted)
    after = read(ledger)
    assert [entry.id for entry in after.row.entries] == left
    assert (after.version != before.version) is (not left)


def test_a_namespace_whose_quota_is_gone(ledger: MemoryLedger) -> None:
    before = reserve(ledger, read(ledger), "pod1")
    ledger.configuration = configuration()
    assert ledger.store.read(NAMESPACE, SECONDS) is None
    with pytest.raises(Gone, match="namespace ledgers has no GPUQuota any more"):
        reserve(ledger, before, "pod2")
    ledger.grant(vector(gpus=4))
    assert [entry.id for entry in read(ledger).row.entries] == ["pod1"]

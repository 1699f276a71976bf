"""The store without a cluster."""

import pytest

from tests.cases import cases
from tests.webhook.quota.contract import StoreContract, read, reserve
from tests.webhook.quota.ledgers import MemoryLedger, configuration
from tests.webhook.quota.world import NAMESPACE, SECONDS, vector
from webhook.quota.store import LedgerConflict, VersionedLedger


@pytest.fixture
def ledger() -> MemoryLedger:
    return MemoryLedger(vector(gpus=4))


class TestMemoryStore(StoreContract):
    pass


def test_it_begins_at_zero_and_initialised(ledger: MemoryLedger) -> None:
    begun = read(ledger).ledger
    assert (begun.used, begun.uncounted, begun.class_catalogue) == (vector(gpus=0), (), ledger.catalogue)


def test_a_class_that_is_granted_later_counts_what_is_held_already(ledger: MemoryLedger) -> None:
    reserve(ledger, read(ledger), "pod1")
    ledger.grant(vector(gpus=4, **{"nvidia-t4": 1}))
    granted = read(ledger).ledger
    assert (granted.uncounted, granted.reserved) == ((), vector(gpus=1))


@cases(("deleted", "left"), the_pod_itself=("pod1", []), a_pod_whose_uid_begins_alike=("pod", ["pod1"]))
def test_a_deleted_object_gives_back(ledger: MemoryLedger, deleted: str, left: list[str]) -> None:
    before = reserve(ledger, read(ledger), "pod1")
    ledger.store.release(NAMESPACE, deleted)
    after = read(ledger)
    assert [reservation.id for reservation in after.ledger.reservations] == left
    assert (after.version != before.version) is (not left)


def test_a_namespace_whose_quota_is_gone(ledger: MemoryLedger) -> None:
    before = reserve(ledger, read(ledger), "pod1")
    ledger.configuration = configuration()
    assert ledger.store.read(NAMESPACE, SECONDS) is None
    with pytest.raises(LedgerConflict) as gone:
        reserve(ledger, before, "pod2")
    assert str(gone.value) == "namespace ledgers has no GPUQuota any more"
    ledger.grant(vector(gpus=4))
    with pytest.raises(LedgerConflict) as changed:
        reserve(ledger, VersionedLedger(before.ledger, "0"), "pod2")
    assert str(changed.value) == f"version 0 has become {read(ledger).version}"
    assert [reservation.id for reservation in read(ledger).ledger.reservations] == ["pod1"]

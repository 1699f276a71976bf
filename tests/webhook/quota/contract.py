"""What every store has to do; each has a test module that runs these on it."""

import msgspec
import pytest

from policies.quota.ledger.decide import decide
from tests.reservation_requests import change_request, creation_request
from tests.webhook.quota.world import NAMESPACE, SECONDS, Ledger, vector
from webhook.quota.store import LedgerConflict, VersionedLedger


class StoreContract:
    """Subclasses give the fixture `ledger`: an initialised one that grants four GPUs."""

    def test_a_namespace_without_a_quota_reads_as_none(self, ledger: Ledger) -> None:
        assert ledger.store.read("elsewhere", SECONDS) is None

    def test_what_was_swapped_in_is_read(self, ledger: Ledger) -> None:
        after = reserve(ledger, read(ledger), "pod1")
        assert read(ledger) == after
        assert [reservation.id for reservation in after.ledger.reservations] == ["pod1"]

    def test_equal_ledgers_have_equal_versions(self, ledger: Ledger) -> None:
        assert read(ledger) == read(ledger)

    def test_the_second_of_two_swaps_on_one_version_conflicts(self, ledger: Ledger) -> None:
        before = read(ledger)
        reserve(ledger, before, "pod1")
        with pytest.raises(LedgerConflict):
            reserve(ledger, before, "pod2")
        assert [reservation.id for reservation in read(ledger).ledger.reservations] == ["pod1"]

    def test_a_changed_grant_conflicts_with_a_decision_on_the_old_one(self, ledger: Ledger) -> None:
        before = read(ledger)
        ledger.grant(vector(gpus=1))
        with pytest.raises(LedgerConflict):
            reserve(ledger, before, "pod1")
        assert read(ledger).ledger.hard == vector(gpus=1)

    def test_a_changed_grant_keeps_what_is_promised(self, ledger: Ledger) -> None:
        reserve(ledger, read(ledger), "pod1")
        generation = read(ledger).ledger.generation
        ledger.grant(vector(gpus=1))
        kept = read(ledger).ledger
        assert [reservation.id for reservation in kept.reservations] == ["pod1"]
        assert kept.generation > generation

    def test_changes_come_back_with_their_versions(self, ledger: Ledger) -> None:
        before = read(ledger)
        half, more = vector(gpus="1/2"), vector(gpus="5/7")
        change = change_request("pod1", "r1", half, more, ledger.catalogue, version=4711)
        decided = decide(before.ledger, [change])
        ledger.store.compare_and_swap(NAMESPACE, before, decided.ledger, SECONDS)
        (reservation,) = read(ledger).ledger.reservations
        assert (reservation.id, reservation.demand, reservation.version) == (
            "pod1/r1",
            vector(gpus="3/14"),
            4711,
        )

    def test_names_and_marks_come_back_from_a_ledger_that_moves(self, ledger: Ledger) -> None:
        before = read(ledger)
        moving = msgspec.structs.replace(before.ledger, next_catalogue="5e1f/TotalOnly")
        catalogue_versions = (ledger.catalogue, "5e1f/TotalOnly")
        pod = creation_request("pod1", vector(gpus=1), *catalogue_versions, name="pods/train-0")
        ledger.store.compare_and_swap(NAMESPACE, before, decide(moving, [pod]).ledger, SECONDS)

        found = read(ledger).ledger
        assert found.next_catalogue == "5e1f/TotalOnly"
        assert [(each.name, each.catalogue) for each in found.reservations] == [
            ("pods/train-0", "5e1f/TotalOnly")
        ]


def read(ledger: Ledger) -> VersionedLedger:
    before = ledger.store.read(NAMESPACE, SECONDS)
    assert before is not None
    return before


def reserve(ledger: Ledger, before: VersionedLedger, uid: str) -> VersionedLedger:
    decided = decide(before.ledger, [creation_request(uid, vector(gpus=1), ledger.catalogue)])
    assert decided.verdicts[0].allowed
    return ledger.store.compare_and_swap(NAMESPACE, before, decided.ledger, SECONDS)

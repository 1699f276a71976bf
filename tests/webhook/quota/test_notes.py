"""Notes of denials in a row: merged, bounded, left by swap, and never for another quota."""

import pytest
from msgspec.structs import replace

from policies.quota.charge import UnclassifiedPods
from policies.quota.charge_request import LedgerError
from policies.quota.ledger.quota_ledger import DenialNote, QuotaLedger
from tests.webhook.quota.world import NAMESPACE
from webhook.quota.cluster_store import NO_LEDGER_OBJECT
from webhook.quota.notes import ATTEMPTS, MOST_CHARACTERS, MOST_NOTES, leave_notes, together
from webhook.quota.store import LedgerConflict, QuotaGone, VersionedLedger

EIGHT, NINE = "2026-11-22T08:00:00Z", "2026-11-22T09:00:00Z"


def note(owner: str = "Job/train", message: str = "too many", at: str = EIGHT, count: int = 1) -> DenialNote:
    return DenialNote(owner, "Refused", message, at, at, count)


def test_notes_of_one_owner_are_one() -> None:
    earlier, later = note(count=2), note(message="pod train-9: too many", at=NINE, count=3)
    assert together([earlier], [later]) == (replace(later, first=EIGHT, count=5),)


def test_other_owners_and_other_reasons_have_notes_of_their_own() -> None:
    given = [note("a"), note("b"), replace(note("a"), reason="CanNeverFit")]
    assert together(given[:1], given[1:]) == tuple(given)


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        pytest.param("short", MOST_NOTES, id="by-number"),
        pytest.param("x" * 1_000, MOST_CHARACTERS // 1_010, id="by-length"),
        pytest.param("x" * 100_000, MOST_CHARACTERS // 1_030, id="long-ones-are-cut"),
    ],
)
def test_notes_that_nobody_takes_out_are_bounded(message: str, kept: int) -> None:
    found: tuple[DenialNote, ...] = ()
    for number in range(3 * MOST_NOTES):
        found = together(found, [note(f"Job/{number}", message)])
    assert [each.owner for each in found] == [f"Job/{number}" for number in range(kept)]


class LedgerObject:
    """A store of one ledger. The next writes meet `troubles`, and the ledger is as `before` until one gets through."""

    reservations_limit = 1_000

    def __init__(self, *troubles: Exception, version: str = "1") -> None:
        self.troubles = list(troubles)
        self.now = VersionedLedger(
            QuotaLedger(quota_uid="u", generation=1, hard={}, unclassified_pods=UnclassifiedPods.TOTAL_ONLY),
            version,
        )
        self.writes = 0

    def read(self, _namespace: str, seconds: float) -> VersionedLedger | None:
        assert seconds > 0
        return self.now

    def compare_and_swap(
        self, _namespace: str, before: VersionedLedger, ledger: QuotaLedger, seconds: float
    ) -> VersionedLedger:
        assert seconds > 0
        assert before == self.now
        self.writes += 1
        if self.troubles:
            raise self.troubles.pop(0)
        self.now = VersionedLedger(ledger, "2")
        return self.now


def leave(ledger_object: LedgerObject, quota_uid: str = "u", seconds: float = 60.0) -> None:
    leave_notes(ledger_object, NAMESPACE, quota_uid, [note()], seconds=seconds)


def test_a_note_is_left_beside_what_is_there() -> None:
    ledger_object = LedgerObject()
    ledger_object.now = VersionedLedger(replace(ledger_object.now.ledger, denials=(note("Job/other"),)), "1")
    before = ledger_object.now.ledger
    leave(ledger_object)
    assert ledger_object.now.ledger == replace(before, denials=(note("Job/other"), note()))


def test_a_swap_that_fails_is_tried_again_by_the_row_of_then() -> None:
    ledger_object = LedgerObject(LedgerConflict("somebody wrote"), LedgerConflict("and again"))
    leave(ledger_object)
    assert (ledger_object.writes, ledger_object.now.ledger.denials) == (3, (note(),))


def test_after_some_conflicts_it_is_given_up() -> None:
    ledger_object = LedgerObject(*[LedgerConflict("somebody wrote")] * 100)
    with pytest.raises(LedgerError, match="wrote first"):
        leave(ledger_object)
    assert ledger_object.writes == ATTEMPTS


@pytest.mark.parametrize(
    ("ledger_object", "quota_uid"),
    [
        pytest.param(LedgerObject(), "another", id="another-quota"),
        pytest.param(LedgerObject(version=NO_LEDGER_OBJECT), "u", id="no-row-yet"),
        pytest.param(LedgerObject(QuotaGone("deleted")), "u", id="a-row-that-goes"),
    ],
)
def test_a_row_that_is_not_there_gets_none(ledger_object: LedgerObject, quota_uid: str) -> None:
    leave(ledger_object, quota_uid)
    assert ledger_object.now.ledger.denials == ()


def test_without_time_nothing_is_asked() -> None:
    ledger_object = LedgerObject()
    with pytest.raises(LedgerError, match="no time"):
        leave(ledger_object, seconds=0.0)
    assert ledger_object.writes == 0

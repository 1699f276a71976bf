"""When an entry has been in sight for long enough: by this process's own clock, and never too early."""

import itertools
from fractions import Fraction
from time import monotonic, sleep

import pytest

from policies.quota.charge import Unpinned
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import Reservation, Reservations
from webhook.controller.observed_rows import ObservedRows
from webhook.quota.store import VersionedLedger

EXPIRY = 0.2


_versions = itertools.count(1)


def row(
    *ids: str, row: str = "row", uid: str = "quota", generation: int = 1, lines: str = "", version: int = 0
) -> VersionedLedger:
    """Return a row with these reservations, newer than all before unless `version` says otherwise."""
    entries = Reservations.of(*(Reservation(each, {"gpus": Fraction(1)}) for each in ids))
    ledger = QuotaLedger(
        row_uid=row,
        quota_uid=uid,
        generation=generation,
        hard={},
        unpinned=Unpinned.TOTAL_ONLY,
        reservations=Reservations.parse(lines) if lines else entries,
    )
    return VersionedLedger(ledger, str(version or next(_versions)))


@pytest.fixture
def rows() -> ObservedRows:
    return ObservedRows(expiry=EXPIRY, no_quota=0.1)


def test_an_entry_matures_after_the_bound(rows: ObservedRows) -> None:
    rows.observe("team", row("pod"))
    seen = monotonic()

    assert rows.expired("team", seen + EXPIRY - 0.1) == frozenset()
    assert rows.expired("team", seen + EXPIRY) == {"pod"}


def test_a_line_that_cannot_be_read_matures_like_a_reservation(rows: ObservedRows) -> None:
    rows.observe("team", row(lines="gpus=1 | x x"))
    seen = monotonic()

    assert rows.expired("team", seen + EXPIRY - 0.1) == frozenset()
    assert rows.expired("team", seen + EXPIRY) == {"unreadable gpus=1 | x x"}
    assert rows.next_expiry("team") is not None


def test_seeing_it_again_changes_nothing(rows: ObservedRows) -> None:
    rows.observe("team", row("pod"))
    seen = monotonic()
    sleep(0.05)
    rows.observe("team", row("pod", "other"))

    assert rows.expired("team", seen + EXPIRY) == {"pod"}


@pytest.mark.parametrize(
    ("ids", "uid"),
    [pytest.param([], "row", id="gone-in-between"), pytest.param(["pod"], "another row", id="another-row")],
)
def test_what_came_back_waits_the_whole_bound_again(rows: ObservedRows, ids: list[str], uid: str) -> None:
    rows.observe("team", row("pod"))
    seen = monotonic()
    sleep(0.02)
    rows.observe("team", row(*ids, row=uid))
    rows.observe("team", row("pod"))

    assert rows.expired("team", seen + EXPIRY) == frozenset()


def test_another_quota_in_the_same_row_changes_no_ages(rows: ObservedRows) -> None:
    rows.observe("team", row("pod"))
    seen, first = monotonic(), rows.spec_since("team")
    sleep(0.02)
    rows.observe("team", row("pod", uid="another quota"))

    assert rows.expired("team", seen + EXPIRY) == {"pod"}
    assert rows.spec_since("team") > first


def test_the_next_maturity_is_that_of_the_oldest(rows: ObservedRows) -> None:
    assert rows.next_expiry("team") is None
    rows.observe("team", row("old"))
    sleep(0.05)
    rows.observe("team", row("old", "new"))

    left = rows.next_expiry("team")
    assert left is not None
    assert left <= EXPIRY - 0.05


def test_a_changed_spec_counts_as_read_anew_but_is_the_same_row(rows: ObservedRows) -> None:
    rows.observe("team", row())
    first, initialization_wait = rows.spec_since("team"), rows.initialization_wait("team")
    sleep(0.02)
    rows.observe("team", row(generation=2))

    assert rows.spec_since("team") > first
    assert rows.initialization_wait("team") < initialization_wait


def test_a_row_that_is_made_again_waits_again(rows: ObservedRows) -> None:
    rows.observe("team", row())
    sleep(0.02)
    before = monotonic()
    rows.observe("team", row(row="another row"))

    assert rows.spec_since("team") >= before
    assert rows.initialization_wait("team") > 0.09


def test_what_was_never_seen_waits(rows: ObservedRows) -> None:
    assert rows.initialization_wait("team") == 0.1
    assert rows.spec_since("team") <= monotonic()
    assert rows.expired("team", monotonic() + 60) == frozenset()


def test_an_older_version_that_arrives_later_is_not_recorded(rows: ObservedRows) -> None:
    old, new = row("pod", version=9), row(version=10)
    rows.observe("team", new)
    rows.observe("team", old)

    assert rows.get("team") == new
    assert rows.next_expiry("team") is None


def test_a_deletion_forgets_that_row_and_not_the_one_in_its_place(rows: ObservedRows) -> None:
    rows.observe("team", row())
    made_again = row(row="another row")
    rows.observe("team", made_again)
    rows.forget("team", "row")
    assert rows.ledgers() == {"team": made_again.ledger}

    rows.forget("team", "another row")
    assert (rows.get("team"), rows.ledgers()) == (None, {})

"""When an entry has been in sight for long enough: by this process's own clock, and never too early."""

import itertools
from fractions import Fraction

import pytest

from policies.quota.charge import Unpinned
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import Reservation, Reservations
from webhook.controller import observed_rows
from webhook.controller.observed_rows import ObservedRows
from webhook.quota.store import VersionedLedger

EXPIRY, NO_QUOTA = 40.0, 5.0

_versions = itertools.count(1)


class Clock:
    """The clock of the process, which stands still between steps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


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
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(observed_rows, "monotonic", clock)
    return clock


@pytest.fixture
def rows(clock: Clock) -> ObservedRows:  # noqa: ARG001 - it goes by that clock
    return ObservedRows(expiry=EXPIRY, no_quota=NO_QUOTA)


def test_an_entry_matures_after_the_bound(rows: ObservedRows, clock: Clock) -> None:
    rows.observe("team", row("pod"))
    seen = clock.now

    assert rows.expired("team", seen + EXPIRY - 0.1) == frozenset()
    assert rows.expired("team", seen + EXPIRY) == {"pod"}


def test_a_line_that_cannot_be_read_matures_like_a_reservation(rows: ObservedRows, clock: Clock) -> None:
    rows.observe("team", row(lines="gpus=1 | x x"))
    seen = clock.now

    assert rows.expired("team", seen + EXPIRY - 0.1) == frozenset()
    assert rows.expired("team", seen + EXPIRY) == {"unreadable gpus=1 | x x"}
    assert rows.next_expiry("team") is not None


def test_seeing_it_again_changes_nothing(rows: ObservedRows, clock: Clock) -> None:
    rows.observe("team", row("pod"))
    seen = clock.now
    clock.sleep(2)
    rows.observe("team", row("pod", "other"))

    assert rows.expired("team", seen + EXPIRY) == {"pod"}


@pytest.mark.parametrize(
    ("ids", "uid"),
    [pytest.param([], "row", id="gone-in-between"), pytest.param(["pod"], "another row", id="another-row")],
)
def test_what_came_back_waits_the_whole_bound_again(
    rows: ObservedRows, clock: Clock, ids: list[str], uid: str
) -> None:
    rows.observe("team", row("pod"))
    seen = clock.now
    clock.sleep(2)
    rows.observe("team", row(*ids, row=uid))
    rows.observe("team", row("pod"))

    assert rows.expired("team", seen + EXPIRY) == frozenset()


def test_another_quota_in_the_same_row_changes_no_ages(rows: ObservedRows, clock: Clock) -> None:
    rows.observe("team", row("pod"))
    seen, first = clock.now, rows.spec_since("team")
    clock.sleep(2)
    rows.observe("team", row("pod", uid="another quota"))

    assert rows.expired("team", seen + EXPIRY) == {"pod"}
    assert rows.spec_since("team") > first


def test_the_next_maturity_is_that_of_the_oldest(rows: ObservedRows, clock: Clock) -> None:
    assert rows.next_expiry("team") is None
    rows.observe("team", row("old"))
    clock.sleep(2)
    rows.observe("team", row("old", "new"))

    assert rows.next_expiry("team") == EXPIRY - 2


def test_a_changed_spec_counts_as_read_anew_but_is_the_same_row(rows: ObservedRows, clock: Clock) -> None:
    rows.observe("team", row())
    clock.sleep(2)
    rows.observe("team", row(generation=2))

    assert rows.spec_since("team") == clock.now
    assert rows.initialization_wait("team") == NO_QUOTA - 2


def test_a_row_that_is_made_again_waits_again(rows: ObservedRows, clock: Clock) -> None:
    rows.observe("team", row())
    clock.sleep(2)
    rows.observe("team", row(row="another row"))

    assert rows.spec_since("team") == clock.now
    assert rows.initialization_wait("team") == NO_QUOTA


def test_what_was_never_seen_waits(rows: ObservedRows, clock: Clock) -> None:
    assert rows.initialization_wait("team") == NO_QUOTA
    assert rows.spec_since("team") == clock.now
    assert rows.expired("team", clock.now + 60) == frozenset()


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

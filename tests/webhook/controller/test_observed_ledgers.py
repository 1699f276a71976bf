"""When an entry has been in sight for long enough: by this process's own clock, and never too early."""

import itertools
from fractions import Fraction

import pytest

from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import Reservation, Reservations
from webhook.controller import observed_ledgers
from webhook.controller.observed_ledgers import ObservedLedgers
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


def ledger_object(
    *ids: str,
    ledger_object: str = "row",
    uid: str = "quota",
    generation: int = 1,
    lines: str = "",
    version: int = 0,
) -> VersionedLedger:
    """Return a ledger with these reservations, newer than all before unless `version` says otherwise."""
    entries = Reservations.of(*(Reservation(each, {"gpus": Fraction(1)}) for each in ids))
    ledger = QuotaLedger(
        ledger_uid=ledger_object,
        quota_uid=uid,
        generation=generation,
        hard={},
        unclassified_pods=UnclassifiedPods.TOTAL_ONLY,
        reservations=Reservations.parse(lines) if lines else entries,
    )
    return VersionedLedger(ledger, str(version or next(_versions)))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(observed_ledgers, "monotonic", clock)
    return clock


@pytest.fixture
def ledger_objects(clock: Clock) -> ObservedLedgers:  # noqa: ARG001 - it goes by that clock
    return ObservedLedgers(expiry=EXPIRY, no_quota=NO_QUOTA)


def test_an_entry_matures_after_the_bound(ledger_objects: ObservedLedgers, clock: Clock) -> None:
    ledger_objects.observe("team", ledger_object("pod"))
    seen = clock.now

    assert ledger_objects.expired("team", seen + EXPIRY - 0.1) == frozenset()
    assert ledger_objects.expired("team", seen + EXPIRY) == {"pod"}


def test_a_line_that_cannot_be_read_matures_like_a_reservation(
    ledger_objects: ObservedLedgers, clock: Clock
) -> None:
    ledger_objects.observe("team", ledger_object(lines="gpus=1 | x x"))
    seen = clock.now

    assert ledger_objects.expired("team", seen + EXPIRY - 0.1) == frozenset()
    assert ledger_objects.expired("team", seen + EXPIRY) == {"unreadable gpus=1 | x x"}
    assert ledger_objects.next_expiry("team") is not None


def test_seeing_it_again_changes_nothing(ledger_objects: ObservedLedgers, clock: Clock) -> None:
    ledger_objects.observe("team", ledger_object("pod"))
    seen = clock.now
    clock.sleep(2)
    ledger_objects.observe("team", ledger_object("pod", "other"))

    assert ledger_objects.expired("team", seen + EXPIRY) == {"pod"}


@pytest.mark.parametrize(
    ("ids", "uid"),
    [pytest.param([], "row", id="gone-in-between"), pytest.param(["pod"], "another row", id="another-row")],
)
def test_what_came_back_waits_the_whole_bound_again(
    ledger_objects: ObservedLedgers, clock: Clock, ids: list[str], uid: str
) -> None:
    ledger_objects.observe("team", ledger_object("pod"))
    seen = clock.now
    clock.sleep(2)
    ledger_objects.observe("team", ledger_object(*ids, ledger_object=uid))
    ledger_objects.observe("team", ledger_object("pod"))

    assert ledger_objects.expired("team", seen + EXPIRY) == frozenset()


def test_another_quota_in_the_same_row_changes_no_ages(ledger_objects: ObservedLedgers, clock: Clock) -> None:
    ledger_objects.observe("team", ledger_object("pod"))
    seen, first = clock.now, ledger_objects.spec_since("team")
    clock.sleep(2)
    ledger_objects.observe("team", ledger_object("pod", uid="another quota"))

    assert ledger_objects.expired("team", seen + EXPIRY) == {"pod"}
    assert ledger_objects.spec_since("team") > first


def test_the_next_maturity_is_that_of_the_oldest(ledger_objects: ObservedLedgers, clock: Clock) -> None:
    assert ledger_objects.next_expiry("team") is None
    ledger_objects.observe("team", ledger_object("old"))
    clock.sleep(2)
    ledger_objects.observe("team", ledger_object("old", "new"))

    assert ledger_objects.next_expiry("team") == EXPIRY - 2


def test_a_changed_spec_counts_as_read_anew_but_is_the_same_row(
    ledger_objects: ObservedLedgers, clock: Clock
) -> None:
    ledger_objects.observe("team", ledger_object())
    clock.sleep(2)
    ledger_objects.observe("team", ledger_object(generation=2))

    assert ledger_objects.spec_since("team") == clock.now
    assert ledger_objects.initialization_wait("team") == NO_QUOTA - 2


def test_a_row_that_is_made_again_waits_again(ledger_objects: ObservedLedgers, clock: Clock) -> None:
    ledger_objects.observe("team", ledger_object())
    clock.sleep(2)
    ledger_objects.observe("team", ledger_object(ledger_object="another row"))

    assert ledger_objects.spec_since("team") == clock.now
    assert ledger_objects.initialization_wait("team") == NO_QUOTA


def test_what_was_never_seen_waits(ledger_objects: ObservedLedgers, clock: Clock) -> None:
    assert ledger_objects.initialization_wait("team") == NO_QUOTA
    assert ledger_objects.spec_since("team") == clock.now
    assert ledger_objects.expired("team", clock.now + 60) == frozenset()


def test_an_older_version_that_arrives_later_is_not_recorded(ledger_objects: ObservedLedgers) -> None:
    old, new = ledger_object("pod", version=9), ledger_object(version=10)
    ledger_objects.observe("team", new)
    ledger_objects.observe("team", old)

    assert ledger_objects.get("team") == new
    assert ledger_objects.next_expiry("team") is None


def test_a_deletion_forgets_that_row_and_not_the_one_in_its_place(ledger_objects: ObservedLedgers) -> None:
    ledger_objects.observe("team", ledger_object())
    made_again = ledger_object(ledger_object="another row")
    ledger_objects.observe("team", made_again)
    ledger_objects.forget("team", "row")
    assert ledger_objects.ledgers() == {"team": made_again.ledger}

    ledger_objects.forget("team", "another row")
    assert (ledger_objects.get("team"), ledger_objects.ledgers()) == (None, {})

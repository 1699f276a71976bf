"""When an entry has been in sight for long enough: by this process's own clock, and never too early."""

from fractions import Fraction
from time import monotonic, sleep

import msgspec
import pytest

from policies.quota.charge import Unpinned
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import Reservation, Reservations
from webhook.controller.reservation_ages import ReservationAges

EXPIRY = 0.2


def ledger(*ids: str, uid: str = "quota", generation: int = 1) -> QuotaLedger:
    entries = Reservations.of(*(Reservation(each, {"gpus": Fraction(1)}) for each in ids))
    return QuotaLedger(
        quota_uid=uid, generation=generation, hard={}, unpinned=Unpinned.TOTAL_ONLY, reservations=entries
    )


@pytest.fixture
def ages() -> ReservationAges:
    return ReservationAges(expiry=EXPIRY, no_quota=0.1)


def test_an_entry_matures_after_the_bound(ages: ReservationAges) -> None:
    ages.observe("team", ledger("pod"))
    seen = monotonic()

    assert ages.expired("team", seen + EXPIRY - 0.1) == frozenset()
    assert ages.expired("team", seen + EXPIRY) == {"pod"}


def test_a_line_that_cannot_be_read_matures_like_a_reservation(ages: ReservationAges) -> None:
    damaged = msgspec.structs.replace(ledger(), reservations=Reservations.parse("gpus=1 | x x"))
    ages.observe("team", damaged)
    seen = monotonic()

    assert ages.expired("team", seen + EXPIRY - 0.1) == frozenset()
    assert ages.expired("team", seen + EXPIRY) == {"unreadable gpus=1 | x x"}
    assert ages.next_expiry("team") is not None


def test_seeing_it_again_changes_nothing(ages: ReservationAges) -> None:
    ages.observe("team", ledger("pod"))
    seen = monotonic()
    sleep(0.05)
    ages.observe("team", ledger("pod", "other"))

    assert ages.expired("team", seen + EXPIRY) == {"pod"}


@pytest.mark.parametrize(
    "between",
    [
        pytest.param(ledger(), id="gone-in-between"),
        pytest.param(ledger("pod", uid="another quota"), id="another-quota-object"),
    ],
)
def test_what_came_back_waits_the_whole_bound_again(ages: ReservationAges, between: QuotaLedger) -> None:
    ages.observe("team", ledger("pod"))
    seen = monotonic()
    sleep(0.02)
    ages.observe("team", between)
    ages.observe("team", ledger("pod"))

    assert ages.expired("team", seen + EXPIRY) == frozenset()


def test_the_next_maturity_is_that_of_the_oldest(ages: ReservationAges) -> None:
    assert ages.next_expiry("team") is None
    ages.observe("team", ledger("old"))
    sleep(0.05)
    ages.observe("team", ledger("old", "new"))

    left = ages.next_expiry("team")
    assert left is not None
    assert left <= EXPIRY - 0.05


def test_a_changed_spec_counts_as_read_anew_but_is_the_same_quota(ages: ReservationAges) -> None:
    ages.observe("team", ledger())
    first, initialization_wait = ages.generation_since("team"), ages.initialization_wait("team")
    sleep(0.02)
    ages.observe("team", msgspec.structs.replace(ledger(), generation=2))

    assert ages.generation_since("team") > first
    assert ages.initialization_wait("team") < initialization_wait


def test_what_was_never_seen_waits(ages: ReservationAges) -> None:
    assert ages.initialization_wait("team") == 0.1
    assert ages.generation_since("team") <= monotonic()
    assert ages.expired("team", monotonic() + 60) == frozenset()

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


def row(*ids: str, uid: str = "quota", generation: int = 1) -> QuotaLedger:
    entries = Reservations.of(*(Reservation(each, {"gpus": Fraction(1)}) for each in ids))
    return QuotaLedger(
        quota_uid=uid, generation=generation, hard={}, unpinned=Unpinned.TOTAL_ONLY, reservations=entries
    )


@pytest.fixture
def sights() -> ReservationAges:
    return ReservationAges(expiry=EXPIRY, no_quota=0.1)


def test_an_entry_matures_after_the_bound(sights: ReservationAges) -> None:
    sights.see("team", row("pod"))
    seen = monotonic()

    assert sights.matured("team", seen + EXPIRY - 0.1) == frozenset()
    assert sights.matured("team", seen + EXPIRY) == {"pod"}


def test_seeing_it_again_changes_nothing(sights: ReservationAges) -> None:
    sights.see("team", row("pod"))
    seen = monotonic()
    sleep(0.05)
    sights.see("team", row("pod", "other"))

    assert sights.matured("team", seen + EXPIRY) == {"pod"}


@pytest.mark.parametrize(
    "between",
    [
        pytest.param(row(), id="gone-in-between"),
        pytest.param(row("pod", uid="another quota"), id="another-quota-object"),
    ],
)
def test_what_came_back_waits_the_whole_bound_again(sights: ReservationAges, between: QuotaLedger) -> None:
    sights.see("team", row("pod"))
    seen = monotonic()
    sleep(0.02)
    sights.see("team", between)
    sights.see("team", row("pod"))

    assert sights.matured("team", seen + EXPIRY) == frozenset()


def test_the_next_maturity_is_that_of_the_oldest(sights: ReservationAges) -> None:
    assert sights.next_maturity("team") is None
    sights.see("team", row("old"))
    sleep(0.05)
    sights.see("team", row("old", "new"))

    left = sights.next_maturity("team")
    assert left is not None
    assert left <= EXPIRY - 0.05


def test_a_changed_spec_counts_as_read_anew_but_is_the_same_quota(sights: ReservationAges) -> None:
    sights.see("team", row())
    first, waits = sights.read_at("team"), sights.waits("team")
    sleep(0.02)
    sights.see("team", msgspec.structs.replace(row(), generation=2))

    assert sights.read_at("team") > first
    assert sights.waits("team") < waits


def test_what_was_never_seen_waits(sights: ReservationAges) -> None:
    assert sights.waits("team") == 0.1
    assert sights.read_at("team") <= monotonic()
    assert sights.matured("team", monotonic() + 60) == frozenset()

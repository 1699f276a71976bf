"""When a count makes the entry of a change superfluous, and when one by another catalogue is in force."""

from fractions import Fraction

import pytest

from policies.quota.charge import Unpinned
from policies.quota.ledger.decide import Reason, ReservationRequest, decide
from policies.quota.ledger.quota_ledger import QuotaLedger, Revisions
from policies.quota.ledger.reconcile import Listing, Reconciled, Refused, StoredObject, initialise, reconcile
from policies.quota.ledger.reservations import Reservation, Reservations

BEFORE = {"gpus": Fraction(1)}
AFTER = {"gpus": Fraction(2)}


@pytest.mark.parametrize(
    ("reviewed", "listed", "goes"),
    [
        pytest.param(7, StoredObject(BEFORE, version=7), False, id="not-stored-yet"),
        pytest.param(7, StoredObject(AFTER, version=6), False, id="it-showed-that-once-before"),
        pytest.param(7, StoredObject(AFTER, version=8), True, id="stored"),
        pytest.param(7, StoredObject(BEFORE, version=9), True, id="another-write-came-between"),
        pytest.param(7, StoredObject(BEFORE, terminal=True, version=7), True, id="the-pod-has-ended"),
        pytest.param(7, None, False, id="not-listed"),
        pytest.param(0, StoredObject(AFTER, version=8), False, id="reviewed-without-a-version"),
        pytest.param(99, StoredObject(AFTER, version=100), True, id="versions-are-numbers"),
    ],
)
def test_a_change_goes_by_the_version_that_is_listed(
    reviewed: int, listed: StoredObject | None, goes: bool
) -> None:
    ledger = QuotaLedger(
        quota_uid="q",
        generation=1,
        hard={"gpus": Fraction(4)},
        unpinned=Unpinned.TOTAL_ONLY,
        used={"gpus": Fraction(1)},
        reservations=Reservations.of(Reservation("pod/request", {"gpus": Fraction(1)}, reviewed)),
        class_catalogue="c",
    )
    listing = Listing(
        {"pod": listed} if listed else {}, Revisions(), quota_uid="q", generation=1, catalogue="c"
    )
    settled = reconcile(ledger, listing, frozenset())
    assert isinstance(settled, Reconciled)
    assert ("pod/request" not in settled.ledger.reservations) is goes
    assert settled.confirmed == (("pod/request",) if goes else ())


@pytest.mark.parametrize(
    ("objects", "expired", "want"),
    [
        pytest.param({}, frozenset(), Reason.OTHER_CATALOGUE, id="in-flight"),
        pytest.param({"pod": StoredObject(AFTER)}, frozenset(), Reason.RESERVED, id="stored"),
        pytest.param({}, frozenset({"pod"}), Reason.RESERVED, id="given-up"),
    ],
)
def test_a_count_by_another_catalogue_is_in_force_once_nothing_else_is_in_flight(
    objects: dict[str, StoredObject], expired: frozenset[str], want: Reason
) -> None:
    ledger = QuotaLedger(
        quota_uid="q",
        generation=1,
        hard={"gpus": Fraction(4)},
        unpinned=Unpinned.TOTAL_ONLY,
        used={"gpus": Fraction(0)},
        reservations=Reservations.of(Reservation("pod", BEFORE)),
        class_catalogue="before",
    )
    listing = Listing(objects, Revisions(), quota_uid="q", generation=1, catalogue="after")
    assert reconcile(ledger, listing, expired) is Refused.OTHER_CATALOGUE

    for _ in range(2):  # a second count while nothing has changed changes nothing
        settled = initialise(ledger, listing, expired, waited=True)
        assert isinstance(settled, Reconciled)
        ledger = settled.ledger
    for catalogue, answer in (("before", Reason.OTHER_CATALOGUE), ("after", want)):
        (verdict,) = decide(ledger, [ReservationRequest.creation("next", BEFORE, catalogue)]).verdicts
        assert verdict.reason is answer

"""What a count makes of what is held for pods that wait, and of who waits."""

from fractions import Fraction

from msgspec.structs import replace

from policies.quota.ledger.credits import Mark, Marks
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reconcile import Reconciled, StoredObject, reconcile
from policies.quota.ledger.reservations import Reservation, Reservations
from tests.builders import listing, quota_ledger
from tests.cases import cases

GPU = {"gpus": Fraction(1)}
WAITS, RUNS = StoredObject({}, waits=True, version=7), StoredObject(GPU, version=8)
ENDED, DELETED = StoredObject({}, terminal=True, version=8), StoredObject({}, terminal=True)
CHANGED = StoredObject({}, waits=True, version=8)
LIFT, BEGUN = Reservation("pod/lift", GPU), Reservation("pod/lift/request", GPU, 7)
MARKED = Reservation("pod/lift/request", GPU, 7, catalogue="next")
OWN = Reservation("pod/request", GPU, 7)


def counted(
    reservations: tuple[Reservation, ...], shown: StoredObject | None, expired: set[str], waiting: int = 0
) -> QuotaLedger:
    ledger = quota_ledger(
        *reservations, hard={"gpus": Fraction(4)}, used={"gpus": Fraction(0)}, class_catalogue="c"
    )
    objects = {"pod": shown} if shown else {}
    result = reconcile(ledger, listing(objects, waiting=waiting, catalogue="c"), frozenset(expired))
    assert isinstance(result, Reconciled)
    return result.ledger


@cases(
    ("before", "shown", "expired", "after"),
    held_while_it_waits=(LIFT, WAITS, set(), LIFT),
    held_never_expires=(LIFT, WAITS, {"pod/lift"}, LIFT),
    held_until_it_has_started=(LIFT, RUNS, set(), None),
    held_until_it_has_ended=(LIFT, ENDED, set(), None),
    held_until_it_was_deleted=(LIFT, DELETED, set(), None),
    held_for_a_pod_that_the_list_lacks=(LIFT, None, set(), None),
    held_when_the_pod_has_changed=(LIFT, CHANGED, set(), LIFT),
    begun_and_not_stored_yet=(BEGUN, WAITS, set(), BEGUN),
    begun_and_stored=(BEGUN, RUNS, set(), None),
    begun_and_ended=(BEGUN, ENDED, set(), None),
    begun_and_deleted=(BEGUN, DELETED, set(), None),
    begun_and_not_listed=(BEGUN, None, set(), BEGUN),
    begun_not_listed_and_expired=(BEGUN, None, {"pod/lift/request"}, None),
    another_write_came_between_so_it_is_held_again=(BEGUN, CHANGED, set(), LIFT),
    it_failed_so_it_is_held_again=(BEGUN, WAITS, {"pod/lift/request"}, LIFT),
    with_its_mark=(MARKED, CHANGED, set(), Reservation("pod/lift", GPU, catalogue="next")),
    a_removal_by_its_owner_is_not_held=(OWN, CHANGED, set(), None),
    nor_if_that_expires=(OWN, WAITS, {"pod/request"}, None),
    a_creation_under_the_gate=(Reservation("pod", {}), WAITS, set(), None),
    a_creation_under_the_gate_in_flight=(Reservation("pod", {}), None, set(), Reservation("pod", {})),
    a_creation_under_the_gate_that_failed=(Reservation("pod", {}), None, {"pod"}, None),
)
def test_what_a_count_leaves_for_a_pod_that_waits(
    before: Reservation, shown: StoredObject | None, expired: set[str], after: Reservation | None
) -> None:
    assert list(counted((before,), shown, expired).reservations) == ([after] if after else [])


@cases(
    ("waiting", "reservations", "shown", "want"),
    those_of_the_list=(2, (), None, 2),
    with_one_in_flight=(2, (Reservation("pod", {}),), None, 3),
    that_one_only_once=(3, (Reservation("pod", {}),), WAITS, 3),
    what_is_held_waits_only_once=(1, (LIFT,), WAITS, 1),
    nobody=(0, (BEGUN,), RUNS, 0),
)
def test_a_count_says_how_many_wait(
    waiting: int, reservations: tuple[Reservation, ...], shown: StoredObject | None, want: int
) -> None:
    assert counted(reservations, shown, set(), waiting).all_waiting == want


@cases(("marks", "want"), as_long_as_it=({"pod": Mark(GPU, 1, 1)}, [LIFT]), without_it=({}, []))
def test_what_is_held_for_a_mark_stays(marks: Marks, want: list[Reservation]) -> None:
    """And a count does not know yet what the first in line lacks."""
    ledger = replace(
        counted((), None, set()), reservations=Reservations.of(LIFT), marks=marks, scarce={"gpus": True}
    )
    result = reconcile(ledger, listing({}, catalogue="c"), frozenset({"pod/lift"}))

    assert isinstance(result, Reconciled)
    assert list(result.ledger.reservations) == want
    assert (result.ledger.marks, result.ledger.scarce) == (marks, {})


def test_what_is_held_counts_as_reserved() -> None:
    other = Reservation("other/lift/request", GPU, 7)

    assert counted((LIFT, other), WAITS, set(), waiting=2).reserved == {"gpus": Fraction(2)}

"""What a count settles, when a ledger flips to another catalogue version, and what becomes of lines that cannot be read."""

from fractions import Fraction

import msgspec

from policies.quota.amounts import Amounts
from policies.quota.ledger.decide import VerdictReason, decide
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reconcile import (
    Listing,
    Reconciled,
    Refused,
    StoredObject,
    begin_transition,
    catalogue_version_to_count_by,
    initialise,
    reconcile,
)
from policies.quota.ledger.reservations import Reservation, Reservations
from tests.builders import listing, quota_ledger
from tests.cases import cases
from tests.reservation_requests import creation_request

BEFORE = {"gpus": Fraction(1)}
AFTER = {"gpus": Fraction(2)}
FOUR = {"gpus": Fraction(4)}


@cases(
    ("reviewed", "listed", "goes"),
    not_stored_yet=(7, StoredObject(BEFORE, version=7), False),
    it_showed_that_once_before=(7, StoredObject(AFTER, version=6), False),
    stored=(7, StoredObject(AFTER, version=8), True),
    another_write_came_between=(7, StoredObject(BEFORE, version=9), True),
    the_pod_has_ended=(7, StoredObject(BEFORE, terminal=True, version=7), True),
    not_listed=(7, None, False),
    reviewed_without_a_version=(0, StoredObject(AFTER, version=8), False),
    versions_are_numbers=(99, StoredObject(AFTER, version=100), True),
)
def test_a_change_goes_by_the_listed_version(reviewed: int, listed: StoredObject | None, goes: bool) -> None:
    change = Reservation("pod/request", {"gpus": Fraction(1)}, reviewed)
    ledger = quota_ledger(change, hard=FOUR, used={"gpus": Fraction(1)}, class_catalogue="c")
    objects = {"pod": listed} if listed else {}
    settled = reconcile(ledger, listing(objects, catalogue="c"), frozenset())
    assert isinstance(settled, Reconciled)
    assert ("pod/request" not in settled.ledger.reservations) is goes
    assert settled.confirmed == (("pod/request",) if goes else ())


@cases(
    ("objects", "expired", "want"),
    in_flight=({}, frozenset(), VerdictReason.OTHER_CATALOGUE),
    stored=({"pod": StoredObject(AFTER)}, frozenset(), VerdictReason.RESERVED),
    given_up=({}, frozenset({"pod"}), VerdictReason.RESERVED),
)
def test_a_count_by_another_catalogue_is_in_force_once_nothing_else_is_in_flight(
    objects: dict[str, StoredObject], expired: frozenset[str], want: VerdictReason
) -> None:
    in_flight = Reservation("pod", BEFORE)
    ledger = quota_ledger(in_flight, hard=FOUR, used={"gpus": Fraction(0)}, class_catalogue="before")
    shown = listing(objects, catalogue="after")
    assert reconcile(ledger, shown, expired) is Refused.OTHER_CATALOGUE

    for _ in range(2):  # a second count while nothing has changed changes nothing
        settled = initialise(ledger, shown, expired, waited=True)
        assert isinstance(settled, Reconciled)
        ledger = settled.ledger
    for catalogue, answer in (("before", VerdictReason.OTHER_CATALOGUE), ("after", want)):
        (verdict,) = decide(ledger, [creation_request("next", BEFORE, catalogue)]).verdicts
        assert verdict.reason is answer


NOW, NEXT, LATER = "5e1f/TotalOnly", "77ab/TotalOnly", "90aa/TotalOnly"


def on_the_way(*reservations: Reservation, **but: object) -> QuotaLedger:
    fields = {"hard": FOUR, "used": {"gpus": Fraction(1)}, "class_catalogue": NOW, "next_catalogue": NEXT}
    return quota_ledger(*reservations, **{**fields, **but})


def listed(catalogue_version: str, **objects: StoredObject) -> Listing:
    return listing(objects, catalogue=catalogue_version)


MARKED, UNMARKED = Reservation("marked", AFTER, catalogue=NEXT), Reservation("unmarked", BEFORE)
OTHERWISE = Reservation("otherwise", BEFORE, catalogue=LATER)
DAMAGED = Reservations.parse("gpus=1 | x x")
UNCOUNTED = on_the_way(class_catalogue=None, next_catalogue=None)


@cases(
    ("ledger", "catalogue_version", "stored", "expired", "want"),
    nothing_in_flight=(on_the_way(), NEXT, {}, set(), (NEXT, None)),
    all_marked=(on_the_way(MARKED), NEXT, {}, set(), (NEXT, None)),
    one_unmarked=(on_the_way(MARKED, UNMARKED), NEXT, {}, set(), Refused.UNMARKED),
    marked_with_another_catalogue_version=(on_the_way(OTHERWISE), NEXT, {}, set(), Refused.UNMARKED),
    that_one_stored=(on_the_way(MARKED, UNMARKED), NEXT, {"unmarked": BEFORE}, set(), (NEXT, None)),
    that_one_expired=(on_the_way(MARKED, UNMARKED), NEXT, {}, {"unmarked"}, (NEXT, None)),
    counted_by_its_own_meanwhile=(on_the_way(MARKED, UNMARKED), NOW, {}, set(), (NOW, NEXT)),
    its_own_never_flips=(on_the_way(MARKED), NOW, {}, set(), (NOW, NEXT)),
    a_third_catalogue_version=(on_the_way(), LATER, {}, set(), Refused.OTHER_CATALOGUE),
    on_no_way=(on_the_way(next_catalogue=None), NEXT, {}, set(), Refused.OTHER_CATALOGUE),
    a_line_that_cannot_be_read=(on_the_way(reservations=DAMAGED), NEXT, {}, set(), Refused.UNMARKED),
)
def test_a_ledger_flips_when_all_that_is_left_bears_the_mark(
    ledger: QuotaLedger,
    catalogue_version: str,
    stored: dict[str, Amounts],
    expired: set[str],
    want: tuple[str, str | None] | Refused,
) -> None:
    objects = {uid: StoredObject(demand) for uid, demand in stored.items()}
    counted = reconcile(ledger, listed(catalogue_version, **objects), frozenset(expired))

    if isinstance(counted, Reconciled):
        assert (counted.ledger.class_catalogue, counted.ledger.next_catalogue) == want
    else:
        assert counted is want


@cases(
    ("ledger", "catalogue_version", "want"),
    begun=(on_the_way(next_catalogue=None), NEXT, NEXT),
    begun_again=(on_the_way(), NEXT, NEXT),
    to_yet_another_one=(on_the_way(), LATER, LATER),
    called_off=(on_the_way(), NOW, None),
    without_a_catalogue_version_of_its_own=(UNCOUNTED, NEXT, None),
)
def test_a_transition_begins(ledger: QuotaLedger, catalogue_version: str, want: str | None) -> None:
    assert begin_transition(ledger, catalogue_version) == msgspec.structs.replace(ledger, next_catalogue=want)


@cases(
    ("ledger", "want"),
    on_no_way=(on_the_way(next_catalogue=None), NOW),
    nothing_in_flight=(on_the_way(), NEXT),
    all_marked=(on_the_way(MARKED), NEXT),
    one_unmarked=(on_the_way(MARKED, UNMARKED), NOW),
    none_of_its_own=(UNCOUNTED, None),
)
def test_by_which_catalogue_version_to_count(ledger: QuotaLedger, want: str | None) -> None:
    assert catalogue_version_to_count_by(ledger) == want


@cases(
    ("ledger", "catalogue_version", "want"),
    its_own_is_not_known_any_more=(on_the_way(MARKED, UNMARKED), NEXT, (None, None)),
    its_own_is_not_known_and_all_marked=(on_the_way(MARKED), NEXT, (NEXT, None)),
    a_dimension_more=(on_the_way(UNMARKED, hard={**FOUR, "classes/a": Fraction(1)}), NOW, (NOW, NEXT)),
    the_first=(on_the_way(used=None, class_catalogue=None, next_catalogue=None), NOW, (NOW, None)),
)
def test_what_is_initialised_has_a_catalogue_version_if_all_was_counted_by_it(
    ledger: QuotaLedger, catalogue_version: str, want: tuple[str | None, str | None]
) -> None:
    counted = initialise(ledger, listed(catalogue_version), frozenset(), waited=True)

    assert isinstance(counted, Reconciled)
    assert (counted.ledger.class_catalogue, counted.ledger.next_catalogue) == want


@cases(
    ("objects", "want"),
    another_object=({"old": StoredObject(AFTER, name="pods/train")}, {"pods/train": AFTER}),
    one_that_has_ended=({"old": StoredObject({}, terminal=True, name="pods/train")}, {"pods/train": {}}),
    one_that_demands_nothing=({"old": StoredObject({}, waits=True, name="pods/train")}, {"pods/train": {}}),
    another_kind=({"old": StoredObject(AFTER, name="resourceclaims/train")}, {}),
    the_reservation_s_own=({"pod": StoredObject(AFTER, name="pods/train")}, {}),
    only_what_is_granted=(
        {"old": StoredObject({**AFTER, "classes/b": Fraction(1)}, name="pods/train")},
        {"pods/train": AFTER},
    ),
)
def test_what_is_stored_under_the_name_of_a_creation_is_in_the_ledger(
    objects: dict[str, StoredObject], want: dict[str, Amounts]
) -> None:
    ledger = on_the_way(Reservation("pod", BEFORE, name="pods/train"), next_catalogue=None)
    counted = reconcile(ledger, listed(NOW, **objects), frozenset())

    assert isinstance(counted, Reconciled)
    assert counted.ledger.stored_names == want


def test_names_of_what_is_stored_have_a_limit() -> None:
    names = [f"pods/{number:054}" for number in range(1100)]  # and "gpus" and "1": 64 characters
    pods = [Reservation(f"new-{name}", BEFORE, name=name) for name in names]
    stored = {f"old-{name}": StoredObject(BEFORE, name=name) for name in names}
    counted = reconcile(on_the_way(*pods, next_catalogue=None), listed(NOW, **stored), frozenset())

    assert isinstance(counted, Reconciled)
    found = counted.ledger.stored_names
    assert found == dict.fromkeys(names[:1024], BEFORE)
    assert counted.ledger.reserved["gpus"] == 1100 - 1024


def test_used_has_only_what_is_granted_and_gpus() -> None:
    pod = StoredObject({"gpus": Fraction(1), "classes/a": Fraction(1), "resources/a.com/x": Fraction(9)})
    ledger = on_the_way(hard={"classes/a": Fraction(4)}, used={"classes/a": Fraction(0)}, next_catalogue=None)
    counted = reconcile(ledger, listed(NOW, pod=pod), frozenset())

    assert isinstance(counted, Reconciled)
    assert counted.ledger.used == {"gpus": Fraction(1), "classes/a": Fraction(1)}


@cases(
    ("expired", "left", "dropped"),
    before_the_bound=(set(), ("77ab", "gpus=1 | x x"), ()),
    one_of_them_expired=({"unreadable 77ab"}, ("gpus=1 | x x",), ("77ab",)),
    by_the_ids_that_it_may_hold=({"x x", "77ab", "x"}, ("77ab", "gpus=1 | x x"), ()),
)
def test_a_line_that_cannot_be_read_goes_by_the_bound_alone(
    expired: set[str], left: tuple[str, ...], dropped: tuple[str, ...]
) -> None:
    ledger = on_the_way(reservations=Reservations.parse("77ab\ngpus=1 | x x"), next_catalogue=None)
    counted = reconcile(ledger, listed(NOW, x=StoredObject(BEFORE)), frozenset(expired))

    assert isinstance(counted, Reconciled)
    assert counted.ledger.reservations.unreadable == left
    assert (counted.unreadable, counted.expired, counted.confirmed) == (dropped, (), ())


@cases(
    ("reason", "want"),
    older=(Refused.OLDER, "one of the lists is older than one that was counted already"),
    uncounted=(
        Refused.UNCOUNTED,
        "the quota, or a dimension of it, was never counted: it must be initialised",
    ),
    other_catalogue=(
        Refused.OTHER_CATALOGUE,
        "the ledger is counted by another catalogue version, and is not moving to this one",
    ),
    unmarked=(
        Refused.UNMARKED,
        "the ledger is moving to this catalogue version, but reservations are left that were not counted under it",
    ),
    too_early=(Refused.TOO_EARLY, "replicas may still believe that there is no quota"),
)
def test_a_refusal_in_words(reason: Refused, want: str) -> None:
    """The controller logs it."""
    assert reason.value == want

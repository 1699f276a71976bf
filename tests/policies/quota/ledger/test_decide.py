"""Who may come in, in tables."""

from collections.abc import Callable
from fractions import Fraction

import msgspec
import pytest

from policies.quota.amounts import Amounts
from policies.quota.ledger.decide import ReservationRequest, Shortfall, VerdictReason, decide
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import LIMIT, Reservation, Reservations
from tests.builders import quota_ledger
from tests.cases import cases
from tests.policies.quota.ledger.creations import AmountsByName, amounts, creation
from tests.reservation_requests import change_request, creation_request


def ledger(hard: Amounts, used: Amounts | None, *reservations: Reservation) -> QuotaLedger:
    return quota_ledger(*reservations, hard=hard, used=used, class_catalogue="c")


@cases(
    ("hard", "used", "held", "ask", "want"),
    the_last_one=({"gpus": 4}, {"gpus": 3}, {}, {"gpus": 1}, VerdictReason.RESERVED),
    in_flight_counts=({"gpus": 4}, {"gpus": 3}, {"gpus": 1}, {"gpus": 1}, VerdictReason.EXCEEDED),
    sevenths_are_exact=({"gpus": 1}, {"gpus": "5/7"}, {}, {"gpus": "2/7"}, VerdictReason.RESERVED),
    a_hair_too_much=({"gpus": 1}, {"gpus": "5/7"}, {}, {"gpus": "3/10"}, VerdictReason.EXCEEDED),
    what_is_not_granted_is_unlimited=({"a": 1}, {"a": 0}, {}, {"gpus": 9}, VerdictReason.RESERVED),
    zero_forbids=({"gpus": 0}, {"gpus": 0}, {}, {"gpus": 1}, VerdictReason.EXCEEDED),
    only_what_is_requested=({"gpus": 1, "a": 1}, {"gpus": 9, "a": 0}, {}, {"a": 1}, VerdictReason.RESERVED),
    nothing_passes_an_exceeded_quota=({"gpus": 1}, {"gpus": 9}, {}, {}, VerdictReason.NOTHING_TO_RESERVE),
    not_initialised=({"gpus": 1}, None, {}, {"gpus": 1}, VerdictReason.UNCOUNTED),
    nothing_passes_an_uncounted_one=({"gpus": 1}, None, {}, {}, VerdictReason.NOTHING_TO_RESERVE),
    a_key_that_used_lacks=({"gpus": 9, "a": 1}, {"gpus": 0}, {}, {"a": 1}, VerdictReason.UNCOUNTED),
    even_for_others=({"gpus": 9, "a": 1}, {"gpus": 0}, {}, {"gpus": 1}, VerdictReason.UNCOUNTED),
)
def test_one_request(
    hard: AmountsByName,
    used: AmountsByName | None,
    held: AmountsByName,
    ask: AmountsByName,
    want: VerdictReason,
) -> None:
    reservations = [Reservation("before", amounts(**held))] if held else []
    before = ledger(amounts(**hard), None if used is None else amounts(**used), *reservations)
    decided = decide(before, [creation("pod", **ask)])
    (verdict,) = decided.verdicts
    assert verdict.reason is want
    assert (decided.ledger is before) is (want is not VerdictReason.RESERVED)
    assert ("pod" in decided.ledger.reservations) is (want is VerdictReason.RESERVED)


@cases(
    ("charged_by", "demand", "want"),
    by_both=(["now", "next"], {"gpus": 1}, VerdictReason.RESERVED),
    and_by_another=(["now", "next", "more"], {"gpus": 1}, VerdictReason.RESERVED),
    only_by_the_old_one=(["now"], {"gpus": 1}, VerdictReason.OTHER_CATALOGUE),
    only_by_the_next_one=(["next"], {"gpus": 1}, VerdictReason.OTHER_CATALOGUE),
    by_none=([], {"gpus": 1}, VerdictReason.OTHER_CATALOGUE),
    nothing_by_both=(["now", "next"], {}, VerdictReason.NOTHING_TO_RESERVE),
    nothing_by_the_old_one_alone=(["now"], {}, VerdictReason.OTHER_CATALOGUE),
)
def test_a_ledger_that_moves_takes_what_was_counted_under_both_catalogue_versions(
    charged_by: list[str], demand: AmountsByName, want: VerdictReason
) -> None:
    before = ledger(amounts(gpus=1), amounts(gpus=0))
    before = msgspec.structs.replace(before, class_catalogue="now", next_catalogue="next")
    decided = decide(before, [creation_request("pod", amounts(**demand), *charged_by)])

    assert decided.verdicts[0].reason is want
    assert [each.catalogue for each in decided.ledger.reservations] == (
        ["next"] if want is VerdictReason.RESERVED else []
    )


@pytest.mark.parametrize("demand", [{"gpus": 1}, {}], ids=["something", "nothing"])
def test_another_class_catalogue_denies(demand: AmountsByName) -> None:
    before = ledger(amounts(gpus=1), amounts(gpus=0))
    (verdict,) = decide(before, [creation_request("pod", amounts(**demand), "other")]).verdicts
    assert verdict.reason is VerdictReason.OTHER_CATALOGUE


@cases(
    ("used", "stored", "held", "requested", "want"),
    one_of_a_name_in_flight=(2, {}, [("train", 2)], ("train", 2), VerdictReason.RESERVED),
    another_name_in_flight=(2, {}, [("train", 2)], ("other", 2), VerdictReason.EXCEEDED),
    a_larger_one_of_that_name=(2, {}, [("train", 2)], ("train", 3), VerdictReason.EXCEEDED),
    a_larger_one_that_fits=(1, {}, [("train", 2)], ("train", 3), VerdictReason.RESERVED),
    of_an_exceeded_quota_nothing=(2, {}, [("train", 3)], ("train", 1), VerdictReason.EXCEEDED),
    in_place_of_what_is_stored=(4, {"train": 4}, [], ("train", 4), VerdictReason.RESERVED),
    more_than_what_is_stored=(4, {"train": 2}, [], ("train", 4), VerdictReason.EXCEEDED),
    stored_and_in_flight=(3, {"train": 3}, [("train", 4)], ("train", 4), VerdictReason.RESERVED),
    another_name_is_stored=(4, {"train": 4}, [], ("other", 1), VerdictReason.EXCEEDED),
)
def test_creations_of_one_name_take_what_one_of_them_takes(
    used: int,
    stored: dict[str, int],
    held: list[tuple[str, int]],
    requested: tuple[str, int],
    want: VerdictReason,
) -> None:
    in_flight = [
        Reservation(str(n), amounts(gpus=each), name=f"pods/{name}") for n, (name, each) in enumerate(held)
    ]
    before = msgspec.structs.replace(
        ledger(amounts(gpus=4), amounts(gpus=used), *in_flight),
        stored_names={f"pods/{name}": amounts(gpus=amount) for name, amount in stored.items()},
    )
    request = creation_request("new", amounts(gpus=requested[1]), "c", name=f"pods/{requested[0]}")
    assert decide(before, [request]).verdicts[0].reason is want


def test_a_batch_of_one_name_takes_what_one_of_them_takes() -> None:
    requests = [
        creation_request(f"uid-{number}", amounts(gpus=gpus), "c", name="pods/train")
        for number, gpus in enumerate([7, 7, 8, 9, 7])
    ]
    decided = decide(ledger(amounts(gpus=8), amounts(gpus=0)), [*requests, creation("other", gpus=1)])

    assert [each.reason.name for each in decided.verdicts] == [
        *("RESERVED", "RESERVED", "RESERVED", "EXCEEDED", "RESERVED", "EXCEEDED")
    ]
    assert decided.ledger.reserved == amounts(gpus=8)


@cases(
    ("uid", "demand", "want"),
    a_creation=("new", {"gpus": 1}, VerdictReason.UNREADABLE),
    a_call_that_is_repeated=("there", {"gpus": 1}, VerdictReason.ALREADY_RESERVED),
    nothing=("new", {}, VerdictReason.NOTHING_TO_RESERVE),
)
def test_a_line_that_cannot_be_read_denies(uid: str, demand: AmountsByName, want: VerdictReason) -> None:
    before = msgspec.structs.replace(
        ledger(amounts(gpus=9), amounts(gpus=0)),
        reservations=Reservations.parse("gpus=1 | there\ngpus=1 | x x"),
    )
    decided = decide(before, [creation(uid, **demand)])

    assert decided.verdicts[0].reason is want
    assert decided.ledger is before


def test_a_ledger_that_does_not_move_marks_nothing() -> None:
    decided = decide(ledger(amounts(gpus=1), amounts(gpus=0)), [creation("pod", gpus=1)])
    assert [each.catalogue for each in decided.ledger.reservations] == [""]


def test_a_batch_is_decided_in_its_order_and_each_id_once() -> None:
    before = ledger(amounts(gpus=4), amounts(gpus=1))
    requests = [
        creation("one", gpus=2),
        creation("too-big", gpus=2),
        creation("one", gpus=2),
        creation("fits-still", gpus=1),
        creation("late", gpus=1),
    ]
    decided = decide(before, requests)
    reasons = [verdict.reason.name for verdict in decided.verdicts]
    assert reasons == ["RESERVED", "EXCEEDED", "ALREADY_RESERVED", "RESERVED", "EXCEEDED"]
    assert [reservation.id for reservation in decided.ledger.reservations] == ["one", "fits-still"]
    late = decided.verdicts[-1].shortfalls
    assert late == (Shortfall("gpus", Fraction(1), Fraction(1), Fraction(3), Fraction(4)),)


@cases(
    ("before", "after", "want"),
    a_class_is_chosen=({"gpus": 1}, {"gpus": 1, "a": 1}, {"a": 1}),
    what_is_left_is_not_given_back=({"a": 1}, {"b": 1}, {"b": 1}),
    a_larger_share=({"gpus": "1/2"}, {"gpus": "5/7"}, {"gpus": "3/14"}),
    nothing_grows=({"gpus": 2}, {"gpus": 1}, {}),
)
def test_of_a_change_only_what_grows(
    before: AmountsByName, after: AmountsByName, want: AmountsByName
) -> None:
    reservation = change_request("pod", "r1", amounts(**before), amounts(**after), "c", version=7).reservation
    assert (reservation.id, reservation.is_change, reservation.object_uid) == ("pod/r1", True, "pod")
    assert (reservation.demand, reservation.version) == (amounts(**want), 7)


def test_a_change_without_growth_passes_an_exceeded_quota() -> None:
    before = ledger(amounts(gpus=1), amounts(gpus=9))
    change = change_request("pod", "r1", amounts(gpus=2), amounts(gpus=1), "c", version=7)
    assert decide(before, [change]).verdicts[0].allowed


def test_reservations_have_a_limit() -> None:
    before = ledger(amounts(gpus=9), amounts(gpus=0))
    requests = [creation(f"pod{number}", gpus=1) for number in range(9)]
    decided = decide(before, requests, limit=60)
    reasons = [verdict.reason for verdict in decided.verdicts]
    assert reasons[0] is VerdictReason.RESERVED
    assert reasons[-1] is VerdictReason.FULL
    assert len(decided.ledger.reservations.text) <= 60


def heavy(number: int, name: str) -> ReservationRequest:
    """Return a creation that names 32 resources of the longest names; no other one names them."""
    resources = {f"resources/{number:04}-{each:02}.{'x' * 48}/{'y' * 14}": 1 for each in range(32)}
    demand = {key: Fraction(amount) for key, amount in {"gpus": 32, **resources}.items()}
    return creation_request(f"{number:036}", demand, "c", name=name)


def equal(number: int, name: str) -> ReservationRequest:
    return creation_request(f"{number:036}", amounts(gpus=1), "c", name=name)


def admitted(*requests: ReservationRequest) -> tuple[QuotaLedger, int]:
    """Decide in batches until the first is denied; return the ledger, and how many were admitted."""
    now, number = ledger(amounts(gpus=1_000_000), amounts(gpus=0)), 0
    for start in range(0, len(requests), 20):
        decided = decide(now, requests[start : start + 20])
        reasons = [each.reason for each in decided.verdicts]
        assert set(reasons) <= {VerdictReason.RESERVED, VerdictReason.FULL}
        now, number = decided.ledger, number + reasons.count(VerdictReason.RESERVED)
        if VerdictReason.FULL in reasons:
            return now, number
    raise AssertionError(f"{number} were admitted, and there is room for more")


LONG_NAME = f"pods/{'n' * 63}"


@cases(("create", "fewest", "most"), ever_other_resources=(heavy, 5, 8), equal=(equal, 140, 170))
def test_creations_of_one_name_leave_room_for_others(
    create: Callable[[int, str], ReservationRequest], fewest: int, most: int
) -> None:
    full, number = admitted(*(create(number, LONG_NAME) for number in range(200)))

    assert fewest <= number <= most
    (of_another,) = decide(full, [create(1000, "pods/another")]).verdicts
    assert of_another.reason is VerdictReason.RESERVED
    (again,) = decide(full, [create(0, LONG_NAME)]).verdicts
    assert again.reason is VerdictReason.ALREADY_RESERVED
    (later,) = decide(full, [create(1000, LONG_NAME)]).verdicts
    assert later.reason is VerdictReason.FULL, "in a later batch, too"


@cases(("create", "fewest", "most"), ever_other_resources=(heavy, 130, 150), equal=(equal, 3650, 3750))
def test_so_many_creations_fill_the_reservations(
    create: Callable[[int, str], ReservationRequest], fewest: int, most: int
) -> None:
    """As docs/operate/quota.md says; with names of 63 characters."""
    full, number = admitted(*(create(number, f"pods/{number:063}") for number in range(4000)))

    assert fewest <= number <= most
    assert len(full.reservations.text) <= LIMIT

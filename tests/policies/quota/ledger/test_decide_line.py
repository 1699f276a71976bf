"""Who may join the line, who must not pass it, and what the removal of a gate takes over."""

from msgspec.structs import replace

from policies.quota.ledger.decide import Line, ReservationRequest, VerdictReason, decide
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import Reservation, Reservations, lift_id
from tests.cases import cases
from tests.policies.quota.ledger.joining import behind, gpus, joins, ledger, request
from tests.policies.quota.team_denials import OWN, PROD, team_ledger

R = VerdictReason
JOINING = Reservation("joining", {}, name="pods/joining")


def apart(uid: str, amount: int = 1) -> ReservationRequest:
    return request(Reservation(uid, gpus(amount)), Line.NEVER_WAITS)


def lifts(uid: str, amount: int = 1, request_uid: str = "request") -> ReservationRequest:
    return request(Reservation(lift_id(uid, request_uid), gpus(amount), 7), Line.LIFTS)


def of_kueue(uid: str, amount: int = 1) -> ReservationRequest:
    return replace(lifts(uid, amount), may_exceed=True)


def held(uid: str, amount: int = 1, **fields: str) -> Reservation:
    return Reservation(lift_id(uid), gpus(amount), catalogue=fields.get("catalogue", ""))


@cases(
    ("before", "requests", "want"),
    as_many_as_may_wait=(ledger(max_waiting=2), [joins("a"), joins("b")], [R.RESERVED, R.RESERVED]),
    one_more_in_one_batch=(
        ledger(max_waiting=2), [joins("a"), joins("b"), joins("c")], [R.RESERVED, R.RESERVED, R.QUEUE_FULL]
    ),
    beside_those_in_flight=(ledger(JOINING, max_waiting=1), [joins("a")], [R.QUEUE_FULL]),
    beside_those_that_were_counted=(ledger(waiting=1, max_waiting=1), [joins("a")], [R.QUEUE_FULL]),
    nobody_may_wait=(ledger(max_waiting=0), [joins("a")], [R.QUEUE_FULL]),
    a_repeated_call=(ledger(JOINING, max_waiting=1), [joins("joining")], [R.ALREADY_RESERVED]),
    twice_in_one_batch=(ledger(max_waiting=1), [joins("a"), joins("a")], [R.RESERVED, R.ALREADY_RESERVED]),
    whatever_is_free=(ledger(hard=1, used=9), [joins("a")], [R.RESERVED]),
    not_where_nothing_was_counted=(ledger(used=0) , [request(JOINING, Line.JOINS, "other")], [R.OTHER_CATALOGUE]),
)  # fmt: skip
def test_so_many_pods_may_wait(
    before: QuotaLedger, requests: list[ReservationRequest], want: list[VerdictReason]
) -> None:
    decided = decide(before, requests)

    assert [each.reason for each in decided.verdicts] == want
    assert decided.ledger.all_waiting == before.all_waiting + want.count(R.RESERVED)
    assert decided.ledger.reserved == before.reserved


def test_a_pod_in_line_is_written_with_its_name() -> None:
    assert decide(ledger(), [joins("a")]).ledger.reservations.text == "waiting | a:pods/a"


@cases(
    ("before", "requests", "want"),
    behind_one_that_was_counted=(ledger(waiting=1), [behind("a")], [R.OTHERS_WAIT]),
    behind_one_in_flight=(ledger(JOINING), [behind("a")], [R.OTHERS_WAIT]),
    behind_one_of_its_own_batch=(ledger(), [joins("b"), behind("a")], [R.RESERVED, R.OTHERS_WAIT]),
    before_one_of_its_own_batch=(ledger(), [behind("a"), joins("b")], [R.RESERVED, R.RESERVED]),
    it_does_not_fit_anyway=(ledger(waiting=1), [behind("a", 5)], [R.EXCEEDED]),
    without_demand=(ledger(waiting=1), [behind("a", 0)], [R.NOTHING_TO_RESERVE]),
    an_update_that_grows=(
        ledger(waiting=1), [request(Reservation("a/r", gpus(1), 7), Line.BEHIND)], [R.OTHERS_WAIT]
    ),
    one_who_never_waits=(ledger(waiting=1), [apart("a")], [R.RESERVED]),
    one_who_never_waits_competes_for_what_is_free=(ledger(held("b", 4), waiting=1), [apart("a")], [R.EXCEEDED]),
    what_is_held_is_for_the_line=(ledger(held("b", 4), waiting=1), [behind("a")], [R.EXCEEDED]),
    nobody_waits_any_more=(ledger(held("b")), [behind("a")], [R.RESERVED]),
)  # fmt: skip
def test_nobody_passes_the_line(
    before: QuotaLedger, requests: list[ReservationRequest], want: list[VerdictReason]
) -> None:
    assert [each.reason for each in decide(before, requests).verdicts] == want


@cases(
    ("before", "requests", "want"),
    what_is_held=(ledger(held("a"), waiting=1), [lifts("a")], [R.RESERVED]),
    more_than_it_needs=(ledger(held("a", 3), waiting=1), [lifts("a", 2)], [R.RESERVED]),
    too_little=(ledger(held("a", 1), waiting=1), [lifts("a", 2)], [R.NOT_HELD]),
    it_was_given_back=(ledger(waiting=1), [lifts("a")], [R.NOT_HELD]),
    it_is_of_another_pod=(ledger(held("b"), waiting=1), [lifts("a")], [R.NOT_HELD]),
    it_was_taken_over=(
        ledger(Reservation(lift_id("a", "x"), gpus(1), 6), waiting=1), [lifts("a")], [R.NOT_HELD]
    ),
    the_same_version_again=(ledger(Reservation(lift_id("a", "x"), gpus(1), 7), waiting=1), [lifts("a")], [R.RESERVED]),
    again_and_more_than_is_held=(
        ledger(Reservation(lift_id("a", "x"), gpus(1), 7), waiting=1), [lifts("a", 2)], [R.NOT_HELD]
    ),
    again_though_hard_was_lowered=(
        ledger(Reservation(lift_id("a", "x"), gpus(1), 7), hard=1, used=1, waiting=1), [lifts("a")], [R.EXCEEDED]
    ),
    a_repeated_call=(
        ledger(Reservation(lift_id("a", "request"), gpus(1), 7), waiting=1), [lifts("a")], [R.ALREADY_RESERVED]
    ),
    twice_in_one_batch=(
        ledger(held("a"), waiting=1), [lifts("a"), lifts("a", 1, "other")], [R.RESERVED, R.NOT_HELD]
    ),
    the_same_call_twice_in_one_batch=(
        ledger(held("a"), waiting=1), [lifts("a"), lifts("a")], [R.RESERVED, R.ALREADY_RESERVED]
    ),
    hard_was_lowered=(ledger(held("a"), hard=1, used=1, waiting=1), [lifts("a")], [R.EXCEEDED]),
    beyond_it_for_what_kueue_has_admitted=(
        ledger(held("a"), hard=1, used=1, waiting=1), [of_kueue("a")], [R.RESERVED]
    ),
    not_even_for_kueue_more_than_is_held=(ledger(held("a"), waiting=1), [of_kueue("a", 2)], [R.NOT_HELD]),
    hard_is_reached=(ledger(held("a"), held("b"), hard=2, waiting=2), [lifts("a")], [R.RESERVED]),
    beside_a_creation_of_its_batch=(
        ledger(held("a"), hard=1), [behind("b"), lifts("a")], [R.EXCEEDED, R.RESERVED]
    ),
    without_demand=(ledger(waiting=1), [lifts("a", 0)], [R.NOTHING_TO_RESERVE]),
)  # fmt: skip
def test_the_controller_removes_a_gate_on_what_it_holds(
    before: QuotaLedger, requests: list[ReservationRequest], want: list[VerdictReason]
) -> None:
    decided = decide(before, requests)

    assert [each.reason for each in decided.verdicts] == want
    assert decided.ledger.reserved == before.reserved
    assert (decided.ledger is before) is (R.RESERVED not in want)


def test_a_removal_takes_over_all_that_is_held() -> None:
    decided = decide(ledger(held("a", 3), held("b")), [lifts("a", 2)])

    assert decided.ledger.reservations == Reservations.of(
        held("b"), Reservation(lift_id("a", "request"), gpus(3), 7)
    )


def test_a_ledger_that_moves_marks_what_is_taken_over() -> None:
    before = ledger(held("a", catalogue="next"), next_catalogue="next")
    requested = replace(lifts("a"), catalogue_versions=frozenset({"now", "next"}))

    (reservation,) = decide(before, [requested]).ledger.reservations

    assert reservation == Reservation(lift_id("a", "request"), gpus(1), 7, catalogue="next")


@cases(
    ("line", "want"),
    joins=(Line.JOINS, R.UNREADABLE),
    lifts=(Line.LIFTS, R.UNREADABLE),
    apart=(Line.NEVER_WAITS, R.UNREADABLE),
)
def test_a_line_that_cannot_be_read_denies_these_too(line: Line, want: VerdictReason) -> None:
    before = ledger(reservations=Reservations.parse("gpus=1 | a/lift\ngpus=1 | x x"))
    reservation = (
        Reservation(lift_id("a", "request"), gpus(1)) if line is Line.LIFTS else Reservation("a", gpus(1))
    )

    assert decide(before, [request(reservation, line)]).verdicts[0].reason is want


@cases(
    ("before", "requested", "must_wait", "if_kueue_may_admit_it"),
    it_fits_but_not_now=(ledger(used=4), behind("a"), True, True),
    others_wait=(ledger(waiting=1), behind("a"), True, True),
    it_never_fits=(ledger(), behind("a", 5), False, True),
    it_never_fits_the_team=(team_ledger({OWN: {}, PROD: {}}), behind("a", 65), False, False),
    it_fits_the_team_but_not_now=(team_ledger({OWN: {}, PROD: {"gpus": 64}}), behind("a"), True, True),
    it_fits=(ledger(), behind("a"), False, False),
    the_queue_is_full=(ledger(max_waiting=0), joins("a"), False, False),
    it_is_not_held=(ledger(), lifts("a"), False, False),
)
def test_who_must_wait(
    before: QuotaLedger, requested: ReservationRequest, must_wait: bool, if_kueue_may_admit_it: bool
) -> None:
    counted_by = frozenset(filter(None, [before.class_catalogue]))

    (verdict,) = decide(before, [replace(requested, catalogue_versions=counted_by)]).verdicts

    assert (verdict.must_wait, verdict.may_wait_for_kueue) == (must_wait, if_kueue_may_admit_it)

"""Objects that never wait under our gate: what the first pod in line lacks is closed to them, and a mark keeps their place."""

from fractions import Fraction

from msgspec.structs import replace

from policies.quota.amounts import Amounts
from policies.quota.ledger.credits import (
    AGAIN_MS,
    LONGEST_MS,
    MAX_MARKS,
    SEEN_MS,
    Mark,
    mark_key,
)
from policies.quota.ledger.decide import Line, ReservationRequest, VerdictReason, decide
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import Reservation, lift_id
from policies.quota.ledger.team import Team
from policies.quota.ledger.team_ledgers import TeamLedgers
from tests.builders import quota_ledger
from tests.cases import cases

R = VerdictReason
NOW = 1_790_000_000_000
AGENT, SHORT = "DaemonSet/agent", {"gpus": False}
ONE = {"gpus": Fraction(1)}
KEY = mark_key(AGENT, ONE)
MARKED = {KEY: Mark(ONE, NOW - 5_000, NOW - 5_000)}


def ledger(*reservations: Reservation, used: int = 0, hard: int = 4, **fields: object) -> QuotaLedger:
    counted = {
        "hard": {"gpus": Fraction(hard)},
        "used": {"gpus": Fraction(used), "classes/a": Fraction(0)},
        "class_catalogue": "now",
    }
    return quota_ledger(*reservations, **{**counted, **fields})


def apart(uid: str, amount: int = 1, owner: str = AGENT, key: str = "gpus") -> ReservationRequest:
    return ReservationRequest(
        reservation=Reservation(uid, {key: Fraction(amount)}, name=f"pods/{uid}"),
        catalogue_versions=frozenset({"now"}),
        line=Line.NEVER_WAITS,
        owner=owner,
    )


def held(key: str = KEY, amount: int = 1) -> Reservation:
    return Reservation(lift_id(key), {"gpus": Fraction(amount)})


@cases(
    ("before", "requested", "want"),
    what_the_head_lacks=(ledger(waiting=1, scarce=SHORT), [apart("a")], [R.OTHERS_WAIT]),
    what_the_head_does_not_lack=(ledger(waiting=1, scarce={"classes/a": False}), [apart("a")], [R.RESERVED]),
    an_unlimited_dimension=(ledger(waiting=1, scarce=SHORT), [apart("a", key="classes/a")], [R.RESERVED]),
    a_head_that_others_may_pass=(ledger(waiting=1), [apart("a")], [R.RESERVED]),
    no_room=(ledger(used=4, waiting=1, scarce=SHORT), [apart("a")], [R.EXCEEDED]),
    its_turn=(ledger(held(), marks=MARKED, scarce=SHORT, used=3), [apart("a")], [R.RESERVED]),
    its_turn_once=(
        ledger(held(), marks=MARKED, scarce=SHORT, used=2),
        [apart("a"), apart("b")],
        [R.RESERVED, R.OTHERS_WAIT],
    ),
    the_turn_of_another_owner=(
        ledger(held(), marks=MARKED, scarce=SHORT, used=2),
        [apart("a", owner="DaemonSet/b")],
        [R.OTHERS_WAIT],
    ),
    the_turn_of_a_smaller_one=(
        ledger(held(), marks=MARKED, scarce=SHORT, used=1),
        [apart("a", 2)],
        [R.OTHERS_WAIT],
    ),
    its_turn_but_hard_was_lowered=(
        ledger(held(), marks=MARKED, scarce=SHORT, used=4, hard=4),
        [apart("a")],
        [R.EXCEEDED],
    ),
    a_turn_that_was_given_back=(ledger(marks=MARKED, scarce=SHORT), [apart("a")], [R.OTHERS_WAIT]),
)
def test_what_the_first_in_line_lacks_is_closed(
    before: QuotaLedger, requested: list[ReservationRequest], want: list[VerdictReason]
) -> None:
    decided = decide(before, requested, now=NOW)

    assert [each.reason for each in decided.verdicts] == want
    assert decided.ledger.held.get("gpus", 0) <= max(before.held.get("gpus", 0), before.hard["gpus"])


def test_one_that_is_admitted_in_any_case_leaves_no_mark() -> None:
    decided = decide(ledger(waiting=1, scarce=SHORT), [replace(apart("a"), owner=None)], now=NOW)

    assert [each.reason for each in decided.verdicts] == [R.OTHERS_WAIT]
    assert decided.ledger.marks == {}


def test_what_is_held_for_a_mark_goes_to_the_object_and_the_mark_goes() -> None:
    after = decide(ledger(held(), marks=MARKED, used=3), [apart("a")], now=NOW).ledger

    assert list(after.reservations) == [Reservation("a", ONE, name="pods/a")]
    assert after.marks == {}


@cases(
    ("before", "requested", "want"),
    denied_for_others=(ledger(scarce=SHORT), apart("a"), {KEY: Mark(ONE, NOW, NOW)}),
    denied_for_lack_of_room_in_a_line=(ledger(used=4, scarce=SHORT), apart("a"), {KEY: Mark(ONE, NOW, NOW)}),
    denied_where_nobody_waits=(ledger(used=4), apart("a"), {}),
    it_can_never_fit=(ledger(scarce=SHORT), apart("a", 5), {}),
    admitted=(ledger(marks=MARKED), apart("a"), {}),
    denied_again_at_once=(ledger(scarce=SHORT, marks=MARKED), apart("a"), MARKED),
    denied_again_later=(
        ledger(scarce=SHORT, marks={KEY: Mark(ONE, 7, NOW - SEEN_MS - 1)}), apart("a"), {KEY: Mark(ONE, 7, NOW)}
    ),
    a_mark_that_others_do_not_close_any_more=(
        ledger(used=4, marks={KEY: Mark(ONE, 7, 8)}), apart("a"), {KEY: Mark(ONE, 7, NOW)}
    ),
)  # fmt: skip
def test_a_denied_one_keeps_its_place(
    before: QuotaLedger, requested: ReservationRequest, want: dict[str, Mark]
) -> None:
    decided = decide(before, [requested], now=NOW)

    assert decided.ledger.marks == want
    assert (decided.ledger is before) is (want == before.marks)


def test_marks_are_few_and_take_of_the_room_of_reservations() -> None:
    before = ledger(scarce=SHORT)
    many = decide(before, [apart(f"p{n}", owner=f"Job/{n}") for n in range(MAX_MARKS + 5)], now=NOW).ledger
    assert len(many.marks) == MAX_MARKS
    assert many.all_waiting == MAX_MARKS
    assert many.size == many.reservations.size + sum(each.size for each in many.marks.values())

    full = decide(before, [apart("a")], now=NOW, limit=many.marks[KEY].size - 1 if KEY in many.marks else 50)
    assert full.ledger.marks == {}


def test_a_pod_that_may_wait_does_not_pass_a_mark() -> None:
    behind = replace(apart("a"), line=Line.BEHIND)

    assert decide(ledger(marks=MARKED), [behind]).verdicts[0].reason is R.OTHERS_WAIT


@cases(
    ("tried", "silent", "want"),
    once_and_soon=(0, AGAIN_MS, False),
    once_and_long_ago=(0, AGAIN_MS + 1, True),
    a_controller_with_long_pauses=(500_000, 1_000_000, False),
    one_that_stays_away=(500_000, 1_000_001, True),
    the_longest_pause_of_kubernetes=(10**9, 1_000_000, False),
    capped=(10**9, LONGEST_MS + 1, True),
)
def test_a_mark_stays_as_long_as_its_owner_may_come_again(tried: int, silent: int, want: bool) -> None:
    mark = Mark(ONE, NOW, NOW + tried)

    assert mark.is_late(NOW + tried + silent) is want
    assert ledger(marks={KEY: mark}).without_late_marks(NOW + tried + silent).marks == (
        {} if want else {KEY: mark}
    )


def team(guaranteed: Amounts, **ledgers: QuotaLedger) -> TeamLedgers:
    spec = Team(name="t", uid="t", generation=1, hard={"gpus": Fraction(4)}, guaranteed={"own": guaranteed})
    return TeamLedgers(spec, ledgers)


@cases(
    ("scarce", "guaranteed", "want"),
    the_head_of_another_namespace_lacks_it_of_the_team=({"gpus": True}, {}, R.OTHERS_WAIT),
    it_lacks_it_of_its_own_quota=({"gpus": False}, {}, R.RESERVED),
    within_a_guarantee=({"gpus": True}, ONE, R.RESERVED),
)
def test_what_the_head_of_a_team_lacks_is_closed_in_the_others(
    scarce: dict[str, bool], guaranteed: Amounts, want: VerdictReason
) -> None:
    other = ledger(waiting=1, waiting_for_team=1, scarce=scarce)
    ledgers = team(guaranteed, own=ledger(), other=other)

    for each in (ledgers, team(guaranteed, own=ledger()).with_ledger("other", other)):
        own = each.of("own")
        assert own is not None
        assert decide(own, [apart("a")], now=NOW).verdicts[0].reason is want
    assert ledgers.with_ledger("other", replace(other, scarce={})).team_state("own").scarce == frozenset()


@cases(
    ("own", "other", "line", "want"),
    others_of_the_team=(ledger(), ledger(scarce={"gpus": True}), Line.NEVER_WAITS, R.RESERVED),
    its_own_pods=(ledger(waiting=1, scarce=SHORT), ledger(), Line.NEVER_WAITS, R.OTHERS_WAIT),
    only_a_mark=(ledger(marks=MARKED, scarce=SHORT), ledger(), Line.NEVER_WAITS, R.RESERVED),
    only_a_mark_before_a_pod_that_may_wait=(ledger(marks=MARKED, scarce=SHORT), ledger(), Line.BEHIND, R.RESERVED),
)  # fmt: skip
def test_without_a_controller_only_pods_of_its_namespace_are_before_it(
    own: QuotaLedger, other: QuotaLedger, line: Line, want: VerdictReason
) -> None:
    before, asked = team({}, own=own, other=other).of("own"), replace(apart("a"), line=line)
    assert before is not None
    assert decide(before, [asked], now=NOW).verdicts[0].reason is R.OTHERS_WAIT

    decided = decide(before, [replace(asked, is_served=False)], now=NOW)

    assert decided.verdicts[0].reason is want

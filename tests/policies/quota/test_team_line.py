"""In which namespace of a team the next pod starts: order, what blocks, what is held and given back."""

from collections.abc import Mapping
from fractions import Fraction

import pytest
from msgspec.structs import replace

from policies.quota import team_line
from policies.quota.ledger.decide import Line, ReservationRequest, VerdictReason, decide
from policies.quota.ledger.reservations import Reservation, Reservations, keep_id, lift_id
from policies.quota.ledger.team_ledgers import TeamLedgers
from policies.quota.queue_entries import Gang, InLine
from policies.quota.team_line import TeamTurn, next_to_start_in_team
from policies.quota.waiting import QueueSpec, Standing, Waiter
from tests.builders import quota_ledger
from tests.cases import cases
from tests.policies.quota.team_lines import BEST_EFFORT, STRICT, Amounts, ledger, of_team
from tests.policies.quota.waiters import begun, gpus, held, member, waiter

S = Standing


def turn(before: TeamLedgers, starved_before: str = "", /, **in_line: InLine | list[Waiter]) -> TeamTurn:
    lines = {
        namespace: each if isinstance(each, InLine) else InLine(each, {"gang": Gang(2)})
        for namespace, each in in_line.items()
    }
    return next_to_start_in_team(before, lines, starved_before)


def lifts(found: TeamTurn) -> set[str]:
    return {uid for each in found.turns.values() for uid in each.ungate_uids}


def standings(found: TeamTurn) -> dict[str, Standing]:
    return {uid: place.standing for each in found.turns.values() for uid, place in each.places.items()}


def waiting_for_team(found: TeamTurn) -> dict[str, int]:
    return {name: each.waiting_for_team for name, each in found.team_ledgers.ledgers.items()}


# ---- order: a pod of each namespace waits for one GPU


OLD, NEW = [waiter("a", since="1")], [waiter("b", since="2")]
KEPT = Reservation(keep_id("gone", "web"), gpus(1))


@cases(
    ("hard", "a", "b", "guaranteed", "want"),
    the_older_of_equals=(5, 2, 2, {}, "a"),
    where_less_is_held=(5, 3, 1, {}, "b"),
    where_less_is_held_beyond_the_guarantee=(5, 1, 3, {"b": 3}, "b"),
    what_is_within_a_guarantee_passes_one_that_does_not_fit=(5, 1, 3, {"b": 4}, "b"),
    so_does_what_takes_exactly_the_guarantee=(4, 3, 0, {"a": 3, "b": 1}, "b"),
    but_not_what_is_beyond_it=(4, 0, 3, {"b": 3}, "a"),
)
def test_the_order_of_namespaces(hard: int, a: int, b: int, guaranteed: Amounts, want: str) -> None:
    found = turn(of_team(hard, guaranteed, a=ledger(a), b=ledger(b)), a=OLD, b=NEW)

    assert lifts(found) == {want}
    other = found.turns["b" if want == "a" else "a"].places["b" if want == "a" else "a"]
    assert (other.standing, other.number, other.for_team) == (S.NEXT, 1, True)


def test_the_order_is_made_again_after_each_pod() -> None:
    """So that both hold the same in the end."""
    many = {name: [waiter(f"{name}{number}", since=name) for number in range(8)] for name in "ab"}
    found = turn(of_team(10, a=ledger(4), b=ledger(0)), **many)

    assert lifts(found) == {"a0", *(f"b{number}" for number in range(5))}


@cases(
    ("hard", "want"),
    a_gang_of_a_namespace_with_a_guarantee_is_not_before_an_older_pod=(8, {"b"}),
    it_starts_whole=(9, {"a0", "a1", "b"}),
)
def test_a_gang_that_exceeds_its_guarantee_has_no_precedence(hard: int, want: set[str]) -> None:
    """Else a namespace could take the whole team again and again."""
    gang = [member("a0", 4, "2"), member("a1", 4, "2")]
    found = turn(of_team(hard, {"a": 4}, a=ledger(), b=ledger()), a=gang, b=[waiter("b", since="1")])

    assert lifts(found) == want


def test_a_priority_counts_within_its_namespace_only() -> None:
    urgent = [waiter("b1", since="2", priority=9), waiter("b2", since="1")]
    found = turn(of_team(1, a=ledger(), b=ledger()), a=[waiter("a", since="1.5")], b=urgent)

    assert standings(found) == {"a": S.STARTING, "b1": S.NEXT, "b2": S.BEHIND}


@cases(
    ("first", "gang"),
    a_replacement=(waiter("b", since="9", replaces=True), Gang(2)),
    the_rest_of_a_gang=(member("b", 2, since="9"), Gang(2, running=1)),
)
def test_who_goes_before_all_namespaces(first: Waiter, gang: Gang) -> None:
    before = of_team(6, a=ledger(), b=ledger(4, *[held("b")] * bool(first.gang)))
    found = turn(before, a=[waiter("a", since="1")], b=InLine([first], {"gang": gang}))

    assert "b" in lifts(found)


# ---- what blocks


def scarce(found: TeamTurn) -> dict[str, Mapping[str, bool]]:
    return {name: each.scarce for name, each in found.team_ledgers.ledgers.items() if each.scarce}


@cases(
    ("before", "queue", "want"),
    what_the_team_lacks_for_the_first=(of_team(4, a=ledger(2), b=ledger(1)), STRICT, {"a": {"gpus": True}}),
    what_its_own_quota_lacks=(of_team(9, a=ledger(2, hard=3), b=ledger(1)), STRICT, {"a": {"gpus": False}}),
    of_those_behind_it_nothing=(of_team(4, a=ledger(1), b=ledger(3)), STRICT, {"a": {"gpus": True}}),
    of_one_that_others_may_pass_nothing=(of_team(4, a=ledger(2), b=ledger(1)), BEST_EFFORT, {}),
)
def test_what_the_first_in_the_line_of_a_team_lacks_is_written(
    before: TeamLedgers, queue: QueueSpec, want: dict[str, Mapping[str, bool]]
) -> None:
    b = [waiter("b", since="2")] if before.ledgers["b"].used == {"gpus": Fraction(3)} else []
    found = turn(before, a=InLine([waiter("a", 2, since="1")], {}, queue), b=b)

    assert scarce(found) == want


LARGE = [waiter("large", 4, since="1")]


@cases(
    ("own", "queue", "starved_before", "want"),
    nobody_in_the_team_passes=(None, QueueSpec(), "", set()),
    best_effort_lets_others_pass=(None, BEST_EFFORT, "", {"small"}),
    until_it_has_starved=(None, BEST_EFFORT, "1.5", set()),
    its_own_quota_blocks_it=(3, QueueSpec(), "", {"small"}),
)
def test_a_head_that_does_not_fit(
    own: int | None, queue: QueueSpec, starved_before: str, want: set[str]
) -> None:
    before = of_team(8, a=ledger(2, hard=own and own + 2), b=ledger(3))
    found = turn(before, starved_before, a=InLine(LARGE, {}, queue), b=[waiter("small", since="2")])

    assert lifts(found) == want


def test_a_head_that_has_starved_behind_an_equal_one_with_a_higher_priority() -> None:
    """Equal pods share their demand, which is compared with the team only once."""
    urgent = waiter("urgent", 4, since="5", priority=9)
    starved = replace(urgent, uid="starved", since="1", priority=0)
    in_a = InLine([urgent, starved], {}, BEST_EFFORT)
    found = turn(of_team(8, a=ledger(2), b=ledger(3)), "2", a=in_a, b=[waiter("small", since="6")])

    assert standings(found) == {"urgent": S.NEXT, "starved": S.NEXT, "small": S.BEHIND}


@cases(
    ("queue", "want", "for_team"),
    on_hold=(QueueSpec(hold=True), S.ON_HOLD, 0),
    moves=(QueueSpec(), S.NEXT, 1),
)
def test_a_line_on_hold_blocks_nobody(queue: QueueSpec, want: Standing, for_team: int) -> None:
    found = turn(of_team(4, a=ledger(), b=ledger(2)), a=InLine(LARGE, {}, queue), b=[waiter("b", since="2")])

    assert standings(found)["large"] is want
    assert waiting_for_team(found)["a"] == for_team
    assert ("b" in lifts(found)) == (want is S.ON_HOLD)


def test_who_waits_for_the_team_and_who_for_its_own_quota() -> None:
    before = of_team(4, a=ledger(1, hard=9), b=ledger(1, hard=1), c=ledger(2))
    in_line = {name: [waiter(f"{name}{number}", since=str(number)) for number in range(3)] for name in "abc"}
    found = turn(before, **in_line)

    assert standings(found) == {
        f"{name}{number}": S.BEHIND if number else S.NEXT for name in "abc" for number in range(3)
    } | {"c0": S.BEHIND}
    assert waiting_for_team(found) == {"a": 1, "b": 0, "c": 1}


@cases(
    ("demand", "hard", "want"),
    within_the_team=(4, 4, S.NEXT),
    what_is_guaranteed_to_others=(5, 9, S.TOO_LARGE),
    more_than_its_own_quota=(4, 3, S.TOO_LARGE),
)
def test_what_can_never_start(demand: int, hard: int, want: Standing) -> None:
    before = of_team(8, {"b": 4}, a=ledger(1, hard=hard), b=ledger())
    found = turn(before, a=[waiter("large", demand)])

    assert standings(found) == {"large": want}


def test_a_team_that_grants_nothing_starts_nobody() -> None:
    found = turn(of_team(0, a=ledger(), b=ledger(1)), a=OLD, b=NEW)

    assert standings(found) == dict.fromkeys("ab", S.TOO_LARGE)


@cases(
    ("keeps", "mine", "want"),
    nobody_is_expected=([], [], {"b"}),
    what_an_object_in_another_namespace_keeps=([KEPT], [], set()),
    its_next_pod_starts=([KEPT], [waiter("a", keep=KEPT.id)], {"a"}),
)
def test_an_object_keeps_quota_of_the_team(
    keeps: list[Reservation], mine: list[Waiter], want: set[str]
) -> None:
    found = turn(of_team(4, a=ledger(3, *keeps), b=ledger()), a=mine, b=NEW)

    assert lifts(found) == want


def test_what_an_object_keeps_passes_a_head_that_keeps_all_others_out() -> None:
    rest = InLine([waiter("c", 2, "1")], {"gang": Gang(2, 1)})
    found = turn(of_team(4, a=ledger(3, KEPT), c=ledger()), c=rest, a=[waiter("a", since="9", keep=KEPT.id)])

    assert lifts(found) == {"a"}


# ---- gangs, what is held and given back


PAIR = [member("g0", 2, "2"), member("g1", 2, "2")]


def test_a_gang_waits_whole_for_the_team() -> None:
    found = turn(of_team(6, a=ledger(), b=ledger(3)), a=PAIR, b=[waiter("b", since="1")])

    assert lifts(found) == set()
    assert standings(found) == {"g0": S.NEXT, "g1": S.NEXT, "b": S.BEHIND}
    assert lifts(turn(of_team(6, a=ledger(), b=ledger(2)), a=PAIR, b=[waiter("b", since="1")])) == {
        "g0",
        "g1",
    }


@cases(
    ("hard", "a", "b", "want"),
    who_holds_most_gives_back_first=(5, (3, held("a")), (1, held("b")), {"b"}),
    what_does_not_fit_either_beside_what_runs=(5, (4, held("a")), (1, held("b")), set()),
    all_of_it_if_need_be=(2, (4, held("a")), (0, held("b", 3)), set()),
    what_has_begun_stays=(5, (4, begun("a")), (2, held("b")), {"a"}),
    a_started_gang_keeps_it=(5, (4, held("g0", 2)), (1, held("b")), {"g0"}),
)
def test_what_is_given_back_if_hard_of_the_team_was_lowered(
    hard: int, a: tuple[int, Reservation], b: tuple[int, Reservation], want: set[str]
) -> None:
    before = of_team(hard, {"b": 2}, a=ledger(*a), b=ledger(*b))
    waits = [member("g0", 2)] if a[1].id == lift_id("g0") else [waiter("a")]
    in_a = InLine(waits, {"gang": Gang(2, running=1)})
    found = turn(before, a=in_a, b=[waiter("b", int(b[1].demand["gpus"]))])

    assert {uid for each in found.team_ledgers.ledgers.values() for uid in each.reservations.lifts} == want


def test_what_one_namespace_gives_back_is_enough_for_another_to_keep_what_is_held() -> None:
    """Even if the first one then goes first, and does not fit."""
    before = of_team(5, a=ledger(3, held("a")), b=ledger(1, held("b")))
    found = turn(before, a=[waiter("a", replaces=True)], b=[waiter("b")])

    assert lifts(found) == {"b"}


@cases(("more", "want"), too_little=(-1, S.NEXT), just_enough=(0, S.STARTING))
def test_what_is_held_has_to_fit_the_object_of_the_team(
    more: int, want: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team_line, "LIFTS_LIMIT", 5 * Reservations.of(held("a")).size + more)
    ledgers = {name: ledger(0, held(name)) for name in "abcd"}
    found = turn(of_team(9, {}, e=ledger(), **ledgers), **{name: [waiter(name)] for name in "abcde"})

    assert standings(found)["e"] is want
    assert found.ungate_uids("a") == ("a",)
    assert found.ungate_uids("of-another-team") == ()


def test_a_namespace_that_is_not_decided_here_has_no_turn() -> None:
    never, leaving = quota_ledger(class_catalogue="now"), ledger()
    before = of_team(4, a=ledger(), b=never, c=leaving).leave("c")
    found = turn(before, a=[waiter("a")], b=[waiter("b")], c=[waiter("c")], d=[waiter("d")])

    assert found.turns.keys() == {"a"}
    assert lifts(found) == {"a"}


def test_a_dimension_that_a_ledger_of_the_team_lacks_is_not_held() -> None:
    lacks = replace(ledger(), used={})
    found = turn(of_team(4, a=ledger(), b=lacks), a=[waiter("a")])

    assert standings(found) == {"a": S.NEXT}


# ---- who is denied while the team waits


@cases(
    ("used", "ask", "want"),
    while_others_wait=(2, 1, VerdictReason.OTHERS_WAIT),
    within_its_guarantee=(0, 1, VerdictReason.RESERVED),
    partly_beyond_it=(1, 2, VerdictReason.OTHERS_WAIT),
)
def test_a_namespace_that_does_not_queue(used: int, ask: int, want: VerdictReason) -> None:
    found = turn(of_team(8, {"b": 2}, a=ledger(3), b=ledger(used)), a=[waiter("large", 4)])
    ledger_of_b = found.team_ledgers.of("b")
    assert ledger_of_b is not None
    new = ReservationRequest(
        reservation=Reservation("new", gpus(ask)), catalogue_versions=frozenset({"now"}), line=Line.BEHIND
    )
    assert decide(ledger_of_b, [new]).verdicts[0].reason is want


def test_a_lift_waits_for_a_dimension_that_another_ledger_lacks() -> None:
    lacks = replace(ledger(), used={})
    ledger_of_a = of_team(4, a=ledger(0, held("a")), b=lacks).of("a")
    assert ledger_of_a is not None
    lift = ReservationRequest(reservation=begun("a"), catalogue_versions=frozenset({"now"}), line=Line.LIFTS)
    assert decide(ledger_of_a, [lift]).verdicts[0].reason is VerdictReason.UNCOUNTED

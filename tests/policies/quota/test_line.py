"""Whose gate is removed next: order, gangs, what is held and given back; and laws of any turn."""

from collections.abc import Mapping
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.quota.amounts import Vector, exceeds, total
from policies.quota.ledger.credits import Credit, owner_key
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import Reservation
from policies.quota.line import LIFTS_LIMIT, Gang, Standing, Turn, Waiter
from policies.quota.waiting import QueueOrder, QueueSpec, creation_timestamp
from tests.builders import quota_ledger
from tests.cases import cases
from tests.policies.quota.turns import next_to_start
from tests.policies.quota.waiters import begun, gpus, held, member, waiter

STRICT, BEST_EFFORT = QueueSpec(), QueueSpec(order=QueueOrder.BEST_EFFORT_FIFO)
S = Standing


def ledger(hard: int, used: int = 0, *reservations: Reservation, **fields: object) -> QuotaLedger:
    counted = {
        "hard": gpus(hard) or {"gpus": Fraction(0)},
        "used": {"gpus": Fraction(used)},
        "class_catalogue": "now",
    }
    return quota_ledger(*reservations, **{**counted, **fields})


def amounts_held(turn: Turn) -> dict[str, int]:
    return {each.id.removesuffix("/lift"): int(each.demand["gpus"]) for each in turn.ledger.reservations}


def standings(turn: Turn) -> dict[str, Standing]:
    return {uid: place.standing for uid, place in turn.places.items()}


# ---- order


@cases(
    ("first", "second"),
    the_higher_priority=(waiter("z", priority=1, since="9"), waiter("a", since="1")),
    then_the_older=(waiter("z", since="1"), waiter("a", since="2")),
    then_the_uid=(waiter("a"), waiter("b")),
    a_replacement_before_any_priority=(waiter("z", since="9", replaces=True), waiter("a", priority=9)),
    of_two_replacements_the_older=(
        waiter("z", since="1", replaces=True),
        waiter("a", since="2", replaces=True),
    ),
)
def test_the_order_in_line(first: Waiter, second: Waiter) -> None:
    turn = next_to_start(ledger(1), [second, first], {}, STRICT)

    assert turn.ungate_uids == (first.uid,)
    assert amounts_held(turn) == {first.uid: 1}
    assert [turn.places[each.uid].standing for each in (first, second)] == [S.STARTING, S.NEXT]


def test_who_waits_has_a_number_in_line() -> None:
    turn = next_to_start(
        ledger(2, 2), [waiter("a"), member("b"), member("c"), waiter("d")], {"gang": Gang(2)}, STRICT
    )

    assert {uid: place.number for uid, place in turn.places.items()} == {"a": 1, "b": 2, "c": 2, "d": 3}
    assert turn.places["b"].needed == gpus(2)
    assert standings(turn) == {"a": S.NEXT, "b": S.BEHIND, "c": S.BEHIND, "d": S.BEHIND}


LARGE, SMALL, STARVED = waiter("large", 2, "3"), waiter("small", 1, "4"), "3.5"


@cases(
    ("queue", "starved_before", "want"),
    strict_fifo_blocks=(STRICT, "", ()),
    best_effort_lets_pass=(BEST_EFFORT, "", ("small",)),
    until_it_has_starved=(BEST_EFFORT, STARVED, ()),
)
def test_who_is_behind_one_that_does_not_fit(
    queue: QueueSpec, starved_before: str, want: tuple[str, ...]
) -> None:
    assert next_to_start(ledger(2, 1), [LARGE, SMALL], {}, queue, starved_before).ungate_uids == want


@cases(
    ("front", "standing"),
    more_than_the_whole_quota=(waiter("front", 5), S.TOO_LARGE),
    another_gate=(waiter("front", obstacle=S.OTHER_GATE), S.OTHER_GATE),
    its_lift_was_denied=(waiter("front", obstacle=S.DENIED), S.DENIED),
    a_gang_without_all_its_pods=(member("front"), S.INCOMPLETE),
)
def test_who_steps_aside_holds_no_place(front: Waiter, standing: Standing) -> None:
    turn = next_to_start(ledger(4), [front, waiter("b", since="2")], {"gang": Gang(2)}, STRICT)

    assert standings(turn) == {"front": standing, "b": S.STARTING}
    assert (turn.places["front"].number, turn.ungate_uids) == (0, ("b",))


@cases(
    ("queue", "front", "starved_before", "want"),
    one_that_nobody_may_pass=(STRICT, waiter("a", 2), "", {"gpus": False}),
    one_that_others_may_pass=(BEST_EFFORT, waiter("a", 2), "", {}),
    until_it_has_waited_too_long=(BEST_EFFORT, waiter("a", 2), "2", {"gpus": False}),
    one_that_starts=(STRICT, waiter("a", 1), "", {}),
    one_that_can_never_start=(STRICT, waiter("a", 5), "", {}),
    one_that_cannot_start_now=(STRICT, waiter("a", 2, obstacle=S.OTHER_GATE), "", {}),
    on_hold=(QueueSpec(hold=True), waiter("a", 2), "", {}),
)
def test_what_the_first_in_line_lacks_is_written(
    queue: QueueSpec, front: Waiter, starved_before: str, want: dict[str, bool]
) -> None:
    assert next_to_start(ledger(4, 3), [front], {}, queue, starved_before).ledger.scarce == want


def test_a_queue_on_hold_removes_no_gate() -> None:
    turn = next_to_start(
        ledger(4, 0, held("b")), [waiter("a"), waiter("b"), waiter("c", 0)], {}, QueueSpec(hold=True)
    )

    assert turn.ungate_uids == ()
    assert set(standings(turn).values()) == {S.ON_HOLD}
    assert amounts_held(turn) == {"b": 1}


def test_a_pod_without_demand_starts_at_once() -> None:
    turn = next_to_start(ledger(1, 1), [waiter("a"), waiter("cpu", 0, "9")], {}, STRICT)

    assert turn.ungate_uids == ("cpu",)
    assert not turn.ledger.reservations


NOW = 1_790_000_000_000
"""2026-09-21T14:13:20Z"""
WEB = owner_key("Deployment/web", "1")


def credit(*seconds: int, demand: int = 1, keeps: bool = True, owner: str = WEB) -> Credit:
    """Pods that ended so many seconds ago."""
    return Credit(owner, gpus(demand), tuple(sorted(NOW - 1000 * each for each in seconds)), keeps)


def of_web(uid: str, demand: int = 1, ago: int = 0, **fields: object) -> Waiter:
    return waiter(uid, demand, creation_timestamp(NOW - 1000 * ago), owner=WEB, **fields)


OLDER = waiter("older", since="1", priority=9)


@cases(
    ("before", "mine", "want", "left"),
    of_its_owner=([credit(5)], of_web("mine"), "mine", []),
    of_another_owner=([credit(5, owner="another")], of_web("mine"), "older", [credit(5, owner="another")]),
    one_of_two_is_used=([credit(5, 9)], of_web("mine"), "mine", [credit(5)]),
    of_a_pod_with_more=([credit(5, demand=2)], of_web("mine"), "mine", []),
    the_same_demand_before_more=(
        [credit(9, demand=2), credit(5)],
        of_web("mine"),
        "mine",
        [credit(9, demand=2)],
    ),
    of_a_pod_with_less=([credit(5)], of_web("mine", 2), "older", [credit(5)]),
    it_came_60_s_after_the_end=([credit(70)], of_web("mine", ago=10), "mine", []),
    it_came_later=([credit(71)], of_web("mine", ago=10), "older", []),
    a_later_end_is_left=([credit(71, 5)], of_web("mine", ago=10), "mine", []),
    quota_is_held_for_it_already=(
        [credit(5)],
        of_web("held"),
        "older",
        [credit(5)],
    ),
    it_cannot_start=([credit(70)], of_web("mine", ago=20, obstacle=S.DENIED), "older", [credit(70)]),
)
def test_a_credit_lets_one_pod_go_first(
    before: list[Credit], mine: Waiter, want: str, left: list[Credit]
) -> None:
    counted = ledger(2, 0, held("held"), credits=tuple(before))
    others = [OLDER, *([] if mine.uid == "held" else [waiter("held")])]

    turn = next_to_start(counted, [*others, mine], {}, STRICT, now=NOW)
    assert set(turn.ungate_uids) == {want, "held"}
    assert list(turn.ledger.credits) == left


def test_an_end_lets_the_oldest_pod_of_its_owner_go_first() -> None:
    pods = [of_web("b", ago=1), of_web("a", ago=2)]

    turn = next_to_start(ledger(1, credits=(credit(5),)), pods, {}, STRICT, now=NOW)
    assert turn.ungate_uids == ("a",)
    assert not turn.ledger.credits


def test_without_preference_there_are_no_credits() -> None:
    queue = QueueSpec(prefer_replacements=False)

    turn = next_to_start(ledger(1, credits=(credit(1),)), [OLDER, of_web("mine")], {}, queue, now=NOW)
    assert turn.ungate_uids == ("older",)
    assert not turn.ledger.credits


@cases(
    ("before", "mine", "want"),
    nobody_is_expected=((), OLDER, S.STARTING),
    what_a_replacement_will_need_stays_free=((credit(1),), OLDER, S.NEXT),
    for_3_s=((credit(3),), OLDER, S.STARTING),
    not_for_a_job=((credit(1, keeps=False),), OLDER, S.STARTING),
    not_beyond_its_time_by_a_clock_that_is_ahead=((credit(-1),), OLDER, S.STARTING),
    the_replacement_may_have_it=((credit(1),), of_web("older"), S.STARTING),
)
def test_quota_is_kept_for_the_pod_that_replaces_another_one(
    before: tuple[Credit, ...], mine: Waiter, want: Standing
) -> None:
    turn = next_to_start(ledger(1, credits=before), [mine], {}, STRICT, now=NOW)

    assert turn.places["older"].standing is want
    assert turn.ungate_uids == (("older",) if want is S.STARTING else ())


# ---- gangs


PAIR = [member("a"), member("b", since="2")]


@cases(
    ("before", "waiters", "gang", "want", "lifts"),
    whole=(ledger(2), PAIR, Gang(2), {"a": 1, "b": 1}, ("a", "b")),
    not_by_half=(ledger(1, 0), PAIR, Gang(2), {}, ()),
    not_beside_others=(ledger(2, 1), PAIR, Gang(2), {}, ()),
    not_before_all_are_there=(ledger(4), PAIR, Gang(3), {}, ()),
    no_more_than_it_needs=(ledger(2), PAIR, Gang(1), {"a": 1}, ("a",)),
    its_first_pods=(ledger(2, 0, held("b")), PAIR, Gang(1), {"a": 1}, ("a",)),
    of_one_that_has_started_each_pod_by_itself=(ledger(2, 1), PAIR, Gang(3, running=1), {"a": 1}, ("a",)),
    its_lifts_go_on=(ledger(2, 0, held("a"), held("b")), PAIR, Gang(2), {"a": 1, "b": 1}, ("a", "b")),
    begun_is_tried_again=(ledger(2, 0, begun("a"), held("b")), PAIR, Gang(2), {"a/lift/request": 1, "b": 1}, ("a", "b")),
    one_that_comes_later_starts_by_itself=(
        ledger(2, 0, begun("a")), PAIR, Gang(2), {"a/lift/request": 1, "b": 1}, ("a", "b")
    ),
)  # fmt: skip
def test_a_gang_starts_whole(
    before: QuotaLedger, waiters: list[Waiter], gang: Gang, want: dict[str, int], lifts: tuple[str, ...]
) -> None:
    turn = next_to_start(before, waiters, {"gang": gang}, STRICT)

    assert amounts_held(turn) == want
    assert turn.ungate_uids == lifts


def test_more_pods_of_a_gang_than_it_needs_line_up_once_it_has_started() -> None:
    waiters = [member(uid, since=uid) for uid in "abc"]
    turn = next_to_start(ledger(4), [*waiters, waiter("d", since="d")], {"gang": Gang(2)}, STRICT)

    assert standings(turn) == {"a": S.STARTING, "b": S.STARTING, "c": S.BEHIND, "d": S.STARTING}
    later = next_to_start(ledger(4, 3), [waiters[2]], {"gang": Gang(2, running=2)}, STRICT)
    assert later.ungate_uids == ("c",)


def test_a_gang_has_the_place_of_its_first_pod() -> None:
    waiters = [member("z", since="5"), member("b", priority=1), waiter("between", since="2")]

    turn = next_to_start(ledger(2), waiters, {"gang": Gang(2)}, STRICT)

    assert set(turn.ungate_uids) == {"b", "z"}


@cases(
    ("first", "running", "want"),
    one_runs=(Reservation("another", gpus(1)), 1, ("b",)),
    one_is_about_to=(begun("a"), 0, ("a", "b")),
)
def test_the_rest_of_a_gang_that_has_started_goes_first(
    first: Reservation, running: int, want: tuple[str, ...]
) -> None:
    waiters = [*PAIR, waiter("urgent", priority=9, since="0")]

    turn = next_to_start(ledger(2, 0, first, held("b")), waiters, {"gang": Gang(2, running)}, BEST_EFFORT)

    assert turn.ungate_uids == want
    assert standings(turn)["urgent"] is S.NEXT


def test_nobody_passes_the_rest_of_a_gang_that_has_started() -> None:
    waiters = [member("b", 3), waiter("c")]

    turn = next_to_start(ledger(4, 2, held("b")), waiters, {"gang": Gang(2, running=1)}, BEST_EFFORT)

    assert standings(turn) == {"b": S.NEXT, "c": S.BEHIND}


def test_a_pod_that_replaces_one_of_a_gang_waits_as_any_other() -> None:
    waiters = [member("new", since="2"), waiter("older", since="1")]

    assert next_to_start(ledger(2, 1), waiters, {"gang": Gang(2, running=1)}, STRICT).ungate_uids == (
        "older",
    )


# ---- what is held and given back


@cases(
    ("before", "waiters", "want"),
    hard_was_lowered=(ledger(1, 1, held("a")), [waiter("a")], {}),
    the_last_in_line_gives_back=(
        ledger(2, 1, held("a"), held("b")), [waiter("a"), waiter("b", since="2")], {"a": 1}
    ),
    demand_grew=(ledger(2, 0, held("a")), [waiter("a", 3)], {}),
    demand_grew_and_there_is_room=(ledger(3, 0, held("a")), [waiter("a", 3)], {"a": 3}),
    demand_fell=(ledger(3, 0, held("a", 3)), [waiter("a", 1)], {"a": 3}),
    another_gate=(ledger(3, 0, held("a")), [waiter("a", obstacle=S.OTHER_GATE)], {}),
    what_is_given_back_is_for_the_next=(
        ledger(2, 0, held("a")), [waiter("a", 1, obstacle=S.DENIED), waiter("b", 2, "2")], {"b": 2}
    ),
    what_is_held_stays_behind_one_that_does_not_fit=(
        ledger(3, 1, held("b")), [waiter("a", 2), waiter("b", since="2")], {"b": 1}
    ),
)  # fmt: skip
def test_what_cannot_start_is_given_back(
    before: QuotaLedger, waiters: list[Waiter], want: dict[str, int]
) -> None:
    assert amounts_held(next_to_start(before, waiters, {}, STRICT)) == want


@cases(
    ("before", "waiters", "gang", "want"),
    one_of_its_pods_has_gone=(ledger(2, 0, held("a")), [member("a")], Gang(2), {}),
    one_of_its_pods_was_created_again=(
        ledger(1, 0, held("a")), [member("a"), member("new")], Gang(2), {}
    ),
    hard_was_lowered=(ledger(1, 0, held("a"), held("b")), PAIR, Gang(2), {}),
    demand_of_one_grew=(ledger(2, 0, held("a"), held("b")), [member("a", 2), member("b")], Gang(2), {}),
    it_has_started=(ledger(1, 1, held("b")), [member("b")], Gang(2, running=1), {"b": 1}),
    it_has_started_and_demand_grew=(ledger(2, 1, held("b")), [member("b", 2)], Gang(2, running=1), {"b": 1}),
    it_is_topped_up=(ledger(3, 1, held("b")), [member("b", 2)], Gang(2, running=1), {"b": 2}),
    its_size_cannot_be_read=(
        ledger(2, 0, held("a")), [member("a", obstacle=S.UNREAD_GANG)], Gang(0), {"a": 1}
    ),
    more_than_it_needs_is_held=(
        ledger(3, 0, held("a"), held("b"), held("c")), [*PAIR, member("c", since="3")], Gang(2), {"a": 1, "b": 1}
    ),
    it_is_starting=(ledger(1, 0, begun("a"), held("b")), PAIR, Gang(2), {"a/lift/request": 1, "b": 1}),
)  # fmt: skip
def test_a_gang_gives_back_whole_and_only_before_it_starts(
    before: QuotaLedger, waiters: list[Waiter], gang: Gang, want: dict[str, int]
) -> None:
    assert amounts_held(next_to_start(before, waiters, {"gang": gang}, STRICT)) == want


@cases(
    ("before", "demand", "want"),
    new=(ledger(4, next_catalogue="next"), 2, [(2, "next")]),
    without_the_mark=(ledger(4, 0, held("a", 1), next_catalogue="next"), 2, [(2, "next")]),
    the_larger_of_both=(ledger(4, 0, held("a", 3), next_catalogue="next"), 2, [(3, "next")]),
    with_the_mark=(ledger(4, 0, held("a", 2, catalogue="next"), next_catalogue="next"), 2, [(2, "next")]),
    with_an_earlier_mark=(
        ledger(4, 0, held("a", 2, catalogue="old"), next_catalogue="next"),
        2,
        [(2, "next")],
    ),
    no_more_than_fits=(ledger(1, 0, held("a", 1), next_catalogue="next"), 2, []),
    at_rest=(ledger(4, 0, held("a", 2, catalogue="old")), 2, [(2, "old")]),
)
def test_a_ledger_that_moves_holds_demand_under_both_catalogue_versions(
    before: QuotaLedger, demand: int, want: list[tuple[int, str]]
) -> None:
    turn = next_to_start(before, [waiter("a", demand)], {}, STRICT)

    assert [(int(each.demand["gpus"]), each.catalogue) for each in turn.ledger.reservations] == want


def test_a_removal_that_was_admitted_keeps_what_it_holds() -> None:
    before = ledger(9, 0, begun("a"), next_catalogue="next")

    turn = next_to_start(before, [waiter("a", 2)], {}, STRICT)

    assert turn.ledger == before


def test_what_is_held_leaves_room_for_creations() -> None:
    waiters = [waiter(f"{number:036}") for number in range(6000)]
    turn = next_to_start(ledger(9999), waiters, {}, STRICT)

    assert 1900 <= len(turn.ungate_uids) <= 4600
    assert turn.ledger.reservations.size <= LIFTS_LIMIT
    later = next_to_start(turn.ledger, waiters, {}, STRICT)
    assert len(later.ungate_uids) > len(turn.ungate_uids)
    assert later.ledger.reservations.size <= LIFTS_LIMIT


def test_a_gang_that_no_ledger_can_hold_blocks_nobody_and_says_how_many_pods_it_can() -> None:
    gang = [member(f"{number:036}") for number in range(5000)]
    turn = next_to_start(ledger(9999), [*gang, waiter("b", since="2")], {"gang": Gang(5000)}, STRICT)

    assert turn.ungate_uids == ("b",)
    place = turn.places[gang[0].uid]
    assert place.standing is S.TOO_MANY
    for pods, want in ((place.can_start, place.can_start), (place.can_start + 1, 0)):
        assert len(next_to_start(ledger(9999), gang[:pods], {"gang": Gang(pods)}, STRICT).ungate_uids) == want


# ---- laws

UIDS = [f"pod-{number}" for number in range(8)]
GANGS = ["", "", "one", "two"]


InLine = tuple[QuotaLedger, list[Waiter], dict[str, Gang], QueueSpec, str]


@st.composite
def lines(draw: st.DrawFn) -> InLine:
    waiters = [
        Waiter(
            uid=uid,
            demand=gpus(draw(st.integers(0, 3))),
            since=str(draw(st.integers(1, 3))),
            priority=draw(st.integers(0, 1)),
            gang=draw(st.sampled_from(GANGS)),
            obstacle=draw(st.sampled_from([None, None, None, S.OTHER_GATE])),
            replaces=draw(st.booleans()),
        )
        for uid in draw(st.lists(st.sampled_from(UIDS), unique=True))
    ]
    gangs = {key: Gang(draw(st.integers(1, 3)), draw(st.sampled_from([0, 0, 1]))) for key in ("one", "two")}
    lifts = [
        draw(st.sampled_from([held, begun]))(each.uid, draw(st.integers(1, 3)))
        for each in waiters
        if draw(st.booleans())
    ]
    hard, used = draw(st.integers(0, 9)), draw(st.integers(0, 5))
    queue = QueueSpec(
        order=draw(st.sampled_from(QueueOrder)), hold=draw(st.sampled_from([False, False, True]))
    )
    return ledger(hard, used, *lifts), waiters, gangs, queue, draw(st.sampled_from(["", "2"]))


def together(of: QuotaLedger) -> Vector:
    return total((of.used or {}, of.reserved))


@given(lines())
def test_a_turn_adds_nothing_above_hard(line: InLine) -> None:
    before, waiters, gangs, queue, starved_before = line
    after = next_to_start(before, waiters, gangs, queue, starved_before).ledger

    grown = {
        uid for uid, each in after.reservations.lifts.items() if each != before.reservations.lifts.get(uid)
    }
    assert not grown or not exceeds(together(after), before.hard)
    assert replace(after, reservations=before.reservations, scarce={}) == before
    began = [each for each in before.reservations if each.is_begun_lift]
    assert [each for each in after.reservations if each.is_begun_lift] == began


@given(lines())
def test_a_gang_that_has_not_started_is_held_whole_or_not_at_all(line: InLine) -> None:
    before, waiters, gangs, queue, starved_before = line
    turn = next_to_start(before, waiters, gangs, queue, starved_before)

    lifts = turn.ledger.reservations.lifts
    for key, gang in gangs.items():
        members = [each for each in waiters if each.gang == key]
        has_begun = any(
            each.uid in lifts and lifts[each.uid].is_begun_lift for each in waiters if each.gang == key
        )
        if not gang.running and not has_begun:
            whole = sum(each.uid in lifts or not each.demand for each in members)
            held_of_it = sum(each.uid in lifts for each in members)
            assert not held_of_it or held_of_it <= gang.size <= whole


@given(lines())
def test_nobody_is_passed_under_strict_fifo(line: InLine) -> None:
    before, waiters, gangs, queue, starved_before = line
    turn = next_to_start(before, waiters, gangs, replace(queue, order=QueueOrder.STRICT_FIFO), starved_before)

    new = [
        uid
        for uid in turn.places
        if uid in turn.ledger.reservations.lifts and uid not in before.reservations.lifts
    ]
    # The pods of a gang beyond those that it needs line up once it has started.
    begun = {uid for uid, each in before.reservations.lifts.items() if each.is_begun_lift}
    started = {
        each.gang for each in waiters if each.uid in begun or gangs.get(each.gang, Gang(1, running=1)).running
    }
    starting = {each.gang for each in waiters if turn.places[each.uid].standing is S.STARTING}
    behind = {uid for uid, place in turn.places.items() if place.standing in {S.NEXT, S.BEHIND}}
    waiting = [each.uid for each in waiters if each.uid in behind and each.gang not in starting - started]
    order = list(turn.places)
    assert all(order.index(one) < order.index(other) for one in new for other in waiting)
    assert [place.number for place in turn.places.values() if place.number] == sorted(
        place.number for place in turn.places.values() if place.number
    )


@given(lines(), st.randoms(use_true_random=False))
def test_a_turn_is_the_same_again_and_in_whatever_order_pods_are_given(line: InLine, random: object) -> None:
    before, waiters, gangs, queue, starved_before = line
    turn = next_to_start(before, waiters, gangs, queue, starved_before)
    shuffled = list(waiters)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    mirrored: Mapping[str, Gang] = dict(reversed(gangs.items()))

    assert next_to_start(before, shuffled, mirrored, queue, starved_before) == turn
    again = next_to_start(turn.ledger, waiters, gangs, queue, starved_before)
    assert again.ledger == turn.ledger
    assert set(again.ungate_uids) == set(turn.ungate_uids)


@given(lines())
def test_only_what_is_held_starts(line: InLine) -> None:
    before, waiters, gangs, queue, starved_before = line
    turn = next_to_start(before, waiters, gangs, queue, starved_before)

    lifts, demands = turn.ledger.reservations.lifts, {each.uid: each.demand for each in waiters}
    assert set(turn.places) == set(demands)
    for uid in turn.ungate_uids:
        assert not queue.hold
        enough = not demands[uid] or lifts[uid].demand["gpus"] >= demands[uid]["gpus"]
        assert enough or lifts[uid].is_begun_lift

"""Whose gate is removed next: order, gangs, what is held and given back; and laws of any turn."""

from policies.quota.ledger.credits import Credit, owner_key
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import Reservation, keep_id
from policies.quota.line import LIFTS_LIMIT
from policies.quota.queue_entries import Gang
from policies.quota.waiting import QueueSpec, Standing, Waiter, creation_timestamp
from tests.cases import cases
from tests.policies.quota.turns import BEST_EFFORT, STRICT, amounts_held, ledger, next_to_start, standings
from tests.policies.quota.waiters import begun, gpus, held, member, waiter

S = Standing


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


def credit(*seconds: int, demand: int = 1, owner: str = WEB) -> Credit:
    """Pods that ended so many seconds ago."""
    return Credit(owner, gpus(demand), tuple(sorted(NOW - 1000 * each for each in seconds)))


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


def kept(pod: str = "gone", demand: int = 1, by: str = "web") -> Reservation:
    return Reservation(keep_id(pod, by), gpus(demand))


def replacing(uid: str, demand: int = 1, by: str = "web", **fields: object) -> Waiter:
    return waiter(uid, demand, "9", keeper=by, **fields)


@cases(
    ("before", "mine", "want", "left"),
    a_pod_of_that_object_starts_before_all_others=([kept()], replacing("mine"), "mine", {"mine": 1}),
    one_of_another_object_does_not=([kept()], replacing("mine", by="api"), "", {"gone/keep/web": 1}),
    nor_one_that_needs_more=([kept()], replacing("mine", 2), "", {"gone/keep/web": 1}),
    one_that_needs_less_leaves_the_rest_to_others=([kept(demand=2)], replacing("mine"), "mine", {"mine": 1}),
    one_that_cannot_start_leaves_it_to_the_next=(
        [kept()],
        replacing("mine", obstacle=Standing.OTHER_GATE),
        "",
        {"gone/keep/web": 1},
    ),
    each_keep_serves_once=(
        [kept(), held("mine")],
        replacing("mine"),
        "mine",
        {"gone/keep/web": 1, "mine": 1},
    ),
)
def test_what_an_object_keeps_is_held_for_its_next_pod_in_one_write(
    before: list[Reservation], mine: Waiter, want: str, left: dict[str, int]
) -> None:
    full = ledger(sum(int(each.demand["gpus"]) for each in before), 0, *before)

    turn = next_to_start(full, [OLDER, mine], {}, STRICT, now=NOW)
    assert turn.ungate_uids == ((want,) if want else ())
    assert amounts_held(turn) == left


@cases(
    ("keeps", "want"),
    kept_for_all_of_it=([kept("x"), kept("y")], {"a", "b"}),
    kept_for_a_part=([kept("x")], {"older"}),
)
def test_a_gang_goes_first_if_quota_is_kept_for_all_its_pods(
    keeps: list[Reservation], want: set[str]
) -> None:
    pods = [OLDER, *(replacing(uid, gang="gang") for uid in "ab")]

    turn = next_to_start(ledger(2, 0, *keeps), pods, {"gang": Gang(2)}, STRICT, now=NOW)
    assert set(turn.ungate_uids) == want


def test_a_gang_that_blocks_the_line_does_not_block_pods_that_take_nothing_from_it() -> None:
    rest = [member("begun", 1), member("rest", 2)]
    before = ledger(2, 0, begun("begun"), held("rest"), kept())

    turn = next_to_start(before, [*rest, replacing("mine")], {"gang": Gang(2, 1)}, STRICT, now=NOW)
    assert "mine" in turn.ungate_uids


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

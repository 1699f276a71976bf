"""Gangs in line: they start whole, and give back whole."""

from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import Reservation
from policies.quota.queue_entries import Gang
from policies.quota.waiting import Standing, Waiter
from tests.cases import cases
from tests.policies.quota.turns import BEST_EFFORT, STRICT, amounts_held, ledger, next_to_start, standings
from tests.policies.quota.waiters import begun, gpus, held, member, waiter

S = Standing

PAIR = [member("a"), member("b", since="2")]


@cases(
    ("before", "waiters", "gang", "want", "lifts"),
    largest_valid=(ledger(2), PAIR, Gang(2), {"a": 1, "b": 1}, ("a", "b")),
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


def test_a_gang_that_no_ledger_can_hold_blocks_nobody_and_says_how_many_pods_it_can() -> None:
    gang = [member(f"{number:036}") for number in range(5000)]
    turn = next_to_start(ledger(9999), [*gang, waiter("b", since="2")], {"gang": Gang(5000)}, STRICT)

    assert turn.ungate_uids == ("b",)
    place = turn.places[gang[0].uid]
    assert place.standing is S.TOO_MANY
    for pods, want in ((place.can_start, place.can_start), (place.can_start + 1, 0)):
        assert len(next_to_start(ledger(9999), gang[:pods], {"gang": Gang(pods)}, STRICT).ungate_uids) == want

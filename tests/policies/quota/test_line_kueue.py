"""Pods that Kueue has admitted, where `kueue: respect`: they start also beyond the quota, by no more than Kueue has admitted."""

from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.queue_entries import Gang, Standing, Waiter
from policies.quota.waiting import QueueSpec
from tests.cases import cases
from tests.policies.quota.turns import STRICT, amounts_held, ledger, next_to_start, standings
from tests.policies.quota.waiters import begun, gpus, held, waiter

S = Standing


def of_kueue(uid: str, demand: int = 1, since: str = "1", **fields: object) -> Waiter:
    return waiter(uid, demand, since, by_kueue=True, **fields)


FULL = ledger(4, 4)


@cases(
    ("counted", "pods", "admitted", "want"),
    beyond_the_quota=(FULL, [of_kueue("k", 2)], 2, {"k": S.STARTING}),
    larger_than_the_quota=(ledger(1, 1), [of_kueue("k", 3)], 3, {"k": S.STARTING}),
    no_more_than_was_admitted=(FULL, [of_kueue("k", 2), of_kueue("l", 1)], 2, {"k": S.STARTING, "l": S.NEXT}),
    not_what_others_use_already=(ledger(4, 6), [of_kueue("k", 1)], 2, {"k": S.NEXT}),
    never_if_it_is_larger_than_both=(FULL, [of_kueue("k", 7)], 2, {"k": S.TOO_LARGE}),
    past_one_that_waits=(FULL, [waiter("a"), of_kueue("k", since="2")], 1, {"a": S.NEXT, "k": S.STARTING}),
    nobody_else=(FULL, [of_kueue("k"), waiter("a", since="2")], 4, {"k": S.STARTING, "a": S.NEXT}),
    not_under_another_gate=(FULL, [of_kueue("k", obstacle=S.OTHER_GATE)], 1, {"k": S.OTHER_GATE}),
    nothing_where_kueue_admitted_nothing=(FULL, [of_kueue("k")], 0, {"k": S.NEXT}),
    within_the_quota=(ledger(4), [of_kueue("k", 2)], 2, {"k": S.STARTING}),
)
def test_what_kueue_has_admitted(
    counted: QuotaLedger, pods: list[Waiter], admitted: int, want: dict[str, Standing]
) -> None:
    turn = next_to_start(counted, pods, {}, STRICT, admitted=gpus(admitted))

    assert standings(turn) == want
    assert amounts_held(turn) == {
        each.uid: int(each.demand["gpus"]) for each in pods if want[each.uid] is S.STARTING
    }


def test_a_gang_goes_whole() -> None:
    gang = {"gang": Gang(2)}
    pods = [of_kueue("a", gang="gang"), of_kueue("b", gang="gang")]

    assert standings(next_to_start(FULL, pods[:1], gang, STRICT, admitted=gpus(2))) == {"a": S.INCOMPLETE}
    assert amounts_held(next_to_start(FULL, pods, gang, STRICT, admitted=gpus(2))) == {"a": 1, "b": 1}
    assert not amounts_held(next_to_start(FULL, pods, gang, STRICT, admitted=gpus(1)))


def test_a_queue_on_hold_starts_nothing() -> None:
    turn = next_to_start(FULL, [of_kueue("k")], {}, QueueSpec(hold=True), admitted=gpus(1))

    assert standings(turn) == {"k": S.ON_HOLD}


def test_what_is_held_beyond_the_quota_stays_while_kueue_admits_it() -> None:
    """What is held for others goes back: use exceeds the quota."""
    counted = ledger(4, 3, held("k", 2), held("a"))
    pods = [waiter("a", since="1"), of_kueue("k", 2, since="2")]

    assert amounts_held(next_to_start(counted, pods, {}, STRICT, admitted=gpus(2))) == {"k": 2}
    assert amounts_held(next_to_start(counted, pods, {}, STRICT, admitted=gpus(1))) == {"a": 1}


def test_what_has_begun_is_not_taken_back() -> None:
    turn = next_to_start(ledger(4, 4, begun("k", 2)), [of_kueue("k", 2)], {}, STRICT, admitted=gpus(0))

    assert turn.ungate_uids == ("k",)

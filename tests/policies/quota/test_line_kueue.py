"""Pods that Kueue has admitted, where `kueue: respect`: they start also beyond the quota, by no more than Kueue has admitted."""

from fractions import Fraction

from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.queue_entries import Gang
from policies.quota.waiting import QueueSpec, Standing, Waiter
from tests.cases import cases
from tests.policies.quota.team_denials import OWN, PROD, team_ledger
from tests.policies.quota.turns import STRICT, amounts_held, ledger, next_to_start, standings
from tests.policies.quota.waiters import begun, held, waiter

S = Standing


def of_kueue(uid: str, demand: int = 1, since: str = "1", admitted: int = 1, **fields: object) -> Waiter:
    """Return a pod that Kueue has admitted, where it has admitted so many GPUs."""
    return waiter(uid, demand, since, beyond={"gpus": Fraction(admitted)}, **fields)


FULL = ledger(4, 4)


@cases(
    ("counted", "pods", "want"),
    beyond_the_quota=(FULL, [of_kueue("k", 2, admitted=2)], {"k": S.STARTING}),
    larger_than_the_quota=(ledger(1, 1), [of_kueue("k", 3, admitted=3)], {"k": S.STARTING}),
    no_more_than_was_admitted=(
        FULL, [of_kueue("k", 2, admitted=2), of_kueue("l", admitted=2)], {"k": S.STARTING, "l": S.NEXT}
    ),
    not_what_others_use_already=(ledger(4, 6), [of_kueue("k", admitted=2)], {"k": S.NEXT}),
    never_if_it_is_larger_than_both=(FULL, [of_kueue("k", 7, admitted=2)], {"k": S.TOO_LARGE}),
    past_one_that_waits=(FULL, [waiter("a"), of_kueue("k", since="2")], {"a": S.NEXT, "k": S.STARTING}),
    nobody_else=(FULL, [of_kueue("k", admitted=4), waiter("a", since="2")], {"k": S.STARTING, "a": S.NEXT}),
    not_under_another_gate=(FULL, [of_kueue("k", obstacle=S.OTHER_GATE)], {"k": S.OTHER_GATE}),
    within_the_quota=(ledger(4), [of_kueue("k", 2, admitted=2)], {"k": S.STARTING}),
)  # fmt: skip
def test_what_kueue_has_admitted(counted: QuotaLedger, pods: list[Waiter], want: dict[str, Standing]) -> None:
    turn = next_to_start(counted, pods, {}, STRICT)

    assert standings(turn) == want
    assert amounts_held(turn) == {
        each.uid: int(each.demand["gpus"]) for each in pods if want[each.uid] is S.STARTING
    }


def test_a_gang_goes_whole() -> None:
    gang = {"gang": Gang(2)}

    def of_gang(*uids: str, admitted: int = 2) -> list[Waiter]:
        return [of_kueue(uid, gang="gang", admitted=admitted) for uid in uids]

    assert standings(next_to_start(FULL, of_gang("a"), gang, STRICT)) == {"a": S.INCOMPLETE}
    assert amounts_held(next_to_start(FULL, of_gang("a", "b"), gang, STRICT)) == {"a": 1, "b": 1}
    assert not amounts_held(next_to_start(FULL, of_gang("a", "b", admitted=1), gang, STRICT))
    in_part = [*of_gang("a"), waiter("b", gang="gang")]
    assert standings(next_to_start(FULL, in_part, gang, STRICT)) == {"a": S.NEXT, "b": S.NEXT}


def test_a_queue_on_hold_starts_nothing() -> None:
    turn = next_to_start(FULL, [of_kueue("k")], {}, QueueSpec(hold=True))

    assert standings(turn) == {"k": S.ON_HOLD}


def test_what_is_held_beyond_the_quota_stays_while_kueue_admits_it() -> None:
    """What is held for others goes back: use exceeds the quota."""
    counted = ledger(4, 3, held("k", 2), held("a"))

    def held_if(admitted: int) -> dict[str, int]:
        pods = [waiter("a", since="1"), of_kueue("k", 2, since="2", admitted=admitted)]
        return amounts_held(next_to_start(counted, pods, {}, STRICT))

    assert held_if(2) == {"k": 2}
    assert held_if(1) == {"a": 1}


def test_what_has_begun_is_not_taken_back() -> None:
    turn = next_to_start(ledger(4, 4, begun("k", 2)), [waiter("k", 2)], {}, STRICT)

    assert turn.ungate_uids == ("k",)


def test_no_more_than_its_team_grants() -> None:
    """What it exceeds is the quota of the team, which Kueue does not exceed, and the report says that."""
    counted = team_ledger({OWN: {}, PROD: {}}, own={"gpus": 1}, hard={"gpus": 6})

    (place,) = next_to_start(counted, [of_kueue("k", 8, admitted=8)], {}, STRICT).places.values()

    assert (place.standing, place.granted) == (S.TOO_LARGE, {"gpus": Fraction(6)})

"""Laws of a turn of the line, for random lines."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.quota.amounts import Amounts, exceeded_limits, total
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.queue_entries import Gang
from policies.quota.waiting import QueueOrder, QueueSpec, Standing, Waiter
from tests.policies.quota.turns import ledger, next_to_start
from tests.policies.quota.waiters import begun, gpus, held

S = Standing

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


def together(of: QuotaLedger) -> Amounts:
    return total((of.used or {}, of.reserved))


@given(lines())
def test_a_turn_adds_nothing_above_hard(line: InLine) -> None:
    before, waiters, gangs, queue, starved_before = line
    after = next_to_start(before, waiters, gangs, queue, starved_before).ledger

    grown = {
        uid for uid, each in after.reservations.lifts.items() if each != before.reservations.lifts.get(uid)
    }
    assert not grown or not exceeded_limits(together(after), before.hard)
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

"""Whose turn it is, in tables."""

from fractions import Fraction

from policies.quota.amounts import GPUS
from policies.quota.ledger.reservations import Reservation, lift_id
from policies.quota.line import Gang, Standing, Waiter, take_turn
from policies.quota.waiting import QueueSpec
from tests.builders import quota_ledger, uid
from tests.cases import cases

ONE = {GPUS: Fraction(1)}


@cases(
    ("kept", "replaces", "want"),
    nobody_is_expected=(0, False, Standing.STARTING),
    what_a_replacement_will_need_stays_free=(1, False, Standing.NEXT),
    the_replacement_may_have_it=(1, True, Standing.STARTING),
)
def test_quota_is_kept_for_the_pod_that_replaces_another_one(
    kept: int, replaces: bool, want: Standing
) -> None:
    ledger = quota_ledger(hard=ONE, used={}, class_catalogue="c", waiting=1)
    waiter = Waiter(uid="pod", demand=ONE, since="2026-01-01T00:00:00Z", replaces=replaces)
    turn = take_turn(ledger, [waiter], {}, QueueSpec(), kept={GPUS: Fraction(kept)})
    assert turn.places["pod"].standing is want
    assert turn.lifts == (("pod",) if want is Standing.STARTING else ())


def test_more_pods_of_a_gang_than_it_needs_line_up_once_it_has_started() -> None:
    ledger = quota_ledger(hard={GPUS: Fraction(4)}, used={}, class_catalogue="c", waiting=4)
    waiters = [
        Waiter(uid=f"pod-{n}", demand=ONE, since=f"2026-01-01T00:00:0{n}Z", gang="g") for n in range(4)
    ]
    turn = take_turn(ledger, waiters, {"g": Gang(3)}, QueueSpec())
    assert turn.lifts == ("pod-0", "pod-1", "pod-2")
    assert turn.places["pod-3"].standing is Standing.BEHIND
    started = take_turn(turn.ledger, waiters[3:], {"g": Gang(3, running=3)}, QueueSpec())
    assert started.lifts == ("pod-3",)


def test_a_gang_that_the_ledger_cannot_hold_is_told_how_many_pods_can_start() -> None:
    many = 6000
    ledger = quota_ledger(hard={GPUS: Fraction(many)}, used={}, class_catalogue="c", waiting=many)
    waiters = [
        Waiter(uid=uid(str(n)), demand=ONE, since="2026-01-01T00:00:00Z", gang="g") for n in range(many)
    ]
    turn = take_turn(ledger, waiters, {"g": Gang(many)}, QueueSpec())
    place = turn.places[waiters[0].uid]
    assert place.standing is Standing.TOO_MANY
    assert not turn.ledger.reservations.lifts
    most = waiters[: place.most]
    assert len(take_turn(ledger, most, {"g": Gang(len(most))}, QueueSpec()).lifts) == place.most
    more = waiters[: place.most + 1]
    assert not take_turn(ledger, more, {"g": Gang(len(more))}, QueueSpec()).lifts


@cases(
    ("gang", "obstacle", "want"),
    a_gang_of_unknown_size_keeps_what_is_held=(Gang(0), Standing.UNREAD_GANG, 2),
    an_incomplete_gang_gives_it_back=(Gang(3), None, 0),
    a_gang_that_cannot_start_gives_it_back=(Gang(2), Standing.OTHER_GATE, 0),
)
def test_what_is_held_for_a_gang(gang: Gang, obstacle: Standing | None, want: int) -> None:
    held = [Reservation(lift_id(name), ONE) for name in ("a", "b")]
    ledger = quota_ledger(*held, hard={GPUS: Fraction(4)}, used={}, class_catalogue="c", waiting=2)
    waiters = [
        Waiter(uid=name, demand=ONE, since="2026-01-01T00:00:00Z", gang="g", obstacle=obstacle)
        for name in ("a", "b")
    ]
    turn = take_turn(ledger, waiters, {"g": gang}, QueueSpec())
    assert len(turn.ledger.reservations.lifts) == want
    assert not turn.lifts

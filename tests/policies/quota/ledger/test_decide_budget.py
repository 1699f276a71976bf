"""Who may come in while a budget of GPU-hours is spent, in tables; and that no old copy of a ledger admits anybody."""

from fractions import Fraction

import pytest
from msgspec.structs import replace

from policies.quota.amounts import Amounts
from policies.quota.ledger.decide import Line, ReservationRequest, VerdictReason, decide
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import Reservation, lift_id
from policies.quota.waiting import QueueOrder, QueueSpec, Standing, Waiter
from tests.budgets import MONTH, T4, budget, spending
from tests.builders import quota_ledger
from tests.cases import cases
from tests.policies.quota.turns import next_to_start

R = VerdictReason
ONE: Amounts = {"gpus": Fraction(1)}
ON_T4: Amounts = {**ONE, T4: Fraction(1)}
LIMITS = budget(gpus=100, t4=10)
SPENT, T4_SPENT, LEFT = spending(spent=100), spending(spent=50, t4=10), spending(spent=99.9, t4=9.9)
IN_NOVEMBER, IN_DECEMBER = MONTH[1] - 1, MONTH[1]


def ledger(*reservations: Reservation, **fields: object) -> QuotaLedger:
    counted = {"hard": {"gpus": Fraction(4)}, "used": {"gpus": Fraction(0)}, "class_catalogue": "c"}
    return quota_ledger(*reservations, **{**counted, "budget": LIMITS, "spending": SPENT, **fields})


def request(
    demand: Amounts, line: Line = Line.BEHIND, *, uid: str = "pod", will_need: Amounts | None = None
) -> ReservationRequest:
    version = 7 if "/" in uid else 0
    return ReservationRequest(
        reservation=Reservation(uid, demand, version),
        catalogue_versions=frozenset({"c"}),
        line=line,
        will_need=will_need or {},
    )


HELD = Reservation(lift_id("pod"), ONE)
LIFT = request(ONE, Line.LIFTS, uid=lift_id("pod", "request"))


@cases(
    ("before", "asked", "now", "want"),
    a_new_pod=(ledger(), request(ONE), IN_NOVEMBER, R.BUDGET_SPENT),
    growth_of_a_stored_pod=(ledger(), request(ONE, uid="pod/request"), IN_NOVEMBER, R.BUDGET_SPENT),
    a_claim=(ledger(), request(ONE, Line.NEVER_WAITS), IN_NOVEMBER, R.BUDGET_SPENT),
    a_pod_under_our_gate=(ledger(), request({}, Line.JOINS, will_need=ONE), IN_NOVEMBER, R.BUDGET_SPENT),
    a_pod_without_gpus=(ledger(), request({}), IN_NOVEMBER, R.NOTHING_TO_RESERVE),
    a_repeated_call=(ledger(Reservation("pod", ONE)), request(ONE), IN_NOVEMBER, R.ALREADY_RESERVED),
    its_quota_was_held_before=(ledger(HELD), LIFT, IN_NOVEMBER, R.RESERVED),
    the_next_period=(ledger(), request(ONE), IN_DECEMBER, R.RESERVED),
    without_a_clock=(ledger(), request(ONE), 0, R.BUDGET_SPENT),
    something_is_left=(ledger(spending=LEFT), request(ON_T4), IN_NOVEMBER, R.RESERVED),
    its_class_is_spent=(ledger(spending=T4_SPENT), request(ON_T4), IN_NOVEMBER, R.BUDGET_SPENT),
    another_class_is_spent=(ledger(spending=T4_SPENT), request(ONE), IN_NOVEMBER, R.RESERVED),
    its_class_is_spent_and_it_waits=(
        ledger(spending=T4_SPENT), request({}, Line.JOINS, will_need=ON_T4), IN_NOVEMBER, R.BUDGET_SPENT
    ),
    no_room_either=(ledger(used={"gpus": Fraction(4)}), request(ONE), IN_NOVEMBER, R.BUDGET_SPENT),
    nothing_is_granted=(
        ledger(budget=budget(gpus=0), spending=spending()), request(ONE), IN_NOVEMBER, R.BUDGET_SPENT
    ),
    never_counted=(ledger(spending=None), request(ONE), IN_NOVEMBER, R.RESERVED),
    the_budget_was_removed=(ledger(budget=None), request(ONE), IN_NOVEMBER, R.RESERVED),
)  # fmt: skip
def test_a_spent_budget_denies_until_its_period_ends(
    before: QuotaLedger, asked: ReservationRequest, now: int, want: VerdictReason
) -> None:
    (verdict,) = decide(before, [asked], now=now).verdicts
    assert verdict.reason is want
    assert not verdict.must_wait


def test_a_spent_budget_takes_nothing_from_what_is_used_or_reserved() -> None:
    before = ledger(Reservation("earlier", ONE), used={"gpus": Fraction(2)})
    assert decide(before, [request(ONE)], now=IN_NOVEMBER).ledger is before


@cases(
    ("found", "want"),
    spent=(SPENT, {"first": Standing.BUDGET_SPENT, "second": Standing.BUDGET_SPENT}),
    spent_of_the_first_ones_class=(
        T4_SPENT, {"first": Standing.BUDGET_SPENT, "second": Standing.STARTING}
    ),
    left=(LEFT, {"first": Standing.STARTING, "second": Standing.STARTING}),
)  # fmt: skip
@pytest.mark.parametrize("order", QueueOrder)
def test_nothing_is_held_for_pods_whose_budget_is_spent(
    found: object, want: dict[str, Standing], order: QueueOrder
) -> None:
    waiters = [Waiter(uid="first", demand=ON_T4, since="1"), Waiter(uid="second", demand=ONE, since="2")]
    turn = next_to_start(ledger(spending=found), waiters, {}, QueueSpec(order=order))
    assert {uid: place.standing for uid, place in turn.places.items()} == want
    held = {uid for uid, standing in want.items() if standing is Standing.STARTING}
    assert set(turn.ledger.reservations.lifts) == held
    assert {place.number for uid, place in turn.places.items() if uid not in held} <= {0}


def test_what_is_held_already_starts() -> None:
    waiters = [Waiter(uid="pod", demand=ONE, since="1")]
    turn = next_to_start(ledger(HELD), waiters, {}, QueueSpec())
    assert turn.ungate_uids == ("pod",)


def test_a_budget_adds_its_keys_to_what_is_counted() -> None:
    without = replace(ledger(), budget=None)
    assert (without.dimensions, ledger().dimensions) == (("gpus",), (T4, "gpus"))
    assert ledger().uncounted == ()

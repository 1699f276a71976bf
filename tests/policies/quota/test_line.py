"""Whose turn it is, in tables."""

from fractions import Fraction

from policies.quota.amounts import GPUS
from policies.quota.line import Standing, Waiter, take_turn
from policies.quota.waiting import QueueSpec
from tests.builders import quota_ledger
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

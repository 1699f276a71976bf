"""How often a budget is written into its ledger, from where a count goes on, and what is noted of a deleted quota."""

from collections.abc import Callable
from contextlib import nullcontext
from fractions import Fraction
from types import SimpleNamespace
from typing import cast

import pytest
from msgspec.structs import replace

from policies.quota.budget import GPU_HOUR, HeldOverTime, Spending, advance
from policies.quota.ledger.quota_ledger import QuotaLedger, Revisions
from policies.quota.ledger.reconcile import StoredObject
from tests.budgets import at, budget, spending
from tests.cases import cases
from tests.webhook.controller.ledger_cluster import BY, NEW, OLD, Cluster
from tests.webhook.quota.quota_and_ledger_object import INSTALLATION, QuotaAndLedger, keeper
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.controller.usage_counter import Counted
from webhook.quota.cluster_store import ClusterStore
from webhook.quota.config_maps import BudgetNotes

NOON = at("2026-11-26T12:00:00")
HALF_AN_HOUR = HeldOverTime({"gpus": GPU_HOUR // 2})
BUDGET = budget(gpus=100)
BUDGETED = replace(
    NEW,
    used={"gpus": Fraction(2)},
    class_catalogue=BY,
    revisions=OLD,
    budget=BUDGET,
    spending=spending(spent=50, until=NOON),
)
TWO = StoredObject({"gpus": Fraction(2)})


class BudgetedCluster(Cluster):
    """Its clock shows `now`, and each count adds what was `held`. `counts` has what it counted by."""

    def __init__(
        self, *revisions: Revisions, ledger: QuotaLedger, now: int = NOON, conflicts: int = 0
    ) -> None:
        super().__init__(*revisions, ledger=ledger, objects={"pod": TWO}, conflicts=conflicts)
        self.counted_at: int | None = None
        self.held: Callable[[int, int], HeldOverTime] = lambda *_: HALF_AN_HOUR
        self.now, self.counts = now, list[QuotaLedger]()
        self.notes = SimpleNamespace(get=lambda _namespace: None)

    def _counted(self, revisions: Revisions, ledger: QuotaLedger) -> Counted:
        self.counts.append(ledger)
        if ledger.budget is not None:
            at = self.now if self.counted_at is None else self.counted_at
            spent = advance(ledger.budget, ledger.spending, at, self.held)
            ledger = replace(ledger, spending=spent)
        return super()._counted(revisions, ledger)


@cases(
    ("before", "seconds", "held", "is_written", "wait"),
    five_minutes_later=(BUDGETED, 300, 2, True, 300),
    a_minute_later=(BUDGETED, 60, 2, False, 240),
    something_else_changed=(replace(BUDGETED, used={"gpus": Fraction(1)}), 60, 1, True, 300),
    something_came_and_went=(BUDGETED, 60, 3, True, 300),
    it_warns=(replace(BUDGETED, spending=spending(spent=79.98, until=NOON)), 60, 2, True, 300),
    it_is_spent=(replace(BUDGETED, spending=spending(spent=99.98, until=NOON)), 60, 2, True, 300),
    it_is_spent_soon=(replace(BUDGETED, spending=spending(spent=99.45, until=NOON)), 60, 2, False, 930),
    its_first_count=(replace(BUDGETED, spending=None), 0, 2, True, 300),
    without_a_budget=(replace(BUDGETED, budget=None), 300, 2, False, None),
)
def test_how_often_a_budget_is_written(
    before: QuotaLedger, seconds: float, held: int, is_written: bool, wait: float | None
) -> None:
    """held: GPUs on average, while `used` is 2."""
    cluster = BudgetedCluster(OLD, ledger=before, now=NOON + int(seconds * 1000))
    cluster.held = lambda since, until: HeldOverTime({"gpus": held * (until - since) * GPU_HOUR // 3_600_000})
    found = cluster.reconcile()
    assert (cluster.ledger_object.version == "2") is is_written
    assert found == (
        wait if wait is None else pytest.approx(min(wait, 300 - seconds * (not is_written)), abs=0.2)
    )


def test_a_count_that_adds_nothing_is_not_repeated_at_once() -> None:
    cluster = BudgetedCluster(OLD, ledger=BUDGETED, now=NOON + 600_000)
    cluster.counted_at = NOON  # its watches are silent since
    assert cluster.reconcile() == pytest.approx(30, abs=0.2)


def test_a_new_budget_goes_on_from_what_was_noted_of_a_deleted_quota() -> None:
    noted = spending(spent=7, until=NOON - 3_600_000)
    cluster = BudgetedCluster(OLD, ledger=replace(BUDGETED, spending=None))
    cluster.notes.get = {"team": noted}.get
    cluster.reconcile()
    assert cluster.counts[0].spending == noted
    assert cluster.ledger_object.ledger.spending == spending(spent=7.5, until=NOON)


def test_a_lost_swap_counts_again_from_the_moment_in_the_new_ledger() -> None:
    cluster = BudgetedCluster(OLD, OLD, ledger=BUDGETED, now=NOON + 600_000, conflicts=1)
    cluster.reconcile()
    assert [each.spending for each in cluster.counts] == [BUDGETED.spending] * 2
    assert cluster.ledger_object.ledger.spending == spending(spent=50.5, until=cluster.now)


@cases(
    ("synced", "error", "noted", "is_deleted"),
    counted_until_now=(True, None, [spending(spent=50.5, until=NOON + 60_000)], True),
    before_the_first_lists=(False, None, [spending(spent=50, until=NOON)], True),
    the_note_cannot_be_written_now=(True, errors.Unreachable("denied"), [], False),
)
def test_what_is_spent_is_noted_before_a_ledger_is_deleted(
    synced: bool, error: errors.ApiError | None, noted: list[Spending], is_deleted: bool
) -> None:
    quota_and_ledger = QuotaAndLedger(gpus=8)
    quota_and_ledger.write(replace(BUDGETED, quota_uid="quota-1"))
    quota_and_ledger.remove()
    notes: list[Spending] = []

    def put(_namespace: str, found: Spending) -> None:
        assert quota_and_ledger.ledger is not None
        if error is not None:
            raise error
        notes.append(found)

    cluster = BudgetedCluster(OLD, ledger=BUDGETED, now=NOON + 60_000)
    cluster.counter.synced = synced
    made = keeper(ClusterStore(cast(ApiClient, quota_and_ledger), INSTALLATION), ObservedLedgers())
    made.usage_cache, made.notes = cluster.usage_cache, cast(BudgetNotes, SimpleNamespace(put=put))
    with nullcontext() if error is None else pytest.raises(errors.Unreachable):
        assert made.current("team", fresh=True) is None
    assert notes == noted
    assert (quota_and_ledger.ledger is None) is is_deleted

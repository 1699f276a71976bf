"""Budgets of GPU-hours by the status of a GPUQuota: what is shown, and what is taken as spent."""

from datetime import UTC, datetime
from fractions import Fraction

from msgspec.structs import replace

from policies.quota.amounts import GPUS, Hard
from policies.quota.budget import BudgetSpec, Spending
from policies.quota.spec import QuotaSpec
from tests.budgets import T4, at, budget, spending
from tests.cases import cases
from webhook.cluster.objects import Condition
from webhook.quota.documents import BudgetStatus, QuotaRecord, QuotaStatus
from webhook.tools.status.quotas import quota_ledger_from_status, quota_status
from webhook.tools.status.summaries import BudgetRow

NOW, LATER = datetime(2026, 11, 26, 12, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)
STATUS = BudgetStatus(
    period="month",
    start="2026-11-01T00:00:00Z",
    end="2026-12-01T00:00:00Z",
    until="2026-11-26T12:00:00Z",
    granted={T4: "20", GPUS: "5000"},
    used={GPUS: "4210.5", T4: "<0.01"},
    unknown={GPUS: "12"},
)


def condition(kind: str, status: str = "True") -> Condition:
    return Condition(kind, status, "R", f"of {kind}", "2026-11-26T12:00:00Z", 1)


def quota(*conditions: Condition, found: BudgetStatus | None = STATUS) -> QuotaRecord:
    spec = QuotaSpec(hard=Hard(gpus=8), budget=BudgetSpec(gpu_hours=5000, by_class={"nvidia-t4": 20}))
    status = QuotaStatus(budget=found, conditions=conditions)
    return QuotaRecord(namespace="team", uid="", version="", spec=spec, status=status)


def test_the_rows_of_a_budget() -> None:
    shown = quota_status(quota(), None).budget

    assert shown is not None
    assert shown.rows == (
        BudgetRow(key=GPUS, granted=Fraction(5000), used=Fraction(8421, 2), unknown=Fraction(12)),
        BudgetRow(key=T4, granted=Fraction(20), used=Fraction(1, 100), unknown=Fraction(0)),
    )
    assert shown.unknown() == "12 GPU-hours more may have been used while no controller watched"
    both = replace(STATUS, unknown={GPUS: "12", T4: "2"})
    unknown_of_both = quota_status(quota(found=both), None).budget
    assert unknown_of_both is not None
    assert unknown_of_both.unknown() == (
        "12 GPU-hours and 2 GPU-hours of nvidia-t4 more may have been used while no controller watched"
    )
    assert [shown.when(each) for each in (NOW, LATER)] == ["this month", "up to 2026-12-01"]
    assert quota_status(quota(found=None), None).budget is None


@cases(
    ("conditions", "want"),
    enough_is_left=((condition("BudgetLow", "False"), condition("BudgetSpent", "False")), ""),
    little_is_left=((condition("BudgetLow"), condition("BudgetSpent", "False")), "of BudgetLow"),
    nothing_is_left=((condition("BudgetLow"), condition("BudgetSpent")), "of BudgetSpent"),
)
def test_what_is_said_of_a_budget(conditions: tuple[Condition, ...], want: str) -> None:
    shown = quota_status(quota(*conditions), None).budget

    assert shown is not None
    assert shown.message == want


SPENT = replace(STATUS, used={GPUS: "100", T4: "20"}, unknown={})


@cases(
    ("now", "want"),
    in_its_period=(NOW, ["GPU-hours of nvidia-t4"]),
    after_its_period_nobody_knows=(LATER, []),
)
def test_what_is_spent(now: datetime, want: list[str]) -> None:
    shown = quota_status(quota(found=SPENT), None).budget

    assert shown is not None
    assert [row.name for row in shown.spent(now)] == want


@cases(
    ("found", "now", "want"),
    before_the_first_count=(None, NOW, None),
    in_its_period=(SPENT, NOW, spending(until=at("2026-11-26T12:00:00"), spent=100, t4=20)),
    after_its_period_nobody_knows=(SPENT, LATER, None),
)
def test_what_commands_take_as_spent(
    found: BudgetStatus | None, now: datetime, want: Spending | None
) -> None:
    ledger = quota_ledger_from_status(quota(found=found), now)

    assert ledger is not None
    assert (ledger.budget, ledger.spending) == (budget(gpus=5000, t4=20), want)

"""What a budget says to the author of a pod or workload."""

from datetime import datetime
from fractions import Fraction

from msgspec.structs import replace

from policies.finding import Finding, Severity
from policies.quota.amounts import Amounts, Hard
from policies.quota.budget import GPU_HOUR, Budget, BudgetSpec, Period, Spending, moment
from policies.quota.budget_findings import (
    outlook_text,
    reservation_findings,
    spending_text,
    workload_findings,
)
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.decide import decide
from policies.quota.quota_request import ReservationOutcome
from policies.quota.spec import QuotaSpec
from tests.budgets import T4, at, budget, spending
from tests.builders import context, deployment, gpu_container, quota_ledger, workload
from tests.cases import cases
from tests.reservation_requests import creation_request

NOON = at("2026-11-26T12:00:00")
AT_NOON = moment(NOON)
ONE: Amounts = {"gpus": Fraction(1)}
ON_T4: Amounts = {**ONE, T4: Fraction(1)}
TODAY = {"start": at("2026-11-26"), "end": at("2026-11-27")}
SPENT = (
    "exceeded budget: team/default, 100.5 of 100 GPU-hours used this month; "
    "the next month begins at 2026-12-01 00:00 UTC"
)


def said(
    limits: Budget, found: Spending, demand: Amounts = ONE, used: int = 0, now: datetime = AT_NOON
) -> list[Finding]:
    ledger = quota_ledger(
        hard={"gpus": Fraction(99)},
        used={"gpus": Fraction(used), T4: Fraction(0)},
        class_catalogue="c",
        budget=limits,
        spending=found,
    )
    request = creation_request("pod", demand, "c")
    (verdict,) = decide(ledger, [request], now=int(now.timestamp() * 1000)).verdicts
    return list(reservation_findings("team", ReservationOutcome(ledger, request, verdict), now))


@cases(
    ("limits", "found", "demand", "message", "remedy", "ask"),
    all_gpus=(
        budget(gpus=100),
        spending(spent=100.5),
        ONE,
        SPENT,
        "wait until 2026-12-01 00:00 UTC",
        "to raise spec.budget.gpuHours",
    ),
    a_class=(
        budget(gpus=100, t4=10),
        spending(spent=50, t4=10),
        ON_T4,
        "exceeded budget: team/default, 10 of 10 GPU-hours of nvidia-t4 used this month; "
        "the next month begins at 2026-12-01 00:00 UTC",
        "wait until 2026-12-01 00:00 UTC, or request a class that is not spent",
        "to raise spec.budget.byClass[nvidia-t4]",
    ),
    both=(
        budget(Period.DAY, gpus=100, t4=10),
        spending(spent=100, t4=10, **TODAY),
        ON_T4,
        "exceeded budget: team/default, 100 of 100 GPU-hours and 10 of 10 GPU-hours of nvidia-t4 used today (UTC); "
        "the next day begins at 2026-11-27 00:00 UTC",
        "wait until 2026-11-27 00:00 UTC",
        "to raise spec.budget",
    ),
)
def test_a_denial(
    limits: Budget, found: Spending, demand: Amounts, message: str, remedy: str, ask: str
) -> None:
    (denial,) = said(limits, found, demand)
    assert (denial.message, denial.remedy, denial.ask_contact) == (message, remedy, ask)
    assert (denial.reason.name, denial.severity) == ("BudgetSpent", Severity.DENIAL)


@cases(
    ("limits", "found", "used", "want"),
    enough_is_left=(budget(gpus=100), spending(spent=79), 3, ""),
    no_budget_for_its_keys=(budget(t4=10), spending(t4=9), 3, ""),
    it_is_spent_before_the_period_ends=(
        budget(gpus=100),
        spending(spent=80),
        3,
        "budget team/default: 80 of 100 GPU-hours used this month, all of it at 2026-11-26 17:00 UTC if as much is used as "
        "now; new pods are then denied until 2026-12-01 00:00 UTC",
    ),
    it_lasts=(
        budget(Period.DAY, gpus=100, warn_at=0.5),
        spending(spent=50, **TODAY),
        0,
        "budget team/default: 50 of 100 GPU-hours used today (UTC), enough for the rest if no more is used than now",
    ),
)
def test_an_admitted_pod_is_warned_from_a_share_on(
    limits: Budget, found: Spending, used: int, want: str
) -> None:
    warnings = said(limits, found, ONE, used)
    assert [each.message for each in warnings] == ([want] if want else [])
    assert {(each.reason.name, each.severity) for each in warnings} <= {("BudgetLow", Severity.WARNING)}


@cases(
    ("period", "hours", "amount", "until"),
    a_week_of_which_all_is_used=(
        Period.WEEK,
        100,
        "100 of 100 GPU-hours used this week",
        "nothing is left until 2026-12-01 00:00 UTC",
    ),
    a_month_of_which_some_is_left=(
        Period.MONTH,
        10,
        "10 of 100 GPU-hours used this month",
        "enough for the rest if no more is used than now",
    ),
)
def test_a_budget_in_words(period: Period, hours: int, amount: str, until: str) -> None:
    limits, found = budget(period, gpus=100), spending(spent=hours)

    assert spending_text(limits, found, ["gpus"]) == amount
    assert outlook_text(limits, found, ["gpus"], {}) == until


def test_two_of_the_keys_are_named() -> None:
    granted = dict.fromkeys(("gpus", "classes/a", "classes/b", "classes/c"), 10 * GPU_HOUR)

    assert spending_text(Budget(Period.MONTH, granted, 0.8), spending(spent=1), granted) == (
        "1 of 10 GPU-hours and 0 of 10 GPU-hours of a and 2 more used this month"
    )


def test_nothing_is_said_of_a_period_that_has_ended() -> None:
    assert said(budget(gpus=100), spending(spent=90), now=moment(at("2026-12-01"))) == []


@cases(
    ("found", "want"),
    left=(spending(spent=10), []),
    low=(
        spending(spent=90),
        [
            "spec.template: budget team/default: 90 of 100 GPU-hours used this month, all of it at 2026-11-26 17:00 UTC if as "
            "much is used as now; new pods are then denied until 2026-12-01 00:00 UTC"
        ],
    ),
    spent=(
        spending(spent=100.5),
        [
            f"spec.template: its pods will be denied, the budget is spent: {SPENT.removeprefix('exceeded budget: ')}"
        ],
    ),
    no_period=(None, []),
)
def test_a_workload_is_warned(found: Spending | None, want: list[str]) -> None:
    limits = {"hard": {"gpus": Fraction(99)}, "used": {"gpus": Fraction(2)}, "budget": budget(gpus=100)}
    ledger = quota_ledger(**limits, spending=found)
    asked = workload(deployment("chat", gpu_container("1")))
    warnings = list(workload_findings(asked, ledger, context(), "team"))
    assert [f"{each.path}: {each.message}" for each in warnings] == want
    assert all(each.severity is Severity.WARNING for each in warnings)


def test_a_workload_without_gpus_is_not_warned() -> None:
    ledger = quota_ledger(hard={}, budget=budget(gpus=100), spending=spending(spent=100))
    assert list(workload_findings(workload(deployment("web")), ledger, context(), "team")) == []


@cases(
    ("stated", "want"),
    it_could_run_there=(None, ["BudgetSpent"]),
    total_only_counts_it_for_no_class=(UnclassifiedPods.TOTAL_ONLY, []),
)
def test_a_workload_that_pins_no_class_beside_a_spent_budget_of_one(
    stated: UnclassifiedPods | None, want: list[str]
) -> None:
    limits = BudgetSpec(by_class={"nvidia-t4": 10})
    spec = QuotaSpec(hard=Hard(gpus=99), stated_unclassified_pods=stated, budget=limits)
    ledger = replace(spec.ledger(), spending=spending(t4=10))
    asked = workload(deployment("chat", gpu_container("1")))
    assert [each.reason.name for each in workload_findings(asked, ledger, context(), "team")] == want

"""Doctor on budgets of GPU-hours."""

from pathlib import Path

from tests.builders import JSON
from tests.cases import cases
from tests.webhook.tools.doctor.leases import LEADS, lease
from tests.webhook.tools.doctor.quotas import COUNTED, QUOTAS, quota
from tests.webhook.tools.installed_clusters import assert_found

SPENT = ("BudgetSpent", "True", "100 of 100 GPU-hours used this month")


def budget(until: str = "11:55:00", used: str = "4", **spec: JSON) -> JSON:
    """Return a quota with a budget that was counted at a time of the day on which doctor looks, at 12:00."""
    stored = quota(COUNTED, SPENT, **{"budget": {"gpuHours": 100}, **spec})
    stored["status"]["used"] = {"gpus": used}
    stored["status"]["budget"] = {
        "period": "month",
        "start": "2027-01-01T00:00:00Z",
        "end": "2027-02-01T00:00:00Z",
        "until": f"2027-01-31T{until}Z",
        "granted": {"gpus": "100"},
        "used": {"gpus": "100"},
    }
    return {QUOTAS: [stored]}


@cases(
    ("objects", "want"),
    a_quota_without_a_budget=({QUOTAS: [quota(COUNTED)]}, []),
    a_spent_budget_is_no_fault=({**budget(), **LEADS}, []),
    nothing_is_used_so_nothing_is_counted=({**budget("08:00:00", used="0"), **LEADS}, []),
    no_controller=(
        budget(),
        [
            "budget-not-counted: GPUQuota in team has a budget of GPU-hours, and no controller leads that counts "
            "them: a spent budget denies until the end of its period, and no other one does\n"
            "start the controller (gpu-admission-controller) of this version, and see its log"
        ],
    ),
    no_controller_for_minutes=(
        {**budget(), **lease("11:44:00")},
        [
            "budget-not-counted: GPUQuota in team has a budget of GPU-hours, and no controller leads that counts "
            "them: a spent budget denies until the end of its period, and no other one does\n"
            "start the controller (gpu-admission-controller) of this version, and see its log"
        ],
    ),
    a_controller_that_knows_no_budgets=(
        {QUOTAS: [quota(COUNTED, budget={"gpuHours": 100})], **LEADS},
        [
            "budget-not-counted: GPUQuota in team has a budget of GPU-hours, and the controller that leads has "
            "not counted them"
        ],
    ),
    a_controller_that_stopped_counting=(
        {**budget("11:44:00"), **LEADS},
        [
            "budget-not-counted: GPUQuota in team has a budget of GPU-hours, and the last count is of "
            "2027-01-31T11:44:00Z"
        ],
    ),
)
def test_whether_somebody_counts_them(objects: JSON, want: list[str], tmp_path: Path) -> None:
    assert_found("budgets", objects, want, tmp_path)

"""A budget of GPU-hours on a real API server: spent, the next period, replaced, and counted by several at once."""

from collections.abc import Callable
from time import time

from policies.quota.amounts import GPUS
from policies.quota.budget import GPU_HOUR, Period, Spending, moment
from tests.cluster.controllers import Counting, Running, eventually, uses
from tests.cluster.quota.quotas import gpu_pod, in_force
from tests.controlplane.gpuquota import Namespace

SMALL = {"gpuHours": "0.01", "period": "day"}
"""36 GPU-seconds: of 8 GPUs 4.5 s."""
HARD = {"gpus": 16}


def spent(team: Namespace) -> bool:
    """Whether the budget is spent soon."""
    condition = eventually(lambda: (found := team.condition("BudgetSpent")) and found.status == "True")
    return bool(condition)


def spend(team: Namespace) -> None:
    in_force(team, HARD, budget=SMALL)
    team.pod("train", 8)
    assert spent(team), team.status()


def refusal(team: Namespace) -> str:
    """Return why a pod is denied, "" if it is admitted."""
    status, answer = team.create(gpu_pod("next"))
    assert status in {201, 403}, answer
    return "" if status == 201 else answer["message"]


def spending_of(team: Namespace) -> Spending:
    spending = team.ledger_object().spending
    assert spending
    return spending


def spent_seconds(team: Namespace) -> tuple[float, float]:
    """Return the GPU-seconds in the ledger, and until when they were counted."""
    spending = spending_of(team)
    return spending.spent.get(GPUS, 0) * 3600 / GPU_HOUR, spending.until / 1000


def test_a_spent_budget_denies_until_the_next_period(counted: Counting, team: Namespace) -> None:
    spend(team)

    message = refusal(team)
    begins = moment(Period.DAY.bounds(int(time() * 1000))[1])
    assert f"exceeded budget: {team.name}/default, 0.01 of 0.01 GPU-hours used today (UTC); " in message
    assert f"the next day begins at {begins:%Y-%m-%d %H:%M} UTC" in message
    assert "wait until 20" in message
    assert uses(team, 8), "running pods go on"
    shown_budget = team.status().budget
    assert shown_budget
    assert shown_budget.granted == {GPUS: "0.01"}
    shown = next(each for each in team.status().conditions if each.type == "Ready")
    assert (shown.status, shown.reason) == ("True", "BudgetSpent")
    events = eventually(
        lambda: [
            each
            for each in team.client.get(team.path("events"))[1]["items"]
            if each["reason"] == "BudgetSpent"
        ]
    )
    assert len(events) == 1

    team.delete_pod("train")
    assert uses(team, 0)
    assert refusal(team)
    # A controller whose clock shows the first second of the next day.
    midnight = Period.DAY.bounds(int(time() * 1000))[1]
    ahead = midnight - int(time() * 1000)
    with Running(counted.plane, clock=lambda: int(time() * 1000) + ahead):
        assert eventually(lambda: refusal(team) == "")
    assert spending_of(team).start == midnight


def test_a_warning_comes_before_the_denial(team: Namespace) -> None:
    in_force(team, HARD, budget={"gpuHours": 1000, "warnAt": 0.000001})
    team.pod("train", 8)
    low = eventually(lambda: (found := team.condition("BudgetLow")) and found.status == "True" and found)
    assert low
    assert "of 1000 GPU-hours used this month" in low.message
    assert refusal(team) == ""


def test_who_deletes_a_quota_and_creates_it_again_gains_nothing(team: Namespace) -> None:
    spend(team)
    team.delete_quota()
    assert eventually(lambda: team.client.get(team.ledger_object_path)[0] == 404)

    in_force(team, HARD, budget=SMALL)

    assert "exceeded budget" in refusal(team)
    assert spent_seconds(team)[0] >= 36


def test_who_removes_the_budget_and_sets_it_again_gains_nothing(team: Namespace) -> None:
    spend(team)
    team.change_quota({"budget": None})
    assert eventually(lambda: team.ledger_object().budget is None)
    assert refusal(team) == ""

    team.change_quota({"budget": SMALL})

    assert eventually(lambda: team.ledger_object().budget is not None)
    status, answer = team.create(gpu_pod("another"))
    assert (status, "exceeded budget" in answer["message"]) == (403, True)


def test_controllers_that_count_at_once_and_end_in_turn_count_every_second_once(
    counted: Counting, team: Namespace
) -> None:
    in_force(team, HARD, budget={"gpuHours": 1000})
    began = time()
    team.pod("train", 8)
    assert uses(team, 8)
    turns: list[Callable[[], Running]] = [lambda: Running(counted.plane, lease=f"{team.name}-a")] * 3
    for number, start in enumerate(turns):
        with start(), start():
            team.pod(f"brief-{number}", 2)
            assert uses(team, 10)
            team.delete_pod(f"brief-{number}")
            assert uses(team, 8)
    seconds, until = spent_seconds(team)
    least, most = 8 * (until - began), 10 * (until - began)
    assert least - 8 <= seconds <= most
    assert spending_of(team).unknown.get(GPUS, 0) == 0

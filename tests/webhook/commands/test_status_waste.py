"""What `gpu-admission status` says of GPUs that do no work, of budgets, and of pods that wait for some."""

from datetime import UTC, datetime

import msgspec
import pytest

from tests.cases import cases
from tests.webhook.commands.statuses import (
    EARLIER,
    FIT,
    QUOTAS,
    YESTERDAY,
    amount,
    pending,
    plain,
    printed,
    quotas,
    status,
)
from webhook.quota.documents import IdleGPUs, IdleHolder, PlaceInLine, WaitingPods
from webhook.tools.status.summaries import BudgetRow, BudgetSummary, QuotaHolder

pytestmark = pytest.mark.usefixtures("eighty_columns")


def test_of_many_pending_owners_those_that_wait_longest_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    waiting = (
        *(pending(f"Job/{n}", "2", EARLIER, namespace=f"team-{n}") for n in range(9)),
        pending("Job/old", "1/7", YESTERDAY, pods=3),
    )
    quota = msgspec.structs.replace(QUOTAS[0], pending=waiting)
    lines = printed(status(quotas=(quota,)), capsys).splitlines()
    start = lines.index("pending pods hold 18.14 used GPUs in 10 namespaces")
    owners = [
        "  ml-training Job/old, 0.14 GPUs, 3 pods since 2026-11-21 23:50 UTC",
        *(f"  team-{n} Job/{n}, 2 GPUs, 1 pod since 07:13 UTC" for n in range(4)),
    ]
    assert lines[start + 2 : start + 13] == [
        *(line for owner in owners for line in (owner, f"    {FIT}")),
        "  and 5 owners more; -o json has all",
    ]


IDLE = IdleGPUs(
    gpus=amount("3.5"),
    holders=(
        IdleHolder("Notebook/ana", amount("2"), "2026-11-22T02:00:00Z"),
        IdleHolder("Job/old", amount("1"), "2026-11-19T00:00:00Z"),
        IdleHolder("Job/slice", amount("1/2"), "2026-11-22T07:00:00Z"),
    ),
)
NOT_MEASURED = IdleGPUs(measured="https://prometheus does not answer")


def test_idle_holders_are_named_with_what_they_lost(capsys: pytest.CaptureFixture[str]) -> None:
    ana = QuotaHolder(
        name="Notebook/ana", held={"gpus": amount("2")}, idle_since=datetime(2026, 11, 22, 2, 0, tzinfo=UTC)
    )
    busy, other = quotas(2)
    idle = msgspec.structs.replace(busy, idle=IDLE, holders=(ana,))
    lines = printed(status(quotas=(idle, other)), capsys).splitlines()
    assert "    held by Notebook/ana 2 (idle since 02:00 UTC)" in lines
    start = lines.index("3.5 GPUs of quotas idle, 92 GPU-hours lost")
    assert lines[start + 1 : start + 6] == [
        "  the most lost first; gpu-admission ends none of them: ask who runs them",
        f"  {idle.namespace} Job/old, 1 GPU idle since 2026-11-19 00:00 UTC, 80 GPU-hours lost",
        f"  {idle.namespace} Notebook/ana, 2 GPUs idle since 02:00 UTC, 12 GPU-hours lost",
        f"  {idle.namespace} Job/slice, 0.5 GPUs idle since 07:00 UTC, 0.5 GPU-hours lost",
        "",
    ]


@cases(
    ("idle", "want"),
    not_measured=(NOT_MEASURED, "  not measured: https://prometheus does not answer"),
    measured_and_nobody_is_idle=(IdleGPUs(gpus=amount("0")), None),
    not_to_be_measured=(None, None),
)
def test_nobody_is_called_idle_whose_use_is_not_measured(
    idle: IdleGPUs | None, want: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    (quota,) = quotas(1)
    lines = printed(status(quotas=(msgspec.structs.replace(quota, idle=idle),)), capsys).splitlines()
    said = [line for line in lines if "idle" in line or "measured" in line]
    assert said == (["idle GPUs", want] if want else [])


def line(pods: int, since: str, *places: PlaceInLine) -> WaitingPods:
    return WaitingPods(pods=pods, since=since, demand={"gpus": amount("18")}, next=places)


def test_namespaces_in_which_pods_wait_in_line_the_longest_first(capsys: pytest.CaptureFixture[str]) -> None:
    message = "next in line, needs 8 GPUs, 5 of 16 free; largest holders: Job/llama 8"
    first = PlaceInLine(name="train-0", gang="Job/train", pods=8, place=1, message=message)
    short, long, one = quotas(3)
    found = status(
        quotas=(
            msgspec.structs.replace(short, waiting=line(9, "2026-11-22T07:13:00Z", first)),
            msgspec.structs.replace(long, waiting=line(1, "2026-11-21T23:50:00Z")),
            one,
        )
    )
    lines = printed(found, capsys).splitlines()
    start = lines.index("waiting in line for quota")
    assert lines[start + 1 : start + 6] == [
        "  the longest first; gpu-admission quota -n NAMESPACE lists a line",
        "  team-001 1 pod waits in line for 18 GPUs since 2026-11-21 23:50 UTC",
        "  team-000 9 pods wait in line for 18 GPUs since 07:13 UTC: Job/train (8 pods)",
        "    next in line, needs 8 GPUs, 5 of 16 free; largest holders: Job/llama 8",
        "",
    ]
    shown = plain(found)["quotas"]
    assert shown[0]["waiting"]["next"][0]["gang"] == "Job/train"
    assert shown[2]["waiting"] is None


BUDGET = BudgetSummary(
    period="month",
    start=datetime(2026, 11, 1, tzinfo=UTC),
    end=datetime(2026, 12, 1, tzinfo=UTC),
    until=datetime(2026, 11, 22, 8, tzinfo=UTC),
    rows=(
        BudgetRow(key="gpus", granted=amount("5000"), used=amount("4210.5"), unknown=amount("12")),
        BudgetRow(key="classes/nvidia-t4", granted=amount("800"), used=amount("800"), unknown=amount("0")),
    ),
    message="800 of 800 GPU-hours of nvidia-t4 used: requests for them are denied",
)
BARS = "████████████████████····", "████████████████████████"


@cases(
    ("found", "want"),
    spent=(
        BUDGET,
        [
            f"    GPU-hours              {BARS[0]} 4210.5 of 5000 this month",
            f"    GPU-hours of nvidia-t4 {BARS[1]} 800 of 800 this month",
            "    800 of 800 GPU-hours of nvidia-t4 used: requests for them are denied",
            "    12 GPU-hours more may have been used while no controller watched",
        ],
    ),
    of_a_period_that_is_over=(
        msgspec.structs.replace(
            BUDGET, end=datetime(2026, 11, 22, tzinfo=UTC), rows=BUDGET.rows[1:], message=""
        ),
        [f"    GPU-hours of nvidia-t4 {BARS[1]} 800 of 800 up to 2026-11-22"],
    ),
    no_budget=(None, []),
)
def test_budgets_stand_under_the_amounts(
    found: BudgetSummary | None, want: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (quota,) = quotas(1)
    lines = printed(status(quotas=(msgspec.structs.replace(quota, budget=found),)), capsys).splitlines()
    assert [line for line in lines if "GPU-hours" in line] == want


def test_of_many_lines_those_that_wait_longest_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    waiting = line(1, "2026-11-22T07:13:00Z")
    many = tuple(msgspec.structs.replace(each, waiting=waiting) for each in quotas(7))
    lines = printed(status(quotas=many), capsys).splitlines()
    start = lines.index("waiting in line for quota")
    assert lines[start + 2 : start + 9] == [
        *(f"  team-{each:03} 1 pod waits in line for 18 GPUs since 07:13 UTC" for each in range(5)),
        "  and 2 namespaces more; -o json has all",
        "",
    ]


def test_of_many_idle_holders_those_that_lost_most_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    holders = tuple(IdleHolder(f"Job/{each}", amount("1"), "2026-11-22T07:00:00Z") for each in range(7))
    (quota,) = quotas(1, idle=IdleGPUs(gpus=amount("7"), holders=holders))
    lines = printed(status(quotas=(quota,)), capsys).splitlines()
    start = lines.index("7 GPUs of quotas idle, 7 GPU-hours lost")
    assert lines[start + 1 : start + 8] == [
        "  the most lost first; gpu-admission ends none of them: ask who runs them",
        *(f"  team-000 Job/{each}, 1 GPU idle since 07:00 UTC, 1 GPU-hour lost" for each in range(5)),
        "  and 2 owners more; -o json has all",
    ]

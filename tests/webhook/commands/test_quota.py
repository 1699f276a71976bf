"""The text of `gpu-admission quota`; with a cluster: tests/cluster/test_quota_command.py."""

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from policies.quota.amounts import Hard
from policies.quota.spec import QuotaSpec
from policies.times import utc
from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, answering, group
from tests.webhook.commands.checked_cluster import FORBIDDEN, GROUP, cluster
from tests.webhook.commands.statuses import plain
from webhook.cluster.objects import Condition
from webhook.commands import main
from webhook.commands import quota as command
from webhook.commands.output import Screen
from webhook.commands.quota import QuotaReport, QuotaReports
from webhook.commands.quota_text import bar
from webhook.quota.documents import (
    IdleGPUs,
    IdleHolder,
    KeptQuota,
    PlaceInLine,
    QuotaRecord,
    QuotaStatus,
    WaitingPods,
)
from webhook.tools.status.kueue import KueueState, QueueState, Reserved
from webhook.tools.status.quotas import CountedObject
from webhook.tools.status.summaries import BudgetRow, BudgetSummary, QuotaRow, QuotaState, QuotaSummary

AT = datetime(2026, 11, 22, 7, 13, tzinfo=UTC)
HEAD = "NAMESPACE            STATUS        USED  WAITING  PENDING RESERVED    HARD  FULL"
GPUS = QuotaRow(key="gpus", hard=Fraction(8), used=Fraction(2), reserved=Fraction(1), pending=Fraction(1, 7))
ALL_PENDING = QuotaRow(key="classes/nvidia-a100", hard=Fraction(4), used=Fraction(4), pending=Fraction(4))
LINE = WaitingPods(
    pods=16,
    since="2026-11-22T06:02:00Z",
    demand={"gpus": Fraction(9)},
    next=(
        PlaceInLine(
            name="notebook",
            place=1,
            since="2026-11-22T06:02:00Z",
            demand={"gpus": Fraction(1)},
            reason="Next",
            message="next in line, needs 1 GPU, 0 of 8 free; largest holders: Job/llama 8",
        ),
        PlaceInLine(
            name="train-0",
            gang="Job/train",
            pods=4,
            place=2,
            since="2026-11-21T23:00:00Z",
            demand={"gpus": Fraction(4)},
            reason="Behind",
            message="2nd in line, needs 4 GPUs, 0 of 8 free; largest holders: Job/llama 8",
        ),
        PlaceInLine(
            name="gated",
            since="2026-11-22T06:30:00Z",
            demand={"gpus": Fraction(1)},
            reason="OtherGate",
            message="it has another scheduling gate, and joins the line when that is removed",
        ),
    ),
)

pytestmark = pytest.mark.usefixtures("eighty_columns")


def summary(
    name: str,
    *rows: QuotaRow,
    state: QuotaState = QuotaState.READY,
    held_up: bool = False,
    waiting: WaitingPods | None = None,
    idle: IdleGPUs | None = None,
) -> QuotaSummary:
    return QuotaSummary(
        namespace=name, state=state, rows=rows or (GPUS,), is_held_up=held_up, waiting=waiting, idle=idle
    )


def table(
    capsys: pytest.CaptureFixture[str],
    *quotas: QuotaSummary,
    problems: bool = False,
    until: datetime | None = None,
) -> list[str]:
    reports = QuotaReports([report(each) for each in quotas], until, ["list nodes"])
    shown = [each for each in quotas if each.has_problem or not problems]
    command.print_table(Screen(), reports, shown, AT, problems=problems)
    return capsys.readouterr().out.splitlines()


def report(
    found: QuotaSummary,
    status: QuotaStatus | None = None,
    objects: list[CountedObject] | None = None,
    **record: Any,
) -> QuotaReport:
    fields: dict[str, Any] = {
        "spec": QuotaSpec(hard=Hard(gpus=8)),
        "status": status or QuotaStatus(),
        **record,
    }
    stored = QuotaRecord(namespace=found.namespace, uid="", version="", **fields)
    return QuotaReport(stored, found, objects)


def text(capsys: pytest.CaptureFixture[str], shown: QuotaReport, **more: Any) -> str:
    command.print_text(Screen(), QuotaReports([shown], None, [], **more), AT)
    return capsys.readouterr().out


def document(shown: QuotaReport, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = plain(command.document(QuotaReports([shown], None, [], **more)))
    return found


def test_a_line_for_each_quota_the_worst_first(capsys: pytest.CaptureFixture[str]) -> None:
    uncounted = QuotaRow(key="gpus", hard=Fraction(4), used=None, pending=Fraction(0))
    assert table(
        capsys,
        summary("team-a"),
        summary("full", GPUS, ALL_PENDING, waiting=LINE),
        summary("by-class", ALL_PENDING),
        summary("new", uncounted, state=QuotaState.NOT_COUNTED),
        until=AT - timedelta(seconds=45),
    ) == [
        "quotas as of 45 s ago (07:12:15 UTC), not counted now: no controller leads;",
        "  gpu-admission doctor says why",
        HEAD,
        "new                  NotCounted       ?        0        ?        0       4",
        "by-class             Ready            -        -        -        -       -  nvidia-a100",
        "full                 Ready            2        9     0.14        1       8  nvidia-a100",
        "team-a               Ready            2        0     0.14        1       8",
        "all 4                                 4        9     0.29        2      20",
        "",
        "you may not list nodes: what depends on it is not shown",
    ]


def test_all_that_is_said_of_a_namespace(capsys: pytest.CaptureFixture[str]) -> None:
    ready = Condition(
        type="Ready",
        status="False",
        reason="NotCounted",
        message="no count yet",
        last_transition_time="",
    )
    status = QuotaStatus(hard={"gpus": Fraction(8)}, observed_generation=1, conditions=(ready,))
    waits = CountedObject(
        kind="Pod",
        name="small",
        demand={"gpus": Fraction(2)},
        pending_since=datetime(2026, 11, 22, 6, 2, tzinfo=UTC),
    )
    runs = CountedObject(kind="Pod", name="big", node="node-a", demand={"gpus": Fraction(8)})
    uncounted = summary("team", state=QuotaState.NOT_COUNTED)

    assert text(capsys, report(uncounted, status, [waits, runs], generation=2)) == (
        "team  NotCounted: every GPU pod is denied\n"
        "                                 ▄ pending ▒ reserved     used + reserved of hard\n"
        "  gpus                           █████▄▒▒▒··············· 2 + 1 of 8, 0.14 pending\n"
        "  spec was changed, and no controller has put it in force yet\n"
        "  ready: no count yet\n"
        "  held by 1 pending pod, the longest first:\n"
        "    Pod small since 06:02 UTC: gpus 2\n"
        "  held by 1 object:\n"
        "    Pod big on node-a: gpus 8\n"
    )


def test_a_quota_that_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    problem = "the GPUQuota cannot be read: why"
    shown = report(summary("team", state=QuotaState.UNREADABLE), spec=None, problem=problem)

    assert text(capsys, shown) == f"team\n  error: {problem}\n"


ALL, OF_ML = f"{GROUP}/gpuquotas", f"{GROUP}/namespaces/ml/gpuquotas"
STORED = {
    "metadata": {"name": "default", "namespace": "ml", "uid": "q"},
    "spec": {"hard": {"gpus": "4"}},
}


def of_cluster(folder: Path, objects: dict[str, Any], *arguments: str) -> Result:
    with ApiServer(folder, answering(cluster() | objects)) as server:
        return CliRunner().invoke(main, ["quota", "--kubeconfig", str(server.kubeconfig()), *arguments])


@cases(
    ("objects", "arguments", "want"),
    in_no_namespace=({ALL: []}, (), "there is no GPUQuota"),
    not_in_this_one=({OF_ML: []}, ("-n", "ml"), "there is no GPUQuota in namespace ml"),
    no_kind=({}, (), "this cluster has no GPUQuotas: their kind is not installed"),
)
def test_where_there_is_no_quota(
    objects: dict[str, Any], arguments: tuple[str, ...], want: str, tmp_path: Path
) -> None:
    result = of_cluster(tmp_path, objects, *arguments)

    assert (result.exit_code, result.output) == (2, f"error: {want}\n")


def test_rights_that_are_missing_are_named(tmp_path: Path) -> None:
    objects = {OF_ML: [STORED], "/api/v1/namespaces/ml/pods": FORBIDDEN}
    result = of_cluster(tmp_path, objects, "-n", "ml")

    assert (result.exit_code, result.stdout.splitlines()) == (
        0,
        [
            "ml  NotCounted: every GPU pod is denied",
            "                                 ▄ pending ▒ reserved     used + reserved of hard",
            "  gpus                           ························ ? + 0 of 4",
            "",
            "not shown: what needs 2 rights that you lack; --verbose lists them",
        ],
    )
    whole = of_cluster(tmp_path, objects, "-n", "ml", "--verbose").stdout
    listed = "you may not list pods -n ml, list pods and claims -n ml: what depends on it is not shown"
    assert " ".join(whole.split()).endswith(listed)


IDLE = IdleGPUs(
    gpus=Fraction(3, 2), holders=(IdleHolder("Notebook/ana", Fraction(3, 2), "2026-11-22T01:13:00Z"),)
)
NOT_MEASURED = IdleGPUs(measured="https://prometheus does not answer")


def test_a_spent_budget_is_full_as_long_as_its_period(capsys: pytest.CaptureFixture[str]) -> None:
    day = datetime(2026, 11, 22, tzinfo=UTC)
    row = BudgetRow(key="gpus", granted=Fraction(9), used=Fraction(9), unknown=Fraction(0))
    spent = BudgetSummary(period="day", start=day, end=AT + timedelta(hours=1), until=day, rows=(row,))
    over = msgspec.structs.replace(spent, end=AT)
    left = msgspec.structs.replace(spent, rows=(msgspec.structs.replace(row, used=Fraction(8)),))
    named = zip("abc", (spent, over, left), strict=True)
    lines = table(capsys, *(msgspec.structs.replace(summary(name), budget=each) for name, each in named))
    assert [line[len(HEAD) - 4 :] for line in lines[1:4]] == ["GPU-hours", "", ""]


def test_a_column_of_idle_gpus_where_use_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    quotas = (
        summary("a", idle=IDLE),
        summary("b", idle=IdleGPUs(gpus=Fraction(0))),
        summary("c", idle=NOT_MEASURED),
        summary("d"),
    )
    lines = table(capsys, *quotas)
    assert lines[0].endswith("    HARD  IDLE  FULL")
    assert [line[-6:].strip() for line in lines[1:6]] == ["1.5", "0", "?", "?", "1.5"]


@cases(
    ("idle", "want"),
    an_idle_holder=(IDLE, ["  Notebook/ana, 1.5 GPUs idle since 01:13 UTC, 9 GPU-hours lost"]),
    not_measured=(NOT_MEASURED, ["  idle GPUs are not measured: https://prometheus does not answer"]),
    nobody_is_idle=(IdleGPUs(gpus=Fraction(0)), []),
    not_to_be_measured=(None, []),
)
def test_who_is_idle_in_a_namespace(
    idle: IdleGPUs | None, want: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = text(capsys, report(summary("a", idle=idle))).splitlines()
    assert [line for line in lines if "idle" in line] == want


def test_who_keeps_quota_while_its_pods_are_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    keeps = QuotaStatus(kept=(KeptQuota("RayCluster/train", {"gpus": Fraction(2)}),))
    shown = report(summary("a"), keeps)
    assert "  kept for RayCluster/train, whose pods are replaced: 2 GPUs" in text(capsys, shown).splitlines()
    (kept,) = document(shown)["quotas"][0]["kept"]
    assert kept == {"object": "RayCluster/train", "demand": {"gpus": "2"}}


def test_the_queues_of_kueue(capsys: pytest.CaptureFixture[str]) -> None:
    used = Reserved(flavor="h100", resource="nvidia.com/gpu", reserved="6", nominal="8")
    queues = (
        QueueState(
            namespace="a",
            name="batch",
            cluster_queue="gpus",
            pending=2,
            admitted=1,
            is_stopped=False,
            reserved=(used,),
            objects=(
                KueueState("w", "batch", "Job/one", admitted_at=AT),
                KueueState("v", "batch", "Job/two", place=1, pending=2, message="2 more needed"),
                *11 * [KueueState("u", "batch", "Job/off", is_active=False)],
            ),
        ),
        QueueState(
            namespace="a", name="night", cluster_queue="other", pending=3, admitted=0, is_stopped=True
        ),
        QueueState(
            namespace="a", name="no", cluster_queue="", pending=1, admitted=0, is_stopped=False, exists=False
        ),
    )
    assert text(capsys, report(summary("a")), queues=queues).splitlines()[-15:] == [
        "  Kueue: LocalQueue batch: 1 admitted, 2 pending; ClusterQueue gpus has reserved",
        "    6 of 8 nvidia.com/gpu of flavor h100",
        f"    Job/one: admitted at {utc(AT, AT)}",
        "    Job/two: place 1 of 2: 2 more needed",
        *8 * ["    Job/off: deactivated"],
        "    and 3 more",
        "  Kueue: LocalQueue night: 0 admitted, 3 pending, stopped",
        "  Kueue: LocalQueue no: 0 admitted, 1 pending, does not exist",
    ]
    first = document(report(summary("a")), queues=queues)["queues"][0]
    assert (first["clusterQueue"], first["reserved"][0]["nominal"]) == ("gpus", "8")


def test_what_is_read_of_kueues_queues(tmp_path: Path) -> None:
    api = "/apis/kueue.x-k8s.io/v1beta2"
    local = {"metadata": {"name": "team-a"}, "spec": {"clusterQueue": "gpus"}}
    at = {"status": "True", "reason": "Any", "message": "", "lastTransitionTime": "2026-11-22T07:00:00Z"}
    conditions = (), (), ("QuotaReserved", "Admitted"), ("QuotaReserved", "Admitted", "Finished")
    workloads = [
        {
            "metadata": {"name": f"job-{number}"},
            "spec": {"queueName": "team-a"},
            "status": {"conditions": [{"type": kind, **at} for kind in kinds]},
        }
        for number, kinds in enumerate(conditions)
    ]
    objects = {
        OF_ML: [STORED],
        "/api/v1/namespaces/ml/pods": [],
        "/apis/kueue.x-k8s.io": group("v1beta2"),
        f"{api}/namespaces/ml/localqueues": [local],
        f"{api}/namespaces/ml/workloads": workloads,
        f"{api}/clusterqueues/gpus": {"metadata": {"name": "gpus"}, "spec": {"stopPolicy": "Hold"}},
    }
    assert "Kueue: LocalQueue team-a: 1 admitted, 2 pending, stopped" in of_cluster(
        tmp_path, objects, "-n", "ml"
    ).output.replace("\n    ", " ")


def test_a_long_name_widens_the_column_of_names(capsys: pytest.CaptureFixture[str]) -> None:
    name = "machine-translation-europe-430"
    head, long, short, *_ = table(capsys, summary(name), summary("team-a"))
    assert long.startswith(f"{name} Ready ")
    assert [each.index("Ready") for each in (long, short)] == [len(name) + 1] * 2
    assert head.index("STATUS") == len(name) + 1


def test_namespaces_without_problems_that_do_not_fit_on_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    lines = table(capsys, *(summary(f"team-{number:03}") for number in range(45)))
    assert lines[-4:-2] == [
        "and 5 namespaces more, none with problems; -n shows one, -o json all",
        "all 45                               90        0     6.43       45     360",
    ]


def test_500_namespaces_fit_on_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    quotas = [summary(f"team-{number:03}", held_up=number >= 440) for number in range(500)]
    lines = table(capsys, *quotas)
    assert len(lines) == 1 + command.MAX_QUOTAS + 5
    assert lines[1].startswith("team-440 ")
    assert lines[-5:-2] == [
        "and 460 namespaces more, 20 with problems (--problems shows them); -n shows one,",
        "  -o json all",
        "all 500                            1000        0    71.43      500    4000",
    ]
    assert len(table(capsys, *quotas, problems=True)) == 1 + 60 + 3


@cases(
    ("used", "pending", "reserved", "want"),
    nothing=("0", "0", "0", "········"),
    running=("4", "0", "0", "████····"),
    half_of_it_pending=("4", "2", "0", "██▄▄····"),
    all_of_it_pending=("4", "4", "1", "▄▄▄▄▒···"),
    a_little_runs=("4", "3.9", "0", "█▄▄▄····"),
    a_little_is_pending=("4", "0.1", "0", "███▄····"),
)
def test_a_bar_shows_what_runs_and_what_does_not(used: str, pending: str, reserved: str, want: str) -> None:
    assert bar(Fraction(used), Fraction(reserved), Fraction(8), 8, Fraction(pending)) == want


def test_the_line_of_a_namespace(capsys: pytest.CaptureFixture[str]) -> None:
    waits = QuotaStatus(used={"gpus": Fraction(8)}, waiting=LINE)
    shown = report(summary("team", waiting=LINE), waits, [])

    lines = text(capsys, shown).splitlines()
    at = lines.index("  16 pods wait in line for 9 GPUs since 06:02 UTC:")
    assert lines[at + 1 : at + 7] == [
        "     1  Pod/notebook since 06:02 UTC: next in line, needs 1 GPU, 0 of 8 free;",
        "        largest holders: Job/llama 8",
        "     2  Job/train (4 pods) since 2026-11-21 23:00 UTC: needs 4 GPUs",
        "     -  Pod/gated since 06:30 UTC: it has another scheduling gate, and joins the",
        "        line when that is removed",
        "        and 10 pods more",
    ]
    assert document(shown)["quotas"][0]["waiting"]["next"][1]["gang"] == "Job/train"


def test_a_condition_is_in_words_and_what_a_budget_says_is_there_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    low = "90 of 100 GPU-hours used this month, enough for the rest if no more is used than now"
    conditions = (
        Condition("Ready", "True", "Ready", "counted", "", 1),
        Condition("BudgetLow", "True", "Low", low, "", 1),
        Condition("UnmappedResources", "True", "Unknown", "not counted: amd.com/gpu", "", 1),
    )
    status = QuotaStatus(used={"gpus": Fraction(8)}, conditions=conditions)
    row = BudgetRow(key="gpus", granted=Fraction(100), used=Fraction(90), unknown=Fraction(0))
    end = AT + timedelta(days=8)
    budget = BudgetSummary(period="month", start=AT, end=end, until=AT, rows=(row,), message=low)
    found = msgspec.structs.replace(summary("team"), budget=budget)

    said = " ".join(text(capsys, report(found, status)).split())
    assert "unmapped resources: not counted: amd.com/gpu" in said
    assert (said.count(low), "budgetlow" in said) == (1, False)

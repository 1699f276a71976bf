"""The text of `gpu-admission status`."""

import json
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.core import ParameterSource
from click.testing import CliRunner

from tests.cases import cases
from tests.webhook.cluster.apiserver import Answer, ApiServer, Request
from tests.webhook.cluster.apiserver import status as refused
from tests.webhook.commands.statuses import (
    CLASSES,
    DENIED,
    INSTALLATION,
    POLICIES,
    QUOTAS,
    WHOLE,
    YESTERDAY,
    amount,
    plain,
    printed,
    quotas,
    status,
)
from webhook.commands import main, status_text
from webhook.commands.output import Screen
from webhook.commands.quota_text import bar
from webhook.tools.doctor.check import warning
from webhook.tools.status.report import (
    ClusterTotals,
    InstallationStatus,
)
from webhook.tools.status.summaries import AuditedPods, QuotaHolder

pytestmark = pytest.mark.usefixtures("eighty_columns")


def test_everything_that_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(status(), capsys) == WHOLE


def test_nothing_is_said_of_what_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    unknown = status(
        installation=InstallationStatus(),
        policies=None,
        quotas=(),
        quotas_are_known=False,
        totals=ClusterTotals(),
        classes=(),
        denials=None,
        omitted=(),
    )
    _, *rest = printed(unknown, capsys).splitlines()
    assert rest == ["", "quotas                     ▄ pending ▒ reserved     used + reserved of hard"]


@cases(
    ("tweaks", "line"),
    no_policy=({"policies": ()}, "  the built-in defaults are in force"),
    no_quota=({"quotas": ()}, "  there is no GPUQuota that you may read"),
    no_quota_there=({"quotas": (), "namespaces": ("a", "b")}, "  there is no GPUQuota in a, b"),
)
def test_what_is_missing_is_said(
    tweaks: dict[str, Any], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert line in printed(status(**tweaks), capsys).splitlines()


def test_of_many_namespaces_the_worst_are_shown_and_the_others_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    denied = quotas(500)[400:430]
    found = status(
        quotas=(
            *quotas(400),
            *(msgspec.structs.replace(each, denied=1 + number) for number, each in enumerate(denied)),
        )
    )
    lines = printed(found, capsys).splitlines()
    start = lines.index("  team-429  Ready, 30 denied")
    rest = lines.index("  and 410 namespaces more, 10 with problems (--problems shows them); -n shows")
    assert (rest - start) / 2 == status_text.MAX_QUOTAS
    held = bar(Fraction(410 * 2, 7), Fraction(205), Fraction(1640))
    assert lines[rest + 2] == f"    gpus                   {held} 117.14 + 205 of 1640"
    assert len(lines) < 90


def test_on_a_narrow_terminal_bars_are_short(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "56")
    lines = printed(status(), capsys).splitlines()
    assert "    gpus                   ██▄▄▄▄ 10 + 0 of 8, 6 pending" in lines


def test_figures_that_no_controller_updates_are_old(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(status(figures_until=YESTERDAY), capsys).splitlines()
    start = lines.index("  quotas as of 8 h ago (2026-11-21 23:50 UTC), not counted now: no controller")
    assert lines[start - 1].startswith("quotas ")
    assert lines[start + 1 : start + 3] == [
        "    leads; gpu-admission doctor says why",
        "  new  NotCounted",
    ]


def test_of_many_findings_the_first_errors_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    findings = [
        warning("untainted-gpu-node", f"Node {n}", "must have a taint", "taint it") for n in range(500)
    ]
    installation = InstallationStatus(findings=(*findings, *INSTALLATION.findings))
    lines = printed(status(installation=installation), capsys).splitlines()
    start = lines.index("doctor")
    assert lines[start + 1].startswith("  error    crd-missing: ")
    assert lines[start + 11] == "  and 492 findings more: gpu-admission doctor has all"


def test_of_many_denials_the_last_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    one = msgspec.structs.replace(DENIED[0], count=1, reason="", message="denied by the webhook")
    many = tuple(msgspec.structs.replace(one, owner=f"Job/{each}") for each in range(7))
    lines = printed(status(denials=many), capsys).splitlines()
    start = lines.index("denied since 07:13 UTC")
    owners = (f"  ml-training Job/{each}: 1 time, last at 08:00 UTC" for each in range(5))
    assert lines[start + 1 : start + 14] == [
        "  from Events; gpu-admission why KIND/NAME -n NAMESPACE says more",
        *(shown for owner in owners for shown in (owner, "    denied by the webhook")),
        "  and 2 owners more",
        "",
    ]


def test_problems_alone(capsys: pytest.CaptureFixture[str]) -> None:
    found = status(quotas=(*QUOTAS, *quotas(500), *quotas(30, denied=1, denied_since=YESTERDAY)))
    status_text.show(Screen(), found, problems=True)
    lines = capsys.readouterr().out.splitlines()
    shown = [line for line in lines if line.startswith("  team-")]
    assert shown == [f"  team-{each:03}  Ready, 1 denied since 2026-11-21 23:50 UTC" for each in range(30)]
    assert [line for line in lines if not line.startswith((" ", "gpu-admission")) and line] == [
        "policies                   configuration abc",
        "quotas                     ▄ pending ▒ reserved     used + reserved of hard",
        "pending pods hold 6 used GPUs in 1 namespace",
        "classes                      memory   nodes    GPUs    free",
        "denied since 07:13 UTC",
        "doctor",
        "not shown: what needs 3 rights that you lack; --verbose lists them",
    ]
    for works in ("webhook ", "  default ", "unknown class"):
        assert works not in "\n".join(lines)


def test_no_problems(capsys: pytest.CaptureFixture[str]) -> None:
    installation = InstallationStatus(parts=INSTALLATION.parts[:1])
    found = status(
        installation=installation,
        policies=POLICIES[:1],
        quotas=quotas(2),
        classes=CLASSES[1:],
        denials=(),
        omitted=(),
    )
    status_text.show(Screen(), found, problems=True)
    assert capsys.readouterr().out.splitlines()[1:] == ["nothing is wrong with what you may read"]


def test_a_holder_of_whose_gpus_nothing_is_known_is_shown_by_its_class(
    capsys: pytest.CaptureFixture[str],
) -> None:
    held = {"classes/nvidia-l4": amount("2"), "resources/nvidia.com/gpu": amount("1")}
    quota = msgspec.structs.replace(
        QUOTAS[0], holders=(*QUOTAS[0].holders[:1], QuotaHolder(name="Job/fifth", held=held))
    )
    assert (
        "    held by Job/4 4, Job/fifth 2 nvidia-l4" in printed(status(quotas=(quota,)), capsys).splitlines()
    )


def test_json_has_amounts_as_text_and_moments() -> None:
    found = json.loads(msgspec.json.encode(plain(status())))
    assert (found["at"], found["quotas"][0]["rows"][1]["reserved"]) == ("2026-11-22T08:00:00Z", "2/7")
    assert found["policies"][1]["pausedUntil"] == "2026-11-22T12:00:00Z"


def test_an_unusable_cluster_ends_the_command(tmp_path: Path) -> None:
    def answer(_: Request) -> Answer:
        return refused(500, "etcd is away")

    with ApiServer(tmp_path, answer) as server:
        result = CliRunner().invoke(main, ["status", "--kubeconfig", str(server.kubeconfig())])
    assert (result.exit_code, result.stderr) == (2, "error: etcd is away\n")


START = datetime(2026, 11, 15, 8, tzinfo=UTC)


@cases(
    ("hours", "denied", "by_rule", "want"),
    of_a_week=(
        168,
        3,
        {"gpu-requests": 2, "topology": 1},
        "in 7 days 3 of 412 pods would have been denied, by rule gpu-requests (2), topology (1)",
    ),
    none=(47, 0, {}, "in 47 hours none of 412 pods would have been denied"),
    of_a_minute=(
        0,
        412,
        {"topology": 412},
        "in 1 hour 412 of 412 pods would have been denied, by rule topology (412)",
    ),
)
def test_the_audit_phase_has_its_number(
    hours: int, denied: int, by_rule: dict[str, int], want: str, capsys: pytest.CaptureFixture[str]
) -> None:
    until = START + timedelta(hours=hours)
    audited = AuditedPods(since=START, until=until, pods=412, denied=denied, by_rule=by_rule)
    shown = " ".join(printed(status(audited=audited), capsys).split())

    assert f"only audited {want} doctor" in shown


def test_verbose_lists_the_missing_rights(capsys: pytest.CaptureFixture[str]) -> None:
    with click.Context(main) as context:
        context.set_parameter_source("verbose", ParameterSource.COMMANDLINE)
        lines = printed(status(), capsys).splitlines()

    assert lines[-2:] == [
        "you may not read the installation (canary), run 1 check of gpu-admission doctor,",
        "  list nodes: what depends on it is not shown",
    ]

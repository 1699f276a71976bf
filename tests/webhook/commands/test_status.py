"""The text of `gpu-admission status`."""

import json
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from tests.cases import cases
from tests.webhook.cluster.apiserver import Answer, ApiServer, Request
from tests.webhook.cluster.apiserver import status as refused
from webhook.cluster.capacity import ClassCapacity
from webhook.commands import main, status_text
from webhook.commands.output import Screen
from webhook.commands.quota_text import bar
from webhook.tools.doctor.check import failure, warning
from webhook.tools.pending_pods import PendingOwner
from webhook.tools.status.report import (
    ClassStatus,
    ClusterStatus,
    ClusterTotals,
    Health,
    InstallationStatus,
    Part,
    PolicyStatus,
    plain,
    quota_totals,
)
from webhook.tools.status.summaries import DeniedOwner, QuotaHolder, QuotaRow, QuotaState, QuotaSummary

AT = datetime(2026, 11, 22, 8, 0, tzinfo=UTC)
EARLIER = datetime(2026, 11, 22, 7, 13, tzinfo=UTC)
YESTERDAY = datetime(2026, 11, 21, 23, 50, tzinfo=UTC)


def amount(text: str) -> Fraction:
    return Fraction(text)


INSTALLATION = InstallationStatus(
    parts=(
        Part(name="webhook", health=Health.OK, text="2 of 2 replicas ready, example.com/gpu-admission:0.1.0"),
        Part(
            name="controller",
            health=Health.FAILED,
            text="Lease/gpu-admission-controller in gpu-admission " * 2,
        ),
        Part(name="canary", health=Health.UNKNOWN, text="you may not", for_administrators=True),
    ),
    findings=(
        warning("untainted-gpu-node", "Node a", "must have a taint", "taint it"),
        failure("crd-missing", "CustomResourceDefinition/x", "does not exist " * 8, "apply it"),
    ),
    not_checked=("canary: its policy only audits", "nodes: the API server says no"),
    checks_for_administrators=1,
)
MODES = {"enforce": ("gpu-class", "gpu-requests"), "audit": ("gpu-isolation",), "disabled": ("spot",)}


FIT = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


def pending(
    owner: str, gpus: str, since: datetime, pods: int = 1, namespace: str = "ml-training"
) -> PendingOwner:
    return PendingOwner(
        namespace=namespace,
        owner=owner,
        pods=pods,
        held={"gpus": amount(gpus)},
        since=since,
        has_node=False,
        reason=FIT,
    )


POLICIES = (
    PolicyStatus(name="default", version="1", priority=0, where="*", in_force=True, since=AT, modes=MODES),
    PolicyStatus(
        name="research",
        version="2",
        priority=5,
        where="research-*",
        in_force=True,
        paused_until=datetime(2026, 11, 22, 12, 0, tzinfo=UTC),
        exemptions=("sandbox: every rule (experiments)",),
    ),
    PolicyStatus(
        name="broken", version="", priority=0, where="*", in_force=False, message="it is not in force:\nx"
    ),
)
QUOTAS = (
    QuotaSummary(
        namespace="ml-training",
        state=QuotaState.EXCEEDED,
        message="gpus: 10 used of 8, 2 too many",
        rows=(
            QuotaRow(key="gpus", hard=amount("8"), used=amount("10"), pending=amount("6")),
            QuotaRow(
                key="resources/nvidia.com/mig-1g.10gb",
                hard=amount("14"),
                used=amount("1/2"),
                reserved=amount("2/7"),
            ),
        ),
        holders=tuple(QuotaHolder(name=f"Job/{n}", held={"gpus": amount(n)}) for n in ("4", "3", "2", "1")),
        pending=(pending("Job/4", "4", YESTERDAY, pods=2), pending("Job/2", "2", EARLIER)),
        is_held_up=True,
        denied=12,
        denied_since=EARLIER,
    ),
    QuotaSummary(
        namespace="new",
        state=QuotaState.NOT_COUNTED,
        message="not counted yet: GPU pods are denied",
        rows=(QuotaRow(key="gpus", hard=amount("4"), used=None, pending=amount("0")),),
    ),
)
CLASSES = (
    ClassStatus(
        name="nvidia-a100-80gb",
        family="nvidia-a100",
        memory_gib=80,
        capacity=ClassCapacity(nodes=3, nodes_taking_pods=2, gpus=amount("24"), free=amount("5")),
    ),
    ClassStatus(name="", capacity=ClassCapacity(nodes=1, nodes_taking_pods=1, gpus=amount("8"), free=None)),
    ClassStatus(name="acme", capacity=None),
)
DENIED = (
    DeniedOwner(
        namespace="ml-training",
        owner="Job/big",
        count=12,
        first=EARLIER,
        last=AT,
        message="set nvidia.com/gpu: 2; exceeded quota: ml-training/default, requested 4 GPUs, 10 of 8 used "
        "[gpu-quota]",
        reason="QuotaExceeded",
    ),
)


def status(**tweaks: Any) -> ClusterStatus:
    return ClusterStatus(
        **{
            "at": AT,
            "version": "0.1.0",
            "kubernetes": "v1.36.3",
            "configuration": "abc",
            "namespaces": (),
            "installation": INSTALLATION,
            "policies": POLICIES,
            "quotas": QUOTAS,
            "quotas_are_known": True,
            "totals": msgspec.structs.replace(quota_totals(QUOTAS), nodes=amount("32"), free=amount("5")),
            "figures_until": None,
            "classes": CLASSES,
            "denials": DENIED,
            "denials_from": "Events",
            "omitted": ("list nodes",),
            **tweaks,
        }
    )


WHOLE = """\
gpu-admission 0.1.0  Kubernetes v1.36.3  2026-11-22 08:00:00 UTC
  webhook      ok       2 of 2 replicas ready, example.com/gpu-admission:0.1.0
  controller   failed   Lease/gpu-admission-controller in gpu-admission
                        Lease/gpu-admission-controller in gpu-admission

policies                   configuration abc
  default                  in force since 2026-11-22 08:00; priority 0, matches
                           *; rules: 2 enforce, 1 audit, 1 disabled
  research                 PAUSED until 2026-11-22 12:00 UTC, every rule only
                           audits; priority 5, matches research-*
                           exempt: sandbox: every rule (experiments)
  broken                   not in force: x; priority 0, matches *

GPUs
  of 2 quotas              ████████▄▄▄▄▄▄▄▄▄▄▄▄···· 10 + 0 of 12, 6 pending
  of nodes                 ████████████████████···· 5 free of 32

quotas                     ▄ pending ▒ reserved     used + reserved of hard
  new  NotCounted
    not counted yet: GPU pods are denied
    gpus                   ························ ? + 0 of 4
  ml-training  Exceeded, 12 denied since 07:13 UTC
    gpus: 10 used of 8, 2 too many
    gpus                   ██████▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄ 10 + 0 of 8, 6 pending
    resources/nvidia.com/… █▒······················ 0.5 + 0.29 of 14
    held by Job/4 4, Job/3 3, Job/2 2 and 1 more

pending pods hold 6 used GPUs in 1 namespace
  the longest first; gpu-admission why KIND/NAME -n NAMESPACE says why
  ml-training Job/4, 4 GPUs, 2 pods since 2026-11-21 23:50 UTC
    0/3 nodes are available: 3 Insufficient nvidia.com/gpu.
  ml-training Job/2, 2 GPUs, 1 pod since 07:13 UTC
    0/3 nodes are available: 3 Insufficient nvidia.com/gpu.

classes                      memory   nodes    GPUs    free
  nvidia-a100-80gb           80 GiB       3      24       5
    1 node not Ready or cordoned
  unknown class                           1       8       ?

denied since 07:13 UTC
  from Events; gpu-admission why KIND/NAME -n NAMESPACE says more
  ml-training Job/big: QuotaExceeded, 12 times, last at 08:00:00 UTC
    set nvidia.com/gpu: 2; exceeded quota: ml-training/default, requested 4
    GPUs, 10 of 8 used [gpu-quota]

doctor
  error    crd-missing: CustomResourceDefinition/x does not exist does not exis…
  warning  untainted-gpu-node: Node a must have a taint
  2 results are missing: gpu-admission doctor says why

you may not read the installation (canary), run 1 check of gpu-admission doctor,
  list nodes: what depends on it is not shown
"""


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def printed(found: ClusterStatus, capsys: pytest.CaptureFixture[str]) -> str:
    status_text.show(Screen(), found)
    return capsys.readouterr().out


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


def quotas(number: int, **tweaks: Any) -> tuple[QuotaSummary, ...]:
    rows = (QuotaRow(key="gpus", hard=amount("4"), used=amount("2/7"), reserved=amount("1/2")),)
    return tuple(
        QuotaSummary(**{"namespace": f"team-{each:03}", "state": QuotaState.READY, "rows": rows, **tweaks})
        for each in range(number)
    )


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
    start = lines.index("  figures are from 2026-11-21 23:50 UTC: no controller has led since, and what")
    assert lines[start - 1].startswith("quotas ")
    assert lines[start + 1 : start + 3] == [
        "    came or went later is not counted; gpu-admission doctor says how to fix it",
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
        "you may not read the installation (canary), run 1 check of gpu-admission doctor,",
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

"""`gpu-admission quota` and the controller's own metrics, on a real API server."""

import contextlib
import json
import re
import socket
import time
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from policies.quota.amounts import GPUS
from tests.cluster.controllers import Command, Running, eventually, shows, uses
from tests.controlplane import ControlPlane, create_gpu_node
from tests.controlplane.gpuquota import Namespace
from tests.reservation_requests import creation_request
from webhook.commands import main
from webhook.controller import usage_cache
from webhook.quota.documents import quota_path

MIG = "nvidia.com/mig-1g.10gb"
SLICES = {"name": "main", "image": "trainer", "resources": {"limits": {MIG: "3"}}}


def run(plane: ControlPlane, *arguments: str, user: str = "admin") -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(
        main, ["quota", "--kubeconfig", str(plane.kubeconfig(user)), *arguments]
    )


def test_what_is_shown_of_a_namespace(quotas: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    team = Namespace(quotas)
    create_gpu_node(quotas.client(), f"of-{team.name}", labels={"accelerator": "nvidia-a100-80gb"})
    with Running(quotas) as running:
        team.quota({"gpus": "16", "classes": {"nvidia-a100": "4"}}, unclassifiedPods="TotalOnly")
        team.pod("big", 8)
        team.bind("big", f"of-{team.name}")
        team.pod("small", 2)
        assert uses(team, 10)
        assert eventually(lambda: (team.used() or {})["classes/nvidia-a100"] == 8)
        team.set_phase("big", "Running")
        catalogue_version = str(team.ledger_object().class_catalogue)
        team.reserve(creation_request("in-flight", {GPUS: Fraction(1)}, catalogue_version))
        assert shows(team, 10, 1)
        assert eventually(lambda: (team.status().used or {})["classes/nvidia-a100"] == 8)
        informers = running.manager.informers
        assert informers.usage.pending_gpus(informers.observed.ledgers)[team.name] == 0
        monkeypatch.setattr(usage_cache, "LONG_PENDING_SECONDS", -60.0)
        assert informers.usage.pending_gpus(informers.observed.ledgers)[team.name] == 2

    team.change_quota({"hard": {"gpus": "20"}})  # while no controller runs
    text = run(quotas, "-n", team.name)
    assert text.exit_code == 0
    lines = text.output.splitlines()
    bars = lines.index(f"  {'':30} {'▄ pending ▒ reserved':24} used + reserved of hard")
    held = lines.index("  held by 1 pending pod, the longest first:")
    # Above `bars` stands how old the figures are, if another test's controller left its Lease; above `held` what nothing counts,
    # if other tests have such DeviceClasses.
    shown = [re.sub(r"since [\d-]*:?[\d :]+ UTC", "since T", line) for line in lines[held:]]
    assert [lines[0], *lines[bars + 1 : bars + 5], *shown] == [
        f"{team.name}  Exceeded",
        f"  {'gpus':30} ████████████▄▄▄▒········ 10 + 1 of 16, 2 pending",
        f"  {'classes/nvidia-a100':30} ████████████████████████ 8 + 0 of 4",
        "  spec was changed, and no controller has put it in force yet",
        "  exceeded: classes/nvidia-a100: 8 used of 4, 4 too many",
        "  held by 1 pending pod, the longest first:",
        "    Pod small since T: gpus 2",
        "  held by 1 object:",
        f"    Pod big on of-{team.name}: gpus 8, classes/nvidia-a100 8",
    ]
    everything = json.loads(run(quotas, "-o", "json").output)["quotas"]
    found = next(each for each in everything if each["namespace"] == team.name)
    assert found["used"]["gpus"] == "10"
    assert found["reserved"] == {"gpus": "1"}
    assert found["hard"] == {"gpus": "16", "classes/nvidia-a100": "4"}
    assert {each["name"]: each["amount"] for each in found["holders"]["gpus"]} == {
        "Pod/big": "8",
        "Pod/small": "2",
    }


def test_what_cannot_be_shown_is_said(quotas: ControlPlane) -> None:
    team = Namespace(quotas)

    none = run(quotas, "-n", team.name)
    assert (none.exit_code, none.output) == (2, f"error: there is no GPUQuota in namespace {team.name}\n")
    forbidden = run(quotas, user="engineer")
    assert forbidden.exit_code == 2
    assert 'User "engineer" cannot list resource "gpuquotas"' in forbidden.output
    assert 'in the namespace "default"' in forbidden.output
    team.quota({"gpus": "16"})
    uncounted = run(quotas, "-n", team.name).output
    assert f"{team.name}  NotCounted: every GPU pod is denied" in uncounted
    assert "? + 0 of 16" in uncounted


def test_a_tenant_who_may_not_list_nodes_is_told_no_class_that_is_not_charged(quotas: ControlPlane) -> None:
    """What pins no class is charged to every class until it is on a node, then to that of its node."""
    team = Namespace(quotas)
    create_gpu_node(quotas.client(), f"of-{team.name}", labels={"accelerator": "nvidia-l4"})
    a100 = {"accelerator": "nvidia-a100-80gb"}
    create_gpu_node(quotas.client(), f"mig-{team.name}", labels=a100, resources={MIG: "14"})
    with Running(quotas):
        team.quota({"gpus": "16", "classes": {"nvidia-a100": "4", "nvidia-l4": "8"}})
        team.pod("bound", 1)
        team.bind("bound", f"of-{team.name}")
        team.pod("waiting", 2)
        team.pod("slices", containers=[SLICES])
        team.bind("slices", f"mig-{team.name}")
        assert eventually(lambda: (team.used() or {}).get("gpus") == Fraction(24, 7))
    _may_read(quotas, team)

    lines = run(quotas, "-n", team.name, user="engineer").output.replace("\n      ", " ").splitlines()

    held = [line.partition(" since ")[0] + line.partition(" UTC")[2] for line in lines if "    Pod " in line]
    assert sorted(held) == [
        f"    Pod bound on of-{team.name}: gpus 1",
        f"    Pod slices on mig-{team.name}: resources/nvidia.com/mig-1g.10gb 3",
        "    Pod waiting: gpus 2, classes/nvidia-a100 2, classes/nvidia-l4 2",
    ]


def _may_read(plane: ControlPlane, team: Namespace) -> None:
    team.let_read("engineer")
    assert eventually(lambda: plane.client("engineer").get(quota_path(team.name))[0] == 200), "it is known"


def test_a_tenant_sees_the_namespace_of_the_context(quotas: ControlPlane, tmp_path: Path) -> None:
    team = Namespace(quotas)
    team.quota({"gpus": "16"})
    _may_read(quotas, team)
    kubeconfig = json.loads(quotas.kubeconfig("engineer").read_text())
    kubeconfig["contexts"][0]["context"]["namespace"] = team.name
    (tmp_path / "config").write_text(json.dumps(kubeconfig))

    shown = CliRunner().invoke(main, ["quota", "--kubeconfig", str(tmp_path / "config")])

    assert shown.exit_code == 0, shown.output
    assert shown.output.startswith(f"{team.name}  NotCounted: every GPU pod is denied")


def test_who_may_not_list_pods_sees_the_quota_without_them(quotas: ControlPlane) -> None:
    team = Namespace(quotas)
    team.quota({"gpus": "16"})
    rights = ("--verb=get,list", "--resource=gpuquotas.gpu-admission.dev")
    quotas.kubectl("create", "role", "lead", "-n", team.name, *rights)
    quotas.kubectl("create", "rolebinding", "lead", "-n", team.name, "--role=lead", "--user=engineer")
    assert eventually(lambda: quotas.client("engineer").get(quota_path(team.name))[0] == 200), "it is known"

    shown = run(quotas, "-n", team.name, "--verbose", user="engineer")

    assert shown.exit_code == 0, shown.output
    assert "? + 0 of 16" in shown.output
    assert f"list pods and claims -n {team.name}" in " ".join(shown.output.split())


def test_metrics_of_the_command(quotas: ControlPlane) -> None:
    team = Namespace(quotas)
    process = Command(quotas, f"metrics-{team.name}", "--lease", f"metrics-{team.name}")
    process.start()
    team.quota({"gpus": "7"})
    team.pod("trainer", 3)
    assert uses(team, 3), process.log()
    labels = f'{{dimension="gpus",namespace="{team.name}"}}'

    want = {f"gpu_admission_quota_used{labels} 3.0", f"gpu_admission_quota_hard{labels} 7.0"}
    shown = eventually(lambda: want <= set(process.metric("gpu_admission_quota_")))
    assert shown, process.get("/metrics")[1]
    assert f'gpu_admission_pending_gpus{{namespace="{team.name}"}} 0.0' in process.metric(
        "gpu_admission_pending_gpus"
    )
    assert process.metric("gpu_admission_quota_last_recount_timestamp_seconds")
    assert process.get("/nothing")[0] == 404
    with contextlib.ExitStack() as stalled:
        for _ in range(50):
            client = stalled.enter_context(socket.create_connection(("127.0.0.1", process.port)))
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: local")
        began = time.monotonic()
        assert process.get("/healthz") == (200, "ok\n")
        assert process.get("/readyz") == (200, "ok\n")
        assert time.monotonic() - began < 8, "before the first stalled client is cut"
    quotas.processes.terminate(process.name, grace=30)
    assert process.exit_status() == 0

"""`gpu-admission rightsize` on a real API server, with a Prometheus of tests: numbers that were checked by hand, and rights."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from click.testing import CliRunner, Result

from tests.cluster.configuration import install_configuration_kinds
from tests.controlplane import ControlPlane, accepted, create_gpu_node
from tests.controlplane.gpuquota import Namespace
from tests.webhook.cluster.apiserver import Answer, ApiServer, Request
from tests.webhook.tools.rightsize.peaks import Pod, Recorded
from webhook.commands import main
from webhook.configuration.documents import API_VERSION, Document

NAMESPACE, NODE, A30 = "sizes", "a30-0", "nvidia-a30"
"""A class of which no other test has nodes."""
POLICY = f"/apis/{API_VERSION}/gpupolicies"
PEAKS = Recorded(
    Pod("chat", [(4, 0.2)], namespace=NAMESPACE),
    Pod("train", [(5, 0.2)] * 4, namespace=NAMESPACE),
    Pod("busy", [(20, 0.9)], namespace=NAMESPACE),
    Pod("young", [(1, 0.1)], hours=5, namespace=NAMESPACE),
)


@pytest.fixture(scope="module")
def team(quotas: ControlPlane) -> Iterator[Namespace]:
    """Make a namespace that may use one class, and pods with 1, 4, 1 and 1 of its 8 cards; the node also offers slices."""
    install_configuration_kinds(quotas)
    client, team = quotas.client(), Namespace(quotas, NAMESPACE)
    spec = {"match": {"namespaces": [NAMESPACE]}, "rules": {"gpu-class": {"allowed": [A30]}}}
    accepted(client.post(POLICY, Document("GPUPolicy", "of-sizes", spec).data))
    resources = {"nvidia.com/gpu": "8", "nvidia.com/mig-1g.6gb": "4"}
    create_gpu_node(client, NODE, labels={"accelerator": A30}, resources=resources)
    pods = {"chat": 1, "train": 4, "busy": 1, "young": 1}
    for name, gpus in pods.items():
        team.pod(name, gpus)
        team.bind(name, NODE)
    yield team
    client.delete(f"{POLICY}/of-sizes")
    client.delete(f"/api/v1/nodes/{NODE}")
    for name in pods:
        team.delete_pod(name)


def answer(request: Request) -> Answer:
    (query,) = parse_qs(request.body.decode())["query"]
    result = [{"metric": each.labels, "value": [0, str(each.value)]} for each in PEAKS.query(query)]
    return Answer(
        json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()
    )


def run(plane: ControlPlane, folder: Path, *arguments: str, user: str = "admin") -> Result:
    prices = folder / "prices.yaml"
    prices.write_text(f"currency: EUR\nclasses: {{{A30}: 0.60}}\n")
    with ApiServer(folder, answer) as server:
        prometheus = ("--prometheus-url", server.url, "--prometheus-ca-file", str(folder / "ca.pem"))
        command = ["rightsize", "--kubeconfig", str(plane.kubeconfig(user)), *prometheus, *arguments]
        return CliRunner(env={"COLUMNS": None}).invoke(main, [*command, "--prices", str(prices)])


@pytest.mark.usefixtures("team")
def test_sizes_of_a_namespace(quotas: ControlPlane, tmp_path: Path) -> None:
    """4 × 5 × 1.25 = 25 GiB: one card of 24 is too small. 2 × 730 × 0.60 EUR = 876; ¾ of 730 × 0.60 EUR = 328.50."""
    result = run(quotas, tmp_path, "-n", NAMESPACE)

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "sizes Pod/train: 1 pod with nvidia.com/gpu: 4",
        "  set nvidia.com/gpu: 2 instead of nvidia.com/gpu: 4: saves 1460 of 2920 GPU-hours a month: 876.00 EUR less",
        "    all GPUs of a pod together: peak memory 20 GiB × 1.25 = 25 of 48 GiB; "
        "peak use 80 % × 1.25 = 100 of 200 %",
        "sizes Pod/chat: 1 pod with nvidia.com/gpu: 1",
        "  set nvidia.com/mig-1g.6gb: 1 instead of nvidia.com/gpu: 1: "
        "saves 547.5 of 730 GPU-hours a month: 328.50 EUR less",
        "    peak memory 4 GiB × 1.25 = 5 of 6 GiB; peak use 20 % × 1.25 = 25 of 25 %",
        "",
        "2 workloads could be smaller: 2007.5 GPU-hours a month, 1204.50 EUR",
        "1 workload of the right size",
        "not judged: 1 pod measured for less than 24 h",
    ]


@pytest.mark.usefixtures("team")
def test_all_namespaces_as_json(quotas: ControlPlane, tmp_path: Path) -> None:
    found: dict[str, Any] = json.loads(run(quotas, tmp_path, "-A", "-o", "json").stdout)

    own = {each["owner"]: each for each in found["workloads"] if each["namespace"] == NAMESPACE}
    assert {owner: each["suggestions"][0]["resource"] for owner, each in own.items()} == {
        "Pod/train": "nvidia.com/gpu",
        "Pod/chat": "nvidia.com/mig-1g.6gb",
    }
    assert found["omitted"] == []


def test_a_tenant_who_may_not_list_nodes_is_told_so(
    quotas: ControlPlane, team: Namespace, tmp_path: Path
) -> None:
    team.let_read("engineer")

    result = run(quotas, tmp_path, "-n", NAMESPACE, "--verbose", user="engineer")

    assert result.exit_code == 0
    assert "not judged: 4 pods on no node, or on one of no known class" in result.stdout
    assert "list nodes" in result.stdout.split("you may not ")[1]

"""A tenant who may not list nodes gets an administrator's answers: the controller publishes them, by the rights of the chart."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.cluster.deploy.installed import CONTROLLER, Installed
from tests.controlplane import Client, ControlPlane, accepted, create_gpu_node
from tests.controlplane.gpuquota import Namespace
from tests.deploy.manifests import NAMESPACE
from webhook.commands import main
from webhook.configuration.documents import API_VERSION, Document

TEAM, TENANT = "looks-for-room", "ana"
A100, OWN, H100, L4 = "nvidia-a100-80gb", "own-card", "nvidia-h100-80gb", "nvidia-l4"
NODES = {"a100-0": A100, "a100-1": A100, "own-0": OWN, "x-0": "unheard-of", "l4-0": L4}
TAINT = {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}
CONFIG_MAP = f"/api/v1/namespaces/{NAMESPACE}/configmaps/gpu-admission-capacity"
STATUS = f"/apis/{API_VERSION}/gpuclasses/{OWN}/status"
MESSAGE = "0/4 nodes are available: 2 Insufficient nvidia.com/gpu."


@pytest.fixture(scope="module")
def team(plane: ControlPlane) -> Iterator[Namespace]:
    """Install everything, with nodes of a built-in class, of one of a document, and of none; TENANT has `view` in TEAM alone."""
    installed, client = Installed(plane, host=64), plane.client()
    installed.apply()
    installed.start()
    spec = {"memoryGiB": 24, "nodeLabels": [{"key": "accelerator", "values": [OWN]}]}
    accepted(client.post(f"/apis/{API_VERSION}/gpuclasses", Document("GPUClass", OWN, spec).data))
    for name, gpu_class in NODES.items():
        taints = [TAINT] if gpu_class == L4 else []
        create_gpu_node(client, name, labels={"accelerator": gpu_class}, taints=taints)
    team = Namespace(plane, TEAM)
    plane.kubectl("wait", "--for=create", "--timeout=90s", "serviceaccount/default", "-n", TEAM)
    plane.kubectl("create", "serviceaccount", TENANT, "-n", TEAM)
    account = f"--serviceaccount={TEAM}:{TENANT}"
    plane.kubectl("create", "rolebinding", TENANT, "--clusterrole=view", account, "-n", TEAM)
    for name, gpus, node in (("first", 6, "a100-0"), ("second", 5, "a100-1")):
        team.pod(name, gpus, nodeSelector={"accelerator": A100})
        team.bind(name, node)
    for name, gpus, gpu_class in (
        ("four", 4, A100),
        ("sixteen", 16, OWN),
        ("nowhere", 1, H100),
        ("tainted", 1, L4),
    ):
        team.pod(name, gpus, nodeSelector={"accelerator": gpu_class})
        unschedulable = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": MESSAGE,
        }
        path = team.path("pods", name) + "/status"
        accepted(client.patch(path, {"status": {"conditions": [unschedulable]}}))
    yield team
    for name in ("first", "second", "four", "sixteen", "nowhere", "tainted"):
        team.delete_pod(name)
    for name in NODES:
        client.delete(f"/api/v1/nodes/{name}")
    client.delete(f"/apis/{API_VERSION}/gpuclasses/{OWN}")
    installed.stop()


def shown(kubeconfig: Path, *command: str, stdin: str = "") -> Any:
    arguments = [*command, "-o", "json", "--kubeconfig", str(kubeconfig)]
    result = CliRunner().invoke(main, arguments, input=stdin)
    assert result.exit_code in {0, 1}, result.output
    return json.loads(result.stdout)


def tenant(plane: ControlPlane) -> Path:
    return plane.account_kubeconfig(TEAM, TENANT)


@pytest.fixture
def _counted(plane: ControlPlane, team: Namespace) -> None:
    """Wait until what was created last is published."""

    def pending() -> Any:
        text = (team.client.get(CONFIG_MAP)[1].get("data") or {}).get("capacity", "{}")
        classes = json.loads(text).get("classes", {})
        return [classes.get(name, {}).get("pending") for name in (A100, OWN, H100, L4)]

    assert eventually(lambda: pending() == ["4", "16", "1", "1"], seconds=60), plane.logs(CONTROLLER)


@pytest.mark.usefixtures("_counted")
def test_the_classes_are_the_same(plane: ControlPlane) -> None:
    of_admin = shown(plane.kubeconfig(), "classes", "-n", TEAM)
    of_tenant = shown(tenant(plane), "classes", "-n", TEAM)
    assert of_tenant.pop("nodesFrom").startswith("nodes by class as the controller counted them at ")
    assert of_admin.pop("nodesFrom") == ""
    assert of_tenant == of_admin
    free = {each["name"]: each["capacity"]["free"] for each in of_tenant["classes"]}
    assert [free[name] for name in (A100, OWN, H100)] == ["5", "8", "0"]
    assert of_tenant["unclassified"][""]["gpus"] == "8"


@cases(
    ("name", "remedies"),
    too_few_are_free=("four", ["wait until 4 are free on one node"]),
    larger_than_any_node=("sixteen", ["set nvidia.com/gpu: 8"]),
    no_node_has_the_class=(
        "nowhere",
        [f"set nodeSelector accelerator: {A100} or {OWN}, of which there are nodes"],
    ),
    every_node_has_a_taint=(
        "tainted",
        ["add {key: dedicated, operator: Equal, value: ml, effect: NoSchedule} if the pod may run there"],
    ),
)
@pytest.mark.usefixtures("_counted")
def test_the_advice_of_why_is_the_same(plane: ControlPlane, name: str, remedies: list[str]) -> None:
    def reasons(kubeconfig: Path, *, omitted: list[str]) -> Any:
        found = shown(kubeconfig, "why", f"pod/{name}", "-n", TEAM)
        assert found["omitted"] == omitted
        causes = [
            (
                each["source"],
                re.sub(r"Node a100-\d|Node own-0", "the one with the most", each["message"]),
                each["remedy"],
            )
            for each in found["reasons"]
        ]
        return found["answer"], found["classes"], found["verdicts"], causes

    # The namespace has no GPUQuota, whose status would name its team.
    of_tenant = reasons(tenant(plane), omitted=["list clustergpuquotas.gpu-admission.dev"])
    assert [remedy for _, _, remedy in of_tenant[-1] if remedy] == remedies
    of_admin = reasons(plane.kubeconfig(), omitted=[])
    assert of_tenant[:3] == of_admin[:3]
    assert [(source, remedy) for source, _, remedy in of_tenant[-1]] == [
        (source, remedy) for source, _, remedy in of_admin[-1]
    ]


@pytest.mark.usefixtures("_counted")
def test_of_the_node_of_a_pod_a_tenant_knows_the_name_alone(plane: ControlPlane) -> None:
    found = shown(tenant(plane), "why", "pod/first", "-n", TEAM)
    assert (found["nodes"], found["pods"][0]["node"]) == (None, "a100-0")


@pytest.mark.usefixtures("_counted")
def test_the_findings_of_check_are_the_same(plane: ControlPlane) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "new", "namespace": TEAM},
        "spec": {
            "nodeSelector": {"accelerator": H100},
            "containers": [{"name": "a", "image": "a", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        },
    }
    of_admin, of_tenant = (
        shown(each, "check", "-f", "-", stdin=json.dumps(pod)) for each in (plane.kubeconfig(), tenant(plane))
    )
    assert [each["reason"] for each in of_tenant["objects"][0]["pods"][0]["findings"]] == ["NoNode"]
    assert of_tenant["objects"] == of_admin["objects"]


@pytest.mark.usefixtures("_counted")
def test_kubectl_shows_the_class_of_a_document(plane: ControlPlane) -> None:
    def row() -> list[str]:
        head, line = plane.kubectl("get", "gpuc", OWN).stdout.splitlines()
        return [line[head.index(name) :].split()[0] for name in COLUMNS]

    assert eventually(lambda: row() == ["1", "8", "8", "16", "True"], seconds=60), plane.kubectl(
        "get", "gpuc"
    ).stdout


COLUMNS = ("NODES", "GPUS", "FREE", "PENDING", "IN FORCE")


@pytest.mark.usefixtures("team")
def test_a_tenant_may_not_write_it(plane: ControlPlane) -> None:
    client = Client(plane.url, ca_file=plane.ca_file, token=plane.account_token(TEAM, TENANT))
    try:
        assert client.get(CONFIG_MAP)[0] == 200
        assert client.patch(CONFIG_MAP, {"data": {"capacity": "{}"}})[0] == 403
        assert client.patch(STATUS, {"status": {"capacity": {"free": "1000"}}})[0] == 403
        others = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
        assert [
            client.get(path)[0] for path in (others, f"{others}/gpu-admission-budgets", "/api/v1/nodes")
        ] == [403] * 3
    finally:
        client.close()

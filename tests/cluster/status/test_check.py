"""`gpu-admission check --kubeconfig` on a real API server, for a tenant with `edit` in his namespace."""

import json
import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from tests.builders import JSON, gpu_container
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.cluster.status.conftest import EDITOR, PIPELINE, RBAC, SERVING, TRAINING, on, stateful
from tests.controlplane import ControlPlane
from webhook.commands import main

ROOT = Path(__file__).parents[3]
CHART, PAGE = (
    ROOT / "deploy" / "static" / "first-install" / "install.yaml",
    ROOT / "docs" / "tenants" / "check.md",
)
RIGHTS = "list nodes"


@pytest.fixture(scope="module")
def tenant(cluster: ControlPlane) -> ControlPlane:
    """Give EDITOR `edit` in TRAINING, and PIPELINE the Role of docs/tenants/check.md, beside what the chart grants to all."""
    client = cluster.client()
    for document in yaml.safe_load_all(CHART.read_text()):
        of_all = document and document["kind"].startswith("ClusterRole")
        if of_all and document["metadata"]["name"] in {"gpu-admission-view", "gpu-admission-tenant"}:
            plural = f"{document['kind'].lower()}s"
            if "subjects" in document:  # these alone, since other tests have users who may not
                document["subjects"] = [{"kind": "User", "name": user} for user in (EDITOR, PIPELINE)]
            assert client.post(f"{RBAC}/{plural}", document)[0] in {201, 409}
    documented = re.search(r"```yaml\n(apiVersion: rbac[^`]*)```", PAGE.read_text())
    assert documented is not None
    role = yaml.safe_load(documented[1])
    assert client.post(f"{RBAC}/namespaces/{TRAINING}/roles", role)[0] in {201, 409}
    bind(cluster, "Role", role["metadata"]["name"], PIPELINE)
    bind(cluster, "ClusterRole", "edit", EDITOR)
    path = f"/apis/gpu-admission.dev/v1alpha1/namespaces/{TRAINING}/gpuquotas/default"
    assert eventually(lambda: cluster.client(EDITOR).get(path)[0] == 200)  # once `view` has our rules
    return cluster


def bind(plane: ControlPlane, kind: str, role: str, user: str) -> None:
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
    subjects = [{"kind": "User", "name": user}]
    binding = {"metadata": {"name": user}, "roleRef": reference, "subjects": subjects}
    assert plane.client().post(f"{RBAC}/namespaces/{TRAINING}/rolebindings", binding)[0] in {201, 409}


def check(plane: ControlPlane, document: JSON, *arguments: str, user: str = EDITOR) -> Result:
    command = ["check", "-f", "-", "--kubeconfig", str(plane.kubeconfig(user)), *arguments]
    return CliRunner().invoke(main, command, input=json.dumps(document))


def evaluated(plane: ControlPlane, document: JSON, user: str = EDITOR) -> tuple[str, list[str], list[str]]:
    shown = json.loads(check(plane, document, "-o", "json", user=user).stdout)
    (found,) = shown["objects"]
    findings = [each["reason"] for place in (found, *found["pods"]) for each in place["findings"]]
    return found["verdict"], findings, shown["notes"]


def pod(gpus: str, namespace: str = TRAINING, gpu_class: str = "nvidia-a100-80gb") -> JSON:
    metadata = {"name": "checked", "namespace": namespace}
    spec = {"containers": [gpu_container(gpus, "pytorch")], **on(gpu_class)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def workload(document: JSON, namespace: str = TRAINING) -> JSON:
    return {"apiVersion": "apps/v1", **document, "metadata": {**document["metadata"], "namespace": namespace}}


@cases(
    ("document", "verdict", "reasons"),
    fits=(pod("2"), "changed", []),
    does_not_fit_beside_what_is_held=(pod("4"), "denied", ["QuotaExceeded"]),
    could_never_fit=(pod("16"), "denied", ["QuotaCanNeverFit"]),
    half_a_card=(pod("0.5"), "denied", ["FractionalGPU"]),
)
def test_a_tenant_is_told_what_the_webhook_answers(
    tenant: ControlPlane, document: JSON, verdict: str, reasons: list[str]
) -> None:
    path = f"/api/v1/namespaces/{TRAINING}/pods?dryRun=All"
    status, answer = tenant.client(EDITOR).post(path, document)

    want = (verdict, reasons, [f"you may not {RIGHTS}: what depends on it is not evaluated"])
    assert [evaluated(tenant, document, user) for user in (EDITOR, PIPELINE)] == [want, want]
    causes = answer.get("details", {}).get("causes", [])
    assert (status, [each["reason"] for each in causes]) == (403 if reasons else 201, reasons)


def test_a_workload_that_is_stored_holds_its_pods_already(tenant: ControlPlane) -> None:
    again, other = (workload(stateful(name, 6)) for name in ("fits", "another"))

    assert evaluated(tenant, again)[1] == []
    assert evaluated(tenant, other)[1] == ["QuotaExceeded"]


def test_an_administrator_is_told_of_nodes(tenant: ControlPlane) -> None:
    assert evaluated(tenant, pod("1", SERVING, "nvidia-h100-80gb"), user="admin") == (
        "changed",
        ["NoNode"],
        [],
    )
    assert evaluated(tenant, pod("1", SERVING, "nvidia-t4"), user="admin") == ("changed", [], [])


def test_what_kubectl_prints_is_a_configuration(tenant: ControlPlane, tmp_path: Path) -> None:
    printed = tenant.kubectl("get", "gpup,gpuc,gpum,gpuq", "-A", "-o", "yaml").stdout
    (tmp_path / "cluster.yaml").write_text(printed)

    command = ["check", "-f", "-", "--config", str(tmp_path / "cluster.yaml"), "-o", "json"]
    shown = json.loads(CliRunner().invoke(main, command, input=json.dumps(pod("16"))).stdout)

    (found,) = shown["objects"][0]["pods"][0]["findings"]
    assert (found["outcome"], found["reason"]) == ("warned", "QuotaCanNeverFit")

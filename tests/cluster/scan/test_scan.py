"""`gpu-admission scan` on a real API server on which nothing of ours is installed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.builders import JSON, gpu_container
from tests.cluster.scan.population import NODES, STACK, Population
from tests.controlplane import ControlPlane, accepted
from webhook.commands.config import config
from webhook.commands.scan import scan
from webhook.configuration.loader import load_directory

RESTRICTED = """\
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: default}
spec:
  rules: {gpu-class: {labelKey: nvidia.com/gpu.product, default: nvidia-a100-80gb, allowed: [nvidia-a100-80gb]}}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[ControlPlane]:
    plane = ControlPlane()
    plane.add_user("tenant")
    with plane:
        population = Population(plane)
        population.nodes()
        population.stack()
        population.teams(["chem", "vision"])
        yield plane


def run(plane: ControlPlane, *arguments: str, user: str = "admin") -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(
        scan, ["--kubeconfig", str(plane.kubeconfig(user)), *arguments]
    )


def found(plane: ControlPlane, *arguments: str) -> Any:
    result = run(plane, "-o", "json", *arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


TEXT = """\
43 pods (28 with GPUs) and 7 workloads, evaluated by the built-in defaults

                             denied  changed   warned   logged
  pods                            2       28        2       15
  workloads                       ·        4        ·        3

Pods by rule
  gpu-class                       2        ·        ·        ·
  gpu-isolation                   ·        ·        ·       15
  gpu-toleration                  ·       28        ·        ·
  ineffective-fields              ·        ·        2        ·

Would be denied
"""
NODES_TEXT = """\
GPU nodes by class
                              nodes     GPUs
  of no known class               1     9.75
  nvidia-a100-80gb                2       16
"""
PROPOSED_TEXT = """\
To begin with
  rule gpu-class in mode warn: it would deny pods of the cluster
  exemption of gpu-operator from gpu-isolation: device plugins or exporters run
    there
  1 GPUClass: nvidia-x900
  2 GPUQuotas: chem 27, vision 27
  --propose DIRECTORY writes these documents, once they were tried on the pods
"""


def test_what_is_printed_of_a_cluster(cluster: ControlPlane) -> None:
    result = run(cluster)

    assert result.exit_code == 0
    assert result.output.startswith(TEXT)
    assert NODES_TEXT in result.output
    assert result.output.endswith(PROPOSED_TEXT)
    assert max(len(line) for line in result.output.splitlines() if "·" in line) <= 80


def test_the_proposal_is_valid_and_refuses_nothing_that_runs(cluster: ControlPlane, tmp_path: Path) -> None:
    before = found(cluster)["podEffects"]["denied"]
    result = run(cluster, "--propose", str(tmp_path / "proposal"))

    assert before == 2
    assert result.exit_code == 0
    assert " ".join(result.output.split()).endswith("none of the pods would be denied")
    checked = CliRunner().invoke(config, [str(tmp_path / "proposal")])
    assert checked.exit_code == 0, checked.output
    after = found(cluster, "--config", str(tmp_path / "proposal"))
    assert "denied" not in after["podEffects"]
    assert after["classes"]["nvidia-x900"]["nodes"] == 1
    configuration = load_directory(tmp_path / "proposal")
    assert {name: spec.hard.gpus for name, spec in configuration.quotas.items()} == {
        "chem": "27",
        "vision": "27",
    }
    exempted = configuration.policies.for_namespace(STACK).exemptions
    assert [each.rules for each in exempted] == [("gpu-isolation",)]

    again = run(cluster, "--config", str(tmp_path / "proposal"), "--propose", str(tmp_path / "again"))
    assert again.exit_code == 0
    said = " ".join(again.output.split()).partition("To begin with ")[2]
    assert said == f"{tmp_path / 'again'} is not written: nothing is missing in policy, classes and quotas"
    assert not (tmp_path / "again").exists()


def create(plane: ControlPlane, path: str, body: JSON) -> None:
    accepted(plane.client().post(path, body))


def test_whether_the_author_or_the_scheduler_chose_the_node(cluster: ControlPlane, tmp_path: Path) -> None:
    """The API server records who wrote a nodeName, and of a binding nothing."""
    (tmp_path / "policy.yaml").write_text(RESTRICTED)
    create(cluster, "/api/v1/namespaces", {"metadata": {"name": "nodes"}})
    pods = "/api/v1/namespaces/nodes/pods"
    spec: JSON = {"containers": [gpu_container()]}
    create(cluster, pods, {"metadata": {"name": "bound"}, "spec": spec})
    create(
        cluster,
        f"{pods}/bound/binding",
        {"metadata": {"name": "bound"}, "target": {"kind": "Node", "name": NODES[0]}},
    )
    create(cluster, pods, {"metadata": {"name": "placed"}, "spec": {**spec, "nodeName": NODES[0]}})

    report = found(cluster, "--config", str(tmp_path), "-n", "nodes")

    refused = {each["owner"] for each in report["problems"] if each["effect"] == "denied"}
    changed = {each["owner"] for each in report["changes"] if each["rule"] == "gpu-class"}
    assert (refused, changed) == ({"Pod/placed"}, {"Pod/bound"})


def test_a_tenant_sees_his_namespace_and_what_was_left_out(cluster: ControlPlane) -> None:
    rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/vision"
    rules = [{"apiGroups": ["", "apps", "batch"], "resources": ["*"], "verbs": ["list"]}]
    create(cluster, f"{rbac}/roles", {"metadata": {"name": "reader"}, "rules": rules})
    subject = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "tenant"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
    binding = {"metadata": {"name": "tenant"}, "subjects": [subject], "roleRef": role}
    create(cluster, f"{rbac}/rolebindings", binding)

    result = run(cluster, "-n", "vision", "--verbose", user="tenant")

    assert result.exit_code == 0, result.output
    assert result.output.startswith("20 pods (14 with GPUs) and 3 workloads")
    assert ", list nodes, " in result.output.replace("\n  ", " ")
    assert "chem" not in result.output

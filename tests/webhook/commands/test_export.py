from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from tests.builders import JSON
from tests.cases import cases
from tests.gpu_stacks import AGENTS
from tests.webhook.cluster.apiserver import ApiServer, answering
from tests.webhook.commands.checked_cluster import FORBIDDEN, POLICIES, cluster
from tests.webhook.tools.doctor.objects import OURS, excluding, namespace, node
from webhook.commands import main

POLICY = """\
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: default}
spec:
  exemptions: [{namespaces: [legacy], reason: r, until: 2026-11-30}]
  rules: {gpu-isolation: {mode: enforce}}
"""
NOW = ["--now", "2026-11-21T12:00:00Z"]


@pytest.fixture
def directory(tmp_path: Path) -> str:
    (tmp_path / "policy.yaml").write_text(POLICY)
    return str(tmp_path)


def export(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["export", *NOW, *arguments])


VALIDATING = {("v1", "ValidatingAdmissionPolicy"), ("v1", "ValidatingAdmissionPolicyBinding")}


def mutating(version: str) -> set[tuple[str, str]]:
    return {(version, "MutatingAdmissionPolicy"), (version, "MutatingAdmissionPolicyBinding")}


def versions(text: str) -> set[tuple[str, str]]:
    return {(each["apiVersion"].rpartition("/")[2], each["kind"]) for each in yaml.safe_load_all(text)}


@cases(
    ("version", "served"),
    {"1.37": ("v1.37.2", "v1"), "1.36": ("v1.36.0+k3s1", "v1"), "1.35": ("v1.35.4-eks-1", "v1beta1")},
)
def test_the_api_server_says_which_version_it_serves(version: str, served: str, tmp_path: Path) -> None:
    with ApiServer(tmp_path, answering({**cluster(), "/version": {"gitVersion": version}})) as server:
        result = export("--kubeconfig", str(server.kubeconfig()))

    assert versions(result.stdout) == VALIDATING | mutating(served)


def test_without_a_cluster_it_is_the_newest(directory: str) -> None:
    assert versions(export("--config", directory).stdout) == VALIDATING | mutating("v1")


def test_the_header_says_what_is_not_in_it_and_what_ends(directory: str) -> None:
    result = export("--config", directory)
    head, said = result.stdout.partition("---")[0], result.stderr.splitlines()

    assert "as of 2026-11-21T12:00:00Z.\n" in head
    assert (
        said[0]
        == "Policies, each with its binding: 9. Rules in here: gpu-requests, gpu-toleration, gpu-isolation."
    )
    assert "- policy default exempts legacy until the end of 2026-11-30" in said
    assert any(each.startswith("- gpu-quota: all of it: it counts all pods of a namespace") for each in said)
    assert all(f"\n# {each[:80]}" in head for each in said)


def test_documents_that_are_not_in_force_are_named(tmp_path: Path) -> None:
    broken = {"metadata": {"name": "broken", "uid": "1"}, "spec": {"rule": {}}}
    with ApiServer(tmp_path, answering({**cluster(), POLICIES: [broken]})) as server:
        result = export("--kubeconfig", str(server.kubeconfig()))

    assert (result.exit_code, result.stderr.splitlines()[0]) == (
        0,
        "warning: not in force, so not exported: GPUPolicy/broken spec.rule: unknown field; did you mean rules?",
    )


def test_expressions_are_blocks_that_people_can_read(directory: str) -> None:
    text = export("--config", directory).stdout

    assert "expression: |\n" in text
    assert "\\n" not in text.replace("'\\n'", "")
    assert max(len(line) for line in text.splitlines()) < 700


ENFORCING = {
    "metadata": {"name": "default", "uid": "1"},
    "spec": {"rules": {"gpu-isolation": {"mode": "enforce"}}},
}
PLUGIN = {
    "metadata": {"name": "device-plugin", "namespace": "gpu-operator"},
    "spec": {"template": AGENTS["nvidia-device-plugin-daemonset"]},
}
NAME = "kubernetes.io/metadata.name"
BROKEN = (
    "warning: Namespace/gpu-operator: DaemonSets (1, such as device-plugin) cannot start: the exported gpu-isolation of "
    "GPUPolicy/default denies their pods, and gives others, such as CUDA validators, NVIDIA_VISIBLE_DEVICES=void; where "
    "only administrators create pods in it: export with --exclude-namespace gpu-operator, or after adding {namespaces: "
    "[gpu-operator], rules: [gpu-isolation], reason: the GPU stack} to spec.exemptions of GPUPolicy/default"
)
UNKNOWN = "warning: what the webhook excludes and what DaemonSets need is not known: "


def not_in(*names: str) -> JSON:
    return {"key": NAME, "operator": "NotIn", "values": list(names)}


@cases(
    ("more", "arguments", "want", "warned"),
    no_webhook=({}, [], [not_in("kube-system", "kube-node-lease", "gpu-admission")], BROKEN),
    what_the_webhook_excludes=({OURS: excluding("kube-system", "gpu-operator")}, [], [not_in("kube-system", "gpu-operator")], ""),
    what_the_webhook_and_the_caller_exclude=(
        {OURS: excluding("kube-system")},
        ["--exclude-namespace", "gpu-operator"],
        [not_in("kube-system"), not_in("gpu-operator")],
        "",
    ),
    who_may_not_read_webhooks=(
        {OURS: FORBIDDEN},
        ["--exclude-namespace", "gpu-operator"],
        [not_in("kube-system", "kube-node-lease", "gpu-admission", "gpu-operator")],
        UNKNOWN,
    ),
)  # fmt: skip
def test_namespaces_of_the_gpu_stack(
    more: JSON, arguments: list[str], want: list[JSON], warned: str, tmp_path: Path
) -> None:
    objects = {
        **cluster(),
        POLICIES: [ENFORCING],
        "/apis/apps/v1/daemonsets": [PLUGIN],
        "/api/v1/namespaces": [namespace("gpu-operator")],
        **more,
    }
    with ApiServer(tmp_path, answering(objects)) as server:
        result = export("--kubeconfig", str(server.kubeconfig()), *arguments)

    policies = [each for each in yaml.safe_load_all(result.stdout) if "Binding" not in each["kind"]]
    selectors = [each["spec"]["matchConstraints"]["namespaceSelector"] for each in policies]
    assert selectors == [{"matchExpressions": want}] * len(policies)
    warnings = [line for line in result.stderr.splitlines() if line.startswith("warning: ")]
    assert [line[: len(warned)] for line in warnings] == [warned][: len(warned)]


QUOTA = "apiVersion: gpu-admission.dev/v1alpha1\nkind: GPUQuota\nmetadata: {name: default, namespace: ml}\nspec: {hard: "


@cases(
    ("hard", "code", "want"),
    of_a_class=("{classes: {nvidia-t4: 4}}", 0, ["ResourceFlavor", "ClusterQueue", "LocalQueue"]),
    in_total_of_unknown_nodes=(
        "{gpus: 4}",
        2,
        "error: no GPUQuota names a GPU class in hard.classes, and no node is known of which hard.gpus could be granted\n",
    ),
)
def test_queues_of_kueue(tmp_path: Path, hard: str, code: int, want: list[str] | str) -> None:
    (tmp_path / "quota.yaml").write_text(f"{QUOTA}{hard}}}\n")
    result = export("--kueue", "--config", str(tmp_path))

    assert result.exit_code == code
    if code:
        assert result.stderr == want
    else:
        documents = yaml.safe_load_all(result.stdout)
        assert [each["kind"] for each in documents if each] == want
        assert result.stdout.startswith("# Flavors and queues of Kueue from GPUClasses and GPUQuotas, by ")


def test_queues_of_kueue_for_the_nodes_of_a_cluster(tmp_path: Path) -> None:
    quota = {"metadata": {"name": "default", "namespace": "ml", "uid": "q"}, "spec": {"hard": {"gpus": 4}}}
    objects = {
        **cluster(),
        "/apis/gpu-admission.dev/v1alpha1/gpuquotas": [quota],
        "/api/v1/nodes": [node("a", {"accelerator": "nvidia-t4"})],
    }
    with ApiServer(tmp_path, answering(objects)) as server:
        result = export("--kueue", "--kubeconfig", str(server.kubeconfig()))

    assert result.exit_code == 0, result.output
    flavor, queue, _ = (each for each in yaml.safe_load_all(result.stdout) if each)
    assert flavor["metadata"]["name"] == "nvidia-t4"
    (granted,) = queue["spec"]["resourceGroups"][0]["flavors"]
    assert granted["resources"][-1] == {"name": "nvidia.com/gpu", "nominalQuota": 4}

"""Custom resources of the ML field, as minimal CRDs on a real API server, reviewed by the rules of docs/workloads.md."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from policies.finding import short_path
from tests.builders import JSON, gpu_container
from tests.cluster.configuration import install_configuration_kinds
from tests.cluster.test_admission import apply
from tests.controlplane import Client, ControlPlane
from tests.controlplane.webhook import ROOT, Webhook
from tests.controlplane.webhook import install as install_webhooks
from tests.deploy.manifests import workload_rules

BUILT_IN = ROOT / "webhook" / "configuration" / "builtin" / "workload-kinds.yaml"
PAGE = (ROOT / "docs" / "workloads.md").read_text()
FIELDS = ("spec", "status", "resource", "inference")
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
POLICIES = """
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: default}
spec:
  rules:
    gpu-requests: {maxPerContainer: 8}
---
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: strict}
spec:
  priority: 1
  match: {namespaces: [strict]}
  templates: enforce
---
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUResourceMapping
metadata: {name: ours}
spec:
  workloadKinds:
  - {group: example.com, kind: TrainingJob, pods: [{path: spec.workers.template}]}
"""
NAMESPACES = ("kinds", "strict")
TEMPLATE: JSON = {"spec": {"containers": [gpu_container("500m")]}}
WRONG = "spec.containers[0].resources.limits[nvidia.com/gpu]"


def installed(webhook: Webhook) -> JSON:
    found: JSON
    (found,) = (
        entry
        for document in webhook.manifests()
        for entry in document.get("webhooks", ())
        if entry["name"] == "custom-workloads.validate.gpu-admission.dev"
    )
    return found


def test_what_is_installed_is_what_the_page_says(webhook: Webhook) -> None:
    conditions = yaml.safe_load(PAGE.rpartition("```yaml\n")[2].partition("```")[0])
    entry = installed(webhook)

    assert {"rules": entry["rules"], "matchConditions": entry["matchConditions"]} == {
        "rules": yaml.safe_load(workload_rules()),
        **conditions,
    }


def test_the_table_is_a_document_that_the_api_server_keeps_whole(plane: ControlPlane) -> None:
    install_configuration_kinds(plane)
    document = yaml.safe_load(BUILT_IN.read_text())
    plane.kubectl("apply", "--server-side", "-f", str(BUILT_IN))

    path = f"/apis/gpu-admission.dev/v1alpha1/gpuresourcemappings/{document['metadata']['name']}"
    _, stored = plane.client().get(path)
    plane.client().delete(path)

    for ledger_object in stored["spec"]["workloadKinds"]:
        for pods in ledger_object.get("pods", ()):
            if pods["form"] == "template":
                del pods["form"]  # The default that the schema writes.
    assert stored["spec"] == document["spec"]


def crd(group: str, version: str, kind: str, scope: str) -> JSON:
    plural = f"{kind.lower()}s"
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        # The API server wants to know who approved of a group of k8s.io.
        "metadata": {"name": f"{plural}.{group}", "annotations": {"api-approved.kubernetes.io": "unapproved"}},
        "spec": {
            "group": group,
            "scope": scope,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": dict.fromkeys(FIELDS, anything)}},
                    "subresources": {"status": {}},
                }
            ],
        },
    }  # fmt: skip


def install(client: Client, group: str, version: str, kind: str, *, scope: str = "Namespaced") -> None:
    """Make a kind known, once the end of one of that name, which an earlier test deleted, is over."""
    deadline = time.monotonic() + 60
    while (made := client.post(CRDS, crd(group, version, kind, scope)))[0] == 409:
        assert time.monotonic() < deadline, f"{kind} of an earlier test does not go: {made[1]}"
        time.sleep(0.2)
    assert made[0] == 201, made[1]
    while client.get(f"/apis/{group}/{version}/{kind.lower()}s")[0] != 200:
        assert time.monotonic() < deadline, f"the API server does not serve {kind}"
        time.sleep(0.05)


KINDS = [
    ("kubeflow.org", "v1", "PyTorchJob"),
    ("ray.io", "v1", "RayCluster"),
    ("jobset.x-k8s.io", "v1alpha2", "JobSet"),
    ("serving.kserve.io", "v1beta1", "InferenceService"),
    ("argoproj.io", "v1alpha1", "Workflow"),
    ("trainer.kubeflow.org", "v1alpha1", "TrainJob"),
    ("batch.volcano.sh", "v1alpha1", "Job"),
    ("nvidia.com", "v1alpha1", "DynamoGraphDeployment"),
    ("sparkoperator.k8s.io", "v1beta2", "SparkApplication"),
    ("kubevirt.io", "v1", "VirtualMachine"),
    ("tekton.dev", "v1", "Task"),
    ("ome.io", "v1beta1", "InferenceService"),
    ("kaito.sh", "v1beta1", "Workspace"),
    ("example.com", "v1", "TrainingJob"),
    ("example.com", "v1", "Unmapped"),
]
LATER = ("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet")


@pytest.fixture(scope="module")
def webhook(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    config: Path = tmp_path_factory.mktemp("config")
    (config / "policies.yaml").write_text(POLICIES)
    client = plane.client()
    for group, version, kind in KINDS:
        install(client, group, version, kind)
    for name in NAMESPACES:
        plane.kubectl("create", "namespace", name)
    with Webhook(plane, config=config, host=14) as running:
        install_webhooks(plane, with_kinds_of_ones_own(running.manifests()), running.calls)
        _wait_until_called(client)
        yield running
        running.unregister()
    plane.kubectl("delete", "namespace", *NAMESPACES, "--wait=false")
    for group, _, kind in [*KINDS, LATER]:
        client.delete(f"{CRDS}/{kind.lower()}s.{group}")


def with_kinds_of_ones_own(documents: list[JSON]) -> list[JSON]:
    """Add the rule that webhooks.extraWorkloads makes of the chart (tests/deploy/test_chart.py)."""
    for document in documents:
        for entry in document.get("webhooks", ()):
            if entry["name"] == "custom-workloads.validate.gpu-admission.dev":
                rule = {
                    **entry["rules"][0],
                    "apiGroups": ["example.com"],
                    "resources": ["trainingjobs", "unmappeds"],
                }
                entry["rules"].append(rule)
    return documents


def _wait_until_called(client: Client) -> None:
    probe = custom(
        "kubeflow.org/v1",
        "PyTorchJob",
        "probe",
        {"pytorchReplicaSpecs": {"W": {"template": TEMPLATE}}},
        "strict",
    )
    deadline = time.monotonic() + 60
    path = "/apis/kubeflow.org/v1/namespaces/strict/pytorchjobs"
    while client.post(path, probe, {"dryRun": "All"})[0] != 403:
        assert time.monotonic() < deadline, "the API server does not call it"
        time.sleep(0.05)


def custom(
    api_version: str, kind: str, name: str, spec: JSON, namespace: str = "kinds", **metadata: Any
) -> JSON:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": spec,
    }


PYTORCH: JSON = {"pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": TEMPLATE}}}
CASES = [
    pytest.param("kubeflow.org/v1", "PyTorchJob", PYTORCH, f"spec.pytorchReplicaSpecs.Worker.template.{WRONG}", id="pytorchjob"),
    pytest.param(
        "ray.io/v1", "RayCluster",
        {"headGroupSpec": {"template": {"spec": {"containers": []}}}, "workerGroupSpecs": [{"template": TEMPLATE}]},
        f"spec.workerGroupSpecs[0].template.{WRONG}", id="raycluster",
    ),
    pytest.param(
        "jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": [{"name": "a", "template": {"spec": {"template": TEMPLATE}}}]},
        f"spec.replicatedJobs[0].template.spec.template.{WRONG}", id="jobset",
    ),
    pytest.param(
        "serving.kserve.io/v1beta1", "InferenceService", {"predictor": {"model": gpu_container("500m")}},
        "spec.predictor.model.resources.limits[nvidia.com/gpu]", id="inferenceservice",
    ),
    pytest.param(
        "argoproj.io/v1alpha1", "Workflow", {"templates": [{"name": "train", "container": gpu_container("500m")}]},
        "spec.templates[0].container.resources.limits[nvidia.com/gpu]", id="workflow",
    ),
    pytest.param(
        "trainer.kubeflow.org/v1alpha1", "TrainJob", {"trainer": {"resourcesPerNode": {"limits": {"nvidia.com/gpu": "500m"}}}},
        "spec.trainer.resourcesPerNode.limits[nvidia.com/gpu]", id="trainjob",
    ),
    pytest.param(
        "batch.volcano.sh/v1alpha1", "Job", {"tasks": [{"template": TEMPLATE}]},
        f"spec.tasks[0].template.{WRONG}", id="volcano-job",
    ),
    pytest.param(
        "nvidia.com/v1alpha1", "DynamoGraphDeployment", {"services": {"Worker": {"resources": {"limits": {"gpu": "500m"}}}}},
        "spec.services.Worker.resources.limits.gpu", id="dynamo",
    ),
    pytest.param(
        "sparkoperator.k8s.io/v1beta2", "SparkApplication", {"executor": {"gpu": {"name": "nvidia.com/gpu", "quantity": "500m"}}},
        "spec.executor.gpu.quantity", id="spark",
    ),
    pytest.param(
        "tekton.dev/v1", "Task", {"steps": [{"computeResources": gpu_container("500m")["resources"]}]},
        "spec.steps[0].computeResources.limits[nvidia.com/gpu]", id="tekton",
    ),
    pytest.param(
        "ome.io/v1beta1", "InferenceService", {"engine": {"runner": gpu_container("500m")}},
        "spec.engine.runner.resources.limits[nvidia.com/gpu]", id="ome",
    ),
    pytest.param(
        "example.com/v1", "TrainingJob", {"workers": {"template": TEMPLATE}},
        f"spec.workers.template.{WRONG}", id="of-a-document",
    ),
]  # fmt: skip


@pytest.mark.usefixtures("webhook")
@pytest.mark.parametrize(("api_version", "kind", "spec", "path"), CASES)
def test_its_author_is_told_where_it_is_wrong(
    plane: ControlPlane, api_version: str, kind: str, spec: JSON, path: str
) -> None:
    accepted, said = apply(plane, custom(api_version, kind, "wrong", spec))

    assert accepted, said
    assert f"Warning: its pods would be denied: {short_path(path)}" in said
    assert '= "500m"' in said
    resource = f"{kind.lower()}s.{api_version.partition('/')[0]}"
    stored = yaml.safe_load(plane.kubectl("get", resource, "wrong", "-n", "kinds", "-o", "yaml").stdout)
    assert stored["spec"] == spec  # reviewed, never changed


@pytest.mark.usefixtures("webhook")
@pytest.mark.parametrize(("api_version", "kind", "spec", "path"), CASES)
def test_a_policy_can_refuse_it(
    plane: ControlPlane, api_version: str, kind: str, spec: JSON, path: str
) -> None:
    accepted, said = apply(plane, custom(api_version, kind, "wrong", spec, "strict"))

    assert not accepted
    assert f"{kind} strict/wrong: {short_path(path)}" in said


def test_who_asks_for_nothing_wrong_hears_nothing(plane: ControlPlane, webhook: Webhook) -> None:
    sound = {"pytorchReplicaSpecs": {"Worker": {"template": {"spec": {"containers": [gpu_container("2")]}}}}}
    before = webhook.calls()["validate"]

    accepted, said = apply(plane, custom("kubeflow.org/v1", "PyTorchJob", "sound", sound))

    assert accepted, said
    assert "Warning" not in said
    assert webhook.calls()["validate"] == before + 1


def test_what_a_controller_writes_never_reaches_us(plane: ControlPlane, webhook: Webhook) -> None:
    owner = {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": "j", "uid": "1", "controller": True}
    made = custom(
        "ray.io/v1", "RayCluster", "made", {"headGroupSpec": {"template": TEMPLATE}}, ownerReferences=[owner]
    )
    apply(plane, custom("kubeflow.org/v1", "PyTorchJob", "running", PYTORCH))
    before = webhook.calls()["validate"]

    assert apply(plane, made)[0]
    path = "/apis/kubeflow.org/v1/namespaces/kinds/pytorchjobs/running"
    assert plane.client().patch(f"{path}/status", {"status": {"conditions": []}})[0] == 200
    assert plane.client().patch(path, {"metadata": {"labels": {"team": "a"}}})[0] == 200

    assert webhook.calls()["validate"] == before
    assert plane.client().patch(path, {"spec": {"runPolicy": {"suspend": True}}})[0] == 200
    assert webhook.calls()["validate"] == before + 1


@pytest.mark.usefixtures("webhook")
def test_a_kind_that_is_installed_later_is_looked_at_from_then_on(plane: ControlPlane) -> None:
    install(plane.client(), *LATER)
    spec = {"leaderWorkerTemplate": {"size": 2, "workerTemplate": TEMPLATE}}

    accepted, said = apply(plane, custom("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "late", spec))

    assert accepted, said
    assert (
        f"its pods would be denied: {short_path(f'spec.leaderWorkerTemplate.workerTemplate.{WRONG}')}" in said
    )


@pytest.mark.usefixtures("webhook")
def test_a_kind_without_a_row_is_said_to_be_unread(plane: ControlPlane) -> None:
    spec = {"workers": {"template": TEMPLATE}}

    accepted, said = apply(plane, custom("example.com/v1", "Unmapped", "unread", spec, "strict"))

    assert accepted, said
    assert (
        f"Warning: {short_path(f'spec.workers.template.{WRONG}')}: name their paths in workloadKinds of a GPUResourceMapping; "
        "Unmapped contains GPU resources that gpu-admission does not read" in said
    )


def test_an_object_without_a_spec_is_checked_when_it_changes(plane: ControlPlane, webhook: Webhook) -> None:
    workspace = {
        "apiVersion": "kaito.sh/v1beta1",
        "kind": "Workspace",
        "metadata": {"name": "w", "namespace": "kinds"},
        "resource": {"count": 1},
        "inference": {"template": TEMPLATE},
    }
    accepted, said = apply(plane, workspace)
    assert accepted, said
    assert f"its pods would be denied: {short_path(f'inference.template.{WRONG}')}" in said
    before = webhook.calls()["validate"]

    path = "/apis/kaito.sh/v1beta1/namespaces/kinds/workspaces/w"
    assert plane.client().patch(path, {"metadata": {"labels": {"team": "a"}}})[0] == 200
    assert webhook.calls()["validate"] == before
    assert plane.client().patch(path, {"resource": {"count": 2}})[0] == 200
    assert webhook.calls()["validate"] == before + 1

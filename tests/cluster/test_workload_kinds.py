"""Custom resources of the ML field, as minimal CRDs on a real API server, reviewed as docs/reference/workloads.md says."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from policies.finding import short_path
from tests.builders import JSON, gpu_container, manifest
from tests.cases import cases
from tests.cluster.applying import apply
from tests.cluster.configuration import install_configuration_kinds
from tests.cluster.controllers import eventually
from tests.cluster.workload_kinds import install
from tests.controlplane import ControlPlane
from tests.controlplane.webhook import ROOT, Webhook, serving
from tests.controlplane.webhook import install as install_webhooks
from tests.deploy.manifests import webhooks, workload_rules

BUILT_IN = ROOT / "webhook" / "configuration" / "builtin" / "workload-kinds.yaml"
PAGE = (ROOT / "docs" / "reference" / "workloads.md").read_text()
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
TEMPLATE: JSON = {"spec": {"containers": [gpu_container("500m")]}}
WRONG = "spec.containers[0].resources.limits[nvidia.com/gpu]"


def of_custom_workloads(documents: list[JSON]) -> JSON:
    name = "custom-workloads.validate.gpu-admission.dev"
    return next(entry for entry in webhooks(documents) if entry["name"] == name)


def test_what_is_installed_is_what_the_page_says(webhook: Webhook) -> None:
    conditions = yaml.safe_load(PAGE.rpartition("```yaml\n")[2].partition("```")[0])
    entry = of_custom_workloads(webhook.manifests())

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


KINDS = [
    ("kubeflow.org", "v1", "PyTorchJob"),
    ("ray.io", "v1", "RayCluster"),
    ("kaito.sh", "v1beta1", "Workspace"),
    ("example.com", "v1", "TrainingJob"),
]
"""Others differ in rows of two tables: tests/webhook/workloads/test_workload_kinds.py has their paths, tests/deploy/test_chart.py
the rules by which the API server sends them."""
LATER = ("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet")


@pytest.fixture(scope="module")
def webhook(plane: ControlPlane) -> Iterator[Webhook]:
    client = plane.client()
    for group, version, kind in KINDS:
        install(client, group, version, kind)
    with serving(plane, POLICIES, "kinds", "strict", host=14) as running:
        install_webhooks(plane, with_kinds_of_ones_own(running.manifests()), running.calls)
        probe = custom("kubeflow.org/v1", "PyTorchJob", "probe", PYTORCH, "strict")
        assert eventually(lambda: not apply(plane, probe, dry_run=True)[0], seconds=60)
        yield running


def with_kinds_of_ones_own(documents: list[JSON]) -> list[JSON]:
    """Add the rule that webhooks.extraWorkloads makes of the chart (tests/deploy/test_chart.py)."""
    rules = of_custom_workloads(documents)["rules"]
    own = {"apiGroups": ["example.com"], "resources": ["trainingjobs"]}
    rules.append({**rules[0], **own})
    return documents


def custom(
    api_version: str, kind: str, name: str, spec: JSON, namespace: str = "kinds", **metadata: Any
) -> JSON:
    return manifest(api_version, kind, name, spec, namespace=namespace, **metadata)


PYTORCH: JSON = {"pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": TEMPLATE}}}


@pytest.mark.usefixtures("webhook")
@cases(
    ("api_version", "kind", "spec", "path"),
    of_the_built_in_table=(
        "kubeflow.org/v1",
        "PyTorchJob",
        PYTORCH,
        "spec.pytorchReplicaSpecs.Worker.template",
    ),
    of_a_document=(
        "example.com/v1",
        "TrainingJob",
        {"workers": {"template": TEMPLATE}},
        "spec.workers.template",
    ),
)
def test_its_author_is_told_where_it_is_wrong_and_a_policy_can_refuse_it(
    plane: ControlPlane, api_version: str, kind: str, spec: JSON, path: str
) -> None:
    accepted, said = apply(plane, custom(api_version, kind, "wrong", spec))
    refused, reason = apply(plane, custom(api_version, kind, "wrong", spec, "strict"))

    assert accepted, said
    assert f"Warning: {kind} kinds/wrong: its pods would be denied: {short_path(f'{path}.{WRONG}')}" in said
    assert '= "500m"' in said
    stored = f"/apis/{api_version}/namespaces/kinds/{kind.lower()}s/wrong"
    assert plane.client().get(stored)[1]["spec"] == spec  # reviewed, never changed
    assert not refused
    assert f"{kind} strict/wrong: {short_path(f'{path}.{WRONG}')}" in reason


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

"""Every manifest is accepted by a real API server with strict field validation, and installing again breaks nothing."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cluster.controllers import eventually
from tests.cluster.deploy.install import apply_strictly, documents, remove
from tests.controlplane import ControlPlane, helm
from tests.controlplane.webhook import CONFIGURATIONS
from tests.deploy.manifests import CHART, NAMESPACE, RELEASE, STATIC, template

CREATE = ("--set", "namespace.create=true")
RENDERED: dict[str, Callable[[], str]] = {
    "static": STATIC.read_text,
    "default": lambda: template(*CREATE),
    "first-install": lambda: template(*CREATE, "-f", CHART / "values-first-install.yaml"),
    "production": lambda: template(*CREATE, "-f", CHART / "values-production.yaml"),
    "cert-manager": lambda: template(*CREATE, "--set", "certificates.certManager.enabled=true"),
    "everything-else": lambda: template(
        *CREATE, "--set", "criticalPodsQuota=true,commonLabels.team=platform,webhook.nodeSelector.pool=system"
    ),
    "as-little-as-can-be": lambda: template(
        *CREATE,
        *("--set", "canary.enabled=false,networkPolicy.enabled=false,webhooks.workloads=false"),
        *("--set", "webhook.preStopSeconds=0,priorityClassName="),
    ),
}


@pytest.fixture
def _afterwards(plane: ControlPlane) -> Iterator[None]:
    yield
    remove(plane)


@pytest.mark.usefixtures("_afterwards")
@pytest.mark.parametrize("name", RENDERED)
def test_is_accepted_and_its_pods_are_made(plane: ControlPlane, name: str) -> None:
    text = RENDERED[name]()

    said = apply_strictly(plane, text)

    assert len(said.splitlines()) == len(documents(text))
    wanted = {
        document["metadata"]["name"]: document["spec"]["replicas"]
        for document in documents(text)
        if document["kind"] == "Deployment"
    }
    assert set(wanted) == {"gpu-admission-webhook", "gpu-admission-controller"}
    # Made by the ReplicaSet controller: past the restricted profile that the namespace enforces, and its quotas.
    assert eventually(lambda: made(plane) == wanted, seconds=30), plane.kubectl("get", "events", "-A").stdout


@pytest.mark.usefixtures("_afterwards")
def test_a_kustomize_base(plane: ControlPlane) -> None:
    rendered = plane.kubectl("kustomize", STATIC.parent).stdout

    assert len(documents(rendered)) == len(documents(STATIC.read_text()))
    apply_strictly(plane, rendered)


@pytest.mark.usefixtures("_afterwards")
@pytest.mark.parametrize(
    "how", [pytest.param((), id="client-side"), pytest.param(("--server-side",), id="server-side")]
)
def test_applying_again_keeps_the_ca_bundle(plane: ControlPlane, how: tuple[str, ...]) -> None:
    force = ("--force-conflicts",) if how else ()
    plane.kubectl("apply", *how, *force, "-f", STATIC)
    inject(plane)

    plane.kubectl("apply", *how, *force, "-f", STATIC)

    assert bundles(plane) == {"Q0E="}


BY_HELM = "gpu-admission-by-helm"


@pytest.fixture
def _without_release(plane: ControlPlane) -> Iterator[None]:
    """Uninstall what a failed test left: its objects belong to Helm, and no later test could apply its own."""
    yield
    server = ("--kubeconfig", plane.kubeconfig(), "--namespace", BY_HELM)
    helm.run("uninstall", RELEASE, *server, "--ignore-not-found")


@pytest.mark.usefixtures("_afterwards", "_without_release")
def test_helm_installs_upgrades_and_uninstalls(plane: ControlPlane) -> None:
    namespace = BY_HELM
    server = ("--kubeconfig", plane.kubeconfig(), "--namespace", namespace)
    plane.kubectl("delete", "namespace", NAMESPACE, "gpu-admission-canary", "--ignore-not-found")
    policies = ("validatingadmissionpolicy", "validatingadmissionpolicybinding")
    for kind in ("clusterrole", "clusterrolebinding", *policies):
        plane.kubectl("delete", kind, "-l", "app.kubernetes.io/name=gpu-admission")
    plane.kubectl("delete", "crd", "-l", "app.kubernetes.io/name=gpu-admission")
    preset = ("-f", CHART / "values-first-install.yaml")

    notes = helm.run("install", RELEASE, CHART, *server, "--create-namespace", *preset)
    assert f"is installed in namespace {namespace}" in notes
    assert "yours to change: default" in notes
    inject(plane)
    plane.kubectl("patch", "gpupolicy", "default", "--type=merge", "-p", '{"spec": {"priority": 7}}')
    quota = {"apiVersion": "gpu-admission.dev/v1alpha1", "kind": "GPUQuota", "metadata": {"name": "default"}}
    plane.kubectl(
        "apply", "-n", "default", "-f", "-", stdin=json.dumps({**quota, "spec": {"hard": {"gpus": "1"}}})
    )

    helm.run("upgrade", RELEASE, CHART, *server, *preset, "--set", "webhooks.failurePolicy=Fail")
    assert bundles(plane) == {"Q0E="}
    assert '"Fail"' in plane.kubectl("get", CONFIGURATIONS[0], "zz-gpu-admission", "-o", "json").stdout
    assert excluded(plane) == {"kube-system", "kube-node-lease", namespace}
    policy = json.loads(plane.kubectl("get", "gpupolicy", "default", "-o", "json").stdout)
    assert policy["spec"]["priority"] == 7

    helm.run("uninstall", RELEASE, *server)
    left = plane.kubectl("get", ",".join(CONFIGURATIONS), "-l", "app.kubernetes.io/name=gpu-admission").stdout
    assert not left
    assert "default" in plane.kubectl("get", "gpuquota", "-n", "default").stdout
    plane.kubectl("delete", "gpuquota", "default", "-n", "default")
    plane.kubectl("wait", "--for=delete", "namespace/gpu-admission-canary", "--timeout=60s")


def made(plane: ControlPlane) -> dict[str, int]:
    listed = json.loads(plane.kubectl("get", "deployments", "-n", NAMESPACE, "-o", "json").stdout)
    return {item["metadata"]["name"]: item["status"].get("replicas", 0) for item in listed["items"]}


def configurations(plane: ControlPlane) -> list[dict[str, Any]]:
    shown = plane.kubectl("get", ",".join(CONFIGURATIONS), "-o", "json").stdout
    items = [item for item in json.loads(shown)["items"] if item["metadata"]["name"] == "zz-gpu-admission"]
    assert len(items) == 2
    return [webhook for item in items for webhook in item["webhooks"]]


def bundles(plane: ControlPlane) -> set[str]:
    return {webhook["clientConfig"].get("caBundle", "") for webhook in configurations(plane)}


def excluded(plane: ControlPlane) -> set[str]:
    selectors = [webhook["namespaceSelector"] for webhook in configurations(plane)]
    return {
        value
        for selector in selectors
        for expression in selector.get("matchExpressions", ())
        for value in expression["values"]
    }


def inject(plane: ControlPlane) -> None:
    """Write a caBundle, as our controller does: by a patch of nothing else."""
    for kind in CONFIGURATIONS:
        shown = json.loads(plane.kubectl("get", kind, "zz-gpu-admission", "-o", "json").stdout)
        patch = [
            {"op": "add", "path": f"/webhooks/{number}/clientConfig/caBundle", "value": "Q0E="}
            for number in range(len(shown["webhooks"]))
        ]
        plane.kubectl("patch", kind, "zz-gpu-admission", "--type=json", "-p", json.dumps(patch))

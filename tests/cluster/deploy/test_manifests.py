"""Every manifest is accepted by a real API server with strict field validation, and installing again breaks nothing."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from policies.quota.waiting import GATE
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.cluster.deploy.installed import apply_strictly, documents
from tests.controlplane import ControlPlane, accepted, helm, locate
from tests.controlplane.webhook import (
    CONFIGURATION_PATHS,
    CONFIGURATIONS,
    ROOT,
    set_bundles,
    strict_manifests,
)
from tests.deploy.manifests import CHART, CRDS, IMAGE, NAMESPACE, RELEASE, STATIC, template
from webhook.cluster.objects import CATALOGUES_CONFIG_MAP

CREATE = ("--set", "namespace.create=true")
RENDERED: dict[str, Callable[[], str]] = {
    "static": lambda: kustomized(STATIC),
    "default": lambda: template(*CREATE),
    "production": lambda: template(*CREATE, "-f", CHART / "values-production.yaml"),
    "everything-else": lambda: template(
        *CREATE,
        *("--set", "certificates.certManager.enabled=true"),
        *("--set", "criticalPodsQuota=true,commonLabels.team=platform,webhook.nodeSelector.pool=system"),
        *("--set", "webhook.autoscaling.enabled=true,webhook.autoscaling.minReplicas=1"),
        *("--set", "webhooks.namespaceSelector.matchLabels.gpus=checked"),
        *(
            "--set",
            "webhooks.objectSelector.matchLabels.queue=gpus,controller.serviceAccount.annotations.role=gpus",
        ),
        *(
            "--set",
            "webhook.extraEnv[0].name=TZ,webhook.extraEnv[0].value=UTC,webhook.podLabels.team=platform",
        ),
        *("--set-json", 'webhook.extraVolumes=[{"name": "more", "emptyDir": {}}]'),
        *("--set-json", 'webhook.extraVolumeMounts=[{"name": "more", "mountPath": "/more"}]'),
    ),
    "as-little-as-can-be": lambda: template(
        *CREATE,
        *("--set", "canary.enabled=false,networkPolicy.enabled=false,webhooks.workloads=false"),
        *("--set", "webhook.preStopSeconds=0,priorityClassName="),
    ),
}


@pytest.mark.usefixtures("_afterwards")
@pytest.mark.parametrize("name", RENDERED)
def test_is_accepted_and_its_pods_are_made(plane: ControlPlane, name: str) -> None:
    text = RENDERED[name]()

    said = apply_strictly(plane, text)

    assert len(said.splitlines()) == len(documents(text))
    wanted = {
        document["metadata"]["name"]: document["spec"].get(
            "replicas", 1
        )  # left out where an autoscaler sets it
        for document in documents(text)
        if document["kind"] == "Deployment"
    }
    assert set(wanted) == {"gpu-admission-webhook", "gpu-admission-controller"}
    # Made by the ReplicaSet controller: past the restricted profile that the namespace enforces, and its quotas.
    assert eventually(lambda: made(plane) == wanted, seconds=30), plane.kubectl("get", "events", "-A").stdout


@pytest.mark.usefixtures("_afterwards")
def test_the_static_manifests_with_an_image_of_ones_own(plane: ControlPlane, tmp_path: Path) -> None:
    """As deploy/README.md has it: the definitions, then a kustomization that names the image."""
    image = {"name": IMAGE, "newName": "registry.example.com/gpu-admission", "newTag": "0.2.0"}
    resources = [os.path.relpath(STATIC, tmp_path)]
    (tmp_path / "kustomization.yaml").write_text(json.dumps({"resources": resources, "images": [image]}))
    plane.kubectl("delete", "crd", "-l", "app.kubernetes.io/name=gpu-admission")

    plane.kubectl("apply", "--server-side", "-k", STATIC / "crds")
    plane.kubectl("wait", "--for=condition=Established", "--timeout=90s", "-f", STATIC / CRDS)
    plane.kubectl("apply", "--server-side", "-k", tmp_path)

    deployments = json.loads(plane.kubectl("get", "deployments", "-n", NAMESPACE, "-o", "json").stdout)
    containers = [item["spec"]["template"]["spec"]["containers"][0] for item in deployments["items"]]
    assert {each["image"] for each in containers} == {"registry.example.com/gpu-admission:0.2.0"}
    assert {webhook["failurePolicy"] for webhook in configurations(plane)} == {"Ignore"}
    policy = json.loads(plane.kubectl("get", "gpupolicy", "default", "-o", "json").stdout)
    modes = {rule: options["mode"] for rule, options in policy["spec"]["rules"].items()}
    assert modes.pop("spot") == "disabled", "it needs the label of a spot pool, which nobody can know"
    assert set(modes.values()) == {"audit"}


@pytest.mark.usefixtures("_afterwards")
@cases("how", client_side=(), server_side=("--server-side",))
def test_applying_again_keeps_the_ca_bundle_and_what_is_published(
    plane: ControlPlane, how: tuple[str, ...]
) -> None:
    force = ("--force-conflicts",) if how else ()
    kinds = {"Namespace", "ConfigMap", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}
    text = yaml.safe_dump_all(each for each in strict_manifests() if each["kind"] in kinds)
    plane.kubectl("apply", *how, *force, "-f", "-", stdin=text)
    set_bundles(plane.client(), b"CA")
    publish(plane, NAMESPACE)

    plane.kubectl("apply", *how, *force, "-f", "-", stdin=text)

    assert bundles(plane) == {"Q0E="}
    assert published(plane, NAMESPACE)["digest"] == "catalogue"


BY_HELM = "gpu-admission-by-helm"


@pytest.fixture
def _without_release(plane: ControlPlane) -> Iterator[None]:
    """Uninstall what a failed test left: its objects belong to Helm, and no later test could apply its own."""
    yield
    server = ("--kubeconfig", plane.kubeconfig(), "--namespace", BY_HELM)
    helm.run("uninstall", RELEASE, *server, "--ignore-not-found", "--no-hooks")


@pytest.mark.slow
@pytest.mark.usefixtures("_afterwards", "_without_release")
def test_helm_installs_upgrades_and_uninstalls(plane: ControlPlane) -> None:
    namespace = BY_HELM
    server = ("--kubeconfig", plane.kubeconfig(), "--namespace", namespace)
    plane.kubectl("delete", "namespace", NAMESPACE, "gpu-admission-canary", "--ignore-not-found")
    policies = ("validatingadmissionpolicy", "validatingadmissionpolicybinding")
    for kind in ("clusterrole", "clusterrolebinding", *policies):
        plane.kubectl("delete", kind, "-l", "app.kubernetes.io/name=gpu-admission")
    plane.kubectl("delete", "crd", "-l", "app.kubernetes.io/name=gpu-admission")
    preset = ("-f", CHART / "values-first-install.yaml", "--set", f"image.repository={IMAGE}")

    notes = helm.run("install", RELEASE, CHART, *server, "--create-namespace", *preset)
    assert f"is installed in namespace {namespace}" in notes
    assert "yours to change: default" in notes
    set_bundles(plane.client(), b"CA")
    publish(plane, namespace)
    plane.kubectl("patch", "gpupolicy", "default", "--type=merge", "-p", '{"spec": {"priority": 7}}')
    quota = {"apiVersion": "gpu-admission.dev/v1alpha1", "kind": "GPUQuota", "metadata": {"name": "default"}}
    plane.kubectl(
        "apply", "-n", "default", "-f", "-", stdin=json.dumps({**quota, "spec": {"hard": {"gpus": "1"}}})
    )

    container = {"name": "main", "image": "x"}
    spec = {"containers": [container], "schedulingGates": [{"name": GATE}]}
    pods, waiting = "/api/v1/namespaces/default/pods", "/api/v1/namespaces/default/pods/waiting"
    accepted(plane.client().post(pods, {"metadata": {"name": "waiting"}, "spec": spec}))

    helm.run("upgrade", RELEASE, CHART, *server, *preset, "--set", "webhooks.failurePolicy=Fail")
    assert bundles(plane) == {"Q0E="}
    assert published(plane, namespace)["digest"] == "catalogue"
    assert '"Fail"' in plane.kubectl("get", CONFIGURATIONS[0], "zz-gpu-admission", "-o", "json").stdout
    assert excluded(plane) == {"kube-system", "kube-node-lease", namespace}
    policy = json.loads(plane.kubectl("get", "gpupolicy", "default", "-o", "json").stdout)
    assert policy["spec"]["priority"] == 7

    with ThreadPoolExecutor(1) as thread:
        uninstalled = thread.submit(helm.run, "uninstall", RELEASE, *server)
        assert run_as_the_kubelet(plane, namespace).startswith("released ")
        uninstalled.result()
    assert "schedulingGates" not in plane.client().get(waiting)[1]["spec"]
    for kind in ("serviceaccount", "clusterrole", "clusterrolebinding", "job"):
        assert not plane.kubectl(
            "get", kind, "gpu-admission-release", "-n", namespace, "--ignore-not-found"
        ).stdout
    left = plane.kubectl("get", ",".join(CONFIGURATIONS), "-l", "app.kubernetes.io/name=gpu-admission").stdout
    assert not left
    assert "default" in plane.kubectl("get", "gpuquota", "-n", "default").stdout
    plane.kubectl("delete", "gpuquota", "default", "-n", "default")
    plane.kubectl("wait", "--for=delete", "namespace/gpu-admission-canary", "--timeout=60s")


def run_as_the_kubelet(plane: ControlPlane, namespace: str) -> str:
    """Run the pod of the Job that `helm uninstall` waits for, with its rights; return what it printed."""
    client, pods = plane.client(), f"/api/v1/namespaces/{namespace}/pods"

    def found() -> Any:
        made = client.get(pods)[1]["items"]
        return next(
            (each for each in made if each["metadata"]["labels"].get("job-name") == "gpu-admission-release"),
            None,
        )

    pod = eventually(found, seconds=60)
    (container,) = pod["spec"]["containers"]
    kubeconfig = plane.account_kubeconfig(namespace, pod["spec"]["serviceAccountName"])
    command = [sys.executable, "-m", "webhook", *container["args"], "--kubeconfig", str(kubeconfig)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    path = f"{pods}/{pod['metadata']['name']}/status"
    accepted(client.patch(path, {"status": {"phase": "Succeeded"}}))
    return done.stdout.strip()


def kustomized(folder: Path) -> str:
    kubectl = locate() / "kubectl"
    return subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=True).stdout


def made(plane: ControlPlane) -> dict[str, int]:
    _, listed = plane.client().get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments")
    return {item["metadata"]["name"]: item["status"].get("replicas", 0) for item in listed["items"]}


def configurations(plane: ControlPlane) -> list[dict[str, Any]]:
    return [webhook for path in CONFIGURATION_PATHS for webhook in plane.client().get(path)[1]["webhooks"]]


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


def publish(plane: ControlPlane, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps/{CATALOGUES_CONFIG_MAP}"
    assert plane.client().patch(path, {"data": {"digest": "catalogue"}})[0] == 200


def published(plane: ControlPlane, namespace: str) -> Any:
    return plane.client().get(f"/api/v1/namespaces/{namespace}/configmaps/{CATALOGUES_CONFIG_MAP}")[1]["data"]

"""What the demo needs around it: a control plane, fake GPU nodes, the webhook, and bounded waiting."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.controlplane import ControlPlane, create_gpu_node
from tests.controlplane.gpuquota import INSTALLATION
from tests.controlplane.webhook import Webhook
from webhook.cluster.objects import CONTROLLER as CONTROLLER_ACCOUNT

ROOT = Path(__file__).parents[2]
NODES = ROOT / "examples" / "nodes" / "nodes.yaml"
POLICIES = ROOT / "examples" / "policies"
SERVING, RESEARCH, TRAINING = "ml-serving", "research", "training"
PYTORCH_JOB = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "pytorchjobs.kubeflow.org"},
    "spec": {
        "group": "kubeflow.org",
        "names": {"plural": "pytorchjobs", "kind": "PyTorchJob"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}
"""The kind without its operator: what matters here is what the API server answers."""
CONTROLLER = "controller"
WAIT_SECONDS = 30.0
STOP_SECONDS = 20


class DemoFailed(RuntimeError):  # noqa: N818 - reads as what it is
    """A wait timed out; the message names the condition."""


@contextmanager
def control_plane(say: Callable[[str], object]) -> Iterator[ControlPlane]:
    """Run a control plane with controllers and scheduler, and report each component as it starts."""
    plane = ControlPlane(controllers=True, scheduler=True)
    started = time.monotonic()
    up = threading.Event()

    def report_progress() -> None:
        reported: set[str] = set()
        while not up.wait(0.1):
            processes = getattr(plane, "processes", None)  # there once the plane has begun to start
            for name in processes.pids if processes else ():
                if name not in reported:
                    reported.add(name)
                    say(f"{time.monotonic() - started:4.1f} s  starting {name}")

    progress = threading.Thread(target=report_progress, daemon=True)
    progress.start()
    try:
        plane.start()
    finally:
        up.set()
        progress.join()
    try:
        say(f"{time.monotonic() - started:4.1f} s  all ready")
        yield plane
    finally:
        plane.stop()


def create_nodes(plane: ControlPlane) -> None:
    """Create the nodes of examples/nodes, the namespaces of three teams, and the kind PyTorchJob."""
    for node in yaml.safe_load_all(NODES.read_text()):
        create_gpu_node(
            plane.client(),
            node["metadata"]["name"],
            labels=node["metadata"]["labels"],
            taints=node["spec"]["taints"],
            resources=node["status"]["capacity"],
        )
    for namespace in (SERVING, RESEARCH, TRAINING):
        plane.kubectl("create", "namespace", namespace)
    plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(PYTORCH_JOB))


@contextmanager
def installation(plane: ControlPlane) -> Iterator[None]:
    """Run webhook and controller, install deploy/ and examples/policies, and yield once the API server calls the webhook."""
    kubeconfig = plane.kubeconfig()
    webhook = Webhook(plane, arguments=("--kubeconfig", kubeconfig))
    try:
        webhook.start()
        webhook.register()
        # Only the ServiceAccount of the controller may start pods that wait in line.
        account = f"{INSTALLATION}:{CONTROLLER_ACCOUNT}"
        plane.kubectl("create", "serviceaccount", CONTROLLER_ACCOUNT, "-n", INSTALLATION)
        binding = ("clusterrolebinding", CONTROLLER_ACCOUNT, "--clusterrole", "cluster-admin")
        plane.kubectl("create", *binding, "--serviceaccount", account)
        plane.processes.start(
            CONTROLLER,
            [
                *("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "webhook", "controller"),
                *("--kubeconfig", plane.account_kubeconfig(INSTALLATION, CONTROLLER_ACCOUNT)),
                *("--host", "127.0.0.1", "--port", "0"),
            ],
        )
        wait_for("the API server to take examples/policies", lambda: _applied(plane))
        wait_for("the webhook to work by them", lambda: _in_force(plane))
        yield
    finally:
        for name in (CONTROLLER, webhook.name):
            if name in plane.pids:
                plane.processes.terminate(name, grace=STOP_SECONDS)


def _applied(plane: ControlPlane) -> bool:
    """Apply examples/policies; the first time is too early while the API server learns of the new kinds."""
    return plane.kubectl("apply", "-f", str(POLICIES), check=False).returncode == 0


def pods(plane: ControlPlane, namespace: str, selector: str) -> list[dict[str, Any]]:
    """Return the pods of a namespace that a label selector fits."""
    status, listed = plane.client().get(f"/api/v1/namespaces/{namespace}/pods", {"labelSelector": selector})
    if status != 200:  # noqa: PLR2004 - HTTP OK
        raise DemoFailed(f"listing pods of {namespace} was answered with {status}")
    items: list[dict[str, Any]] = listed["items"]
    return items


def _in_force(plane: ControlPlane) -> bool:
    """Whether a pod on a dry run gets the class that examples/policies makes the default."""
    manifest = ROOT / "examples" / "workloads" / "pod-training.yaml"
    done = plane.kubectl("apply", "-f", str(manifest), "--dry-run=server", "-o", "yaml", check=False)
    return "accelerator: nvidia-a100" in done.stdout


def quota_status(plane: ControlPlane, namespace: str) -> dict[str, Any]:
    """Return the status of the quota of a namespace."""
    path = f"/apis/gpu-admission.dev/v1alpha1/namespaces/{namespace}/gpuquotas/default"
    _status, quota = plane.client().get(path)
    status: dict[str, Any] = quota.get("status", {})
    return status


def wait_until_bound(plane: ControlPlane, namespace: str, selector: str, count: int) -> None:
    """Wait until `count` pods have a node."""

    def bound() -> bool:
        found = pods(plane, namespace, selector)
        return len(found) == count and all(pod["spec"].get("nodeName") for pod in found)

    wait_for(f"{count} pods with {selector} in namespace {namespace} to get a node", bound)


def wait_for(what: str, holds: Callable[[], bool]) -> None:
    """Wait for a condition at most `WAIT_SECONDS`; raises `DemoFailed` with its name after that."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise DemoFailed(f"waited {WAIT_SECONDS:.0f} s for {what}")
        time.sleep(0.1)

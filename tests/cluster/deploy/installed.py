"""What the chart makes, installed as an operator would, and taken away again.

Its Deployments run as processes: their own arguments, under their own service accounts, with nothing else allowed.
"""

import base64
import json
import subprocess
import sys
from typing import Any

import urllib3
import yaml

from tests.cluster.controllers import eventually
from tests.controlplane import Client, ControlPlane
from tests.controlplane.webhook import ROOT, SERVER_NAME, strict_manifests, uninstall
from tests.deploy.manifests import NAMESPACE, arguments, rendered

FOREIGN = ("monitoring.coreos.com/", "cert-manager.io/")
"""Kinds of other projects, whose definitions are not ours to bring: what is made of them is left out here."""
OURS = "gpu-admission.dev/"
WEBHOOK, CONTROLLER = "gpu-admission-webhook", "gpu-admission-controller"


class Installed:
    """deploy/static/strict applied to `plane`, and both commands running, between `start` and `stop`."""

    def __init__(self, plane: ControlPlane, host: int) -> None:
        self._plane = plane
        self.address = plane.service_address(host)
        self.documents = strict_manifests()

    def apply(self) -> None:
        for document in self.documents:
            if document["kind"] == "Service" and document["metadata"]["name"] == "gpu-admission":
                document["spec"]["clusterIP"] = self.address  # where our process listens
        self._plane.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(self.documents))

    def start(self) -> None:
        """Run both; return when the webhook is ready, which takes what the controller does: a Secret and two caBundles."""
        self._run(CONTROLLER, "--host", self.address, "--canary-seconds=2")
        hosts = ("--host", self.address, "--port", "443", "--metrics-host", self.address)
        self._run(WEBHOOK, *hosts, "--drain-seconds=0")
        assert eventually(self.ready, seconds=60), self._plane.logs(WEBHOOK) + self._plane.logs(CONTROLLER)

    def stop(self) -> None:
        for name in (WEBHOOK, CONTROLLER):
            self._plane.processes.terminate(name, grace=30)
        remove(self._plane)

    def ready(self) -> bool:
        """Ask as the API server does: by the Service's name, trusting what the controller published and nothing else."""
        bundle = self._bundle()
        if not bundle:
            return False
        with urllib3.HTTPSConnectionPool(
            self.address,
            443,
            assert_hostname=SERVER_NAME,
            server_hostname=SERVER_NAME,
            ca_cert_data=bundle,
            retries=False,
            timeout=20,
        ) as pool:
            try:
                return pool.request("GET", "/readyz").status == 200
            except urllib3.exceptions.HTTPError:
                return False

    def metrics(self, port: int) -> str:
        with urllib3.PoolManager(retries=False, timeout=20) as pool:
            return pool.request("GET", f"http://{self.address}:{port}/metrics").data.decode()

    def client(self, account: str) -> Client:
        token = self._plane.account_token(NAMESPACE, account)
        return Client(self._plane.url, ca_file=self._plane.ca_file, token=token)

    def command(self, account: str, *arguments: str) -> tuple[int, str]:
        """Run a command to its end as that service account; return its exit status and what it printed."""
        kubeconfig = str(self._plane.account_kubeconfig(NAMESPACE, account))
        command = [sys.executable, "-m", "webhook", *arguments, "--kubeconfig", kubeconfig]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stdout + done.stderr

    def _arguments(self, deployment: str) -> list[str]:
        return arguments(self.documents, deployment.removeprefix("gpu-admission-"))

    def _run(self, deployment: str, *more: str) -> None:
        kubeconfig = self._plane.account_kubeconfig(NAMESPACE, deployment)
        # A pod's service account stands in files whose place is fixed; here it stands in a kubeconfig.
        arguments = self._arguments(deployment)
        command = ("env", f"PYTHONPATH={ROOT}", f"POD_NAMESPACE={NAMESPACE}", sys.executable, "-m", "webhook")
        self._plane.processes.start(deployment, [*command, *arguments, "--kubeconfig", kubeconfig, *more])

    def _bundle(self) -> str:
        path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/zz-gpu-admission"
        webhooks = self._plane.client().get(path)[1]["webhooks"]
        bundles = {each["clientConfig"].get("caBundle", "") for each in webhooks}
        return base64.b64decode(bundles.pop()).decode() if len(bundles) == 1 else ""


def conditions_with(*annotations: str) -> dict[str, Any]:
    """Return the match conditions that the chart makes with these `webhooks.fractionAnnotations`, by the name of the webhook."""
    made = rendered("--set-json", f"webhooks.fractionAnnotations={json.dumps(annotations)}")
    entries = (entry for document in made for entry in document.get("webhooks", ()))
    return {entry["name"]: entry.get("matchConditions") for entry in entries}


def documents(text: str) -> list[dict[str, Any]]:
    """Return the manifests of `text` but those of other projects' kinds."""
    found = [document for document in yaml.safe_load_all(text) if document]
    return [document for document in found if not document["apiVersion"].startswith(FOREIGN)]


def apply_strictly(plane: ControlPlane, text: str) -> str:
    """Apply with strict field validation, documents of our kinds after these are known; return what kubectl said."""
    every = documents(text)
    ours = [document for document in every if document["apiVersion"].startswith(OURS)]
    said = _apply(plane, [document for document in every if document not in ours])
    kinds = [d["metadata"]["name"] for d in every if d["kind"] == "CustomResourceDefinition"]
    plane.kubectl("wait", "--for=condition=Established", "--timeout=90s", "crd", *kinds)
    return said + (_apply(plane, ours) if ours else "")


def remove(plane: ControlPlane) -> None:
    """Take away what would have a say in what other tests create."""
    uninstall(plane)
    client = plane.client()
    client.delete(f"/apis/{OURS}v1alpha1/gpupolicies")
    client.delete(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments")
    # The template of a Job cannot change. By default, the deletion of a Job leaves its pods.
    jobs = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
    client.delete(jobs, {"propagationPolicy": "Background"})
    for service in client.get(f"/api/v1/namespaces/{NAMESPACE}/services")[1].get("items", []):
        client.delete(
            f"/api/v1/namespaces/{NAMESPACE}/services/{service['metadata']['name']}"
        )  # a clusterIP cannot change


def _apply(plane: ControlPlane, every: list[dict[str, Any]]) -> str:
    arguments = ("apply", "--server-side", "--force-conflicts", "--validate=strict", "-f", "-")
    done = plane.kubectl(*arguments, stdin=yaml.safe_dump_all(every))
    assert not done.stderr, (
        done.stderr
    )  # warnings of the API server: deprecated fields, a violated pod security profile
    return done.stdout

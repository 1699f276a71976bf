"""A whole installation for doctor to look at, and doctor's word on it."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner

from tests.cluster.controllers import Command
from tests.controlplane import Client, ControlPlane, accepted, create_gpu_node
from tests.controlplane.webhook import NAMESPACE, Webhook, strict_manifests
from webhook.commands.doctor import doctor

RBAC = "/apis/rbac.authorization.k8s.io/v1"
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
ACCOUNTS = {
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/{{namespace}}/roles",
    "RoleBinding": f"{RBAC}/namespaces/{{namespace}}/rolebindings",
    "ValidatingAdmissionPolicy": f"{REGISTRATION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{REGISTRATION}/validatingadmissionpolicybindings",
}
"""What bounds the accounts' rights included."""
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
CANARY_NAMESPACE = "gpu-admission-canary"
TEAM = "team"
CALLER = "kube-apiserver-webhooks"
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
T4 = {"accelerator": "nvidia-t4", "nvidia.com/gpu.product": "Tesla-T4"}


class Installation:
    """A control plane with webhook, controller and all that belongs to them; `run` is doctor's word on it."""

    def __init__(self, plane: ControlPlane, webhook: Webhook, controller: Command, folder: Path) -> None:
        self.plane, self.webhook, self.controller, self.folder = plane, webhook, controller, folder

    @property
    def client(self) -> Client:
        return self.plane.client()

    def run(self, *arguments: str | Path, user: str = "admin") -> tuple[int, Any]:
        """Return the exit status, and what was printed as JSON."""
        status, printed = self.text("-o", "json", *arguments, user=user)
        return status, json.loads(printed)

    def text(self, *arguments: str | Path, user: str = "admin") -> tuple[int, str]:
        whole = ["--kubeconfig", str(self.plane.kubeconfig(user)), *map(str, arguments)]
        result = CliRunner().invoke(doctor, whole)
        return result.exit_code, result.output

    def findings(self, *arguments: str | Path) -> dict[str, dict[str, str]]:
        return {
            finding["id"]: finding
            for check in self.run(*arguments)[1]["checks"]
            for finding in check["findings"]
        }

    def configuration(self, *documents: dict[str, Any]) -> Path:
        """Return a directory of documents for --config."""
        metadata = {"apiVersion": "gpu-admission.dev/v1alpha1"}
        text = yaml.safe_dump_all([{**metadata, **document} for document in documents])
        (self.folder / "policy.yaml").write_text(text)
        return self.folder


@contextmanager
def installed(folder: Path) -> Iterator[Installation]:
    """Install everything on a control plane of its own: whatever else is in a cluster, doctor would look at it."""
    plane = ControlPlane(client_name=CALLER)
    plane.add_user("engineer", groups=["ml-engineers"])
    with ExitStack() as running:
        running.enter_context(plane)
        known = ("--client-ca", plane.callers_ca, "--client-name", CALLER)
        webhook = Webhook(plane, arguments=(*known, *cluster(plane)), installation=NAMESPACE)
        running.enter_context(webhook)
        client = plane.client()
        for name in (CANARY_NAMESPACE, TEAM):
            client.post("/api/v1/namespaces", {"metadata": {"name": name}})
        create_gpu_node(client, "gpu-0", labels=T4, taints=(TAINT,))
        webhook.register()
        _ready_endpoint(client)
        _service_accounts(client)
        controller = Command(
            plane, "controller", "--namespace", NAMESPACE, "--canary-namespace", CANARY_NAMESPACE
        )
        controller.start()
        yield Installation(plane, webhook, controller, folder)


def cluster(plane: ControlPlane) -> tuple[str | Path, ...]:
    return "--kubeconfig", plane.kubeconfig()


def _ready_endpoint(client: Client) -> None:
    # As the EndpointSlice controller makes it; it may hold no loopback address, which is where this webhook listens.
    document = {
        "metadata": {"name": "gpu-admission-1", "labels": {"kubernetes.io/service-name": "gpu-admission"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.1.2.3"], "conditions": {"ready": True}}],
        "ports": [{"name": "webhook", "port": 8443, "protocol": "TCP"}],
    }
    accepted(client.post(SLICES, document))


def _service_accounts(client: Client) -> None:
    for document in strict_manifests():
        path = ACCOUNTS.get(document["kind"])
        if path is None:
            continue
        namespace = document["metadata"].get("namespace", "")
        accepted(client.post(path.format(namespace=namespace), document))

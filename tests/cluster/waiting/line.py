"""A namespace in which pods wait in line for quota."""

from typing import Any

from policies.quota.waiting import GATE
from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane
from tests.controlplane.client import accepted
from tests.controlplane.gpuquota import INSTALLATION, RBAC, Namespace
from webhook.cluster.access import load_access
from webhook.cluster.api import ApiClient
from webhook.cluster.objects import CONTROLLER

POLICY = """
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: default}
spec:
  rules:
    gpu-quota: {mode: enforce, onExceeded: Queue}
"""


def let_account_do_all(plane: ControlPlane) -> None:
    """Give the ServiceAccount of our controller all rights; what it needs is for the tests of the chart."""
    client = plane.client()
    client.post(f"/api/v1/namespaces/{INSTALLATION}/serviceaccounts", {"metadata": {"name": CONTROLLER}})
    subject = {"kind": "ServiceAccount", "name": CONTROLLER, "namespace": INSTALLATION}
    body = {
        "metadata": {"name": "waiting-controller"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [subject],
    }
    client.post(f"/apis/{RBAC}/v1/clusterrolebindings", body)


def account_api(plane: ControlPlane) -> ApiClient:
    return ApiClient(load_access(str(plane.account_kubeconfig(INSTALLATION, CONTROLLER))))


class Line(Namespace):
    """Verbs of a tenant."""

    def get(self, name: str) -> Any:
        return accepted(self.client.get(self.path("pods", name)))

    def waits(self, name: str) -> bool:
        gates = self.get(name)["spec"].get("schedulingGates") or []
        return GATE in [gate["name"] for gate in gates]

    def remove_gates(self, name: str) -> tuple[int, Any]:
        """Try to remove all scheduling gates of a pod."""
        return self.client.patch(self.path("pods", name), {"spec": {"schedulingGates": []}})

    def starts(self, *names: str, seconds: float = 30) -> bool:
        return eventually(lambda: not any(map(self.waits, names)), seconds=seconds)

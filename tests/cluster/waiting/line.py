"""A namespace in which pods wait in line for quota."""

import time
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
        return _is_gated(self.get(name))

    def in_a_later_second(self, name: str, gpus: int = 1, **options: Any) -> str:
        """Create a pod that is behind all before: a creationTimestamp has whole seconds, and uids decide about equal ones."""
        time.sleep(1.1)
        return self.pod(name, gpus, **options)

    def waiting(self) -> set[str]:
        """Return the names of all who wait."""
        pods = accepted(self.client.get(self.path("pods")))["items"]
        return {pod["metadata"]["name"] for pod in pods if _is_gated(pod)}

    def is_counted(self) -> bool:
        """Whether the ledger soon counts all who wait. Until then, no turn of a team, and no other namespace, knows of them."""
        return eventually(lambda: self.ledger_object().waiting == len(self.waiting()))

    def remove_gates(self, name: str) -> tuple[int, Any]:
        """Try to remove all scheduling gates of a pod."""
        return self.client.patch(self.path("pods", name), {"spec": {"schedulingGates": []}})

    def starts(self, *names: str, seconds: float = 30) -> bool:
        return eventually(
            lambda: self.waiting().isdisjoint(names) and all(map(self.get, names)), seconds=seconds
        )


def _is_gated(pod: Any) -> bool:
    return GATE in [gate["name"] for gate in pod["spec"].get("schedulingGates") or []]

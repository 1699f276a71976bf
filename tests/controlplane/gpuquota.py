"""The kind GPUQuota on a test control plane, and quotas, pods and reservations as tests write them."""

import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from policies.quota.amounts import Amounts
from policies.quota.ledger.decide import ReservationRequest, decide
from policies.quota.ledger.quota_ledger import QuotaLedger
from tests.controlplane.client import Client, accepted
from tests.controlplane.plane import ControlPlane
from tests.yaml_files import load_yaml
from webhook.cluster.access import load_access
from webhook.cluster.api import ApiClient
from webhook.cluster.objects import Condition
from webhook.configuration.documents import API_VERSION, QUOTA
from webhook.quota import ledger_objects
from webhook.quota.cluster_store import ClusterStore
from webhook.quota.documents import PLURAL, QuotaStatus, decode_quota, quota_path
from webhook.quota.store import LedgerConflict
from webhook.quota.team_documents import TEAM_PLURAL

FILES = Path(__file__).parents[2] / "deploy" / "chart" / "files" / "crds"
RBAC = "rbac.authorization.k8s.io"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
INSTALLATION = "default"
"""Where `serve` and `controller` keep ledgers that no pod's namespace and no option says."""
_numbers = itertools.count(1)


def api_client(plane: ControlPlane, **timeouts: float) -> ApiClient:
    return ApiClient(load_access(str(plane.kubeconfig())), **timeouts)


def install_quota_kind(client: Client) -> None:
    install_kinds(client, PLURAL, ledger_objects.PLURAL, TEAM_PLURAL)


def install_kinds(client: Client, *plurals: str) -> None:
    for plural in plurals:
        status, answer = client.post(CRDS, load_yaml(FILES / f"{plural}.yaml"))
        assert status in {201, 409}, answer
    deadline = time.monotonic() + 60
    while any(client.get(f"/apis/{API_VERSION}/{each}")[0] != 200 for each in plurals):
        assert time.monotonic() < deadline, f"the API server does not serve {plurals}"
        time.sleep(0.05)


class Namespace:
    """A namespace of its own for a test, with the verbs that tests need."""

    def __init__(self, plane: ControlPlane, name: str = "", *, installation: str = INSTALLATION) -> None:
        self.client = plane.client()
        self.name = name or f"team-{next(_numbers)}"
        self.store = ClusterStore(api_client(plane), installation)
        self.ledger_object_path = ledger_objects.ledger_objects_path(installation, self.name)
        self._created("/api/v1/namespaces", {"metadata": {"name": self.name}})

    def quota(self, hard: Mapping[str, Any], **spec: Any) -> str:
        """Create the quota and return its uid."""
        body = {
            "apiVersion": API_VERSION,
            "kind": QUOTA,
            "metadata": {"name": "default"},
            "spec": {"hard": hard, **spec},
        }
        return str(self._created(quota_path(self.name).rpartition("/")[0], body)["metadata"]["uid"])

    def change_quota(self, spec: Mapping[str, Any]) -> None:
        accepted(self.client.patch(quota_path(self.name), {"spec": spec}))

    def delete_quota(self) -> None:
        assert self.client.delete(quota_path(self.name))[0] == 200

    def pod(self, name: str, gpus: int = 1, *, metadata: Any = None, **spec: Any) -> str:
        """Create a pod and return its uid; with no webhook around, nobody reserves for it."""
        container = {
            "name": "train",
            "image": "trainer",
            "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
        }
        body = {
            "metadata": {"name": name, **(metadata or {})},
            "spec": {
                "containers": [container],
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
                **spec,
            },
        }
        return str(self._created(self.path("pods"), body)["metadata"]["uid"])

    def bind_role(self, user: str, role: str, kind: str = "ClusterRole") -> None:
        """Give the user the rights of a role in this namespace."""
        subject = {"apiGroup": RBAC, "kind": "User", "name": user}
        body = {
            "metadata": {"name": f"{user}-{role.rpartition(':')[2]}"},
            "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role},
            "subjects": [subject],
        }
        self._created(f"/apis/{RBAC}/v1/namespaces/{self.name}/rolebindings", body)

    def let_read(self, user: str) -> None:
        """Let the user read everything in this namespace, and nothing elsewhere."""
        rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}]
        roles = f"/apis/{RBAC}/v1/namespaces/{self.name}/roles"
        self._created(roles, {"metadata": {"name": "reads"}, "rules": rules})
        self.bind_role(user, "reads", "Role")

    def create(self, body: Mapping[str, Any], query: Mapping[str, str] | None = None) -> tuple[int, Any]:
        return self.client.post(self.path("pods"), body, query)

    def set_phase(self, name: str, phase: str) -> None:
        accepted(self.client.patch(self.path("pods", name) + "/status", {"status": {"phase": phase}}))

    def delete_pod(self, name: str) -> None:
        accepted(self.client.delete(self.path("pods", name), {"gracePeriodSeconds": 0}))

    def bind(self, name: str, node: str) -> None:
        binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": node}}
        accepted(self.client.post(self.path("pods", name) + "/binding", binding))

    def path(self, plural: str, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.name}/{plural}" + (f"/{name}" if name else "")

    def ledger_object(self) -> QuotaLedger:
        versioned = self.store.read(self.name, 10)
        assert versioned is not None
        return versioned.ledger

    def status(self) -> QuotaStatus:
        """Return what people see of the ledger: at most a second or two old."""
        record = decode_quota(msgspec.json.encode(self.client.get(quota_path(self.name))[1]))
        assert record is not None
        return record.status

    def condition(self, kind: str) -> Condition | None:
        return self.status().condition(kind)

    def in_force(self) -> bool:
        """Whether the ledger has the present spec of the quota, and was counted in full."""
        metadata = self.client.get(quota_path(self.name))[1]["metadata"]
        ledger_object = self.ledger_object()
        follows = (ledger_object.quota_uid, ledger_object.generation) == (
            metadata["uid"],
            metadata["generation"],
        )
        return follows and ledger_object.used is not None and not ledger_object.uncounted

    def used(self) -> Amounts | None:
        return self.ledger_object().used

    def reserve(self, *reservations: ReservationRequest) -> None:
        """Do what serve does at /validate."""
        while True:
            before = self.store.read(self.name, 10)
            assert before is not None
            decided = decide(before.ledger, reservations)
            if decided.ledger is before.ledger:
                return
            try:
                self.store.compare_and_swap(self.name, before, decided.ledger, 10)
            except LedgerConflict:
                continue
            return

    def _created(self, path: str, body: Mapping[str, Any]) -> Any:
        return accepted(self.client.post(path, body))

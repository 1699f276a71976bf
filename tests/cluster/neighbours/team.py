"""A namespace whose pods are created as users and controllers create them."""

from typing import Any

from tests.builders import JSON
from tests.cluster.controllers import is_there
from tests.cluster.quota.quotas import in_force
from tests.controlplane import ControlPlane
from tests.controlplane.client import JSON_PATCH, accepted
from tests.controlplane.gpuquota import Namespace

TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


class Team(Namespace):
    """A namespace in which pods can be created: its default ServiceAccount is there."""

    def __init__(self, plane: ControlPlane, name: str = "") -> None:
        super().__init__(plane, name)
        assert is_there(plane, f"{self.path('serviceaccounts')}/default")

    def counted_quota(self, hard: JSON) -> None:
        in_force(self, hard)

    def stored(self, name: str) -> JSON:
        answer = accepted(self.client.get(self.path("pods", name)))
        return dict(answer)

    def json_patch(self, name: str, *operations: JSON) -> tuple[int, Any]:
        return self.client.patch(self.path("pods", name), list(operations), content_type=JSON_PATCH)


def body(name: str, *containers: JSON, metadata: JSON | None = None, **spec: Any) -> JSON:
    return {"metadata": {"name": name, **(metadata or {})}, "spec": {"containers": list(containers), **spec}}


def ours(tolerations: list[JSON]) -> list[JSON]:
    """Return the tolerations without those that the API server adds to every pod."""
    return [each for each in tolerations if not each["key"].startswith("node.kubernetes.io/")]

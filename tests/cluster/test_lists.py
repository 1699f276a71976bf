"""Lists on a real API server: new quotas share them."""

from typing import Any

from tests.cluster.controllers import Running, uses
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import Namespace
from webhook.cluster.access import load_access
from webhook.cluster.api import ApiClient


class NotingClient(ApiClient):
    """A client that notes what is read by it."""

    def __init__(self, plane: ControlPlane) -> None:
        super().__init__(load_access(str(plane.kubeconfig())))
        self.read: list[str] = []

    def get(self, path: str, **options: Any) -> bytes:
        self.read.append(path)
        return super().get(path, **options)


def test_many_new_quotas_are_counted_from_the_same_lists(quotas: ControlPlane) -> None:
    teams = [Namespace(quotas) for _ in range(30)]
    for team in teams:
        team.quota({"gpus": "8"})
    teams[0].pod("trainer", 2)
    client = NotingClient(quotas)
    with Running(quotas, no_quota=3.0, api=client):  # as long as their ledgers are made in that time
        assert uses(teams[0], 2)
        assert all(uses(team, 0) for team in teams[1:])

    namespaces = {
        f"/namespaces/{team.name}/{plural}" for team in teams for plural in ("pods", "resourceclaims")
    }
    listed = [each for each in client.read if each.endswith(tuple(namespaces))]
    assert len(listed) < len(teams), listed
    quotas_read = [each for each in client.read if each.endswith("/gpuquotas/default")]
    assert len([each for each in quotas_read if any(f"/{team.name}/" in each for team in teams)]) <= 3 * len(
        teams
    )

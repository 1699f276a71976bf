"""Lists on a real API server: what they show without any watch, which bodies are read for it, and who shares one."""

from typing import Any

import msgspec

from tests.cluster.controllers import Running, uses
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import Namespace, api_client
from webhook.cluster.access import load_access
from webhook.cluster.api import ApiClient
from webhook.cluster.informer import FEW, Informer, Resource
from webhook.cluster.objects import decode_metadata
from webhook.controller.records import PODS


class Body(msgspec.Struct, frozen=True):
    uid: str
    namespace: str
    name: str
    has_spec: bool


class Reader:
    """Projects objects, and notes the names of those that were read."""

    def __init__(self, api: ApiClient, resource: Resource) -> None:
        self.read: list[str] = []
        self.informer = Informer(api, resource, self.project, lambda *_: None)

    def project(self, raw: msgspec.Raw) -> Body:
        metadata = decode_metadata(raw)
        self.read.append(metadata.name)
        return Body(metadata.uid, metadata.namespace, metadata.name, "spec" in msgspec.json.decode(raw))

    def refresh(self, namespace: str) -> list[str]:
        self.read.clear()
        self.informer.refresh(namespace)
        assert all(each.has_spec for each in self.informer.all())
        return sorted(self.read)

    @property
    def names(self) -> list[str]:
        return sorted(each.name for each in self.informer.all())


def test_only_what_has_changed_is_read(quotas: ControlPlane) -> None:
    team = Namespace(quotas)
    for name in ("stays", "changes", "goes"):
        team.pod(name)
    reader = Reader(api_client(quotas), PODS)
    assert reader.refresh(team.name) == ["changes", "goes", "stays"]
    assert reader.refresh(team.name) == []

    team.set_phase("changes", "Succeeded")
    team.delete_pod("goes")
    team.pod("comes")
    before = reader.informer.position(team.name)
    assert reader.refresh(team.name) == ["changes", "comes"]
    assert reader.names == ["changes", "comes", "stays"]
    after = reader.informer.position(team.name)
    assert after.revision > before.revision
    assert after.list_started > before.list_started

    many = [f"many-{number:02}" for number in range(FEW + 1)]
    for name in many:
        team.pod(name)
    assert reader.refresh(team.name) == sorted([*many, "changes", "comes", "stays"])


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

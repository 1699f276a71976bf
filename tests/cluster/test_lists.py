"""Lists of metadata on a real API server: what they show without any watch, and which bodies are read for it."""

import msgspec

from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import Namespace, api_client
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

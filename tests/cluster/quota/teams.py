"""ClusterGPUQuotas as people write them, and the namespaces of one, for tests."""

import time
from collections.abc import Iterable, Mapping
from typing import Any

from tests.builders import JSON
from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane
from tests.controlplane.client import Client, accepted
from tests.controlplane.gpuquota import Namespace
from webhook.configuration.documents import API_VERSION

TEAMS = f"/apis/{API_VERSION}/clustergpuquotas"
LABEL = "example.com/team"
IN_FORCE_WITHIN = 90.0


def team_document(name: str, hard: Mapping[str, Any], **spec: Any) -> JSON:
    """Return a ClusterGPUQuota, by default of the namespaces that have its name in `LABEL`."""
    namespaces = {"selector": {"matchLabels": {LABEL: name}}}
    return {
        "apiVersion": API_VERSION,
        "kind": "ClusterGPUQuota",
        "metadata": {"name": name},
        "spec": {"namespaces": namespaces, "hard": hard, **spec},
    }


class Team:
    """A ClusterGPUQuota of its own for a test, once it is granted, and so many namespaces that have its label."""

    def __init__(self, plane: ControlPlane, name: str, number: int) -> None:
        self.name = name
        self.client: Client = plane.client()
        self.namespaces = [Namespace(plane, f"{name}-{index:02}") for index in range(number)]
        for namespace in self.namespaces:
            self.label(namespace, name)

    def label(self, namespace: Namespace, team: str | None) -> None:
        """Put the namespace into this team or another one, or None."""
        path = f"/api/v1/namespaces/{namespace.name}"
        accepted(self.client.patch(path, {"metadata": {"labels": {LABEL: team}}}))

    def grant(self, hard: Mapping[str, Any], **spec: Any) -> None:
        accepted(self.client.post(TEAMS, team_document(self.name, hard, **spec)))

    def change(self, spec: Mapping[str, Any]) -> None:
        accepted(self.client.patch(f"{TEAMS}/{self.name}", {"spec": spec}))

    def delete(self) -> None:
        accepted(self.client.delete(f"{TEAMS}/{self.name}"))

    def has(self, namespace: Namespace) -> bool:
        """Whether the namespace is decided by the ledgers of the team, and counted."""
        team = namespace.store.read_team(self.name, 10)
        ledger = None if team is None else team.team_ledgers.of(namespace.name)
        return ledger is not None and ledger.used is not None and not ledger.uncounted

    def lacks(self, namespace: Namespace) -> bool:
        """Whether the ledger of the namespace has moved to its own object, or to another team."""
        team = namespace.store.read_team(self.name, 10)
        return team is None or namespace.name not in team.team_ledgers.ledgers

    def await_force(self, members: Iterable[Namespace] | None = None) -> float:
        """Return when the ledgers of all members were seen to have the present spec, and to be counted in full."""
        expected = list(self.namespaces if members is None else members)

        def in_force() -> bool:
            metadata = self.client.get(f"{TEAMS}/{self.name}")[1]["metadata"]
            found = self.namespaces[0].store.read_team(self.name, 10)
            if found is None or found.team_ledgers.team.generation != metadata["generation"]:
                return False
            return found.team_ledgers.team.uid == metadata["uid"] and all(map(self.has, expected))

        assert eventually(in_force, seconds=IN_FORCE_WITHIN), self.status()
        return time.monotonic()

    def status(self) -> Any:
        """Return what people see."""
        return self.client.get(f"{TEAMS}/{self.name}")[1].get("status")

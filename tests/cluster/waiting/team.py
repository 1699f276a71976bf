"""Namespaces that share a quota on a real API server, and a policy by which some of them deny instead of queueing."""

import itertools
from typing import Any

from tests.cluster.controllers import eventually
from tests.cluster.waiting.line import Line
from tests.controlplane import ControlPlane
from tests.controlplane.client import accepted
from webhook.configuration.documents import API_VERSION, CLUSTER_QUOTA
from webhook.quota.team_documents import team_path

DENY = """
---
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: denies}
spec:
  priority: 10
  match: {namespaces: ["*-denies"]}
  rules:
    gpu-quota: {mode: enforce}
"""
_numbers = itertools.count(1)


class Team:
    """A ClusterGPUQuota, and a namespace for each of `names`."""

    def __init__(self, plane: ControlPlane, gpus: int, *names: str, **guaranteed: int) -> None:
        self.name = f"queue-{next(_numbers)}"
        self.lines = {name: Line(plane, f"{self.name}-{name}") for name in names}
        self._path, self._client = team_path(self.name), plane.client()
        spec: Any = {"namespaces": {"names": [f"{self.name}-*"]}, "hard": {"gpus": gpus}}
        spec["guaranteed"] = {self.lines[name].name: {"gpus": amount} for name, amount in guaranteed.items()}
        body = {
            "apiVersion": API_VERSION,
            "kind": CLUSTER_QUOTA,
            "metadata": {"name": self.name},
            "spec": spec,
        }
        accepted(self._client.post(self._path.rpartition("/")[0], body))
        assert eventually(lambda: all(map(self._has, self.lines.values())), seconds=60)

    def _has(self, line: Line) -> bool:
        found = line.store.read_team(self.name, 10)
        ledger = found.team_ledgers.of(line.name) if found else None
        return ledger is not None and ledger.used is not None

    def delete(self) -> None:
        accepted(self._client.delete(self._path))


POD = {
    "containers": [{"name": "train", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
}

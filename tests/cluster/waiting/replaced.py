"""Pods that wait while their GPUQuota is replaced."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.cluster.controllers import Running, eventually
from tests.cluster.waiting.conftest import queueing
from tests.cluster.waiting.line import Line
from tests.controlplane import ControlPlane
from tests.controlplane.client import accepted
from tests.controlplane.gpuquota import install_kinds
from webhook.configuration.documents import API_VERSION, CLUSTER_QUOTA
from webhook.quota.team_documents import TEAM_PLURAL, TeamStatus, decode_team, team_path

WAITING = 12


@pytest.fixture(scope="module")
def running(plane: ControlPlane) -> Iterator[Running]:
    install_kinds(plane.client(), TEAM_PLURAL)
    with queueing(plane) as running:
        yield running


def wait_for(line: Line, gpus: int, number: int = WAITING) -> list[str]:
    """Have a pod hold these GPUs, and others wait for one each. Return their names."""
    line.pod("holder", gpus)
    assert not line.waits("holder")
    names = [f"waits-{each}" for each in range(number)]
    for name in names:
        line.pod(name)
    assert still_wait(line, names)
    return names


def still_wait(line: Line, names: list[str]) -> bool:
    return line.waiting() >= {*names}


class Team:
    """A ClusterGPUQuota of a namespace."""

    def __init__(self, line: Line, gpus: int) -> None:
        self._line, self._path = line, team_path(line.name)
        spec: Any = {"namespaces": {"names": [line.name]}, "hard": {"gpus": gpus}}
        self._body = {
            "apiVersion": API_VERSION,
            "kind": CLUSTER_QUOTA,
            "metadata": {"name": line.name},
            "spec": spec,
        }
        self.create()
        assert eventually(self._counts, seconds=60)

    def create(self) -> None:
        accepted(self._line.client.post(self._path.rpartition("/")[0], self._body))

    def delete(self) -> None:
        accepted(self._line.client.delete(self._path))

    def status(self) -> TeamStatus:
        return decode_team(msgspec.json.encode(self._line.client.get(self._path)[1])).status

    def _counts(self) -> bool:
        found = self._line.store.read_team(self._line.name, 10)
        ledger = found.team_ledgers.of(self._line.name) if found else None
        return ledger is not None and ledger.used is not None

"""Bursts of GPU pods in a namespace, and what the replicas that decide on them count meanwhile."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from tests.bench.clients import NUMBER
from tests.bench.figures import API_SERVER, CONTROLLER, ETCD, WEBHOOK
from tests.bench.installation import Installation
from tests.bench.measure import Sample, measure, plan
from tests.bench.pods import model_server
from tests.controlplane import ControlPlane
from tests.controlplane.replicas import Replicas

WARM_UP = 64
"""Creations before a subject is measured: connections, the Go runtime's caches and ours."""


class Decisions(NamedTuple):
    """What a quota decided: requests, batches, writes of ledgers, and writes that met another's."""

    requests: float
    batches: float
    writes: float
    conflicts: float

    @classmethod
    def of(cls, serving: Replicas) -> Self:
        names = ("batch_size_sum", "batch_size_count", "write_seconds_count", "conflicts_total")
        return cls(*(sum(one.total(f"gpu_admission_quota_{name}") for one in serving.each) for name in names))

    def since(self, before: Self) -> Self:
        return type(self)(*(now - then for now, then in zip(self, before, strict=True)))

    @property
    def per_batch(self) -> float:
        return self.requests / self.batches if self.batches else 0.0

    def per_write(self, creates: int) -> float:
        """Return the creations for each write of the ledger."""
        made = self.writes - self.conflicts
        return creates / made if made else 0.0

    @property
    def conflict_share(self) -> float:
        return self.conflicts / self.writes if self.writes else 0.0


def servers(
    plane: ControlPlane, installed: Installation | None = None, serving: Replicas | None = None
) -> dict[str, list[int]]:
    """Return the processes whose CPU a burst counts for, by server."""
    found = {name: [plane.pids[name]] for name in (API_SERVER, ETCD)}
    if serving is not None:
        found[WEBHOOK] = [plane.pids[each.name] for each in serving.each]
    if installed is not None and installed.controller is not None:
        found[CONTROLLER] = [installed.controller.pid]
    return found


def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def create(
    plane: ControlPlane,
    namespace: str,
    counted: Mapping[str, Sequence[int]],
    *,
    clients: int,
    creates: int,
    gpus: int = 1,
    turns: int = 1,
    differ: bool = False,
) -> Sample:
    """Create so many pods of so many GPUs; TURN in `namespace` goes round `turns` of them.

    They differ in their name and in an annotation that no rule reads; if they `differ`, also in an argument, which rules read.
    """
    body = model_server(f"model-server-{NUMBER}", gpus=gpus)
    body["metadata"]["annotations"] = {"batch.kubernetes.io/job-completion-index": NUMBER}
    if differ:
        body["spec"]["containers"][0]["args"].append(f"--seed={NUMBER}")
    wanted = plan(plane, pods(namespace), body, requests=creates, clients=clients, turns=turns)
    return measure(wanted, counted, want=201)


def clear(plane: ControlPlane, namespace: str) -> None:
    """Delete all pods of a namespace."""
    plane.client().delete(pods(namespace), {"gracePeriodSeconds": 0})

"""Kueue beside us: its queues, namespaces that use them, and objects that it admits."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from tests.builders import JSON
from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane
from tests.neighbours.build import JOBSET, KUBERAY, KUEUE
from tests.neighbours.installation import Installation, installed
from tests.neighbours.kubelet import LABELS, TAINT
from tests.neighbours.tenant import Seen, Stage, Tenant, staged, watch

API = "kueue.x-k8s.io/v1beta2"
QUEUE = {"kueue.x-k8s.io/queue-name": "queue"}
ITS_GATES = ["kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology"]


def made(kind: str, name: str, spec: JSON) -> JSON:
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec}


QUOTAS = [{"name": name, "nominalQuota": "1P"} for name in ("cpu", "memory", "nvidia.com/gpu")]
CLUSTER = [
    made(
        "ResourceFlavor",
        "t4",
        {"nodeLabels": LABELS, "tolerations": [{"key": TAINT["key"], "operator": "Exists"}]},
    ),
    made(
        "ClusterQueue",
        "queue",
        {
            "namespaceSelector": {},
            "resourceGroups": [
                {
                    "coveredResources": [each["name"] for each in QUOTAS],
                    "flavors": [{"name": "t4", "resources": QUOTAS}],
                }
            ],
        },
    ),
]


class Queueing(Tenant):
    """A namespace with a queue of Kueue, too."""

    def __init__(self, plane: ControlPlane, gpus: int | None = None, name: str = "") -> None:
        super().__init__(plane, gpus, name)
        self.apply(made("LocalQueue", "queue", {"clusterQueue": "queue"}))

    def hold(self, policy: str) -> None:
        self.change("localqueue", "queue", {"stopPolicy": policy})

    def is_admitted(self) -> bool:
        """Whether Kueue soon admits all that is in its queue."""

        def admitted() -> bool:
            listed = self.client.get(f"/apis/{API}/namespaces/{self.name}/workloads")[1]["items"]
            return bool(listed) and all(_is(each, "Admitted") for each in listed)

        return eventually(admitted)


def _is(workload: JSON, kind: str) -> bool:
    conditions = workload.get("status", {}).get("conditions", [])
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)


@contextmanager
def kueue_stage(plane: ControlPlane) -> Iterator[Stage]:
    """Run Kueue with the controllers whose objects it admits."""

    def sampled(kueue: Installation) -> Seen:
        plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(CLUSTER))
        return watch(kueue, Queueing(plane), job("sample", 2), lambda tenant: len(tenant.pods()) == 2)

    with (
        installed(plane, JOBSET, host=12),
        installed(plane, KUBERAY, host=13),
        staged(plane, KUEUE, sampled) as stage,
    ):
        yield stage


def job(name: str, pods: int, *, labels: JSON | None = None) -> JSON:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": QUEUE if labels is None else labels},
        "spec": {"parallelism": pods, "completions": pods, "backoffLimit": 0, "template": {"spec": spec(1)}},
    }


def spec(gpus: int) -> JSON:
    limits = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": str(gpus)}
    return {
        "containers": [{"name": "train", "image": "x", "resources": {"limits": limits}}],
        "restartPolicy": "Never",
    }


def pod(name: str, gpus: int = 1) -> JSON:
    return queued({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec(gpus)})


def queued(document: JSON) -> JSON:
    document["metadata"]["labels"] = QUEUE
    return document


def group(number: int) -> list[JSON]:
    """Return the plain pods of a group."""
    pods = [pod(f"one-{index}") for index in range(number)]
    for each in pods:
        each["metadata"]["labels"] = {**QUEUE, "kueue.x-k8s.io/pod-group-name": "group"}
        each["metadata"]["annotations"] = {"kueue.x-k8s.io/pod-group-total-count": str(number)}
    return pods


def replicated(kind: str, pods: int, **fields: object) -> JSON:
    """Return a Deployment or a StatefulSet."""
    template = {"metadata": {"labels": {"app": "one"}}, "spec": {**spec(1), "restartPolicy": "Always"}}
    replicas = {"replicas": pods, "selector": {"matchLabels": {"app": "one"}}, "template": template}
    return queued(
        {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "one"}, "spec": {**replicas, **fields}}
    )


def spec_alone(name: str) -> JSON:
    """Return a pod of nobody's queue."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec(1)}


def used(tenant: Tenant) -> dict[str, Any]:
    return {key: int(amount) for key, amount in (tenant.used() or {}).items() if amount}

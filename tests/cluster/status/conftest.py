"""An installation with scheduler and controllers, and workloads that are refused, pending or fine on it."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.builders import JSON, gpu_container
from tests.cluster.configuration import install_configuration_kinds
from tests.cluster.controllers import counting, eventually, shows
from tests.controlplane import Client, ControlPlane, create_gpu_node
from tests.controlplane.gpuquota import Namespace, install_quota_kind
from webhook.cluster.objects import CONTROLLER

RBAC = "/apis/rbac.authorization.k8s.io/v1"
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
VIDEO = {"key": "dedicated", "value": "video", "effect": "NoSchedule"}
MIG = {"name": "main", "image": "pytorch", "resources": {"limits": {"nvidia.com/mig-1g.5gb": "1"}}}
"""A slice that no 80 GB card has."""
TRAINING, SERVING = "ml-training", "serving"
TENANT, EDITOR, PIPELINE, READER = "engineer", "developer", "pipeline", "reader"
PATHS = {
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
}


@pytest.fixture(scope="package")
def cluster() -> Iterator[ControlPlane]:
    """Serve everything, with nodes of three classes; TENANT may see namespace TRAINING and nothing else, the others nothing."""
    plane = ControlPlane(controllers=True, scheduler=True)
    for user in (TENANT, EDITOR, PIPELINE, READER):
        plane.add_user(user)
    with plane:
        client = plane.client()
        install_quota_kind(client)
        install_configuration_kinds(plane)
        create_gpu_node(client, "a100-0", labels={"accelerator": "nvidia-a100-80gb"}, taints=(TAINT,))
        create_gpu_node(client, "l4-0", labels={"accelerator": "nvidia-l4"}, taints=(TAINT, VIDEO))
        t4 = {"nvidia.com/gpu": "4"}
        create_gpu_node(client, "t4-0", labels={"accelerator": "nvidia-t4"}, taints=(TAINT,), resources=t4)
        with counting(plane, host=71, lease=CONTROLLER):
            _workloads(plane)
            yield plane


def _workloads(plane: ControlPlane) -> None:
    client, team = plane.client(), Namespace(plane, TRAINING)
    Namespace(plane, SERVING)
    team.quota({"gpus": "9", "classes": {"nvidia-a100": "8"}})
    assert eventually(lambda: team.used() is not None)
    apply(client, TRAINING, stateful("fits", 6))
    assert eventually(lambda: _node_of(client, TRAINING, "fits-0") == "a100-0", seconds=30)
    assert shows(team, 6)
    for name, gpus in (("never", 16), ("over", 4)):
        apply(client, TRAINING, stateful(name, gpus))
    apply(client, TRAINING, replicated("sliced", "Deployment", MIG, replicas=2))
    apply(client, SERVING, stateful("full", 4, replicas=2))
    apply(client, SERVING, stateful("tainted", 1, "nvidia-l4"))
    apply(client, SERVING, stateful("nowhere", 1, "nvidia-h100-80gb"))
    apply(client, SERVING, stateful("gated", 1, schedulingGates=[{"name": "example.com/quota"}]))
    apply(client, SERVING, stateful("chat", 1))
    apply(client, SERVING, stateful("none", 1, replicas=0))
    template = {"spec": {"restartPolicy": "Never", "containers": [gpu_container("1", "pytorch")]}}
    apply(client, SERVING, workload("Job", "later", {"suspend": True, "template": template}))
    team.let_read(TENANT)


def _node_of(client: Client, namespace: str, pod: str) -> Any:
    return client.get(f"/api/v1/namespaces/{namespace}/pods/{pod}")[1].get("spec", {}).get("nodeName")


def on(gpu_class: str) -> JSON:
    return {"nodeSelector": {"accelerator": gpu_class}}


def stateful(
    name: str, gpus: int, gpu_class: str = "nvidia-a100-80gb", replicas: int = 1, **spec: Any
) -> JSON:
    container = gpu_container(str(gpus), "pytorch")
    return replicated(name, "StatefulSet", container, replicas, **{**on(gpu_class), **spec})


def replicated(name: str, kind: str, container: JSON, replicas: int, **spec: Any) -> JSON:
    labels = {"app": name}
    pod = {"containers": [container], **(spec or on("nvidia-a100-80gb"))}
    template = {"metadata": {"labels": labels}, "spec": pod}
    return workload(
        kind, name, {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    )


def workload(kind: str, name: str, spec: JSON) -> JSON:
    return {"kind": kind, "metadata": {"name": name}, "spec": spec}


def apply(client: Client, namespace: str, document: JSON) -> None:
    path = PATHS[document["kind"]].format(namespace)
    version = path.removeprefix("/apis/").partition("/namespaces")[0]
    status, answer = client.post(path, {"apiVersion": version, **document})
    assert status == 201, answer

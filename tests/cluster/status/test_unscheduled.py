"""What the scheduler itself says of pods that GPUs, taints and labels do not keep from a node, in the words that `why` reads."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from tests.builders import JSON
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane, create_gpu_node
from webhook.commands import main

NAMESPACE, PODS = "unscheduled", "/api/v1/namespaces/unscheduled/pods"
ZONE = "topology.kubernetes.io/zone"
APART: JSON = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "kubernetes.io/hostname"}
        ]
    }
}
SPREAD: JSON = {
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": ZONE,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "chat"}},
        }
    ]
}


def pod(name: str, gpus: int = 1, app: str = "", resources: JSON | None = None, **spec: Any) -> JSON:
    limits = {"nvidia.com/gpu": gpus, **(resources or {})} if gpus else {}
    container = {"name": "main", "image": "x", "resources": {"limits": limits}, **spec.pop("container", {})}
    return {
        "metadata": {"name": name, "labels": {"app": app}},
        "spec": {"containers": [container], **spec},
    }


def mounting(claim: str) -> JSON:
    return {"volumes": [{"name": "home", "persistentVolumeClaim": {"claimName": claim}}]}


@pytest.fixture(scope="module")
def cluster(nodes_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Serve a node with GPUs in zone b, one without in zone a, and pods on both."""
    client = nodes_plane.client()
    assert client.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})[0] == 201
    create_gpu_node(client, "gpu-b", labels={ZONE: "b"})
    create_gpu_node(client, "cpu-a", labels={ZONE: "a"}, resources={})
    of_zone = [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["a"]}]}]
    bound: JSON = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": "home"}
    claim: JSON = {
        "metadata": {"name": "home", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": bound,
    }
    unbound: JSON = {"metadata": {"name": "new"}, "spec": {**bound, "volumeName": ""}}
    claims = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"
    for each in (claim, unbound):
        each["spec"]["resources"] = {"requests": {"storage": "1Gi"}}
        assert client.post(claims, each)[0] == 201
    uid = client.get(f"{claims}/home")[1]["metadata"]["uid"]
    volume = {
        "metadata": {"name": "home"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "example.com", "volumeHandle": "home"},
            "claimRef": {"namespace": NAMESPACE, "name": "home", "uid": uid},
            "nodeAffinity": {"required": {"nodeSelectorTerms": of_zone}},
        },
    }
    assert client.post("/api/v1/persistentvolumes", volume)[0] == 201
    on_host: JSON = {"hostNetwork": True, "container": {"ports": [{"containerPort": 8000, "hostPort": 8000}]}}
    there: JSON = {"affinity": APART, **on_host}
    for each in (
        pod("web", 0, "web", nodeName="cpu-a"),
        pod("server", 1, "web", nodeName="gpu-b", **there),
        pod("chat", 1, "chat", nodeName="gpu-b"),
    ):
        assert client.post(PODS, each)[0] == 201
    yield nodes_plane
    client.delete("/api/v1/persistentvolumes/home")


def explained(plane: ControlPlane, name: str) -> list[str]:
    arguments = ["why", f"pod/{name}", "-n", NAMESPACE, "--kubeconfig", str(plane.kubeconfig()), "-o", "json"]
    said = json.loads(CliRunner().invoke(main, arguments).stdout)
    return [each["message"].partition(", but ")[2] or each["message"] for each in said["reasons"][1:]]


@cases(
    ("asking", "want"),
    a_volume_in_a_zone_without_gpus=(
        pod("a-volume", **mounting("home")),
        "the volume of PersistentVolumeClaim home is not there",
    ),
    a_claim_that_has_no_volume=(
        pod("no-volume", **mounting("new")),
        "PersistentVolumeClaim new has no volume yet",
    ),
    no_such_claim=(pod("no-claim", **mounting("models")), "PersistentVolumeClaim models is not there"),
    spread_over_a_zone_without_gpus=(
        pod("spread", 1, "chat", **SPREAD),
        "spec.topologySpreadConstraints count nodes without free GPUs, too",
    ),
    apart_from_a_pod=(
        pod("apart", affinity=APART),
        "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution keeps it from a pod there",
    ),
    kept_away_by_a_pod=(
        pod("kept-away", 1, "web"),
        "the podAntiAffinity of a pod there keeps it away",
    ),
    a_port_of_the_host=(
        pod("port", container={"ports": [{"containerPort": 80, "hostPort": 8000}]}),
        "another pod has its host ports",
    ),
    more_memory_than_the_node_has=(
        pod("memory", resources={"memory": "600Gi"}),
        "the only node with GPUs cannot take it: Node gpu-b has 512Gi memory in all, and the pod requests 600Gi",
    ),
)
def test_what_the_scheduler_says_is_understood(cluster: ControlPlane, asking: JSON, want: str) -> None:
    assert cluster.client().post(PODS, asking)[0] == 201
    name = asking["metadata"]["name"]
    assert eventually(lambda: want in explained(cluster, name)), explained(cluster, name)

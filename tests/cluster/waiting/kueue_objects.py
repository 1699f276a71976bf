"""What Kueue makes, and a second client makes in its place: the kinds, Workloads, and pods of Jobs."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from tests.builders import JSON
from tests.cluster.controllers import eventually
from tests.cluster.quota.quotas import gpu_pod
from tests.cluster.waiting.line import Line
from tests.controlplane import ControlPlane
from tests.controlplane.client import Client, accepted

UID = "0f9c1f60-1111-4222-8333-44445555666{}"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
API = "/apis/kueue.x-k8s.io/v1beta2"
SCOPES = {"Workload": "Namespaced", "ResourceFlavor": "Cluster"}


@contextmanager
def kinds_of_kueue(plane: ControlPlane) -> Iterator[None]:
    client = plane.client()
    for kind in SCOPES:
        accepted(client.post(DEFINITIONS, definition(kind)))
    assert eventually(partial(_are_served, client, 200))
    yield
    for kind in SCOPES:
        client.delete(f"{DEFINITIONS}/{kind.lower()}s.kueue.x-k8s.io")
    assert eventually(partial(_are_served, client, 404))


def _are_served(client: Client, status: int) -> bool:
    return all(client.get(f"{API}/{kind.lower()}s")[0] == status for kind in SCOPES)


def definition(kind: str) -> JSON:
    """Return a kind, with the versions and the scope of Kueue's own, and without its schema."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    versions: list[JSON] = [
        {
            "name": name,
            "served": True,
            "storage": name == "v1beta2",
            "schema": {"openAPIV3Schema": schema},
            "subresources": {"status": {}},
        }
        for name in ("v1beta1", "v1beta2")
    ]
    plural = f"{kind.lower()}s"
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    spec = {"group": "kueue.x-k8s.io", "scope": SCOPES[kind], "names": names, "versions": versions}
    annotations = {"api-approved.kubernetes.io": "unapproved, for a test"}
    return {"metadata": {"name": f"{plural}.kueue.x-k8s.io", "annotations": annotations}, "spec": spec}


def workload(line: Line, name: str, uid: str, *conditions: str, gpus: int = 0) -> None:
    """Do what Kueue does for a Job: make its Workload, and say what has come true of it, and of how many GPUs."""
    path = f"{API}/namespaces/{line.name}/workloads"
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": True}
    metadata = {"name": name, "labels": {"kueue.x-k8s.io/job-uid": uid}, "ownerReferences": [owner]}
    body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": metadata}
    accepted(line.client.post(path, body))
    if conditions:
        accepted(line.client.patch(f"{path}/{name}/status", {"status": said(*conditions, gpus=gpus)}))


def said(*conditions: str, gpus: int = 0) -> JSON:
    fixed = {"status": "True", "reason": "x", "message": "", "lastTransitionTime": "2026-11-22T08:02:00Z"}
    usage = {"name": "main", "count": max(gpus, 1), "resourceUsage": {"nvidia.com/gpu": str(gpus)}}
    return {
        "conditions": [{"type": each, **fixed} for each in conditions],
        "admission": {"podSetAssignments": [usage]},
    }


def pod_of_job(line: Line, name: str, uid: str = "", gpus: int = 1, **labels: str) -> tuple[int, Any]:
    owners = [{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": uid, "controller": True}]
    metadata = {"name": name, "labels": {"kueue.x-k8s.io/podset": "main", **labels}}
    return line.create(
        gpu_pod(name, gpus) | {"metadata": metadata | ({"ownerReferences": owners} if uid else {})}
    )

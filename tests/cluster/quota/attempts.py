"""Attempts to get more GPUs, as a tenant, a lead of a team or a portal makes them, by the API."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.builders import JSON, manifest
from tests.cluster.controllers import eventually
from tests.cluster.quota.quotas import PODS, gpu_pod
from tests.cluster.quota.referee import GPU
from tests.cluster.quota.teams import LABEL
from tests.controlplane.client import JSON_PATCH, Client, accepted

TEAM = "attacked"
A, B, C, AGAIN, OUTSIDE = "attacked-a", "attacked-b", "chosen-by-label", "chosen-again", "outside"
"""The first four are in the team, two by name and two by label."""
NEW = ("attacked-new", "new-by-label", "new-elsewhere")
"""What some attempts create."""
ALL = (A, B, C, AGAIN, OUTSIDE, *NEW)

Answer = tuple[int, Any]
Attempt = Callable[[Client], Answer]


def create(client: Client, namespace: str, name: str, gpus: int = 1, **spec: Any) -> Answer:
    return client.post(PODS.format(namespace), gpu_pod(name, gpus, **spec))


def pod(
    gpus: int = 1, resource: str = GPU, *, name: str = "more", metadata: JSON | None = None, **spec: Any
) -> Attempt:
    """Return an attempt to create a pod in the first namespace."""
    body = gpu_pod(name, gpus, resource, **spec)
    body["metadata"] |= metadata or {}
    return lambda client: client.post(PODS.format(A), body)


def annotated(annotations: JSON) -> Attempt:
    """Return an attempt to create a pod that requests no GPU but in these annotations."""
    container = {"name": "train", "image": "trainer"}
    body = {"metadata": {"name": "more", "annotations": annotations}, "spec": {"containers": [container]}}
    return lambda client: client.post(PODS.format(A), body)


def in_containers(**kinds: Any) -> Attempt:
    """Return an attempt to create a pod whose one container without GPUs stands beside these."""
    body = {"metadata": {"name": "more"}, "spec": {"containers": [{"name": "main", "image": "x"}], **kinds}}
    return lambda client: client.post(PODS.format(A), body)


def workload(kind: str, **spec: Any) -> Attempt:
    """Return an attempt to have the pods of a workload created."""
    group, plural = ("apps/v1", "deployments") if kind == "Deployment" else ("batch/v1", "jobs")
    template = gpu_pod("") | {"metadata": {"labels": {"app": "more"}}}
    template["spec"] |= {"restartPolicy": "Never"} if kind == "Job" else {}
    body = manifest(group, kind, "more", {"template": template, **spec})

    def attempt(client: Client) -> Answer:
        answer = client.post(f"/apis/{group}/namespaces/{A}/{plural}", body)
        time.sleep(1.5)  # so that its controller has tried
        return answer

    return attempt


def labelled(namespace: str, labels: JSON, subresource: str = "") -> Attempt:
    """Return an attempt to change the labels of a namespace."""
    return patch(f"/api/v1/namespaces/{namespace}{subresource}", {"metadata": {"labels": labels}})


def unlabelled(namespace: str) -> Attempt:
    """Return an attempt to remove all labels of a namespace."""
    operations = [{"op": "remove", "path": "/metadata/labels"}]
    path = f"/api/v1/namespaces/{namespace}"
    return lambda client: client.patch(path, operations, content_type=JSON_PATCH)


def replaced(namespace: str, subresource: str = "") -> Attempt:
    """Return an attempt to write the namespace again, without a label of ours."""

    def attempt(client: Client) -> Answer:
        path = f"/api/v1/namespaces/{namespace}"
        body = client.get(path)[1]
        body["metadata"]["labels"].pop(LABEL, None)
        return client.put(path + subresource, body)

    return attempt


def namespace(name: str = "", *, generate: str = "", team: str = "") -> Attempt:
    """Return an attempt to create a namespace, with the label of a team."""
    metadata = {"name": name, "generateName": generate, "labels": {LABEL: team} if team else {}}
    return lambda client: client.post("/api/v1/namespaces", {"metadata": metadata})


def post(path: str, body: Any) -> Attempt:
    return lambda client: client.post(path, body)


def patch(path: str, body: Any) -> Attempt:
    return lambda client: client.patch(path, body)


def delete(path: str) -> Attempt:
    return lambda client: client.delete(path)


def made_again(client: Client) -> Answer:
    """Delete a namespace of the team, and create it again without its label."""
    path = "/api/v1/namespaces"
    accepted(client.delete(f"{path}/{AGAIN}"))
    assert eventually(lambda: client.get(f"{path}/{AGAIN}")[0] == 404)
    return client.post(path, {"metadata": {"name": AGAIN}})


def at_once(client: Client) -> Answer:
    """Ask in all namespaces at the same time, for a pod of the same name."""
    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda name: create(client, name, "more"), [A, B, C] * 8))
    return max(answers, key=lambda answer: answer[0] == 201)


def grown(client: Client) -> Answer:
    """Resize a pod that runs."""
    resources = {"limits": {GPU: "3"}, "requests": {GPU: "3"}}
    change = {"spec": {"containers": [{"name": "train", "resources": resources}]}}
    kind = "application/strategic-merge-patch+json"
    return client.patch(f"{PODS.format(A)}/train/resize", change, content_type=kind)

"""Faults of an installation: each breaks one thing, gives the arguments of doctor, and mends it again."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.controllers import eventually
from tests.cluster.doctor.installation import TAINT, TEAM, Installation, cluster
from tests.controlplane import JSON_PATCH, Client, create_gpu_node
from tests.controlplane.webhook import Webhook

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
MUTATING = f"{ADMISSION}/mutatingwebhookconfigurations/zz-gpu-admission"
VALIDATING = f"{ADMISSION}/validatingwebhookconfigurations/zz-gpu-admission"

Fault = Callable[[Installation], AbstractContextManager[tuple[str | Path, ...]]]


def patched(path: str, *operations: tuple[str, str, Any]) -> Fault:
    """Change an object by a JSON patch, and put back what it was."""

    @contextmanager
    def fault(installation: Installation) -> Iterator[tuple[str | Path, ...]]:
        before = installation.client.get(path)[1]
        patch = [{"op": op, "path": at, "value": value} for op, at, value in operations]
        status, answer = installation.client.patch(path, patch, content_type=JSON_PATCH)
        assert status == 200, answer
        try:
            yield ()
        finally:
            _put_back(installation.client, path, before)

    return fault


def patched_entry(path: str, name: str, *operations: tuple[str, str, Any]) -> Fault:
    """Change the entry of that name in a webhook configuration."""

    @contextmanager
    def fault(installation: Installation) -> Iterator[tuple[str | Path, ...]]:
        entries = [entry["name"] for entry in installation.client.get(path)[1]["webhooks"]]
        at = f"/webhooks/{entries.index(name)}"
        with patched(path, *((op, at + where, value) for op, where, value in operations))(installation):
            yield ()

    return fault


def _put_back(client: Client, path: str, before: dict[str, Any]) -> None:
    before["metadata"]["resourceVersion"] = client.get(path)[1]["metadata"]["resourceVersion"]
    status, answer = client.put(path, before)
    assert status == 200, answer


def deleted(path: str) -> Fault:
    @contextmanager
    def fault(installation: Installation) -> Iterator[tuple[str | Path, ...]]:
        before = installation.client.get(path)[1]
        assert installation.client.delete(path)[0] == 200
        try:
            yield ()
        finally:
            for field in ("resourceVersion", "uid"):
                before["metadata"].pop(field)
            status, answer = installation.client.post(path.rpartition("/")[0], before)
            assert status == 201, answer

    return fault


def created(path: str, document: dict[str, Any], *arguments: str) -> Fault:
    @contextmanager
    def fault(installation: Installation) -> Iterator[tuple[str | Path, ...]]:
        status, answer = installation.client.post(path, document)
        assert status == 201, answer
        try:
            yield arguments
        finally:
            name = f"{path}/{document['metadata']['name']}"
            assert installation.client.delete(name, {"gracePeriodSeconds": 0})[0] in {200, 202}

    return fault


def node(name: str, *, labels: dict[str, str], taints: tuple[dict[str, str], ...] = (TAINT,)) -> Fault:
    @contextmanager
    def fault(installation: Installation) -> Iterator[tuple[str | Path, ...]]:
        create_gpu_node(installation.client, name, labels=labels, taints=taints)
        try:
            yield ()
        finally:
            installation.client.delete(f"/api/v1/nodes/{name}")

    return fault


def documents(*given: dict[str, Any]) -> Fault:
    @contextmanager
    def fault(installation: Installation) -> Iterator[tuple[str | Path, ...]]:
        yield "--config", installation.configuration(*given)

    return fault


@contextmanager
def nothing(_: Installation) -> Iterator[tuple[str | Path, ...]]:
    """Break nothing more: what another fault broke is found twice."""
    yield ()


def policy(**spec: Any) -> dict[str, Any]:
    return {"kind": "GPUPolicy", "metadata": {"name": "default"}, "spec": spec}


def deployment(name: str, annotations: dict[str, str] | None = None, **spec: Any) -> Fault:
    container = {"name": "a", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    template = {
        "metadata": {"labels": {"app": name}, "annotations": annotations or {}},
        "spec": {"containers": [container], **spec},
    }
    document = {
        "metadata": {"name": name, "namespace": TEAM},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": template},
    }
    return created(f"/apis/apps/v1/namespaces/{TEAM}/deployments", document)


@contextmanager
def webhook_down(installation: Installation) -> Iterator[tuple[str | Path, ...]]:
    installation.webhook.stop()
    try:
        yield ()
    finally:
        installation.webhook.start()


@contextmanager
def any_caller(installation: Installation) -> Iterator[tuple[str | Path, ...]]:
    installation.webhook.stop()
    try:
        with Webhook(installation.plane, arguments=cluster(installation.plane)):
            yield ()
    finally:
        installation.webhook.start()


@contextmanager
def broken_client_ca(installation: Installation) -> Iterator[tuple[str | Path, ...]]:
    file = installation.plane.callers_ca
    before = file.read_bytes()
    file.write_text("-----BEGIN")
    try:
        assert eventually(lambda: "keeping the client CA" in installation.webhook.log())
        yield ()
    finally:
        file.write_bytes(before)


@contextmanager
def controller_down(installation: Installation) -> Iterator[tuple[str | Path, ...]]:
    installation.plane.processes.terminate("controller", grace=30)
    try:
        yield ()
    finally:
        installation.controller.start()


@contextmanager
def excluded_team(installation: Installation) -> Iterator[tuple[str | Path, ...]]:
    at = "/webhooks/0/namespaceSelector/matchExpressions/0/values/-"
    pod = {
        "metadata": {"name": "trainer"},
        "spec": {
            "containers": [{"name": "a", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
        },
    }
    with (
        created(f"/api/v1/namespaces/{TEAM}/pods", pod)(installation),
        patched(MUTATING, ("add", at, TEAM))(installation),
    ):
        yield ()

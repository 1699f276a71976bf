"""Faults of an installation, each with what repairs it."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.cluster.doctor.installation import TAINT, Installation
from tests.controlplane import JSON_PATCH, accepted, create_gpu_node

API = "/apis/gpu-admission.dev/v1alpha1"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
MUTATING = f"{ADMISSION}/mutatingwebhookconfigurations/zz-gpu-admission"
VALIDATING = f"{ADMISSION}/validatingwebhookconfigurations/zz-gpu-admission"
Arguments = tuple[str | Path, ...]
Fault = Callable[[Installation, ExitStack], Arguments]
"""Breaks one thing, pushes what repairs it, and returns arguments of doctor."""


def patched(path: str, *operations: tuple[str, str, Any]) -> Fault:
    """Change an object by a JSON patch, and put back what it was."""

    def fault(installation: Installation, repairs: ExitStack) -> Arguments:
        client = installation.client
        before = client.get(path)[1]
        patch = [{"op": op, "path": at, "value": value} for op, at, value in operations]
        accepted(client.patch(path, patch, content_type=JSON_PATCH))

        def put_back() -> None:
            before["metadata"]["resourceVersion"] = client.get(path)[1]["metadata"]["resourceVersion"]
            accepted(client.put(path, before))

        repairs.callback(put_back)
        return ()

    return fault


def patched_entry(path: str, name: str, op: str, where: str, value: Any) -> Fault:

    def fault(installation: Installation, repairs: ExitStack) -> Arguments:
        entries = [entry["name"] for entry in installation.client.get(path)[1]["webhooks"]]
        return patched(path, (op, f"/webhooks/{entries.index(name)}{where}", value))(installation, repairs)

    return fault


def deleted(path: str) -> Fault:
    def fault(installation: Installation, repairs: ExitStack) -> Arguments:
        before = installation.client.get(path)[1]
        assert installation.client.delete(path)[0] == 200
        for field in ("resourceVersion", "uid"):
            before["metadata"].pop(field)
        repairs.callback(lambda: accepted(installation.client.post(path.rpartition("/")[0], before)))
        return ()

    return fault


def created(path: str, document: dict[str, Any]) -> Fault:
    def fault(installation: Installation, repairs: ExitStack) -> Arguments:
        accepted(installation.client.post(path, document))
        name = f"{path}/{document['metadata']['name']}"
        repairs.callback(installation.client.delete, name, {"gracePeriodSeconds": 0})
        return ()

    return fault


def node(name: str, *, labels: dict[str, str], taints: tuple[dict[str, str], ...] = (TAINT,)) -> Fault:
    def fault(installation: Installation, repairs: ExitStack) -> Arguments:
        create_gpu_node(installation.client, name, labels=labels, taints=taints)
        repairs.callback(installation.client.delete, f"/api/v1/nodes/{name}")
        return ()

    return fault


def documents(*given: dict[str, Any]) -> Fault:
    return lambda installation, _: ("--config", installation.configuration(*given))


def nothing(_installation: Installation, _mend: ExitStack) -> Arguments:
    """Break nothing more: what another fault broke is found twice."""
    return ()


def policy(**spec: Any) -> dict[str, Any]:
    return {"kind": "GPUPolicy", "metadata": {"name": "default"}, "spec": spec}

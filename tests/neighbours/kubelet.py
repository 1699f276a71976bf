"""A kubelet for all nodes, which are only objects: what is bound to one runs and is ready, and what is deleted ends."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.builders import JSON
from tests.controlplane import ControlPlane, create_gpu_node
from tests.controlplane.client import Client

LOOK_EVERY = 0.1
GPUS = 256  # more than the tests of a file use together
ROOM = {"cpu": "1k", "memory": "16Ti", "ephemeral-storage": "16Ti"}
LABELS = {"accelerator": "nvidia-t4"}
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


@contextmanager
def running_pods(plane: ControlPlane) -> Iterator[None]:
    """Have two nodes, one of them with GPUs and the usual taint, and run what the scheduler binds to them."""
    client, stopping = plane.client(), threading.Event()
    create_gpu_node(
        client, "gpus", labels=LABELS, taints=[TAINT], resources={**ROOM, "nvidia.com/gpu": str(GPUS)}
    )
    create_gpu_node(client, "cpus", resources=ROOM)

    def run() -> None:
        while not stopping.wait(LOOK_EVERY):
            for pod in client.get("/api/v1/pods")[1].get("items", []):
                if pod["spec"].get("nodeName"):
                    _run(client, pod)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    stopping.set()
    thread.join(30)


def _run(client: Client, pod: Any) -> None:
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
    if metadata.get("deletionTimestamp"):
        client.delete(path, {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}})
    elif pod["status"]["phase"] == "Pending":
        client.patch(f"{path}/status", {"status": _status(pod, "Running")})


def ended(client: Client, namespace: str, name: str, phase: str, code: int) -> None:
    """Report that the pod has ended, each of its containers with the exit code."""
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    pod = client.get(path)[1]
    state = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
    assert client.patch(f"{path}/status", {"status": _status(pod, phase, state)})[0] == 200


def _status(pod: JSON, phase: str, state: JSON | None = None) -> JSON:
    is_ready = phase == "Running"
    conditions = [
        {"type": kind, "status": str(is_ready)}
        for kind in ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
    ]
    containers = [
        {
            "name": each["name"],
            "image": each["image"],
            "imageID": "",
            "ready": is_ready,
            "started": is_ready,
            "restartCount": 0,
            "state": state or {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        }
        for each in pod["spec"]["containers"]
    ]
    return {
        "phase": phase,
        "conditions": conditions,
        "containerStatuses": containers,
        "podIP": "10.0.0.1",
        "podIPs": [{"ip": "10.0.0.1"}],
        "startTime": "2026-01-01T00:00:00Z",
    }

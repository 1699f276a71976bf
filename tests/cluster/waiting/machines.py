"""What the controllers of Kubernetes need to go on: a node, and somebody who runs the pods that are bound to it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster.waiting.line import Line
from tests.controlplane import ControlPlane, create_gpu_node
from webhook.configuration.documents import API_VERSION

NODE = "waiting-node"
TAINT = {"key": "waiting", "value": "tests", "effect": "NoSchedule"}
TOLERATIONS = [{"key": "waiting", "operator": "Exists"}, {"key": "nvidia.com/gpu", "operator": "Exists"}]
LOOK_EVERY = 0.1


@contextmanager
def node(plane: ControlPlane) -> Iterator[None]:
    """Have a node with 64 GPUs, on which only pods with TOLERATIONS run."""
    create_gpu_node(plane.client(), NODE, taints=[TAINT], resources={"nvidia.com/gpu": "64"})
    yield
    plane.client().delete(f"/api/v1/nodes/{NODE}")


@contextmanager
def running_pods(line: Line) -> Iterator[None]:
    """Report the bound pods of a namespace as ready, and end those that are deleted, as a kubelet does."""
    stopping = threading.Event()

    def run() -> None:
        while not stopping.wait(LOOK_EVERY):
            for pod in line.client.get(line.path("pods"))[1].get("items", []):
                if pod["spec"].get("nodeName"):
                    _run(line, pod)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    stopping.set()
    thread.join(30)


def _run(line: Line, pod: Any) -> None:
    path = line.path("pods", pod["metadata"]["name"])
    if pod["metadata"].get("deletionTimestamp"):
        line.client.delete(path, {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}})
    elif pod["status"]["phase"] == "Pending":
        ready = {"type": "Ready", "status": "True"}
        line.client.patch(f"{path}/status", {"status": {"phase": "Running", "conditions": [ready]}})


HALF_T4 = {
    "apiVersion": API_VERSION,
    "kind": "GPUClass",
    "metadata": {"name": "nvidia-t4"},
    "spec": {
        "family": "nvidia-t4",
        "memoryGiB": 16,
        "nodeLabels": [{"key": "accelerator", "values": ["nvidia-t4"]}],
        "equivalents": {"nvidia.com/gpu": "1/2"},
    },
}

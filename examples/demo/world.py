"""What the demo needs around it: a control plane, fake GPU nodes, the webhook, and bounded waiting."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.controlplane import ControlPlane, create_gpu_node
from tests.controlplane.webhook import Webhook

ROOT = Path(__file__).parents[2]
NODES = ROOT / "examples" / "nodes" / "nodes.yaml"
POLICIES = ROOT / "examples" / "policies"
SERVING = "ml-serving"
WAIT_SECONDS = 30.0


class DemoFailed(RuntimeError):  # noqa: N818 - reads as what it is
    """A wait timed out; the message names the condition."""


@contextmanager
def control_plane(say: Callable[[str], object]) -> Iterator[ControlPlane]:
    """Run a control plane with controllers and scheduler, and report each component as it starts."""
    plane = ControlPlane(controllers=True, scheduler=True)
    started = time.monotonic()
    up = threading.Event()

    def report_progress() -> None:
        reported: set[str] = set()
        while not up.wait(0.1):
            processes = getattr(plane, "processes", None)  # there once the plane has begun to start
            for name in processes.pids if processes else ():
                if name not in reported:
                    reported.add(name)
                    say(f"{time.monotonic() - started:4.1f} s  starting {name}")

    progress = threading.Thread(target=report_progress, daemon=True)
    progress.start()
    try:
        plane.start()
    finally:
        up.set()
        progress.join()
    try:
        say(f"{time.monotonic() - started:4.1f} s  all ready")
        yield plane
    finally:
        plane.stop()


def create_nodes(plane: ControlPlane) -> None:
    """Create the nodes of examples/nodes and the namespace of the serving team."""
    for node in yaml.safe_load_all(NODES.read_text()):
        create_gpu_node(
            plane.client(),
            node["metadata"]["name"],
            labels=node["metadata"]["labels"],
            taints=node["spec"]["taints"],
            resources=node["status"]["capacity"],
        )
    plane.kubectl("create", "namespace", SERVING)


@contextmanager
def registered_webhook(plane: ControlPlane) -> Iterator[Webhook]:
    """Run the webhook with examples/policies, install deploy/, and yield once the API server calls it."""
    webhook = Webhook(plane, config=POLICIES)
    try:
        webhook.start()
        webhook.register()
        yield webhook
    finally:
        if webhook.name in plane.pids:
            webhook.stop()


def pods(plane: ControlPlane, namespace: str, selector: str) -> list[dict[str, Any]]:
    """Return the pods of a namespace that a label selector fits."""
    status, listed = plane.client().get(f"/api/v1/namespaces/{namespace}/pods", {"labelSelector": selector})
    if status != 200:  # noqa: PLR2004 - HTTP OK
        raise DemoFailed(f"listing pods of {namespace} was answered with {status}")
    items: list[dict[str, Any]] = listed["items"]
    return items


def wait_until_bound(plane: ControlPlane, namespace: str, selector: str, count: int) -> None:
    """Wait until `count` pods have a node."""

    def bound() -> bool:
        found = pods(plane, namespace, selector)
        return len(found) == count and all(pod["spec"].get("nodeName") for pod in found)

    wait_for(f"{count} pods with {selector} in namespace {namespace} to get a node", bound)


def wait_for(what: str, holds: Callable[[], bool]) -> None:
    """Wait for a condition at most `WAIT_SECONDS`; raises `DemoFailed` with its name after that."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise DemoFailed(f"waited {WAIT_SECONDS:.0f} s for {what}")
        time.sleep(0.1)

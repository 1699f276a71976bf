"""What is let into the line and then never stored does not wait, and what is held for a pod comes back if it cannot start."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.cluster.controllers import eventually
from tests.cluster.quota.burst import CLIENTS
from tests.cluster.quota.quotas import gpu_pod, in_force
from tests.cluster.quota.second_webhook import COLLIDES, LABELS, SecondWebhook
from tests.cluster.waiting.line import Line
from tests.controlplane import ControlPlane

OBJECTS = 60

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def create(line: Line, index: int) -> int:
    body = gpu_pod("")
    named = {"generateName": COLLIDES} if index % 3 == 0 else {"name": f"pod-{index}"}
    body["metadata"] = {**named, "labels": LABELS}
    return line.create(body)[0]


def gated(line: Line) -> list[str]:
    pods = line.client.get(line.path("pods"))[1]["items"]
    return [pod["metadata"]["name"] for pod in pods if pod["spec"].get("schedulingGates")]


def is_exact(line: Line, waiting: int) -> bool:
    ledger = line.ledger_object()
    return (ledger.waiting, ledger.all_waiting, len(ledger.reservations)) == (waiting, waiting, 0)


def test_what_others_deny_and_names_that_were_taken(line: Line, plane: ControlPlane) -> None:
    in_force(line, {"gpus": "1"})
    line.pod("holder")
    with SecondWebhook(plane, line.name) as second:
        assert eventually(lambda: second.is_called(line))
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(lambda index: create(line, index), range(OBJECTS)))
    assert second.reported["denied"] > OBJECTS / 5
    assert second.reported["taken"] > OBJECTS / 20
    stored = len(gated(line))
    assert 0 < stored < OBJECTS
    assert eventually(lambda: is_exact(line, stored)), line.ledger_object()


def end_what_runs(line: Line) -> bool:
    """Return whether nothing waits any more."""
    waiting = gated(line)
    for pod in line.client.get(line.path("pods"))[1]["items"]:
        if pod["metadata"]["name"] not in waiting and not pod["spec"].get("schedulingGates"):
            line.delete_pod(pod["metadata"]["name"])
    return not waiting


def test_a_removal_of_the_gate_that_others_deny(line: Line, plane: ControlPlane) -> None:
    in_force(line, {"gpus": "2"})
    line.pod("holder", 2)
    with SecondWebhook(plane, line.name, "UPDATE") as second:
        for index in range(6):
            line.pod(f"pod-{index}", metadata={"labels": LABELS})
        assert eventually(lambda: end_what_runs(line), seconds=90), line.ledger_object()
    assert second.reported["denied"] > 1
    assert eventually(lambda: is_exact(line, 0)), line.ledger_object()
    line.pod("last", 2)
    assert line.starts("last"), "all of the quota is free"

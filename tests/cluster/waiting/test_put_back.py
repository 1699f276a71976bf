"""A mutating webhook puts a scheduling gate back: the pod has not started, and others pass it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import log2
from typing import Any
from uuid import uuid4

import pytest

from policies.quota.waiting import GATE
from tests.builders import JSON
from tests.cluster.controllers import Running, eventually, uses
from tests.cluster.other_webhook import OtherWebhook
from tests.cluster.quota.quotas import in_force
from tests.cluster.waiting.conftest import queueing
from tests.cluster.waiting.line import Line
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import api_client

EXPECTED = "run the controller as ServiceAccount gpu-admission-controller of the webhook's namespace"


def attempts(seconds: float) -> float:
    """Return how often the controller tries in this time at most: after 0, 1, 3, 7 s and so on, and one that began before."""
    return 2 + log2(seconds + 1)


class Queue(Line):
    """Two pods wait in their order for the only GPU, and get it."""

    def become_free(self) -> None:
        in_force(self, {"gpus": "1"})
        self.pod("holder")
        self.pod("one")
        self.in_a_later_second("two")
        assert self.waits("one")
        assert self.waits("two")
        assert self.is_counted()
        self.delete_pod("holder")

    def messages(self, name: str, reason: str) -> list[str]:
        """Return the messages of the Events on a pod, each as often as it came."""
        found: list[Any] = self.client.get(self.path("events"))[1]["items"]
        ours = [each for each in found if each["involvedObject"]["name"] == name and each["reason"] == reason]
        return [each["message"] for each in ours for _ in range(each.get("count") or 1)]


@contextmanager
def puts_back(plane: ControlPlane, team: Line, name: str) -> Iterator[list[str]]:
    """Have another webhook put the gate back into each update of this pod, and note when it did so."""
    done: list[str] = []

    def change(pod: JSON) -> None:
        if pod["metadata"]["name"] == name and not pod["spec"].get("schedulingGates"):
            done.append(str(uuid4()))
            pod["spec"]["schedulingGates"] = [{"name": GATE}]
            pod["metadata"].setdefault("annotations", {})["example.com/seen"] = done[-1]

    with OtherWebhook(plane, team.name) as other, other.in_force(change, operations=("CREATE", "UPDATE")):
        yield done


def test_a_pod_whose_gate_another_webhook_puts_back_lets_others_pass(
    running: Running, plane: ControlPlane
) -> None:
    assert not running.why_unready()
    team = Queue(plane)
    with puts_back(plane, team, "one") as done:
        team.become_free()
        done.clear()
        began = time.monotonic()

        assert team.starts("two")
        team.delete_pod("two")
        time.sleep(7)

        assert len(done) <= attempts(time.monotonic() - began)
        assert team.waits("one")
        assert not team.messages("one", "QuotaGranted")
        assert EXPECTED in team.messages("one", "QuotaNotStarted")[0]
    assert team.starts("one", seconds=30)
    assert uses(team, 1)


@pytest.fixture
def unknown() -> Iterator[Queue]:
    """Return the queue of a controller that runs as a user that serve does not expect."""
    with ControlPlane() as plane, queueing(plane, api=api_client(plane)):
        yield Queue(plane)


def test_a_controller_that_serve_does_not_know_says_who_it_must_be(unknown: Queue) -> None:
    began = time.monotonic()
    unknown.become_free()

    assert eventually(lambda: unknown.messages("two", "QuotaNotStarted"))
    time.sleep(5)

    for name in ("one", "two"):
        assert unknown.waits(name)
        assert not unknown.messages(name, "QuotaGranted")
        said = unknown.messages(name, "QuotaNotStarted")
        assert EXPECTED in said[0]
        assert len(said) <= attempts(time.monotonic() - began)

"""Pods of Kueue in our line, on a real API server with the kind of Kueue's Workloads: they wait as any other.

Kueue itself does not run: a second client makes its API calls (0.17). A Job is suspended until its Workload has quota. Its pods
have the label `kueue.x-k8s.io/podset`, and no gate. Its webhook gives all other pods its gate at their creation, before ours.
"""

from collections.abc import Iterator

import pytest

from tests.cluster.controllers import Running, eventually, uses
from tests.cluster.quota.quotas import gpu_pod, in_force
from tests.cluster.waiting.conftest import queueing
from tests.cluster.waiting.kueue_objects import KUEUE_GATE, UID, kinds_of_kueue, pod_of_job, workload
from tests.cluster.waiting.line import Line
from tests.controlplane import ControlPlane
from tests.controlplane.client import accepted
from webhook.cluster.api import JSON_PATCH


@pytest.fixture(scope="module")
def running(plane: ControlPlane) -> Iterator[Running]:
    with kinds_of_kueue(plane), queueing(plane) as running:
        yield running


pytestmark = pytest.mark.usefixtures("running")


def full(line: Line, hard: int = 2) -> None:
    """Let somebody wait who lacks quota."""
    in_force(line, {"gpus": str(hard)})
    line.pod("holder", hard)
    assert uses(line, hard)
    line.pod("first", 1)
    assert line.waits("first")


def test_it_waits_as_any_other_whatever_kueue_says(plane: ControlPlane) -> None:
    line = Line(plane)
    full(line)
    workload(line, "waits", UID.format(1))
    workload(line, "admitted", UID.format(2), "QuotaReserved", "Admitted")
    accepted(pod_of_job(line, "a-label-alone"))
    accepted(pod_of_job(line, "of-one-that-waits-in-kueue", UID.format(1)))
    accepted(pod_of_job(line, "of-one-that-kueue-has-admitted", UID.format(2)))
    accepted(line.create(gpu_pod("held-by-kueue", schedulingGates=[KUEUE_GATE])))
    names = ("a-label-alone", "of-one-that-waits-in-kueue", "of-one-that-kueue-has-admitted", "held-by-kueue")
    assert all(map(line.waits, names))
    assert eventually(lambda: line.ledger_object().waiting == 5)
    assert uses(line, 2)


def test_a_pod_under_both_gates_starts_when_both_have_let_it_go(plane: ControlPlane) -> None:
    """Until Kueue does, others pass it."""
    line = Line(plane)
    full(line, 1)
    labels = {"kueue.x-k8s.io/queue-name": "main", "kueue.x-k8s.io/managed": "true"}
    body = gpu_pod("held", schedulingGates=[KUEUE_GATE])
    accepted(line.create(body | {"metadata": {"name": "held", "labels": labels}}))
    assert line.waits("held")
    line.in_a_later_second("later")
    line.delete_pod("holder")
    assert line.starts("first", seconds=10)
    line.delete_pod("first")
    assert line.starts("later", seconds=10)
    assert line.waits("held")

    gates = [gate["name"] for gate in line.get("held")["spec"]["schedulingGates"]]
    test = {
        "op": "test",
        "path": f"/spec/schedulingGates/{gates.index(KUEUE_GATE['name'])}/name",
        "value": KUEUE_GATE["name"],
    }
    patch = [test, {"op": "remove", "path": test["path"].removesuffix("/name")}]
    accepted(line.client.patch(line.path("pods", "held"), patch, content_type=JSON_PATCH))
    assert line.waits("held")
    line.delete_pod("later")
    assert line.starts("held", seconds=10)
    assert uses(line, 1)


def test_a_pod_group_starts_whole(plane: ControlPlane) -> None:
    """It holds no quota before, so that no part of it waits for the rest."""
    line = Line(plane)
    in_force(line, {"gpus": "2"})
    metadata = {
        "labels": {"kueue.x-k8s.io/pod-group-name": "group"},
        "annotations": {"kueue.x-k8s.io/pod-group-total-count": "2"},
    }
    for name in ("one-0", "one-1"):
        body = gpu_pod(name, 1, schedulingGates=[KUEUE_GATE])
        accepted(line.create(body | {"metadata": {"name": name, **metadata}}))
        assert line.waits(name)
    assert line.is_counted()
    assert uses(line, 0)
    for name, starts in (("one-0", False), ("one-1", True)):
        gates = [each for each in line.get(name)["spec"]["schedulingGates"] if each != KUEUE_GATE]
        accepted(line.client.patch(line.path("pods", name), {"spec": {"schedulingGates": gates}}))
        assert line.starts("one-0", "one-1", seconds=10 if starts else 3) is starts
    assert uses(line, 2)

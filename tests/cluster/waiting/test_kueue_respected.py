"""A policy with `kueue: respect`, on a real API server: what Kueue has admitted starts beyond the quota, and nothing else does.

Kueue itself does not run: a second client makes its API calls. With the real Kueue: tests/neighbours/test_kueue.py.
"""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.builders import JSON
from tests.cluster.controllers import Running, eventually, uses
from tests.cluster.quota.quotas import gpu_pod, in_force
from tests.cluster.waiting.conftest import queueing
from tests.cluster.waiting.line import POLICY, Line
from tests.cluster.workload_kinds import CRDS, install
from tests.controlplane import ControlPlane
from tests.controlplane.client import accepted
from webhook.controller.reconciler import LINE_TURN_SECONDS

GROUP, VERSION = "kueue.x-k8s.io", "v1beta2"
API = f"/apis/{GROUP}/{VERSION}"
SCOPES = {"Workload": "Namespaced", "ResourceFlavor": "Cluster"}
UID = "0f9c1f60-1111-4222-8333-44445555666{}"
RESPECT = POLICY.replace("onExceeded: Queue", "onExceeded: Queue, kueue: respect")
TRAIN = UID.format(1)
WHILE = 5
"""Seconds in which a pod that Kueue has admitted would have started."""
SECOND = 1.1
"""Pods of one second have their places by uid."""


@pytest.fixture(scope="module")
def running(plane: ControlPlane) -> Iterator[Running]:
    client = plane.client()
    for kind, scope in SCOPES.items():
        install(client, GROUP, VERSION, kind, scope=scope)
    with queueing(plane, RESPECT) as running:
        yield running
    plurals = [f"{kind.lower()}s" for kind in SCOPES]
    for plural in plurals:
        client.delete(f"{CRDS}/{plural}.{GROUP}")
    assert eventually(lambda: {client.get(f"{API}/{each}")[0] for each in plurals} == {404})


@pytest.fixture
def line(running: Running, plane: ControlPlane) -> Line:
    """Return a namespace whose quota of 2 GPUs is used, and where a pod waits."""
    assert not running.why_unready()
    line = Line(plane)
    in_force(line, {"gpus": "2"})
    line.pod("holder", 2)
    line.pod("first", 1)
    assert line.waits("first")
    return line


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


def pod_of_job(line: Line, name: str, uid: str = "", gpus: int = 1) -> tuple[int, Any]:
    owners = [{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": uid, "controller": True}]
    metadata = {"name": name, "labels": {"kueue.x-k8s.io/podset": "main"}}
    return line.create(
        gpu_pod(name, gpus) | {"metadata": metadata | ({"ownerReferences": owners} if uid else {})}
    )


def test_it_starts_beyond_the_quota_and_is_charged(line: Line) -> None:
    workload(line, "train", TRAIN, "QuotaReserved", "Admitted", gpus=2)
    for name in ("train-0", "train-1"):
        accepted(pod_of_job(line, name, TRAIN))
    assert line.starts("train-0", "train-1", seconds=10)
    assert uses(line, 4)
    assert line.waits("first"), "others wait for the quota"
    line.delete_pod("train-0")
    line.delete_pod("train-1")
    assert uses(line, 2)
    line.delete_pod("holder")
    assert line.starts("first", seconds=10)


def test_it_waits_until_kueue_says_so(line: Line) -> None:
    accepted(pod_of_job(line, "train-0", TRAIN, 3))
    time.sleep(WHILE)
    assert line.waits("train-0")
    workload(line, "train", TRAIN, "QuotaReserved", "Admitted", gpus=3)
    assert line.starts("train-0", seconds=LINE_TURN_SECONDS + 10)
    assert uses(line, 5)


def test_a_tenant_starts_no_more_than_kueue_has_admitted(line: Line) -> None:
    """By labels, by ownerReferences, by pods that leave their Job, and by a Workload that another one admitted."""
    workload(line, "train", TRAIN, "QuotaReserved", "Admitted", gpus=2)
    workload(line, "waits", UID.format(2), "QuotaReserved", gpus=8)
    for name in ("train-0", "train-1"):
        accepted(pod_of_job(line, name, TRAIN))
    assert line.starts("train-0", "train-1", seconds=10)
    accepted(pod_of_job(line, "more-of-the-job", TRAIN))
    accepted(pod_of_job(line, "label-alone"))
    accepted(pod_of_job(line, "of-one-that-waits", UID.format(2)))
    accepted(pod_of_job(line, "of-nothing", UID.format(3)))
    accepted(line.client.patch(line.path("pods", "train-0"), {"metadata": {"ownerReferences": None}}))
    accepted(pod_of_job(line, "instead-of-train-0", TRAIN))
    time.sleep(WHILE)
    attempts = {"more-of-the-job", "label-alone", "of-one-that-waits", "of-nothing", "instead-of-train-0"}
    assert line.waiting() == {"first", *attempts}
    accepted(line.remove_gates("more-of-the-job"))
    assert line.waits("more-of-the-job"), "only our controller removes it"
    assert uses(line, 4)


def test_a_tenant_passes_others_with_no_more_than_its_workload_has(
    running: Running,  # noqa: ARG001 - it runs
    plane: ControlPlane,
) -> None:
    """Although the quota has room, which the first pod in line lacks in part."""
    line = Line(plane)
    in_force(line, {"gpus": "4"})
    line.pod("holder", 2)
    line.pod("first", 3)
    assert line.waits("first")
    workload(line, "train", TRAIN, "QuotaReserved", "Admitted", gpus=1)
    accepted(pod_of_job(line, "train-0", TRAIN))
    assert line.starts("train-0", seconds=10)
    time.sleep(SECOND)
    accepted(pod_of_job(line, "forged", TRAIN))
    time.sleep(WHILE)
    assert line.waiting() == {"first", "forged"}
    assert uses(line, 3)
    line.delete_pod("train-0")
    assert line.starts("forged", seconds=10), "one pod of the Workload at a time"


def test_what_kueue_takes_back_starts_nothing_any_more(line: Line) -> None:
    workload(line, "train", TRAIN, "QuotaReserved", "Admitted", gpus=1)
    path = f"{API}/namespaces/{line.name}/workloads/train"
    condition = {"type": "Admitted", "status": "False", "reason": "Evicted", "message": ""}
    condition["lastTransitionTime"] = "2026-11-22T08:03:00Z"
    accepted(line.client.patch(f"{path}/status", {"status": {"conditions": [condition]}}))
    accepted(pod_of_job(line, "train-0", TRAIN))
    time.sleep(WHILE)
    assert line.waits("train-0")
    assert eventually(lambda: line.ledger_object().waiting == 2)
    assert uses(line, 2)

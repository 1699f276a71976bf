"""Gangs leave the line whole, on a real API server: Jobs with the controllers of Kubernetes, pods of other kinds without."""

import time
from collections.abc import Callable

import pytest

from tests.all_faults import longer
from tests.builders import JSON
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.cluster.quota.quotas import in_force
from tests.cluster.waiting.gangs import create, job, member, pod_group, pytorchjob
from tests.cluster.waiting.line import Line
from tests.controlplane import ControlPlane
from tests.controlplane.client import accepted

SMALLER_SECONDS = 20
"""On a busy machine. A size that no pod shows as changed is read again after 30 s only."""


def running_pods(jobs: Line, name: str) -> list[bool]:
    """Whether each pod of the Job has no gate."""
    path = f"/api/v1/namespaces/{jobs.name}/pods?labelSelector=job-name%3D{name}"
    pods = jobs.client.get(path)[1]["items"]
    return [not each["spec"].get("schedulingGates") for each in pods]


def starts_whole(jobs: Line, names: list[str], pods: int) -> str:
    """Return the name of the first Job of which all pods run; "" if there is none soon."""

    def whole() -> str:
        return next((each for each in names if running_pods(jobs, each) == [True] * pods), "")

    return eventually(whole)


@pytest.mark.parametrize("rounds", [5, pytest.param(200, marks=[pytest.mark.slow, longer])])
def test_two_jobs_never_hold_half_of_the_quota_each(jobs: Line, rounds: int) -> None:
    in_force(jobs, {"gpus": "8"})
    path = f"/apis/batch/v1/namespaces/{jobs.name}/jobs"
    for number in range(rounds):
        names = [f"one-{number}", f"two-{number}"]
        for name in names:
            accepted(jobs.client.post(path, job(name, 8)))
        first = starts_whole(jobs, names, 8)
        assert first, {name: running_pods(jobs, name) for name in names}
        (second,) = {*names} - {first}
        assert not any(running_pods(jobs, second))
        assert jobs.client.delete(f"{path}/{first}?propagationPolicy=Background")[0] == 200
        assert starts_whole(jobs, [second], 8), running_pods(jobs, second)
        assert jobs.client.delete(f"{path}/{second}?propagationPolicy=Background")[0] == 200
        assert eventually(lambda: not jobs.client.get(jobs.path("pods"))[1]["items"])


def test_a_job_that_becomes_smaller_while_it_waits_starts_at_once(jobs: Line) -> None:
    in_force(jobs, {"gpus": "4"})
    jobs.pod("holder", 2)
    path = f"/apis/batch/v1/namespaces/{jobs.name}/jobs"
    accepted(jobs.client.post(path, job("train", 4)))
    assert eventually(lambda: running_pods(jobs, "train") == [False] * 4)
    time.sleep(2.0)  # its size is known
    assert running_pods(jobs, "train") == [False] * 4

    accepted(jobs.client.patch(f"{path}/train", {"spec": {"completions": 2, "parallelism": 2}}))

    assert eventually(lambda: running_pods(jobs, "train") == [True] * 2, seconds=SMALLER_SECONDS)


def of_pytorchjob(plane: ControlPlane, team: Line) -> list[JSON]:
    return [member(create(plane, team, pytorchjob(3)))] * 4


def of_pod_group(plane: ControlPlane, team: Line) -> list[JSON]:
    return [member(create(plane, team, pod_group(4)))] * 4


@cases(
    "members",
    pods_of_a_pytorchjob=of_pytorchjob,
    pods_that_name_a_pod_group=of_pod_group,
)
def test_a_gang_waits_for_all_of_its_pods(
    line: Line, plane: ControlPlane, members: Callable[[ControlPlane, Line], list[JSON]]
) -> None:
    in_force(line, {"gpus": "4"})
    *first, last = enumerate(members(plane, line))
    line.pod("holder")
    for number, metadata in first:
        line.pod(f"gang-{number}", metadata=metadata)
        assert line.waits(f"gang-{number}")
    line.pod("single")
    assert line.starts("single"), "a gang that lacks a pod has no place in line"
    line.delete_pod("single")

    number, metadata = last
    line.pod(f"gang-{number}", metadata=metadata)
    line.in_a_later_second("behind")
    names = [f"gang-{number}" for number in range(4)]
    assert all(map(line.waits, [*names, "behind"]))
    line.delete_pod("holder")
    assert line.starts(*names)
    assert line.waits("behind")
    line.delete_pod("behind")

    line.delete_pod("gang-0")
    line.pod("again", metadata=metadata)
    assert line.starts("again"), "one that replaces another of a gang that has started waits for nobody"


def test_a_gang_that_exceeds_the_quota_steps_aside(line: Line, plane: ControlPlane) -> None:
    in_force(line, {"gpus": "2"})
    metadata = member(create(plane, line, pod_group(3)))
    for number in range(3):
        line.pod(f"gang-{number}", metadata=metadata)
    line.pod("single")
    assert line.starts("single")

    def said() -> set[str]:
        found = line.client.get(line.path("events"))[1]["items"]
        return {each["message"] for each in found if each["involvedObject"]["name"] == "gang-0"}

    whole = "waiting for quota: it exceeds the whole quota: it needs 3 GPUs, the quota grants 2 GPUs"
    assert eventually(lambda: whole in said()), said()
    assert all(line.waits(f"gang-{number}") for number in range(3))

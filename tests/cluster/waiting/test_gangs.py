"""Gangs leave the line whole, on a real API server with the controllers of Kubernetes."""

from typing import Any

from tests.cluster.controllers import eventually
from tests.cluster.quota.quotas import in_force
from tests.cluster.waiting.line import Line
from tests.controlplane.client import accepted

ROUNDS = 10


def job(name: str, pods: int) -> dict[str, Any]:
    container = {"name": "train", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    template = {
        "spec": {
            "containers": [container],
            "restartPolicy": "Never",
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        }
    }
    spec = {"completionMode": "Indexed", "completions": pods, "parallelism": pods, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


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


def test_two_jobs_never_hold_half_of_the_quota_each(jobs: Line) -> None:
    in_force(jobs, {"gpus": "8"})
    path = f"/apis/batch/v1/namespaces/{jobs.name}/jobs"
    for number in range(ROUNDS):
        names = [f"one-{number}", f"two-{number}"]
        for name in names:
            accepted(jobs.client.post(path, job(name, 8)))
        first = starts_whole(jobs, names, 8)
        assert first
        (second,) = {*names} - {first}
        assert not any(running_pods(jobs, second))
        assert jobs.client.delete(f"{path}/{first}?propagationPolicy=Background")[0] == 200
        assert starts_whole(jobs, [second], 8), running_pods(jobs, second)
        assert jobs.client.delete(f"{path}/{second}?propagationPolicy=Background")[0] == 200
        assert eventually(lambda: not jobs.client.get(jobs.path("pods"))[1]["items"])

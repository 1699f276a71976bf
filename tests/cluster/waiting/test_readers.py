"""What the commands say of pods that wait in line, on a real API server with the controllers of Kubernetes."""

import json
import re
from typing import Any

from click.testing import CliRunner, Result

from tests.cluster.controllers import eventually
from tests.cluster.quota.quotas import in_force
from tests.cluster.waiting.gangs import job
from tests.cluster.waiting.line import Line
from tests.controlplane import ControlPlane
from tests.controlplane.client import accepted
from webhook.commands import main

TIME = re.compile(r"(\d{4}-\d\d-\d\d )?\d\d:\d\d(:\d\d)? UTC")


def run(plane: ControlPlane, *arguments: str) -> Result:
    command, *rest = arguments
    kubeconfig = str(plane.kubeconfig())
    return CliRunner(env={"COLUMNS": "80"}).invoke(main, [command, "--kubeconfig", kubeconfig, *rest])


def words(result: Result) -> str:
    """Return what is printed, without times and lines."""
    return TIME.sub("TIME", " ".join(result.output.split()))


def places(line: Line) -> list[tuple[str, int, str]]:
    waiting = line.status().waiting
    return [(each.owner, each.pods, each.reason) for each in waiting.next] if waiting else []


def of_namespace(report: dict[str, Any], name: str) -> Any:
    return next(each for each in report["quotas"] if each["namespace"] == name)


def test_a_job_that_waits_in_line(jobs: Line, full_plane: ControlPlane) -> None:
    in_force(jobs, {"gpus": "8"})
    jobs.pod("holder", 6)
    accepted(jobs.client.post(f"/apis/batch/v1/namespaces/{jobs.name}/jobs", job("train", 4)))
    assert eventually(lambda: places(jobs) == [("Job/train", 4, "Next")]), places(jobs)
    jobs.in_a_later_second("notebook")
    assert eventually(lambda: places(jobs) == [("Job/train", 4, "Next"), ("Pod/notebook", 1, "Behind")])
    namespaced = "-n", jobs.name

    shown = words(run(full_plane, "quota", *namespaced))
    assert (
        "5 pods wait in line for 5 GPUs since TIME: 1 Job/train (4 pods) since TIME: next in line, needs 4 GPUs, "
        "2 of 8 free; largest holders: Pod/holder 6 2 Pod/notebook since TIME: needs 1 GPU held by 1 pending pod, "
        "the longest first: Pod holder since TIME: gpus 6"
    ) in shown, shown
    quota = of_namespace(json.loads(run(full_plane, "quota", *namespaced, "-o", "json").output), jobs.name)
    assert (quota["waiting"]["pods"], quota["used"]) == (5, {"gpus": "6"})
    status = json.loads(run(full_plane, "status", *namespaced, "-o", "json").output)
    assert of_namespace(status, jobs.name)["waiting"] == quota["waiting"]
    assert status["quotas"][0]["pending"][0]["owner"] == "Pod/holder"
    assert len(status["quotas"][0]["pending"]) == 1

    why = run(full_plane, "why", "job/train", *namespaced)
    assert why.exit_code == 1
    text = words(why)
    assert text.startswith(f"Job/train in {jobs.name}: waiting 0 of 4 pods run line Pod train-0-"), text
    assert (
        "(and 3 more) waits in line for quota since TIME with the other pods of its gang Job/train: " in text
    )
    assert (
        "next in line, needs 4 GPUs, 2 of 8 free; largest holders: Pod/holder 6 fix: it starts when" in text
    )
    assert "quota gpus: 6 of 8 used; the pod requests 1" in text
    assert "scheduler" not in text.partition("what is known")[0]
    pods = jobs.client.get(f"{jobs.path('pods')}?labelSelector=job-name%3Dtrain")[1]["items"]
    (last,) = sorted(each["metadata"]["name"] for each in pods)[-1:]
    by_pod = json.loads(run(full_plane, "why", f"pod/{last}", *namespaced, "-o", "json").output)
    assert (by_pod["answer"], by_pod["line"]["gang"], by_pod["line"]["place"]) == ("waiting", "Job/train", 1)
    behind = json.loads(run(full_plane, "why", "pod/notebook", *namespaced, "-o", "json").output)
    assert "; before it: Job/train (4 pods)" in behind["summary"]

    jobs.delete_pod("holder")
    assert jobs.starts("notebook")
    assert eventually(lambda: jobs.status().waiting is None)
    assert "wait in line" not in run(full_plane, "quota", *namespaced).output
    granted = jobs.client.get(jobs.path("events"))[1]["items"]
    reasons = {
        each["involvedObject"]["name"]: each["reason"] for each in granted if each["reason"] == "QuotaGranted"
    }
    assert {"notebook", last} <= reasons.keys()

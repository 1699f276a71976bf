"""Who goes before others in line: only a pod of the same object as one that ended, on a real API server."""

import time

from tests.builders import JSON
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.cluster.quota.quotas import in_force
from tests.cluster.waiting.gangs import job
from tests.cluster.waiting.line import Line
from tests.controlplane.client import accepted

FORGED_UID = "11111111-2222-3333-4444-555555555555"


def reference(api_version: str, uid: str = FORGED_UID) -> JSON:
    return {"apiVersion": api_version, "kind": "ReplicaSet", "name": "web", "uid": uid, "controller": True}


@cases(
    "owner",
    of_a_group_that_is_not_served=reference("foo.example/v1"),
    of_an_object_that_does_not_exist=reference("apps/v1"),
)
def test_a_forged_owner_lets_nobody_go_first(line: Line, owner: JSON) -> None:
    in_force(line, {"gpus": "1"})
    line.pod("first", metadata={"ownerReferences": [owner]})
    line.pod("victim")
    line.in_a_later_second("second", metadata={"ownerReferences": [owner]})
    line.delete_pod("first")
    assert line.starts("victim")
    assert line.waits("second")


def test_a_job_that_is_made_again_is_the_last_in_line(jobs: Line) -> None:
    in_force(jobs, {"gpus": "1"})
    path = f"/apis/batch/v1/namespaces/{jobs.name}/jobs"
    pods = f"/api/v1/namespaces/{jobs.name}/pods?labelSelector=job-name%3Dtrain"

    def pod() -> str:
        return next((each["metadata"]["name"] for each in jobs.client.get(pods)[1]["items"]), "")

    accepted(jobs.client.post(path, job("train", 1)))
    assert jobs.starts(eventually(pod))
    for name in ("first", "second"):
        jobs.pod(name)
        time.sleep(1.1)  # a creationTimestamp has whole seconds
    assert jobs.client.delete(f"{path}/train?propagationPolicy=Foreground")[0] == 200
    assert eventually(lambda: not pod() and jobs.client.get(f"{path}/train")[0] == 404)
    accepted(jobs.client.post(path, job("train", 1)))
    again = eventually(pod)
    assert jobs.waits(again)

    assert jobs.starts("first")
    jobs.delete_pod("first")
    assert jobs.starts("second")
    assert jobs.waits(again)

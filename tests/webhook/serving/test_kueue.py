"""Whether Kueue has admitted what makes a pod, read from API servers that answer as the tests say."""

import json
from pathlib import Path
from time import monotonic

import pytest

from policies.pods.pod import Pod
from tests.builders import JSON, gpu_container, pod, uid, view
from tests.cases import cases
from tests.webhook.cluster.apiserver import Answer, ApiServer, Request, status
from webhook.serving import kueue
from webhook.serving.kueue import KueueWorkloads

TRAIN = uid("train")


def workload(owner: str = TRAIN, kind: str = "QuotaReserved", state: str = "True") -> JSON:
    return {
        "metadata": {"name": "w", "ownerReferences": [{"uid": owner}]},
        "status": {"conditions": [{"type": "Evicted", "status": "False"}, {"type": kind, "status": state}]},
    }


def of_job(owner: str = TRAIN) -> Pod:
    document = pod(gpu_container())
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": owner, "controller": True}
    document["metadata"]["ownerReferences"] = [reference]
    return view(document)


class Kueue:
    """Serves Workloads in these versions, and notes what is read."""

    def __init__(self, *items: object, served: tuple[str, ...] = ("v1beta2", "v1beta1")) -> None:
        self.items, self.served = items, served
        self.reads: list[str] = []

    def __call__(self, request: Request) -> Answer:
        version = request.path.split("/")[3]
        self.reads.append(version)
        if version not in self.served:
            return status(404, "NotFound")
        return Answer(json.dumps({"metadata": {}, "items": list(self.items)}).encode())


@cases(
    ("cluster", "seen", "want"),
    admitted=(Kueue(workload()), of_job(), True),
    admitted_under_an_older_version=(Kueue(workload(), served=("v1beta1",)), of_job(), True),
    not_installed=(Kueue(workload(), served=()), of_job(), False),
    no_workload=(Kueue(), of_job(), False),
    it_waits=(Kueue(workload(kind="Requeued")), of_job(), False),
    evicted=(Kueue(workload(state="False")), of_job(), False),
    of_another_object_under_its_label=(Kueue(workload(uid("other"))), of_job(), False),
    one_of_several=(Kueue(workload(state="False"), workload()), of_job(), True),
    without_a_status=(Kueue({"metadata": {}}), of_job(), False),
    unlike_a_workload=(Kueue("w", {"metadata": 1, "status": {"conditions": ["a"]}}), of_job(), False),
    no_controller=(Kueue(workload()), view(pod(gpu_container())), False),
    no_uid=(Kueue(workload("=x,y")), of_job("=x,y"), False),
)
def test_kueue_has_admitted(cluster: Kueue, seen: Pod, want: bool, tmp_path: Path) -> None:
    with ApiServer(tmp_path, cluster) as server:
        assert KueueWorkloads(server.client()).has_quota_reserved("team", seen, monotonic() + 10) is want


@pytest.mark.parametrize(
    "answer", [status(403, "Forbidden"), status(500, "InternalError"), Answer(b"{"), Answer(b"[]")]
)
def test_what_cannot_be_read_is_not_believed(answer: Answer, tmp_path: Path) -> None:
    with ApiServer(tmp_path, lambda _request: answer) as server:
        assert not KueueWorkloads(server.client()).has_quota_reserved("team", of_job(), monotonic() + 10)


def test_an_answer_is_remembered_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Kueue(workload())
    with ApiServer(tmp_path, cluster) as server:
        workloads = KueueWorkloads(server.client())
        assert all(workloads.has_quota_reserved("team", of_job(), monotonic() + 10) for _ in range(3))
        assert workloads.has_quota_reserved("team", of_job(), monotonic() - 1), "also after the deadline"
        assert len(cluster.reads) == 1
        cluster.items = ()
        monkeypatch.setattr(kueue, "monotonic", lambda: monotonic() + kueue.REMEMBERED_SECONDS)
        assert not workloads.has_quota_reserved("team", of_job(), monotonic())
        assert len(cluster.reads) == 1, "there is no time to read"
        assert not workloads.has_quota_reserved("team", of_job(), monotonic() + 100)
    assert len(cluster.reads) == 2


def test_what_is_remembered_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kueue, "MAX_OWNERS", 2)
    with ApiServer(tmp_path, Kueue(workload())) as server:
        workloads = KueueWorkloads(server.client())
        for name in ("a", "b", "c"):
            workloads.has_quota_reserved("team", of_job(uid(name)), monotonic() + 10)
        assert len(workloads._known) <= 2

"""Kinds by any of their names, and the pods of an object by the owners between."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.builders import JSON
from tests.cases import cases
from tests.webhook.cluster.apiserver import Answer, ApiServer, Request, status
from webhook.tools.status.denials import ClusterEvent
from webhook.tools.status.tolerant_reader import TolerantReader
from webhook.tools.why.case import read_family
from webhook.tools.why.discovery import ServedKinds, UnknownKindError

TEAM = "/namespaces/team/"


def served(plural: str, kind: str, scope: str = "Namespaced", *short: str) -> JSON:
    return {
        "resource": plural,
        "responseKind": {"kind": kind},
        "scope": scope,
        "singularResource": kind.lower(),
        "shortNames": list(short),
    }


def group(name: str, version: str, *resources: JSON) -> JSON:
    return {"metadata": {"name": name}, "versions": [{"version": version, "resources": list(resources)}]}


CORE = [group("", "v1", served("pods", "Pod", "Namespaced", "po"), served("nodes", "Node", "Cluster", "no"))]
GROUPS = [
    group("batch", "v1", served("jobs", "Job")),
    group("batch.volcano.sh", "v1alpha1", served("jobs", "Job", "Namespaced", "vcjob")),
    group("jobset.x-k8s.io", "v1alpha2", served("jobsets", "JobSet")),
]


def owned(uid: str, by: str = "", kind: str = "", api_version: str = "batch/v1") -> JSON:
    owner = {"apiVersion": api_version, "kind": kind, "name": by, "uid": by, "controller": True}
    return {"metadata": {"name": uid, "uid": uid, "ownerReferences": [owner] if by else []}}


def answering(collections: dict[str, list[JSON] | None]) -> Callable[[Request], Answer]:
    """Answer with collections by the end of their paths; those of None are forbidden."""

    def answer(request: Request) -> Answer:
        if request.path in {"/api", "/apis"}:
            return Answer(json.dumps({"items": CORE if request.path == "/api" else GROUPS}).encode())
        items = collections[request.path.partition(TEAM)[2]]
        if items is None:
            return status(403, "forbidden", "Forbidden")
        return Answer(json.dumps({"metadata": {"resourceVersion": "7"}, "items": items}).encode())

    return answer


@cases(
    ("word", "want"),
    singular=("pod", "/api/v1/pods"),
    short=("po", "/api/v1/pods"),
    kind=("Job", "/apis/batch/v1/jobs"),
    the_first_of_two_groups=("jobs", "/apis/batch/v1/jobs"),
    with_its_group=("jobs.batch.volcano.sh", "/apis/batch.volcano.sh/v1alpha1/jobs"),
    short_of_a_custom_kind=("vcjob", "/apis/batch.volcano.sh/v1alpha1/jobs"),
)
def test_a_kind_by_its_names(tmp_path: Path, word: str, want: str) -> None:
    with ApiServer(tmp_path, answering({})) as server:
        assert ServedKinds(server.client()).find(word).resource.path() == want


@cases("word", no_namespace="node", unknown="cow")
def test_a_kind_that_is_not_served(tmp_path: Path, word: str) -> None:
    with ApiServer(tmp_path, answering({})) as server, pytest.raises(UnknownKindError) as error:
        ServedKinds(server.client()).find(word)
    assert str(error.value) == f'the API server serves no namespaced kind "{word}"'


def denied(uid: str, kind: str, api_version: str = "batch/v1") -> ClusterEvent:
    involved = {"uid": uid, "kind": kind, "apiVersion": api_version}
    return msgspec.convert({"metadata": {}, "involvedObject": involved}, ClusterEvent)


PODS = [
    owned("pod-0", by="job-0", kind="Job"),
    owned("pod-1", by="job-1", kind="Job"),
    owned("of-another", by="job-9", kind="Job"),
    owned("orphan", by="gone", kind="Job"),
    owned("alone"),
]
JOBS = [
    *(owned(f"job-{n}", by="set", kind="JobSet", api_version="jobset.x-k8s.io/v1alpha2") for n in (0, 1, 2)),
    owned("job-9", by="other", kind="JobSet", api_version="jobset.x-k8s.io/v1alpha2"),
]
SETS = [owned("set"), owned("other")]


@cases(
    ("collections", "events", "pods", "members", "omitted"),
    pods_and_what_was_denied_pods=(
        {"pods": PODS, "jobs": JOBS, "jobsets": SETS},
        [denied("job-2", "Job")],
        ["pod-0", "pod-1"],
        {"set", "job-0", "job-1", "job-2", "pod-0", "pod-1"},
        [],
    ),
    pods_of_its_own=(
        {"pods": [owned("direct", by="set", kind="JobSet")]},
        [],
        ["direct"],
        {"set", "direct"},
        [],
    ),
    what_stands_between_is_forbidden=(
        {"pods": PODS, "jobs": None},
        [],
        [],
        {"set"},
        ["list jobs.batch -n team"],
    ),
    an_owner_that_is_not_served=({"pods": [owned("of-unserved", by="x", kind="Cow")]}, [], [], {"set"}, []),
    pods_are_forbidden=({"pods": None}, [], [], {"set"}, ["list pods -n team"]),
)
def test_the_family_of_a_job_set(
    tmp_path: Path,
    collections: dict[str, Any],
    events: list[ClusterEvent],
    pods: list[str],
    members: set[str],
    omitted: list[str],
) -> None:
    with ApiServer(tmp_path, answering(collections)) as server:
        reader = TolerantReader(server.client())
        found, uids = read_family(reader, ServedKinds(reader.api), "team", "set", events)
        requested = [request.path.partition(TEAM)[2] for request in server.requests if TEAM in request.path]
    assert [pod.metadata.name for pod in found] == pods
    assert (set(uids), reader.omitted) == (members, omitted)
    assert len(requested) == len(set(requested)), "each kind is listed once"

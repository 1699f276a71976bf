"""How many pods a gang needs, by what the API server has."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.builders import JSON, gpu_container
from tests.cases import cases
from tests.webhook.cluster.apiserver import Answer, ApiServer, Request, answering, status
from tests.webhook.controller.clock import Clock
from webhook.configuration.loader import load_directory
from webhook.controller import gangs as gangs_module
from webhook.controller.gangs import (
    FORBIDDEN_SECONDS,
    MISSING_SECONDS,
    READING_SECONDS,
    REMEMBERED_SECONDS,
    REREAD_SECONDS,
    Gangs,
    KnownGang,
)
from webhook.workloads.gang_sources import GangSource

GPU: JSON = {"spec": {"containers": [gpu_container("1")]}}
CPU: JSON = {"spec": {"containers": [{"name": "main", "image": "x"}]}}
EXCLUSIVE = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "rack"}
VOLCANO = "scheduling.volcano.sh/v1beta1"


def at(api_version: str, plural: str, name: str) -> str:
    prefix = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
    return f"{prefix}/namespaces/team/{plural}/{name}"


def made(spec: JSON, owner: tuple[str, str, str] | None = None, **metadata: Any) -> JSON:
    if owner is not None:
        api_version, kind, name = owner
        reference = {"apiVersion": api_version, "kind": kind, "name": name, "controller": True}
        metadata["ownerReferences"] = [reference]
    return {"metadata": metadata, "spec": spec}


def job(
    pods: int, template: JSON = GPU, *, owner: Any = None, mode: str = "Indexed", **metadata: Any
) -> JSON:
    spec = {"completionMode": mode, "completions": pods, "parallelism": pods, "template": template}
    return made(spec, owner, **metadata)


def jobset(*jobs: tuple[int, int, JSON], owner: Any = None, **spec: Any) -> JSON:
    listed = [
        {"name": f"j{n}", "replicas": replicas, "template": job(pods, template)}
        for n, (replicas, pods, template) in enumerate(jobs)
    ]
    return made({"replicatedJobs": listed, **spec}, owner)


def roles(key: str, replicas: dict[str, tuple[int, JSON]], **spec: Any) -> JSON:
    listed = {
        name: {"replicas": number, "template": template} for name, (number, template) in replicas.items()
    }
    return made({key: listed, **spec})


def lws(size: int, leader: JSON | None = None, **metadata: Any) -> JSON:
    template = {"size": size, "workerTemplate": GPU} | ({"leaderTemplate": leader} if leader else {})
    return made({"replicas": 3, "leaderWorkerTemplate": template}, **metadata)


def ray(workers: int) -> JSON:
    return {"headGroupSpec": {"template": CPU}, "workerGroupSpecs": [{"replicas": workers, "template": GPU}]}


JOB = at("batch/v1", "jobs", "train")
JOB_SOURCE = GangSource("batch/v1", "Job", "train")
OF_JOBSET = ("jobset.x-k8s.io/v1alpha2", "JobSet", "set")
JOBSET = at("jobset.x-k8s.io/v1alpha2", "jobsets", "set")
LWS_OWNER = ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "serve")
LWS = at("leaderworkerset.x-k8s.io/v1", "leaderworkersets", "serve")
GROUP_2 = GangSource("apps/v1", "StatefulSet", "serve-2", "2")
CHAIN_OF_GROUP_2 = {
    at("apps/v1", "statefulsets", "serve-2"): made({}, ("v1", "Pod", "serve-2")),
    at("v1", "pods", "serve-2"): made({}, ("apps/v1", "StatefulSet", "serve")),
    at("apps/v1", "statefulsets", "serve"): made({}, LWS_OWNER),
}
MPI_ROLES = {"Launcher": (1, CPU), "Worker": (8, GPU)}
MPIJOB = at("kubeflow.org/v2beta1", "mpijobs", "train")
GROUPS = {
    "/apis/scheduling.k8s.io": {"versions": [{"version": each} for each in ("v1", "v1alpha3", "v1beta1")]}
}
GROUPS_1_36 = {"/apis/scheduling.k8s.io": {"versions": [{"version": "v1"}, {"version": "v1alpha2"}]}}


def group(api_version: str = VOLCANO) -> GangSource:
    return GangSource(api_version, "PodGroup", "gang")


@cases(
    ("source", "objects", "want"),
    indexed_job=(JOB_SOURCE, {JOB: job(8)}, 8),
    job_without_indexes=(JOB_SOURCE, {JOB: job(8, mode="NonIndexed")}, None),
    job_in_waves=(JOB_SOURCE, {JOB: made({"completionMode": "Indexed", "completions": 8, "parallelism": 2,
        "template": GPU})}, None),
    job_of_one_pod=(JOB_SOURCE, {JOB: job(1)}, None),
    jobset=(JOB_SOURCE, {JOB: job(4, owner=OF_JOBSET), JOBSET: jobset((2, 4, GPU), (1, 1, CPU))}, 8),
    jobset_of_a_trainjob=(JOB_SOURCE, {JOB: job(4, owner=OF_JOBSET), JOBSET: jobset((1, 4, GPU),
        owner=("trainer.kubeflow.org/v1alpha1", "TrainJob", "train"))}, 4),
    jobset_in_order_has_whole_jobs=(JOB_SOURCE, {JOB: job(4, owner=OF_JOBSET),
        JOBSET: jobset((2, 4, GPU), startupPolicy={"startupPolicyOrder": "InOrder"})}, 4),
    jobset_with_dependencies_has_whole_jobs=(JOB_SOURCE, {JOB: job(4, owner=OF_JOBSET),
        JOBSET: made({"replicatedJobs": [{"template": job(4), "dependsOn": [{"name": "first"}]}]})}, 4),
    jobset_whose_leaders_come_first=(JOB_SOURCE, {JOB: job(4, owner=OF_JOBSET, annotations=EXCLUSIVE),
        JOBSET: jobset((2, 4, GPU))}, None),
    job_of_a_cronjob=(JOB_SOURCE, {JOB: job(4, owner=("batch/v1", "CronJob", "nightly"))}, 4),
    leaderworkerset=(GROUP_2, {**CHAIN_OF_GROUP_2, LWS: lws(4)}, 4),
    leaderworkerset_with_a_leader=(GROUP_2, {**CHAIN_OF_GROUP_2, LWS: lws(4, GPU)}, 4),
    leaderworkerset_whose_leader_has_no_gpus=(GROUP_2, {**CHAIN_OF_GROUP_2, LWS: lws(4, CPU)}, 3),
    leaderworkerset_whose_leader_gets_gpus_by_default=(GROUP_2, {**CHAIN_OF_GROUP_2, LWS: lws(4, CPU),
        at("v1", "limitranges", "").rstrip("/"): [{"metadata": {"name": "gpus"}, "spec": {"limits": [
            {"type": "Container", "default": {"nvidia.com/gpu": "1"}}]}}]}, 4),
    leaderworkerset_with_ready_leaders=(GROUP_2, {**CHAIN_OF_GROUP_2,
        LWS: made({"startupPolicy": "LeaderReady", **lws(4)["spec"]})}, None),
    leaderworkerset_with_a_topology=(GROUP_2, {**CHAIN_OF_GROUP_2,
        LWS: lws(4, annotations={"leaderworkerset.sigs.k8s.io/exclusive-topology": "rack"})}, None),
    pytorchjob=(GangSource("kubeflow.org/v1", "PyTorchJob", "train"),
        {at("kubeflow.org/v1", "pytorchjobs", "train"):
            roles("pytorchReplicaSpecs", {"Master": (1, GPU), "Worker": (7, GPU)})}, 8),
    elastic_pytorchjob=(GangSource("kubeflow.org/v1", "PyTorchJob", "train"),
        {at("kubeflow.org/v1", "pytorchjobs", "train"):
            roles("pytorchReplicaSpecs", {"Worker": (8, GPU)}, elasticPolicy={"minReplicas": 2})}, 2),
    mpijob_without_its_launcher=(GangSource("kubeflow.org/v2beta1", "MPIJob", "train"),
        {MPIJOB: roles("mpiReplicaSpecs", MPI_ROLES)}, 8),
    mpijob_whose_launcher_has_gpus=(JOB_SOURCE,
        {JOB: job(1, mode="NonIndexed", owner=("kubeflow.org/v2beta1", "MPIJob", "train")),
         MPIJOB: roles("mpiReplicaSpecs", {"Launcher": (1, GPU), "Worker": (7, GPU)})}, 8),
    raycluster_of_a_rayjob=(GangSource("ray.io/v1", "RayCluster", "ray"),
        {at("ray.io/v1", "rayclusters", "ray"): made(ray(4), ("ray.io/v1", "RayJob", "train"))}, 4),
    volcano_job_of_a_cronjob=(GangSource("batch.volcano.sh/v1alpha1", "Job", "train"),
        {at("batch.volcano.sh/v1alpha1", "jobs", "train"): made({"minAvailable": 3,
            "tasks": [{"replicas": 3, "template": GPU}]}, ("batch.volcano.sh/v1alpha1", "CronJob", "c"))}, 3),
    a_kind_that_makes_single_pods=(GangSource("apps/v1", "ReplicaSet", "web"), {}, None),
    volcano=(group(), {at(VOLCANO, "podgroups", "gang"): made({"minMember": 4})}, 4),
    volcano_for_a_single_pod=(group(), {at(VOLCANO, "podgroups", "gang"): made({"minMember": 1})}, None),
    volcano_counts_the_launcher=(group(), {at(VOLCANO, "podgroups", "gang"):
        made({"minMember": 9}, ("kubeflow.org/v2beta1", "MPIJob", "train")),
        MPIJOB: roles("mpiReplicaSpecs", MPI_ROLES)}, 8),
    volcano_needs_fewer_than_there_are=(group(), {at(VOLCANO, "podgroups", "gang"):
        made({"minMember": 5}, ("kubeflow.org/v2beta1", "MPIJob", "train")),
        MPIJOB: roles("mpiReplicaSpecs", MPI_ROLES)}, 5),
    volcano_of_a_deployment=(group(), {at(VOLCANO, "podgroups", "gang"):
        made({"minMember": 2}, ("apps/v1", "ReplicaSet", "web"))}, 2),
    coscheduling=(group("scheduling.x-k8s.io/v1alpha1"),
        {at("scheduling.x-k8s.io/v1alpha1", "podgroups", "gang"): made({"minMember": 6})}, 6),
    kai=(group("scheduling.run.ai/v2alpha2"),
        {at("scheduling.run.ai/v2alpha2", "podgroups", "gang"): made({"minMember": 6})}, 6),
    kubernetes=(group("scheduling.k8s.io"), {**GROUPS, at("scheduling.k8s.io/v1beta1", "podgroups", "gang"):
        made({"schedulingPolicy": {"gang": {"minCount": 4}}})}, 4),
    kubernetes_without_a_gang=(group("scheduling.k8s.io"), {**GROUPS,
        at("scheduling.k8s.io/v1beta1", "podgroups", "gang"): made({"schedulingPolicy": {"basic": {}}})}, None),
    kubernetes_1_36=(group("scheduling.k8s.io"), {**GROUPS_1_36, at("scheduling.k8s.io/v1alpha2", "podgroups", "gang"):
        made({"schedulingPolicy": {"gang": {"minCount": 4}}})}, 4),
    kubernetes_of_a_job=(group("scheduling.k8s.io"), {**GROUPS, at("scheduling.k8s.io/v1beta1", "podgroups", "gang"):
        made({"schedulingPolicy": {"gang": {"minCount": 4}}}, ("batch/v1", "Job", "train")), JOB: job(3)}, 3),
    of_kueue=(GangSource("kueue.x-k8s.io/", "PodGroup", "gang", "4"), {}, 4),
    of_kueue_with_one_pod=(GangSource("kueue.x-k8s.io/", "PodGroup", "gang", "1"), {}, None),
    nonsense=(group(), {at(VOLCANO, "podgroups", "gang"): made({"minMember": "many"})}, None),
    owners_in_a_loop=(GangSource("apps/v1", "StatefulSet", "serve", "0"),
        {at("apps/v1", "statefulsets", "serve"): made({}, ("apps/v1", "StatefulSet", "serve"))}, None),
)  # fmt: skip
def test_the_size_of_a_gang(tmp_path: Path, source: GangSource, objects: JSON, want: int | None) -> None:
    with ApiServer(tmp_path, answering(objects)) as server:
        found = find(gangs_of(server), source)
    assert (found and found.size) == want


def gangs_of(server: ApiServer) -> Gangs:
    configuration = load_directory(None)
    return Gangs(server.client(), lambda: configuration, lambda _: None)


def find(gangs: Gangs, source: GangSource) -> KnownGang | None:
    return gangs.find("team", [source]).get(source)


@cases(
    ("objects", "want"),
    leaders_first=({JOB: job(4, owner=OF_JOBSET, annotations=EXCLUSIVE), JOBSET: jobset((2, 4, GPU))}, ["Job/train"]),
    of_one_pod=({JOB: job(1, owner=OF_JOBSET, annotations=EXCLUSIVE), JOBSET: jobset((1, 1, GPU))}, []),
    all_at_once=({JOB: job(4, owner=OF_JOBSET), JOBSET: jobset((2, 4, GPU))}, []),
)  # fmt: skip
def test_which_objects_start_in_stages(tmp_path: Path, objects: JSON, want: list[str]) -> None:
    said: list[str] = []
    configuration = load_directory(None)
    with ApiServer(tmp_path, answering(objects)) as server:
        gangs = Gangs(
            server.client(), lambda: configuration, lambda each: said.append(f"{each.kind}/{each.name}")
        )
        find(gangs, JOB_SOURCE)
    assert said == want


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer(tmp_path, answering({})) as server:
        yield server


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(gangs_module, "monotonic", clock)
    return clock


def test_the_groups_of_a_leaderworkerset_are_gangs_of_their_own(server: ApiServer) -> None:
    server.answer = answering({**CHAIN_OF_GROUP_2, LWS: lws(4)})
    gangs = gangs_of(server)
    leader = GangSource("apps/v1", "StatefulSet", "serve", "2")
    other = GangSource("apps/v1", "StatefulSet", "serve", "1")
    found = [find(gangs, each) for each in (GROUP_2, leader, other)]
    assert found[0] is not None
    assert found[0] == found[1]
    assert [found[0].key, found[2]] == ["LeaderWorkerSet/serve/2", KnownGang("LeaderWorkerSet/serve/1", 4)]


def test_a_gang_is_read_again_after_a_while(server: ApiServer, clock: Clock) -> None:
    server.answer = answering({JOB: job(4)})
    gangs = gangs_of(server)
    assert find(gangs, JOB_SOURCE) == find(gangs, JOB_SOURCE)
    assert len(server.requests) == 1
    server.answer = answering({JOB: job(6)})
    clock.now += REMEMBERED_SECONDS
    found = find(gangs, JOB_SOURCE)
    assert found is not None
    assert found.size == 6


def test_a_gang_that_has_fewer_pods_is_read_again(server: ApiServer) -> None:
    server.answer = answering({JOB: job(4)})
    gangs = gangs_of(server)
    for pods in (3, 4, 4):
        gangs.find("team", pods * [JOB_SOURCE])
    assert len(server.requests) == 1, "more pods come one by one"
    server.answer = answering({JOB: job(2)})
    assert gangs.find("team", 3 * [JOB_SOURCE]) == {JOB_SOURCE: KnownGang("Job/train", 2)}


def test_a_jobset_that_has_fewer_jobs_is_read_again(server: ApiServer) -> None:
    jobs = [GangSource("batch/v1", "Job", name) for name in ("first", "second")]
    owned = {at("batch/v1", "jobs", each.name): job(4, owner=OF_JOBSET) for each in jobs}
    server.answer = answering({**owned, JOBSET: jobset((2, 4, GPU))})
    gangs = gangs_of(server)
    assert {each.size for each in gangs.find("team", 4 * jobs).values()} == {8}
    server.answer = answering({**owned, JOBSET: jobset((1, 4, GPU))})
    assert gangs.find("team", 4 * jobs[:1]) == {jobs[0]: KnownGang("JobSet/set", 4)}


@cases(
    ("suspended", "resumed"),
    a_jobset=(
        {JOB: job(2, owner=OF_JOBSET), JOBSET: jobset((2, 2, GPU), suspend=True)},
        {JOB: job(2, owner=OF_JOBSET), JOBSET: jobset((2, 2, GPU))},
    ),
    an_indexed_job=(
        {JOB: made({**job(4)["spec"], "suspend": True})},
        {JOB: job(4)},
    ),
)
def test_what_is_suspended_is_a_gang_again_when_it_is_resumed(
    server: ApiServer, clock: Clock, suspended: JSON, resumed: JSON
) -> None:
    """Its last pods are still being deleted when it was read."""
    server.answer = answering(suspended)
    gangs = gangs_of(server)
    found = find(gangs, JOB_SOURCE)
    assert found is not None
    assert found.size == 0, "none of its pods starts meanwhile"
    server.answer = answering(resumed)
    clock.now += REREAD_SECONDS
    found = find(gangs, JOB_SOURCE)
    assert found is not None
    assert found.size == 4


def test_what_stays_suspended_is_read_less_and_less_often(server: ApiServer, clock: Clock) -> None:
    """Anybody can make a pod that names it as its owner, and waits."""
    server.answer = answering({JOB: made({**job(4)["spec"], "suspend": True})})
    gangs = gangs_of(server)
    for seconds in (2, 4, 8, 16, 30, 30):
        find(gangs, JOB_SOURCE)
        reads = len(server.requests)
        assert gangs.seconds_to_read("team") == seconds
        clock.now += seconds - 1
        find(gangs, JOB_SOURCE)
        assert (len(server.requests), gangs.seconds_to_read("team")) == (reads, 1)
        clock.now += 1


@cases(("code", "size"), forbidden=(403, 0), gone=(404, None), failing=(500, 0), overloaded=(429, 0))
def test_a_controller_that_cannot_be_read(
    server: ApiServer, caplog: pytest.LogCaptureFixture, code: int, size: int | None
) -> None:
    server.answer = lambda _: status(code, "for a reason")
    with caplog.at_level(logging.WARNING):
        found = find(gangs_of(server), JOB_SOURCE)
    assert (found and found.size) == size
    assert "team: the gang of Job train: for a reason" in caplog.text


def test_what_was_known_counts_while_the_api_server_fails(server: ApiServer, clock: Clock) -> None:
    server.answer = answering({JOB: job(4)})
    gangs = gangs_of(server)
    known = find(gangs, JOB_SOURCE)
    server.answer = lambda _: status(500, "for a reason")
    clock.now += REMEMBERED_SECONDS
    assert find(gangs, JOB_SOURCE) == known


def test_a_controller_that_stays_forbidden_makes_no_gang(server: ApiServer, clock: Clock) -> None:
    server.answer = lambda _: status(403, "no role")
    gangs = gangs_of(server)
    assert find(gangs, JOB_SOURCE) == KnownGang("Job/train", 0), (
        "an API server that just started knows no roles"
    )
    clock.now += FORBIDDEN_SECONDS
    assert find(gangs, JOB_SOURCE) is None


def test_pods_wait_a_minute_for_their_pod_group(server: ApiServer, clock: Clock) -> None:
    gangs = gangs_of(server)
    found = find(gangs, group())
    assert found is not None
    assert not found.size
    clock.now += MISSING_SECONDS
    assert find(gangs, group()) is None
    server.answer = answering({at(VOLCANO, "podgroups", "gang"): made({"minMember": 4})})
    clock.now += REMEMBERED_SECONDS
    assert find(gangs, group()) == KnownGang(found.key, 4)


def test_only_the_gangs_of_present_pods_are_remembered(server: ApiServer) -> None:
    server.answer = answering({JOB: job(4)})
    gangs = gangs_of(server)
    others = [GangSource("batch/v1", "Job", str(number)) for number in range(5)]
    gangs.find("other", others)
    gangs.find("team", [JOB_SOURCE, *others])
    gangs.find("team", [JOB_SOURCE])
    assert list(gangs._known["team"]) == [JOB_SOURCE]
    assert len(gangs._known["other"]) == 5
    gangs.forget("other")
    assert list(gangs._known) == ["team"]


def test_the_gangs_of_one_namespace_are_not_read_for_long_at_a_time(server: ApiServer, clock: Clock) -> None:
    first, second = (GangSource("batch/v1", "Job", name) for name in ("first", "second"))
    objects = {at("batch/v1", "jobs", name): job(4) for name in ("first", "second")}

    def slow(request: Request) -> Answer:
        clock.now += READING_SECONDS
        return answering(objects)(request)

    server.answer = slow
    gangs = gangs_of(server)
    want = [{first: KnownGang("Job/first", 4), second: KnownGang("Job/second", size)} for size in (0, 4)]
    assert [gangs.find("team", [first, second]) for _ in want] == want
    assert len(server.requests) == 2


def test_what_was_not_read_in_time_is_not_read_as_late_as_what_stays_suspended(
    server: ApiServer, clock: Clock
) -> None:
    stays, late = (GangSource("batch/v1", "Job", name) for name in ("stays", "late"))
    suspended = made({**job(4)["spec"], "suspend": True})
    objects = {at("batch/v1", "jobs", name): suspended for name in ("stays", "late")}

    def slow(request: Request) -> Answer:
        clock.now += READING_SECONDS
        return answering(objects)(request)

    server.answer = slow
    gangs = gangs_of(server)
    for _ in range(4):
        gangs.find("team", [stays])
        clock.now += gangs.seconds_to_read("team")

    gangs.find("team", [stays, late])
    assert gangs.seconds_to_read("team") == REREAD_SECONDS
    for seconds in (2, 4):
        gangs.find("team", [late])
        assert gangs._known["team"][late].seconds == seconds
        clock.now += seconds


@pytest.mark.parametrize("version", ["v1?watch=true&", "v1%2Fjobs?", "v1#", "v1 x"])
def test_a_version_in_an_owner_reference_is_no_other_path(server: ApiServer, version: str) -> None:
    find(gangs_of(server), GangSource(f"batch/{version}", "Job", "train"))
    quoted = quote(version, safe="")
    assert [each.path for each in server.requests] == [f"/apis/batch/{quoted}/namespaces/team/jobs/train"]

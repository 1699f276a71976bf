"""What the controllers of Kubernetes make of pods that wait in line: docs/tenants/queue.md, on the real ones."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.controllers import Running, eventually
from tests.cluster.quota.quotas import in_force
from tests.cluster.waiting.line import Line
from tests.cluster.waiting.machines import TOLERATIONS, node, running_pods
from tests.cluster.waiting.owners import job, server, template
from tests.controlplane import ControlPlane
from tests.controlplane.client import accepted
from webhook.quota.documents import PlaceInLine

pytestmark = pytest.mark.usefixtures("_node")
WAITING_JOBS = 20


@pytest.fixture(scope="module")
def _node(full_plane: ControlPlane) -> Iterator[None]:
    with node(full_plane):
        yield


@pytest.fixture(scope="module", autouse=True)
def cron_jobs(
    request: pytest.FixtureRequest,
    running_jobs: Running,  # noqa: ARG001 - it counts
    full_plane: ControlPlane,
) -> Iterator[Line]:
    """Return a namespace with two CronJobs whose pods wait. Made first where the last test, which needs minutes, is to come."""
    line = Line(full_plane)
    if any("a_cron_job" in item.name for item in request.session.items):
        in_force(line, {"gpus": "1"})
        line.pod("holder")
        for policy in ("Allow", "Forbid"):
            name = policy.lower()
            spec = {
                "schedule": "* * * * *",
                "concurrencyPolicy": policy,
                "jobTemplate": {"spec": {"template": template(name, restartPolicy="Never")}},
            }
            document = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": name}, "spec": spec}
            create(line, document)
    yield line
    line.client.delete(f"/apis/batch/v1/namespaces/{line.name}/cronjobs")


@pytest.fixture
def cluster(jobs: Line) -> Iterator[Line]:
    """Return a namespace whose pods run once they have a node."""
    with running_pods(jobs):
        yield jobs


def path(line: Line, document: dict[str, Any]) -> str:
    plural = document["kind"].lower() + "s"
    return f"/apis/{document['apiVersion']}/namespaces/{line.name}/{plural}"


def create(line: Line, document: dict[str, Any]) -> str:
    """Create the object and return its path."""
    accepted(line.client.post(path(line, document), document))
    return f"{path(line, document)}/{document['metadata']['name']}"


def pods(line: Line, app: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = line.client.get(line.path("pods"), {"labelSelector": f"app={app}"})[1][
        "items"
    ]
    return found


def gated(found: list[dict[str, Any]]) -> list[str]:
    return names([pod for pod in found if pod["spec"].get("schedulingGates")])


def names(found: list[dict[str, Any]]) -> list[str]:
    return [pod["metadata"]["name"] for pod in found]


def running(line: Line, app: str) -> list[str]:
    return names([pod for pod in pods(line, app) if pod["status"]["phase"] == "Running"])


def uids(found: list[dict[str, Any]]) -> list[str]:
    return [pod["metadata"]["uid"] for pod in found]


def next_in_line(line: Line) -> list[PlaceInLine]:
    shown = line.status().waiting
    return list(shown.next) if shown else []


def create_priority(line: Line, name: str, value: int) -> None:
    body = {"metadata": {"name": name}, "value": value}
    assert line.client.post("/apis/scheduling.k8s.io/v1/priorityclasses", body)[0] in {201, 409}


def serves(line: Line, where: str, replicas: int) -> bool:
    """Whether the Deployment or StatefulSet soon has all pods, ready and updated, and no other one."""

    def complete() -> bool:
        found = accepted(line.client.get(where))
        generation, status = found["metadata"]["generation"], found["status"]
        counts = [status.get(each) for each in ("replicas", "readyReplicas", "updatedReplicas")]
        revision = status.get("updateRevision")
        return (
            status.get("observedGeneration") == generation
            and counts == [replicas] * 3
            and status.get("currentRevision", revision) == revision
        )

    return eventually(complete, seconds=60)


def waiting(line: Line, app: str, number: int) -> bool:
    """Whether so many pods soon wait, neither more nor fewer."""
    return eventually(lambda: len(gated(pods(line, app))) == number)


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_a_server_keeps_its_gpus_while_jobs_wait(cluster: Line, kind: str) -> None:
    """It is updated, and its pods are deleted one by one, also by force: the new pods go first, and no Job starts."""
    in_force(cluster, {"gpus": "4"})
    where = create(cluster, server(kind, "chat", 4))
    assert serves(cluster, where, 4)
    for number in range(WAITING_JOBS):
        create(cluster, job(f"batch-{number}", template=template("batch", restartPolicy="Never")))
    assert waiting(cluster, "batch", WAITING_JOBS)

    changed = {"spec": {"template": {"metadata": {"annotations": {"version": "2"}}}}}
    accepted(cluster.client.patch(where, changed))
    assert serves(cluster, where, 4), pods(cluster, "chat")
    for seconds, name in zip((30, 0, 30, 0), names(pods(cluster, "chat")), strict=True):
        uid = cluster.get(name)["metadata"]["uid"]
        cluster.client.delete(cluster.path("pods", name), {"gracePeriodSeconds": seconds})
        assert eventually(lambda uid=uid: uid not in uids(pods(cluster, "chat")))  # type: ignore[misc]
        assert serves(cluster, where, 4), pods(cluster, "chat")
    assert waiting(cluster, "batch", WAITING_JOBS)

    accepted(cluster.client.delete(where, {"propagationPolicy": "Background"}))
    assert waiting(cluster, "batch", WAITING_JOBS - 4)


def test_a_deployment_that_waits_for_too_long_is_late_and_then_complete(cluster: Line) -> None:
    in_force(cluster, {"gpus": "1"})
    cluster.pod("holder")
    where = create(cluster, server("Deployment", "chat", 1, progressDeadlineSeconds=2))

    def progressing() -> str:
        conditions = accepted(cluster.client.get(where))["status"].get("conditions", [])
        return next((each["reason"] for each in conditions if each["type"] == "Progressing"), "")

    assert eventually(lambda: progressing() == "ProgressDeadlineExceeded")
    assert waiting(cluster, "chat", 1)
    cluster.delete_pod("holder")
    assert serves(cluster, where, 1)
    assert eventually(lambda: progressing() == "NewReplicaSetAvailable")


def test_a_smaller_deployment_gives_up_the_pods_that_wait(cluster: Line) -> None:
    """As after a HorizontalPodAutoscaler has set more replicas, and then fewer."""
    in_force(cluster, {"gpus": "2"})
    where = create(cluster, server("Deployment", "chat", 1))
    assert serves(cluster, where, 1)
    for replicas, number in ((4, 2), (2, 0)):
        accepted(cluster.client.patch(where, {"spec": {"replicas": replicas}}))
        assert waiting(cluster, "chat", number)
    assert serves(cluster, where, 2)


def test_the_deadline_of_a_job_runs_while_it_waits_and_that_of_a_pod_does_not(cluster: Line) -> None:
    in_force(cluster, {"gpus": "1"})
    cluster.pod("holder")
    where = create(cluster, job("late", activeDeadlineSeconds=3))
    create(
        cluster,
        job(
            "patient",
            backoffLimit=0,
            template=template("patient", restartPolicy="Never", activeDeadlineSeconds=1),
        ),
    )
    assert waiting(cluster, "patient", 1)

    def failed() -> list[str]:
        conditions = accepted(cluster.client.get(where))["status"].get("conditions", [])
        return [each["reason"] for each in conditions if each["type"] == "Failed"]

    assert eventually(lambda: failed() == ["DeadlineExceeded"])
    assert not pods(cluster, "late")
    (pod,) = pods(cluster, "patient")
    assert gated([pod])
    assert "startTime" not in pod["status"]  # from which a kubelet counts
    cluster.delete_pod("holder")
    assert waiting(cluster, "patient", 0)


def test_the_next_pod_of_a_job_goes_to_the_front_of_the_line(cluster: Line) -> None:
    """It comes a second after the one that completed. By then a pod in line has started, unless the machine is busy."""
    in_force(cluster, {"gpus": "1"})
    create(cluster, job("sweep", completions=2, parallelism=1))
    assert eventually(lambda: running(cluster, "sweep"))
    for name in ("first", "second"):
        cluster.pod(name, tolerations=TOLERATIONS, metadata={"labels": {"app": name}})
        assert cluster.waits(name)
        time.sleep(1.1)  # a creationTimestamp has whole seconds
    (done,) = running(cluster, "sweep")
    cluster.set_phase(done, "Succeeded")
    assert eventually(lambda: len(pods(cluster, "sweep")) == 2)

    def next_runs() -> bool:
        for name in running(cluster, "first"):
            cluster.set_phase(name, "Succeeded")
        return bool(running(cluster, "sweep"))

    assert eventually(next_runs)
    assert cluster.waits("second")


def test_a_budget_counts_a_pod_that_waits_as_missing_and_lets_it_be_evicted(cluster: Line) -> None:
    in_force(cluster, {"gpus": "1"})
    create(cluster, server("Deployment", "chat", 2))
    assert waiting(cluster, "chat", 1)
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "chat"},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "chat"}}},
    }
    where = create(cluster, budget)

    def status() -> list[int]:
        found = cluster.client.get(where)[1].get("status", {})
        return [found.get(each) for each in ("expectedPods", "currentHealthy", "disruptionsAllowed")]

    assert eventually(lambda: status() == [2, 1, 0]), status()
    (waits,) = gated(pods(cluster, "chat"))
    (runs,) = {*names(pods(cluster, "chat"))} - {waits}

    def evicted(name: str) -> int:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        return cluster.client.post(f"{cluster.path('pods', name)}/eviction", body)[0]

    assert evicted(runs) == 429
    assert evicted(waits) == 201


def test_a_high_priority_goes_to_the_front_and_evicts_nobody(cluster: Line) -> None:
    create_priority(cluster, "waiting-urgent", 1000)
    in_force(cluster, {"gpus": "1"})
    cluster.pod("holder", tolerations=TOLERATIONS)
    assert eventually(lambda: cluster.get("holder")["status"]["phase"] == "Running")
    cluster.pod("first", tolerations=TOLERATIONS)
    cluster.pod("urgent", tolerations=TOLERATIONS, priorityClassName="waiting-urgent")
    assert cluster.waits("first")
    assert cluster.waits("urgent")
    assert eventually(lambda: [each.name for each in next_in_line(cluster)] == ["urgent", "first"])
    assert cluster.get("holder")["status"]["phase"] == "Running"
    cluster.delete_pod("holder")
    assert cluster.starts("urgent")
    assert cluster.waits("first")


def test_an_autoscaler_of_nodes_does_not_see_a_pod_that_waits(cluster: Line) -> None:
    """The cluster autoscaler and Karpenter add nodes for pods whose condition PodScheduled has the reason Unschedulable."""
    in_force(cluster, {"gpus": "1"})
    cluster.pod("holder")  # no node suits it
    cluster.pod("waits")

    def scheduled(name: str) -> list[str]:
        conditions = cluster.get(name)["status"].get("conditions", [])
        return [each["reason"] for each in conditions if each["type"] == "PodScheduled"]

    assert eventually(lambda: scheduled("holder") == ["Unschedulable"])
    assert scheduled("waits") == ["SchedulingGated"]


def test_a_resource_quota_charges_pods_that_wait(cluster: Line) -> None:
    in_force(cluster, {"gpus": "1"})
    hard = {"requests.nvidia.com/gpu": "2"}
    body = {"metadata": {"name": "native"}, "spec": {"hard": hard}}
    accepted(cluster.client.post(cluster.path("resourcequotas"), body))
    path = cluster.path("resourcequotas", "native")
    assert eventually(lambda: cluster.client.get(path)[1].get("status", {}).get("hard") == hard)
    cluster.pod("holder")
    cluster.pod("waits")
    status, answer = cluster.create({"metadata": {"name": "third"}, "spec": template("third")["spec"]})
    assert (status, "exceeded quota: native" in answer["message"]) == (403, True), answer


@pytest.mark.slow
def test_a_cron_job_that_allows_several_jobs_piles_them_up(cron_jobs: Line) -> None:
    """The CronJob controller starts a Job a minute at most."""
    assert eventually(lambda: len(gated(pods(cron_jobs, "allow"))) >= 2, seconds=150)
    assert len(gated(pods(cron_jobs, "forbid"))) == 1

"""The MPI operator: what docs/tenants/queue.md says of MPIJobs, whose launcher has no GPUs."""

from collections.abc import Iterator

import pytest
import yaml

from tests.builders import JSON
from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane
from tests.neighbours.build import MPI_OPERATOR, source
from tests.neighbours.installation import Installation
from tests.neighbours.tenant import Seen, Stage, Tenant, name_of, staged, tolerated, watch

SAMPLE = "examples/v2beta1/tensorflow-benchmarks/tensorflow-benchmarks.yaml"
WAITS = "WaitForWorkersReady"


def sample() -> JSON:
    """Return its own example: a launcher without GPUs, and two workers with one each."""
    document: JSON = yaml.safe_load((source(MPI_OPERATOR) / SAMPLE).read_text())
    return document


@pytest.fixture(scope="module")
def stage(plane: ControlPlane) -> Iterator[Stage]:
    def sampled(neighbour: Installation) -> Seen:
        return watch(neighbour, Tenant(plane), sample(), lambda tenant: len(tenant.pods()) == 3)

    with staged(plane, MPI_OPERATOR, sampled) as stage:
        yield stage


@pytest.fixture
def tenant(stage: Stage, plane: ControlPlane) -> Tenant:  # noqa: ARG001 - it runs
    """Return a namespace that queues, with 4 GPUs."""
    return Tenant(plane, 4)


def mpijob(name: str, workers: int, *, launcher: str = "", **policy: object) -> JSON:
    document = sample()
    document["metadata"]["name"] = name
    document["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] = workers
    document["spec"]["runPolicy"] |= policy
    if launcher:
        document["spec"]["launcherCreationPolicy"] = launcher
    return document


def conditions(tenant: Tenant, name: str) -> set[str]:
    found = tenant.read("mpijob", name).get("status", {}).get("conditions", [])
    return {each["type"] for each in found if each["status"] == "True"}


def waiting(tenant: Tenant) -> str:
    """Return what is said of a job of two workers that wait for all of 4 GPUs."""
    return (
        f"MPIJob {tenant.name}/one: spec.mpiReplicaSpecs.Worker.template: needs 2 GPUs; {tenant.name} has 0 of 4 free: its pods "
        "will wait in line until enough of them fit to run together"
    )


def test_its_pods_are_made_once_with_us_as_without(stage: Stage, tenant: Tenant) -> None:
    seen = watch(stage.neighbour, tenant, sample(), lambda it: len(it.running()) == 3)
    assert seen.is_as(stage.without_us, 3), (seen, stage.without_us)
    tolerating = {name_of(pod): tolerated(pod) for pod in tenant.pods("tensorflow-benchmarks-worker")}
    assert tolerating == {f"tensorflow-benchmarks-worker-{number}": 1 for number in range(2)}
    assert [tolerated(pod) for pod in tenant.pods("tensorflow-benchmarks-launcher")] == [0]
    assert (tenant.used() or {})["gpus"] == 2


def test_its_workers_start_together_in_order_and_whole(tenant: Tenant) -> None:
    tenant.pod("holder", 1)
    assert tenant.runs(1, "holder")
    tenant.apply(mpijob("one", 4, launcher=WAITS))
    assert tenant.runs(0, "one", gated=4), "the launcher is made once its workers are ready"
    tenant.apply_behind(mpijob("two", 3, launcher=WAITS))
    assert tenant.runs(0, "two", gated=3), "no worker passes another, although 3 GPUs are free"
    tenant.end("holder")
    assert tenant.runs(5, "one")
    assert eventually(lambda: "Running" in conditions(tenant, "one"))
    tenant.remove("mpijob", "one")
    assert tenant.runs(4, "two")


def test_its_launcher_fails_the_job_while_its_workers_wait(tenant: Tenant) -> None:
    tenant.pod("holder", 4)
    assert tenant.runs(1, "holder")
    warnings = tenant.apply(mpijob("one", 2, backoffLimit=0))
    assert warnings == [
        f"{waiting(tenant)} [gpu-quota]",
        f"MPIJob {tenant.name}/one: spec.launcherCreationPolicy: set launcherCreationPolicy: WaitForWorkersReady; its pods "
        "without GPUs start at once, and fail while the others wait in line for quota [gpu-quota]",
    ]
    assert tenant.runs(1, "one-launcher")
    assert tenant.runs(0, "one-worker", gated=2)
    tenant.end(tenant.running("one-launcher")[0], code=1)
    assert eventually(lambda: "Failed" in conditions(tenant, "one"))
    assert tenant.runs(0, "one-worker")
    assert (tenant.used() or {})["gpus"] == 4


def test_what_is_suspended_gives_its_quota_back_and_waits_again(tenant: Tenant) -> None:
    tenant.apply(mpijob("one", 4))
    assert tenant.runs(5, "one")
    tenant.apply(mpijob("two", 2, launcher=WAITS))
    assert tenant.runs(0, "two", gated=2)
    tenant.change("mpijob", "one", {"runPolicy": {"suspend": True}})
    assert tenant.runs(0, "one")
    assert tenant.runs(3, "two")
    tenant.change("mpijob", "one", {"runPolicy": {"suspend": False}})
    assert tenant.runs(0, "one-worker", gated=4)
    tenant.remove("mpijob", "two")
    assert tenant.runs(4, "one-worker")
    tenant.remove("mpijob", "one")
    assert tenant.runs(0, "one")
    assert eventually(lambda: not any((tenant.used() or {}).values()))


def test_it_keeps_its_quota_when_a_worker_is_replaced(tenant: Tenant) -> None:
    tenant.apply(mpijob("one", 4))
    assert tenant.runs(5, "one")
    tenant.pod("next", 1)
    assert tenant.waits("next")
    tenant.delete_pod("one-worker-1")
    assert tenant.runs(4, "one-worker", seconds=20)
    assert tenant.waits("next")


def test_its_quota_is_free_once_its_launcher_has_ended_and_its_workers_are_cleaned_up(tenant: Tenant) -> None:
    tenant.apply(mpijob("one", 4))
    assert tenant.runs(5, "one")
    tenant.pod("next", 4)
    assert tenant.waits("next")
    tenant.end(tenant.running("one-launcher")[0])
    assert tenant.runs(1, "next")
    assert tenant.runs(0, "one")


def test_workers_that_nobody_cleans_up_hold_quota_after_the_job_has_ended(tenant: Tenant) -> None:
    tenant.apply(mpijob("one", 4, cleanPodPolicy=None))
    assert tenant.runs(5, "one")
    tenant.end(tenant.running("one-launcher")[0])
    assert eventually(lambda: "Succeeded" in conditions(tenant, "one"))
    assert tenant.runs(4, "one")
    assert (tenant.used() or {})["gpus"] == 4


def test_a_deadline_passes_while_its_workers_wait(tenant: Tenant) -> None:
    tenant.pod("holder", 4)
    assert tenant.runs(1, "holder")
    warnings = tenant.apply(mpijob("one", 2, activeDeadlineSeconds=15))
    assert (
        f"{waiting(tenant)}; spec.runPolicy.activeDeadlineSeconds: 15 counts meanwhile [gpu-quota]"
        in warnings
    )
    assert tenant.runs(0, "one-worker", gated=2)
    assert eventually(lambda: "Failed" in conditions(tenant, "one"), seconds=60)
    assert tenant.runs(0, "one")


def test_a_deadline_is_that_of_a_launcher_that_waits_for_its_workers(tenant: Tenant) -> None:
    tenant.pod("holder", 4)
    assert tenant.runs(1, "holder")
    warnings = tenant.apply(mpijob("one", 2, launcher=WAITS, activeDeadlineSeconds=10))
    assert warnings == [f"{waiting(tenant)} [gpu-quota]"]
    assert tenant.runs(0, "one", gated=2)
    assert not eventually(lambda: "Failed" in conditions(tenant, "one"), seconds=20)
    assert tenant.runs(0, "one", gated=2)


def test_a_denial_is_an_event_on_the_mpijob(stage: Stage, plane: ControlPlane) -> None:  # noqa: ARG001 - it runs
    denying = Tenant(plane, 1, name="deny-mpi")
    [warning] = denying.apply(mpijob("one", 2))
    assert warning == (
        "MPIJob deny-mpi/one: spec.mpiReplicaSpecs.Worker.replicas: set replicas: 1; 2 pods that must run together need 2 GPUs, "
        "which can never fit: the GPUQuota of deny-mpi grants 1 in all; or ask the platform team to raise spec.hard.gpus "
        "[gpu-quota]"
    )
    assert denying.tells("MPIJob", "[gpu-quota]")


def test_it_goes_on_after_our_webhook_was_away(stage: Stage, tenant: Tenant) -> None:
    stage.ours.webhook.kill()
    try:
        tenant.apply(mpijob("one", 2))
        assert tenant.tells("MPIJob", "failed calling webhook")
        assert not tenant.pods("one-worker")
    finally:
        stage.ours.webhook.start()
    assert tenant.runs(3, "one")


def test_it_goes_on_after_it_was_away_itself(stage: Stage, tenant: Tenant) -> None:
    tenant.apply(mpijob("one", 3))
    assert tenant.runs(4, "one")
    stage.neighbour.kill()
    tenant.apply(mpijob("two", 2, launcher=WAITS))
    assert not tenant.pods("two")
    stage.neighbour.start()
    assert tenant.runs(0, "two", gated=2)
    assert tenant.runs(4, "one")

"""The MPI operator of Kubeflow: what docs/tenants/queue.md says of MPIJobs."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.builders import JSON
from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane
from tests.neighbours.build import MPI_OPERATOR, source
from tests.neighbours.installation import Installation
from tests.neighbours.tenant import Seen, Stage, Tenant, name_of, staged, tolerated, watch

SAMPLE = "examples/v2beta1/tensorflow-benchmarks/tensorflow-benchmarks.yaml"
LAUNCHER_WAITS: JSON = {"launcherCreationPolicy": "WaitForWorkersReady"}


def sample() -> JSON:
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


def mpijob(name: str, workers: int, *, policy: JSON | None = None, **spec: Any) -> JSON:
    document = sample()
    document["metadata"]["name"] = name
    document["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] = workers
    document["spec"].update(spec, runPolicy={"cleanPodPolicy": "Running", **(policy or {})})
    return document


def workers(tenant: Tenant, name: str, number: int, *, gated: int = 0) -> bool:
    return tenant.runs(number, f"{name}-worker", gated=gated)


def is_failed(tenant: Tenant, name: str) -> bool:
    conditions = tenant.read("mpijob", name).get("status", {}).get("conditions", [])
    return any(each["type"] == "Failed" and each["status"] == "True" for each in conditions)


def test_its_pods_are_made_once_with_us_as_without(stage: Stage, tenant: Tenant) -> None:
    seen = watch(stage.neighbour, tenant, sample(), lambda it: len(it.running()) == 3)
    assert seen.is_as(stage.without_us, 3), (seen, stage.without_us)
    assert [tolerated(pod) for pod in tenant.pods("tensorflow-benchmarks-worker")] == [1, 1]
    assert [tolerated(pod) for pod in tenant.pods("tensorflow-benchmarks-launcher")] == [0]


def test_its_workers_start_together_in_order_and_whole_and_then_its_launcher(tenant: Tenant) -> None:
    tenant.pod("holder", 1)
    assert tenant.runs(1, "holder")
    warnings = tenant.apply(mpijob("one", 4, **LAUNCHER_WAITS))
    assert not any("launcherCreationPolicy" in each for each in warnings), warnings
    assert workers(tenant, "one", 0, gated=4)
    assert not tenant.pods("one-launcher")
    tenant.apply_behind(mpijob("two", 3, **LAUNCHER_WAITS))
    assert workers(tenant, "two", 0, gated=3), "no worker passes another, although 3 GPUs are free"
    tenant.end("holder")
    assert workers(tenant, "one", 4)
    assert tenant.runs(1, "one-launcher")
    tenant.remove("mpijob", "one")
    assert workers(tenant, "two", 3)


def test_its_launcher_starts_at_once_and_the_job_fails_if_it_does_not_wait(tenant: Tenant) -> None:
    tenant.pod("holder", 1)
    assert tenant.runs(1, "holder")
    warnings = tenant.apply(mpijob("one", 4, policy={"backoffLimit": 0}))
    assert any("launcherCreationPolicy" in each for each in warnings), warnings
    assert workers(tenant, "one", 0, gated=4)
    assert tenant.runs(1, "one-launcher"), "a launcher without GPUs is not in the line"
    tenant.end(tenant.running("one-launcher")[0], code=1)
    assert eventually(lambda: is_failed(tenant, "one"))
    assert workers(tenant, "one", 0)


def test_it_is_suspended_resumed_and_deleted(tenant: Tenant) -> None:
    tenant.apply(mpijob("one", 4, **LAUNCHER_WAITS))
    assert workers(tenant, "one", 4)
    tenant.apply(mpijob("two", 2, **LAUNCHER_WAITS))
    assert workers(tenant, "two", 0, gated=2)
    tenant.change("mpijob", "one", {"runPolicy": {"suspend": True}})
    assert workers(tenant, "one", 0)
    assert workers(tenant, "two", 2)
    tenant.change("mpijob", "one", {"runPolicy": {"suspend": False}})
    assert workers(tenant, "one", 0, gated=4)
    tenant.remove("mpijob", "two")
    assert workers(tenant, "one", 4)
    tenant.remove("mpijob", "one")
    assert tenant.runs(0)
    assert eventually(lambda: not any((tenant.used() or {}).values()))


def test_workers_that_are_added_wait_by_themselves(tenant: Tenant) -> None:
    tenant.apply(mpijob("one", 2))
    assert workers(tenant, "one", 2)
    tenant.apply(mpijob("one", 6))
    assert workers(tenant, "one", 4, gated=2)
    tenant.apply(mpijob("one", 1))
    assert workers(tenant, "one", 1)


def test_it_keeps_its_quota_when_a_worker_is_replaced(tenant: Tenant) -> None:
    tenant.apply(mpijob("one", 4))
    assert workers(tenant, "one", 4)
    tenant.pod("next", 1)
    assert tenant.waits("next")
    tenant.delete_pod(name_of(tenant.pods("one-worker")[0]))
    assert tenant.runs(4, "one-worker", seconds=20)
    assert tenant.waits("next")


def test_it_gives_its_quota_back_when_its_launcher_has_succeeded(tenant: Tenant) -> None:
    tenant.apply(mpijob("one", 4))
    assert workers(tenant, "one", 4)
    tenant.pod("next", 1)
    assert tenant.waits("next")
    tenant.end(tenant.running("one-launcher")[0])
    assert tenant.runs(1, "next")
    assert workers(tenant, "one", 0)


def test_a_denial_is_an_event_on_the_mpijob(stage: Stage, plane: ControlPlane) -> None:  # noqa: ARG001 - it runs
    denying = Tenant(plane, 1, name="deny-mpi")
    warnings = denying.apply(mpijob("one", 2))
    assert any("needs 2 GPUs, which can never fit" in each for each in warnings), warnings
    assert denying.tells("MPIJob", "[gpu-quota]")


def test_it_goes_on_after_our_webhook_was_away(stage: Stage, tenant: Tenant) -> None:
    stage.ours.webhook.kill()
    try:
        tenant.apply(mpijob("one", 2))
        assert tenant.tells("MPIJob", "failed calling webhook")
        assert not tenant.pods("one-worker")
    finally:
        stage.ours.webhook.start()
    assert workers(tenant, "one", 2)


def test_it_goes_on_after_it_was_away_itself(stage: Stage, tenant: Tenant) -> None:
    tenant.apply(mpijob("one", 4))
    assert workers(tenant, "one", 4)
    stage.neighbour.kill()
    tenant.apply(mpijob("two", 1, **LAUNCHER_WAITS))
    assert not tenant.pods("two")
    stage.neighbour.start()
    assert workers(tenant, "two", 0, gated=1)
    assert workers(tenant, "one", 4)

"""Kubeflow Trainer: its TrainJobs are JobSets of JobSet's controller, and docs/tenants/queue.md says what becomes of those."""

from collections.abc import Iterator

import pytest

from tests.builders import JSON
from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane
from tests.neighbours.build import JOBSET, TRAINER, source
from tests.neighbours.installation import Installation, installed
from tests.neighbours.tenant import Seen, Stage, Tenant, staged, tolerated, watch

RUNTIME = "manifests/base/runtimes/torch_distributed.yaml"


@pytest.fixture(scope="module")
def stage(plane: ControlPlane) -> Iterator[Stage]:
    def sampled(neighbour: Installation) -> Seen:
        plane.kubectl("apply", "--server-side", "-f", str(source(TRAINER) / RUNTIME))
        return watch(neighbour, Tenant(plane), trainjob("sample", 2), lambda tenant: len(tenant.pods()) == 2)

    with installed(plane, JOBSET, host=12), staged(plane, TRAINER, sampled) as stage:
        yield stage


@pytest.fixture
def tenant(stage: Stage, plane: ControlPlane) -> Tenant:  # noqa: ARG001 - it runs
    """Return a namespace that queues, with 4 GPUs."""
    return Tenant(plane, 4)


def trainjob(name: str, nodes: int, **spec: object) -> JSON:
    """Return a job of Trainer's own runtime for PyTorch, with a GPU on each node."""
    resources = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {"numNodes": nodes, "resourcesPerNode": resources},
            **spec,
        },
    }


def test_its_pods_are_made_once_with_us_as_without(stage: Stage, tenant: Tenant) -> None:
    seen = watch(stage.neighbour, tenant, trainjob("sample", 2), lambda it: len(it.running()) == 2)
    assert seen.is_as(stage.without_us, 2), (seen, stage.without_us)
    assert [tolerated(pod) for pod in tenant.pods()] == [1, 1]


def test_its_nodes_start_together_in_order_and_whole(tenant: Tenant) -> None:
    tenant.pod("holder", 1)
    assert tenant.runs(1, "holder")
    tenant.apply(trainjob("one", 4))
    assert tenant.runs(0, "one", gated=4)
    tenant.apply_behind(trainjob("two", 3))
    assert tenant.runs(0, "two", gated=3), "no pod passes another, although 3 GPUs are free"
    tenant.end("holder")
    assert tenant.runs(4, "one")
    for name in tenant.running("one"):
        tenant.end(name)
    assert tenant.runs(3, "two")


def test_it_is_suspended_resumed_and_deleted(tenant: Tenant) -> None:
    tenant.apply(trainjob("one", 4))
    assert tenant.runs(4, "one")
    tenant.apply(trainjob("two", 2))
    assert tenant.runs(0, "two", gated=2)
    tenant.change("trainjob", "one", {"suspend": True})
    assert tenant.runs(0, "one")
    assert tenant.runs(2, "two")
    tenant.change("trainjob", "one", {"suspend": False})
    assert tenant.runs(0, "one", gated=4)
    tenant.remove("trainjob", "two")
    assert tenant.runs(4, "one")
    tenant.remove("trainjob", "one")
    assert tenant.runs(0, "one")
    assert eventually(lambda: not any((tenant.used() or {}).values()))


def test_its_deadline_passes_while_its_pods_wait(tenant: Tenant) -> None:
    tenant.pod("holder", 4)
    assert tenant.runs(1, "holder")
    warnings = tenant.apply(trainjob("one", 2, activeDeadlineSeconds=15))
    assert any("activeDeadlineSeconds" in each for each in warnings), warnings
    assert tenant.runs(0, "one", gated=2)
    assert eventually(lambda: is_failed(tenant, "one"), seconds=60)
    assert tenant.runs(0, "one")


def is_failed(tenant: Tenant, name: str) -> bool:
    conditions = tenant.read("trainjob", name).get("status", {}).get("conditions", [])
    return any(each["type"] == "Failed" and each["status"] == "True" for each in conditions)


def test_a_denial_is_an_event_on_its_job(stage: Stage, plane: ControlPlane) -> None:  # noqa: ARG001 - it runs
    denying = Tenant(plane, 1, name="deny-trainer")
    warnings = denying.apply(trainjob("one", 2))
    assert any("need 2 GPUs, which can never fit" in each for each in warnings), warnings
    assert denying.tells("Job", "[gpu-quota]")
    assert not any("gpu-quota" in each for each in denying.messages("TrainJob"))


def test_it_goes_on_after_our_webhook_was_away(stage: Stage, tenant: Tenant) -> None:
    stage.ours.webhook.kill()
    try:
        tenant.apply(trainjob("one", 2))
        assert tenant.tells("Job", "failed calling webhook")
        assert not tenant.pods()
    finally:
        stage.ours.webhook.start()
    assert tenant.runs(2, "one")


def test_it_goes_on_after_its_own_webhook_was_away(stage: Stage, tenant: Tenant) -> None:
    stage.neighbour.kill()
    path = f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{tenant.name}/trainjobs"
    status, answer = tenant.client.post(path, trainjob("one", 2))
    stage.neighbour.start()
    assert (status, "trainjob.trainer.kubeflow.org" in answer["message"]) == (500, True)
    tenant.apply(trainjob("one", 2))
    assert tenant.runs(2, "one")

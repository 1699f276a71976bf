"""The training operator of Kubeflow: what docs/tenants/queue.md says of its Jobs."""

from collections.abc import Iterator

import pytest
import yaml

from tests.builders import JSON
from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane
from tests.neighbours.build import TRAINING_OPERATOR, source
from tests.neighbours.installation import Installation
from tests.neighbours.tenant import Seen, Stage, Tenant, staged, tolerated, watch

SAMPLE = "examples/pytorch/mnist/v1/pytorch_job_mnist_nccl.yaml"


def sample() -> JSON:
    document: JSON = yaml.safe_load((source(TRAINING_OPERATOR) / SAMPLE).read_text())
    return document


@pytest.fixture(scope="module")
def stage(plane: ControlPlane) -> Iterator[Stage]:
    def sampled(neighbour: Installation) -> Seen:
        return watch(neighbour, Tenant(plane), sample(), lambda tenant: len(tenant.pods()) == 2)

    with staged(plane, TRAINING_OPERATOR, sampled) as stage:
        yield stage


@pytest.fixture
def tenant(stage: Stage, plane: ControlPlane) -> Tenant:  # noqa: ARG001 - it runs
    """Return a namespace that queues, with 4 GPUs."""
    return Tenant(plane, 4)


def pytorchjob(name: str, workers: int, **policy: object) -> JSON:
    document = sample()
    document["metadata"]["name"] = name
    document["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = workers
    document["spec"]["runPolicy"] = policy
    for replica in document["spec"]["pytorchReplicaSpecs"].values():
        replica["restartPolicy"] = "ExitCode"
    return document


def test_its_pods_are_made_once_with_us_as_without(stage: Stage, tenant: Tenant) -> None:
    seen = watch(stage.neighbour, tenant, sample(), lambda it: len(it.running()) == 2)
    assert seen.is_as(stage.without_us, 2), (seen, stage.without_us)
    assert [tolerated(pod) for pod in tenant.pods()] == [1, 1]


def test_its_pods_start_together_in_order_and_whole(tenant: Tenant) -> None:
    tenant.pod("holder", 1)
    assert tenant.runs(1, "holder")
    tenant.apply(pytorchjob("one", 3))
    assert tenant.runs(0, "one", gated=4)
    tenant.apply_behind(pytorchjob("two", 2))
    assert tenant.runs(0, "two", gated=3), "no pod passes another, although 3 GPUs are free"
    tenant.end("holder")
    assert tenant.runs(4, "one")
    tenant.remove("pytorchjob", "one")
    assert tenant.runs(3, "two")


def test_it_is_suspended_resumed_and_deleted(tenant: Tenant) -> None:
    tenant.apply(pytorchjob("one", 3))
    assert tenant.runs(4, "one")
    tenant.apply(pytorchjob("two", 1))
    assert tenant.runs(0, "two", gated=2)
    tenant.change("pytorchjob", "one", {"runPolicy": {"suspend": True}})
    assert tenant.runs(0, "one")
    assert tenant.runs(2, "two")
    tenant.change("pytorchjob", "one", {"runPolicy": {"suspend": False}})
    assert tenant.runs(0, "one", gated=4)
    tenant.remove("pytorchjob", "two")
    assert tenant.runs(4, "one")
    tenant.remove("pytorchjob", "one")
    assert tenant.runs(0)
    assert eventually(lambda: not any((tenant.used() or {}).values()))


def test_it_keeps_its_quota_when_a_worker_restarts(tenant: Tenant) -> None:
    tenant.apply(pytorchjob("one", 3))
    assert tenant.runs(4, "one")
    tenant.pod("next", 1)
    assert tenant.waits("next")
    tenant.end("one-worker-1", code=137)
    assert tenant.runs(4, "one", seconds=20)
    assert tenant.waits("next")


def test_a_denial_is_an_event_on_the_pytorchjob(stage: Stage, plane: ControlPlane) -> None:  # noqa: ARG001 - it runs
    denying = Tenant(plane, 1, name="deny-training")
    [warning] = denying.apply(pytorchjob("one", 1))
    assert warning == (
        "PyTorchJob deny-training/one: 2 pods that must run together need 2 GPUs, which can never fit: the GPUQuota of "
        "deny-training grants 1 in all; ask the platform team to raise spec.hard.gpus [gpu-quota]"
    )
    assert denying.tells("PyTorchJob", "[gpu-quota]")


def test_it_goes_on_after_our_webhook_was_away(stage: Stage, tenant: Tenant) -> None:
    stage.ours.webhook.kill()
    try:
        tenant.apply(pytorchjob("one", 1))
        assert tenant.tells("PyTorchJob", "failed calling webhook")
        assert not tenant.pods()
    finally:
        stage.ours.webhook.start()
    assert tenant.runs(2, "one")


def test_it_goes_on_after_its_own_webhook_was_away(stage: Stage, tenant: Tenant) -> None:
    stage.neighbour.kill()
    path = f"/apis/kubeflow.org/v1/namespaces/{tenant.name}/pytorchjobs"
    status, answer = tenant.client.post(path, pytorchjob("one", 1))
    stage.neighbour.start()
    assert (status, "validator.pytorchjob" in answer["message"]) == (500, True)
    tenant.apply(pytorchjob("one", 1))
    assert tenant.runs(2, "one")

"""KubeRay: what docs/tenants/queue.md says of RayClusters, and docs/operate/coexistence.md of their pods."""

from collections.abc import Iterator

import pytest
import yaml

from tests.builders import JSON
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane
from tests.neighbours.build import KUBERAY, source
from tests.neighbours.installation import Installation
from tests.neighbours.manifests import cluster, raycluster
from tests.neighbours.tenant import Seen, Stage, Tenant, name_of, staged, tolerated, watch

SAMPLE = "config/samples/ray-cluster.verl.yaml"
SAMPLE_GPUS = 4


@pytest.fixture(scope="module")
def stage(plane: ControlPlane) -> Iterator[Stage]:
    def sampled(neighbour: Installation) -> Seen:
        return watch(neighbour, Tenant(plane), sample(), lambda tenant: len(tenant.pods()) == 1)

    with staged(plane, KUBERAY, sampled) as stage:
        yield stage


@pytest.fixture
def tenant(stage: Stage, plane: ControlPlane) -> Tenant:  # noqa: ARG001 - it runs
    """Return a namespace that queues, with 4 GPUs."""
    return Tenant(plane, 4)


def sample() -> JSON:
    document: JSON = yaml.safe_load((source(KUBERAY) / SAMPLE).read_text())
    return document


def workers(tenant: Tenant, name: str, number: int, *, gated: int = 0) -> bool:
    return tenant.runs(number, f"{name}-gpus-worker", gated=gated)


def test_its_pods_are_made_once_with_us_as_without(stage: Stage, tenant: Tenant) -> None:
    seen = watch(stage.neighbour, tenant, sample(), lambda it: len(it.running()) == 1)
    assert seen.is_as(stage.without_us, 1), (seen, stage.without_us)
    assert [tolerated(pod) for pod in tenant.pods()] == [1]
    assert (tenant.used() or {})["gpus"] == SAMPLE_GPUS


def test_its_workers_start_together_in_order_and_whole(tenant: Tenant) -> None:
    tenant.pod("holder", 1)
    assert tenant.runs(1, "holder")
    tenant.apply(raycluster("one", 4))
    assert workers(tenant, "one", 0, gated=4)
    assert tenant.runs(1, "one-head"), "a head without GPUs is not in the line"
    tenant.apply_behind(raycluster("two", 3))
    assert workers(tenant, "two", 0, gated=3), "no worker passes another, although 3 GPUs are free"
    tenant.end("holder")
    assert workers(tenant, "one", 4)
    tenant.remove("raycluster", "one")
    assert workers(tenant, "two", 3)


def test_it_is_suspended_resumed_and_deleted(tenant: Tenant) -> None:
    tenant.apply(raycluster("one", 4))
    assert workers(tenant, "one", 4)
    tenant.apply(raycluster("two", 2))
    assert workers(tenant, "two", 0, gated=2)
    tenant.change("raycluster", "one", {"suspend": True})
    assert tenant.runs(0, "one")
    assert workers(tenant, "two", 2)
    tenant.change("raycluster", "one", {"suspend": False})
    assert workers(tenant, "one", 0, gated=4)
    tenant.remove("raycluster", "two")
    assert workers(tenant, "one", 4)
    tenant.remove("raycluster", "one")
    assert tenant.runs(0)
    assert eventually(lambda: not any((tenant.used() or {}).values()))


def test_workers_that_are_added_wait_by_themselves(tenant: Tenant) -> None:
    tenant.apply(raycluster("one", 2))
    assert workers(tenant, "one", 2)
    tenant.apply(raycluster("one", 6))
    assert workers(tenant, "one", 4, gated=2)
    tenant.apply(raycluster("one", 1))
    assert workers(tenant, "one", 1)


def test_it_keeps_its_quota_when_a_worker_is_replaced(stage: Stage, plane: ControlPlane) -> None:  # noqa: ARG001 - it runs
    tenant = Tenant(plane, 8)
    tenant.apply(raycluster("one", 4, gpus=2))
    assert workers(tenant, "one", 4)
    tenant.apply(raycluster("two", 1, gpus=2))
    assert workers(tenant, "two", 0, gated=1)
    tenant.delete_pod(name_of(tenant.pods("one-gpus-worker")[0]))
    assert tenant.runs(4, "one-gpus-worker", seconds=20)
    assert workers(tenant, "two", 0, gated=1)


@cases(
    ("kind", "spec", "where"),
    a_job=("RayJob", {"entrypoint": "python train.py"}, "rayClusterSpec"),
    a_service=("RayService", {}, "rayClusterConfig"),
)
def test_the_cluster_of_a_job_or_service_is_a_gang(tenant: Tenant, kind: str, spec: JSON, where: str) -> None:
    tenant.pod("holder", 1)
    assert tenant.runs(1, "holder")
    document = {"apiVersion": "ray.io/v1", "kind": kind, "metadata": {"name": "one"}}
    tenant.apply({**document, "spec": {**spec, where: cluster(4)}})
    assert eventually(lambda: len(tenant.gated("one")) == 4)
    tenant.end("holder")
    assert eventually(lambda: len(tenant.running("one")) == 5)


def test_a_denial_is_an_event_on_the_raycluster(stage: Stage, plane: ControlPlane) -> None:  # noqa: ARG001 - it runs
    denying = Tenant(plane, 1, name="deny-kuberay")
    [warning] = denying.apply(raycluster("one", 2))
    assert "needs 2 GPUs, which can never fit" in warning
    assert denying.tells("RayCluster", "[gpu-quota]")


def test_it_goes_on_after_our_webhook_was_away(stage: Stage, tenant: Tenant) -> None:
    stage.ours.webhook.kill()
    try:
        tenant.apply(raycluster("one", 2))
        assert tenant.tells("RayCluster", "failed calling webhook")
        assert not tenant.pods("one-gpus-worker")
    finally:
        stage.ours.webhook.start()
    assert workers(tenant, "one", 2)


def test_it_goes_on_after_it_was_away_itself(stage: Stage, tenant: Tenant) -> None:
    tenant.apply(raycluster("one", 4))
    assert workers(tenant, "one", 4)
    stage.neighbour.kill()
    tenant.apply(raycluster("two", 1))
    assert not tenant.pods("two")
    stage.neighbour.start()
    assert workers(tenant, "two", 0, gated=1)
    assert workers(tenant, "one", 4)

"""dask-kubernetes: its workers are Deployments, and docs/tenants/queue.md says what becomes of those."""

from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from tests.builders import JSON
from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane
from tests.neighbours.build import DASK
from tests.neighbours.installation import Installation
from tests.neighbours.tenant import Seen, Stage, Tenant, name_of, staged, tolerated, watch
from webhook.commands import main


@pytest.fixture(scope="module")
def stage(plane: ControlPlane) -> Iterator[Stage]:
    def sampled(neighbour: Installation) -> Seen:
        return watch(neighbour, Tenant(plane), cluster("sample", 2), lambda it: len(it.pods()) == 3)

    with staged(plane, DASK, sampled) as stage:
        yield stage


@pytest.fixture
def tenant(stage: Stage, plane: ControlPlane) -> Tenant:  # noqa: ARG001 - it runs
    """Return a namespace that queues, with 4 GPUs."""
    return Tenant(plane, 4)


def cluster(name: str, workers: int) -> JSON:
    """Return a cluster as the documentation of dask-kubernetes has it, with a GPU for each worker."""
    ports = [{"name": "tcp-comm", "containerPort": 8786}, {"name": "http-dashboard", "containerPort": 8787}]
    image = {"image": "ghcr.io/dask/dask:latest", "imagePullPolicy": "IfNotPresent"}
    scheduler = {"name": "scheduler", **image, "args": ["dask-scheduler"], "ports": ports}
    worker = {
        **image,
        "name": "worker",
        "args": ["dask-worker", "--name", "$(DASK_WORKER_NAME)"],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    service = {
        "type": "ClusterIP",
        "selector": {"dask.org/cluster-name": name, "dask.org/component": "scheduler"},
        "ports": [
            {
                "name": each["name"],
                "protocol": "TCP",
                "port": each["containerPort"],
                "targetPort": each["name"],
            }
            for each in ports
        ],
    }
    return {
        "apiVersion": "kubernetes.dask.org/v1",
        "kind": "DaskCluster",
        "metadata": {"name": name},
        "spec": {
            "worker": {"replicas": workers, "spec": {"containers": [worker]}},
            "scheduler": {"spec": {"containers": [scheduler]}, "service": service},
        },
    }


def workers(tenant: Tenant, name: str, number: int, *, gated: int = 0) -> bool:
    return tenant.runs(number, f"{name}-default-worker", gated=gated)


def test_its_pods_are_made_once_with_us_as_without(stage: Stage, tenant: Tenant) -> None:
    seen = watch(stage.neighbour, tenant, cluster("sample", 2), lambda it: len(it.running()) == 3)
    assert seen.is_as(stage.without_us, 3), (seen, stage.without_us)
    assert [tolerated(pod) for pod in tenant.pods("sample-default-worker")] == [1, 1]
    assert [tolerated(pod) for pod in tenant.pods("sample-scheduler")] == [0]


def test_its_workers_wait_one_by_one_in_order(tenant: Tenant) -> None:
    tenant.pod("holder", 2)
    assert tenant.runs(1, "holder")
    warnings = tenant.apply(cluster("one", 4))
    assert any("will wait in line" in each for each in warnings), warnings
    assert workers(tenant, "one", 2, gated=2)
    assert tenant.runs(1, "one-scheduler"), "a scheduler without GPUs is not in the line"
    tenant.apply_behind(cluster("two", 1))
    assert workers(tenant, "two", 0, gated=1)
    tenant.end("holder")
    assert workers(tenant, "one", 4)
    tenant.remove("daskcluster", "one")
    assert workers(tenant, "two", 1)


def test_workers_that_are_added_wait_and_a_deleted_cluster_gives_all_back(tenant: Tenant) -> None:
    tenant.apply(cluster("one", 3))
    assert workers(tenant, "one", 3)
    tenant.change("daskcluster", "one", {"worker": {"replicas": 6}})
    assert workers(tenant, "one", 4, gated=2)
    tenant.remove("daskcluster", "one")
    assert tenant.runs(0)
    assert eventually(lambda: not any((tenant.used() or {}).values()))


def test_a_worker_that_is_replaced_keeps_its_quota(tenant: Tenant) -> None:
    tenant.apply(cluster("one", 4))
    assert workers(tenant, "one", 4)
    tenant.pod("next", 1)
    assert tenant.waits("next")
    tenant.delete_pod(name_of(tenant.pods("one-default-worker")[0]))
    assert tenant.runs(4, "one-default-worker", seconds=20)
    assert tenant.waits("next")


def test_a_denial_is_an_event_on_the_replica_set_of_its_worker(stage: Stage, plane: ControlPlane) -> None:  # noqa: ARG001 - it runs
    denying = Tenant(plane, 1, name="deny-dask")
    warnings = denying.apply(cluster("one", 2))
    assert any("1 of 2 pods will start" in each for each in warnings), warnings
    assert denying.tells("ReplicaSet", "[gpu-quota]")
    assert workers(denying, "one", 1)
    assert not any("gpu-quota" in each for each in denying.messages("DaskCluster"))
    said = CliRunner().invoke(
        main, ["why", "daskcluster/one", "-n", denying.name, "--kubeconfig", str(plane.kubeconfig())]
    )
    assert "2 of 3 pods run" in said.output, said.output
    assert "[gpu-quota]" in said.output


def test_it_goes_on_after_our_webhook_was_away(stage: Stage, tenant: Tenant) -> None:
    stage.ours.webhook.kill()
    try:
        tenant.apply(cluster("one", 2))
        assert tenant.tells("ReplicaSet", "failed calling webhook")
        assert not tenant.pods("one-default-worker")
    finally:
        stage.ours.webhook.start()
    assert workers(tenant, "one", 2)


def test_it_goes_on_after_it_was_away_itself(stage: Stage, tenant: Tenant) -> None:
    tenant.apply(cluster("one", 4))
    assert workers(tenant, "one", 4)
    stage.neighbour.kill()
    tenant.apply(cluster("two", 1))
    assert not tenant.pods("two")
    stage.neighbour.start()
    assert workers(tenant, "two", 0, gated=1)
    assert workers(tenant, "one", 4)

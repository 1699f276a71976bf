"""JobSet: what docs/tenants/queue.md says of its gangs, and docs/operate/coexistence.md of its pods."""

from collections.abc import Iterator

import pytest

from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane
from tests.neighbours.build import JOBSET
from tests.neighbours.installation import Installation
from tests.neighbours.manifests import jobset, replicated
from tests.neighbours.tenant import Seen, Stage, Tenant, staged, tolerated, watch


@pytest.fixture(scope="module")
def stage(plane: ControlPlane) -> Iterator[Stage]:
    def sampled(neighbour: Installation) -> Seen:
        return watch(neighbour, Tenant(plane), jobset("sample", 2, 2), lambda tenant: len(tenant.pods()) == 4)

    with staged(plane, JOBSET, sampled) as stage:
        yield stage


@pytest.fixture
def tenant(stage: Stage, plane: ControlPlane) -> Tenant:  # noqa: ARG001 - it runs
    """Return a namespace that queues, with 4 GPUs."""
    return Tenant(plane, 4)


def complete(tenant: Tenant, prefix: str) -> None:
    for name in tenant.running(prefix):
        tenant.end(name)


def test_its_pods_are_made_once_with_us_as_without(stage: Stage, tenant: Tenant) -> None:
    seen = watch(stage.neighbour, tenant, jobset("sample", 2, 2), lambda it: len(it.running()) == 4)
    assert seen.is_as(stage.without_us, 4), (seen, stage.without_us)
    assert [tolerated(pod) for pod in tenant.pods()] == [1] * 4


def test_its_jobs_start_together_in_order_and_whole(tenant: Tenant) -> None:
    tenant.pod("holder", 1)
    assert tenant.runs(1, "holder")
    tenant.apply(jobset("one", 2, 2))
    assert tenant.runs(0, "one", gated=4)
    tenant.apply_behind(jobset("two", 1, 3))
    assert tenant.runs(0, "two", gated=3), "no part of a JobSet passes another, although 3 GPUs are free"
    tenant.end("holder")
    assert tenant.runs(4, "one")
    complete(tenant, "one")
    assert tenant.runs(3, "two")


def test_it_is_suspended_resumed_and_deleted(tenant: Tenant) -> None:
    tenant.apply(jobset("one", 2, 2))
    assert tenant.runs(4, "one")
    tenant.apply(jobset("two", 2, 1))
    assert tenant.runs(0, "two", gated=2)
    tenant.change("jobset", "one", {"suspend": True})
    assert tenant.runs(0, "one")
    assert tenant.runs(2, "two")
    tenant.change("jobset", "one", {"suspend": False})
    assert tenant.runs(0, "one", gated=4)
    tenant.remove("jobset", "two")
    assert tenant.runs(0, "two")
    assert tenant.runs(4, "one")
    tenant.remove("jobset", "one")
    assert tenant.runs(0, "one")
    assert eventually(lambda: not any((tenant.used() or {}).values()))


def test_a_suspended_one_counts_nothing(tenant: Tenant) -> None:
    assert not tenant.apply(jobset("one", 2, 2, suspend=True))
    [warning] = tenant.apply(jobset("large", 9, 9, suspend=True))
    assert "81 pods that must run together need 81 GPUs, which can never fit" in warning
    assert tenant.runs(0)


def test_jobs_that_start_one_after_another_wait_each_by_itself(tenant: Tenant) -> None:
    jobs = [
        replicated("first", 1, 2),
        replicated("second", 1, 4, dependsOn=[{"name": "first", "status": "Complete"}]),
    ]
    tenant.apply({**jobset("staged", 1, 1), "spec": {"replicatedJobs": jobs}})
    assert tenant.runs(2, "staged-first"), "4 pods that do not exist yet do not hold it"
    assert not tenant.pods("staged-second")
    complete(tenant, "staged-first")
    assert tenant.runs(4, "staged-second")


def test_it_keeps_its_quota_when_it_restarts(stage: Stage, plane: ControlPlane) -> None:  # noqa: ARG001 - it runs
    tenant = Tenant(plane, 8)
    tenant.apply(jobset("one", 2, 4, failurePolicy={"maxRestarts": 2}))
    assert tenant.runs(8, "one")
    for name in ("two", "three"):
        tenant.apply(jobset(name, 1, 4))
        assert tenant.runs(0, name, gated=4)
    tenant.end(tenant.running("one")[0], code=1)
    assert eventually(lambda: tenant.read("jobset", "one")["status"].get("restarts") == 1)
    assert tenant.runs(8, "one", seconds=20)
    assert tenant.runs(0, "t", gated=8)


def test_who_asks_for_an_exclusive_topology_is_warned_that_two_may_wait_for_each_other(
    tenant: Tenant,
) -> None:
    """Their leaders leave the line before their followers exist, each JobSet with half of the quota."""
    topology = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "kubernetes.io/hostname"}
    for name in ("one", "two"):
        document = jobset(name, 2, 2)
        document["metadata"]["annotations"] = topology
        assert any("two such objects may hold a part of the quota" in each for each in tenant.apply(document))
    assert eventually(lambda: len(tenant.pods("one")) == len(tenant.pods("two")) == 2 and not tenant.gated())
    assert tenant.tells("Job", "two such objects may hold a part of the quota each, and wait for each other")


def test_a_denial_is_an_event_on_its_job(stage: Stage, plane: ControlPlane) -> None:  # noqa: ARG001 - it runs
    denying = Tenant(plane, 1, name="deny-jobset")
    warnings = denying.apply(jobset("one", 1, 2))
    [warning] = warnings
    assert "needs 2 GPUs, which can never fit" in warning
    assert "1 of 2 pods will start" in warning
    assert denying.tells("Job", "[gpu-quota]")
    assert not any("gpu-quota" in each for each in denying.messages("JobSet"))


def test_it_goes_on_after_our_webhook_was_away(stage: Stage, tenant: Tenant) -> None:
    stage.ours.webhook.kill()
    try:
        tenant.apply(jobset("one", 2, 2))
        assert tenant.tells("Job", "failed calling webhook")
        assert not tenant.pods()
    finally:
        stage.ours.webhook.start()
    assert tenant.runs(4, "one")


def test_it_goes_on_after_its_own_webhook_was_away(stage: Stage, tenant: Tenant) -> None:
    stage.neighbour.kill()
    done = tenant.client.post(
        f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{tenant.name}/jobsets", jobset("one", 2, 2)
    )
    assert done[0] == 500
    assert "mjobset.kb.io" in done[1]["message"]
    stage.neighbour.start()
    tenant.apply(jobset("one", 2, 2))
    assert tenant.runs(4, "one")

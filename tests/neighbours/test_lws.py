"""LeaderWorkerSet: what docs/tenants/queue.md says of its groups."""

from collections.abc import Iterator

import pytest
import yaml

from tests.builders import JSON
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane
from tests.neighbours.build import LEADER_WORKER_SET, source
from tests.neighbours.installation import Installation
from tests.neighbours.tenant import Seen, Stage, Tenant, name_of, staged, tolerated, watch

SAMPLE = "docs/examples/vllm/GPU/lws.yaml"


def sample() -> JSON:
    document: JSON = next(yaml.safe_load_all((source(LEADER_WORKER_SET) / SAMPLE).read_text()))
    return document


@pytest.fixture(scope="module")
def stage(plane: ControlPlane) -> Iterator[Stage]:
    def sampled(neighbour: Installation) -> Seen:
        return watch(neighbour, Tenant(plane), sample(), lambda tenant: len(tenant.pods()) == 4)

    with staged(plane, LEADER_WORKER_SET, sampled) as stage:
        yield stage


@pytest.fixture
def tenant(stage: Stage, plane: ControlPlane) -> Tenant:  # noqa: ARG001 - it runs
    """Return a namespace that queues, with 4 GPUs."""
    return Tenant(plane, 4)


def lws(name: str, groups: int, **spec: object) -> JSON:
    """Return groups of two pods with a GPU each."""
    container = {"name": "serve", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    workers = {"size": 2, "workerTemplate": {"spec": {"containers": [container]}}}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name},
        "spec": {"replicas": groups, "leaderWorkerTemplate": workers, **spec},
    }


def test_its_pods_are_made_once_with_us_as_without(stage: Stage, plane: ControlPlane) -> None:
    tenant = Tenant(plane, 32)
    seen = watch(stage.neighbour, tenant, sample(), lambda it: len(it.running()) == 4)
    assert seen.is_as(stage.without_us, 4), (seen, stage.without_us)
    assert [tolerated(pod) for pod in tenant.pods()] == [1] * 4


def test_its_groups_start_whole_and_in_order(tenant: Tenant) -> None:
    tenant.pod("holder", 3)
    assert tenant.runs(1, "holder")
    tenant.apply(lws("one", 1))
    assert tenant.runs(0, "one", gated=2)
    tenant.in_a_later_second("behind")
    assert tenant.waits("behind"), "a part of a group passes no pod, and no pod passes it"
    tenant.end("holder")
    assert tenant.runs(2, "one")
    assert tenant.runs(1, "behind")


def test_of_three_groups_on_a_quota_for_two_two_run(tenant: Tenant) -> None:
    [warning] = tenant.apply(lws("one", 3))
    assert "needs 6 GPUs, which can never fit" in warning
    assert "4 of 6 pods will start, and the others will wait in line" in warning
    assert tenant.runs(4, "one", gated=2)
    tenant.apply(lws("one", 1))
    assert tenant.runs(2, "one")
    tenant.remove("lws", "one")
    assert tenant.runs(0)
    assert eventually(lambda: not any((tenant.used() or {}).values()))


def test_it_keeps_its_quota_when_a_group_restarts(tenant: Tenant) -> None:
    tenant.apply(lws("one", 2))
    assert tenant.runs(4, "one")
    tenant.pod("next", 1)
    assert tenant.waits("next")
    before = {pod["metadata"]["uid"] for pod in tenant.pods("one")}
    tenant.delete_pod(name_of(tenant.pods("one-0-1")[0]))
    assert eventually(lambda: len({pod["metadata"]["uid"] for pod in tenant.pods("one")} - before) == 2)
    assert tenant.runs(4, "one")
    assert tenant.waits("next")


@cases(
    ("spec", "annotations"),
    as_their_policy_says=({"startupPolicy": "LeaderReady"}, {}),
    in_a_topology_of_their_own=(
        {},
        {"leaderworkerset.sigs.k8s.io/exclusive-topology": "kubernetes.io/hostname"},
    ),
)
def test_groups_that_start_after_their_leader_wait_one_by_one(
    tenant: Tenant, spec: JSON, annotations: JSON
) -> None:
    tenant.pod("holder", 3)
    document = lws("one", 1, **spec)
    document["metadata"]["annotations"] = annotations
    tenant.apply(document)
    assert tenant.runs(1, "one", gated=1)
    tenant.end("holder")
    assert tenant.runs(2, "one")


def test_a_denial_is_an_event_on_its_statefulset(stage: Stage, plane: ControlPlane) -> None:  # noqa: ARG001 - it runs
    denying = Tenant(plane, 1, name="deny-lws")
    [warning] = denying.apply(lws("one", 1))
    assert "2 pods that must run together need 2 GPUs, which can never fit" in warning
    assert denying.tells("StatefulSet", "[gpu-quota]")
    assert not any("gpu-quota" in each for each in denying.messages("LeaderWorkerSet"))


def test_it_goes_on_after_our_webhook_was_away(stage: Stage, tenant: Tenant) -> None:
    stage.ours.webhook.kill()
    try:
        tenant.apply(lws("one", 2))
        assert tenant.tells("StatefulSet", "failed calling webhook")
        assert not tenant.pods()
    finally:
        stage.ours.webhook.start()
    assert tenant.runs(4, "one")


def test_it_goes_on_after_its_own_webhook_was_away(stage: Stage, tenant: Tenant) -> None:
    stage.neighbour.kill()
    path = f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{tenant.name}/leaderworkersets"
    status, answer = tenant.client.post(path, lws("one", 2))
    stage.neighbour.start()
    assert (status, "leaderworkerset" in answer["message"]) == (500, True)
    tenant.apply(lws("one", 2))
    assert tenant.runs(4, "one")

"""Argo Workflows: what queue.md and coexistence.md say of Workflows, whose pods come one after another."""

import time
from collections.abc import Iterator

import pytest

from tests.builders import JSON
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane
from tests.neighbours.build import ARGO_WORKFLOWS
from tests.neighbours.installation import Installation
from tests.neighbours.tenant import Seen, Stage, Tenant, name_of, staged, tolerated, watch


@pytest.fixture(scope="module")
def stage(plane: ControlPlane) -> Iterator[Stage]:
    def sampled(neighbour: Installation) -> Seen:
        return watch(neighbour, Tenant(plane), workflow("sample", 2), lambda tenant: len(tenant.pods()) == 2)

    with staged(plane, ARGO_WORKFLOWS, sampled) as stage:
        yield stage


@pytest.fixture
def tenant(stage: Stage, plane: ControlPlane) -> Tenant:  # noqa: ARG001 - it runs
    """Return a namespace that queues, with 4 GPUs."""
    return Tenant(plane, 4)


def workflow(name: str, pods: int, *, template: JSON | None = None, **spec: object) -> JSON:
    """Return a Workflow with one step of so many pods, by default with a GPU each."""
    train = {"name": "train", "template": "train", "withSequence": {"count": str(pods)}}
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": name},
        "spec": {
            "entrypoint": "main",
            "templates": [
                {"name": "main", "steps": [[train]]},
                {"name": "train", **(template or {"container": container("main", 1)})},
            ],
            **spec,
        },
    }


def container(name: str, gpus: int) -> JSON:
    return {
        "name": name,
        "image": "x",
        "command": ["x"],
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
    }


def status(tenant: Tenant, name: str) -> JSON:
    found: JSON = tenant.read("workflow", name).get("status", {})
    return found


def messages(tenant: Tenant, name: str) -> set[str]:
    """Return what its nodes that are pods say."""
    nodes = status(tenant, name).get("nodes", {}).values()
    return {each.get("message", "") for each in nodes if each["type"] == "Pod"}


def test_its_pods_are_made_once_with_us_as_without(stage: Stage, tenant: Tenant) -> None:
    seen = watch(stage.neighbour, tenant, workflow("sample", 2), lambda it: len(it.running()) == 2)
    assert seen.is_as(stage.without_us, 2), (seen, stage.without_us)
    for pod in tenant.pods():
        assert tolerated(pod) == 1
        names = [each["name"] for kind in ("initContainers", "containers") for each in pod["spec"][kind]]
        assert names == ["init", "wait", "main"]
    assert eventually(lambda: (tenant.used() or {}).get("gpus") == 2)


def test_its_pods_wait_one_by_one_and_its_next_step_behind_all_others(tenant: Tenant) -> None:
    tenant.pod("holder", 2)
    assert tenant.runs(1, "holder")
    tenant.apply(workflow("one", 3))
    assert tenant.runs(2, "one", gated=1)
    tenant.in_a_later_second("next", 1)
    tenant.end("holder")
    assert tenant.runs(3, "one")
    assert tenant.runs(1, "next")
    for name in tenant.running("one"):
        tenant.end(name)
    assert eventually(lambda: status(tenant, "one")["phase"] == "Succeeded", seconds=60), status(
        tenant, "one"
    )
    assert (tenant.used() or {})["gpus"] == 1


def test_a_pod_that_is_tried_again_is_the_last_in_line(tenant: Tenant) -> None:
    tenant.pod("holder", 3)
    assert tenant.runs(1, "holder")
    again = {"container": container("main", 1), "retryStrategy": {"limit": "1", "retryPolicy": "Always"}}
    tenant.apply(workflow("one", 1, template=again))
    assert tenant.runs(1, "one")
    tenant.in_a_later_second("next", 1)
    assert tenant.waits("next")
    tenant.end(tenant.running("one")[0], code=1)
    assert tenant.runs(1, "next")
    assert tenant.runs(0, "one", gated=1)
    tenant.end("holder")
    assert tenant.runs(1, "one")


@cases(
    "template",
    a_sidecar={"container": container("main", 1), "sidecars": [container("serve", 1)]},
    a_set_of_containers={"containerSet": {"containers": [container("main", 1), container("b", 1)]}},
    an_init_container={"container": container("main", 1), "initContainers": [container("load", 2)]},
    a_patch_of_the_pod={
        "container": container("main", 1),
        "podSpecPatch": '{"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]}',
    },
)
def test_the_gpus_of_all_that_it_adds_are_counted(tenant: Tenant, template: JSON) -> None:
    tenant.apply(workflow("one", 1, template=template))
    assert tenant.runs(1, "one")
    assert eventually(lambda: (tenant.used() or {}).get("gpus") == 2), tenant.used()


def test_its_deadline_passes_while_its_pods_wait(tenant: Tenant) -> None:
    """It may look only when a pod gets its quota, or after 20 minutes. A pod has the deadline, too, from its start on."""
    tenant.pod("holder", 4)
    assert tenant.runs(1, "holder")
    assert tenant.apply(workflow("one", 2, activeDeadlineSeconds=15)) == [], (
        "how many pods it has is not known"
    )
    assert tenant.runs(0, "one", gated=2)
    time.sleep(15)
    tenant.end("holder")
    assert eventually(lambda: status(tenant, "one")["phase"] == "Failed", seconds=90), status(tenant, "one")


def test_a_suspended_one_makes_no_more_pods(tenant: Tenant) -> None:
    tenant.apply(workflow("one", 2, suspend=True))
    assert eventually(lambda: status(tenant, "one").get("phase") == "Running")
    assert not tenant.pods()
    tenant.change("workflow", "one", {"suspend": None})
    assert tenant.runs(2, "one")
    tenant.remove("workflow", "one")
    assert tenant.runs(0)
    assert eventually(lambda: not any((tenant.used() or {}).values()))


def test_where_pods_are_denied_it_tries_again_until_they_fit(stage: Stage, plane: ControlPlane) -> None:  # noqa: ARG001
    """It takes each denial with `exceeded quota` in it for one that passes (`isExceededQuotaErr` of its util/errors)."""
    denying = Tenant(plane, 1, name="deny-argo")
    denying.pod("holder", 1)
    assert denying.runs(1)
    denying.apply(workflow("one", 1))
    assert eventually(
        lambda: any(
            "exceeded quota: deny-argo/default, requested 1 GPU" in each for each in messages(denying, "one")
        )
    )
    assert status(denying, "one")["phase"] == "Running"
    denying.end("holder")
    assert denying.runs(1, "one", seconds=90)


def test_any_other_denial_ends_it_with_our_words(stage: Stage, plane: ControlPlane) -> None:  # noqa: ARG001 - it runs
    tenant = Tenant(plane, 4, name="a100-argo")
    [warning] = tenant.apply(workflow("one", 1, nodeSelector={"accelerator": "nvidia-t4"}))
    denial = "must not pin the pod to nvidia-t4 (nodeSelector accelerator=nvidia-t4): not allowed in namespace a100-argo"
    assert f"its pods would be denied: spec.templates[1]: {denial}" in warning
    assert eventually(lambda: status(tenant, "one")["phase"] in {"Error", "Failed"})
    assert all(denial in each and "[gpu-class]" in each for each in messages(tenant, "one"))


def test_it_goes_on_after_our_webhook_was_away(stage: Stage, tenant: Tenant) -> None:
    stage.ours.webhook.kill()
    try:
        tenant.apply(workflow("one", 1))
        assert eventually(lambda: any("failed calling webhook" in each for each in messages(tenant, "one")))
        phase = status(tenant, "one")["phase"]
    finally:
        stage.ours.webhook.start()
    assert phase == "Running"
    assert tenant.runs(1, "one", seconds=90)


def test_it_goes_on_after_it_was_away_itself(stage: Stage, tenant: Tenant) -> None:
    tenant.apply(workflow("one", 3))
    assert tenant.runs(3, "one")
    stage.neighbour.kill()
    tenant.apply(workflow("two", 2))
    assert not tenant.pods("two")
    stage.neighbour.start()
    assert tenant.runs(1, "two", gated=1)
    assert [name_of(pod) for pod in tenant.live("one")] == sorted(tenant.running("one"))

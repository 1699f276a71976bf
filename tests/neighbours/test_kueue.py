"""Kueue: each sentence of docs/operate/coexistence.md about what it places, and who waits where."""

from collections.abc import Iterator

import pytest

from policies.quota.waiting import GATE
from tests.builders import JSON
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane
from tests.neighbours.kubelet import LABELS, TAINT
from tests.neighbours.kueue import (
    ITS_GATES,
    Queueing,
    group,
    job,
    kueue_stage,
    pod,
    queued,
    replicated,
    spec_alone,
    used,
)
from tests.neighbours.manifests import jobset, raycluster
from tests.neighbours.tenant import Stage, gates_of, tolerated, watch

T4, A100 = "classes/nvidia-t4", "classes/nvidia-a100-80gb"


@pytest.fixture(scope="module")
def stage(plane: ControlPlane) -> Iterator[Stage]:
    with kueue_stage(plane) as stage:
        yield stage


@pytest.fixture
def tenant(stage: Stage, plane: ControlPlane) -> Queueing:  # noqa: ARG001 - it runs
    """Return a namespace that queues here and there, with 4 GPUs."""
    return Queueing(plane, 4)


def test_a_job_is_started_once_with_us_as_without(stage: Stage, tenant: Queueing) -> None:
    """It counts nothing while Kueue suspends it, and gpu-admission does not change its template."""
    seen = watch(stage.neighbour, tenant, job("sample", 2), lambda it: len(it.running()) == 2)
    assert seen.is_as(stage.without_us, 2), (seen, stage.without_us)
    assert [tolerated(each) for each in tenant.pods()] == [1, 1]
    assert [each["spec"]["nodeSelector"] for each in tenant.pods()] == [LABELS, LABELS]
    template = tenant.read("job", "sample")["spec"]["template"]["spec"]
    assert template["tolerations"] == [{"key": TAINT["key"], "operator": "Exists"}], "of the flavor alone"


def test_a_suspended_job_counts_nothing(tenant: Queueing) -> None:
    tenant.hold("Hold")
    tenant.apply(job("held", 2))
    assert eventually(lambda: tenant.read("job", "held")["spec"]["suspend"])
    assert not tenant.pods()
    assert used(tenant) == {}
    tenant.hold("None")
    assert tenant.runs(2)
    assert eventually(lambda: used(tenant) == {"gpus": 2})


@cases(
    ("options", "held"),
    by_default=({}, {"gpus": 2, T4: 2, A100: 2}),
    counted_in_total_alone=({"unclassifiedPods": "TotalOnly"}, {"gpus": 2}),
)
def test_a_plain_pod_counts_from_its_creation_and_its_class_from_its_placement(
    stage: Stage,  # noqa: ARG001 - it runs
    plane: ControlPlane,
    options: JSON,
    held: dict[str, int],
) -> None:
    tenant = Queueing(plane)
    tenant.quota({"gpus": "4", "classes": {"nvidia-t4": "4", "nvidia-a100-80gb": "2"}}, **options)
    assert eventually(tenant.in_force)
    tenant.hold("Hold")
    tenant.apply(pod("plain", 2))
    assert gates_of(tenant.get("plain")) == ITS_GATES
    assert eventually(lambda: used(tenant) == held), used(tenant)
    tenant.hold("None")
    assert tenant.runs(1)
    assert tenant.get("plain")["spec"]["nodeSelector"] == LABELS
    assert eventually(lambda: used(tenant) == {"gpus": 2, T4: 2}), used(tenant)


def test_pods_under_its_gate_keep_what_it_wrote_and_get_tolerations_but_no_class(tenant: Queueing) -> None:
    tenant.hold("Hold")
    for each in [pod("plain"), *group(2)]:
        tenant.apply(each)
    found = tenant.pods()
    assert [gates_of(each) for each in found] == [*[[*ITS_GATES, GATE]] * 2, ITS_GATES], (
        "a group starts whole"
    )
    assert [tolerated(each) for each in found] == [1, 1, 1]
    assert not any("nodeSelector" in each["spec"] for each in found)
    assert all("kueue.x-k8s.io/managed" in each["metadata"]["finalizers"] for each in found)
    wanted = [each["metadata"] for each in [*group(2), pod("plain")]]
    for each, written in zip(found, wanted, strict=True):
        assert each["metadata"]["labels"].items() >= written["labels"].items()
        assert each["metadata"]["annotations"].items() >= written.get("annotations", {}).items()
    tenant.hold("None")
    assert tenant.runs(3)


def test_the_default_class_is_for_pods_that_kueue_does_not_place(stage: Stage, plane: ControlPlane) -> None:  # noqa: ARG001
    tenant = Queueing(plane, 4, name="default-kueue")
    tenant.apply(job("one", 1))
    tenant.apply(pod("plain"))
    assert tenant.runs(2)
    assert [each["spec"]["nodeSelector"] for each in tenant.pods()] == [LABELS, LABELS]
    tenant.pod("alone", 1)
    assert tenant.get("alone")["spec"]["nodeSelector"] == {"accelerator": "nvidia-a100-80gb"}


def test_a_placement_on_a_class_that_is_not_allowed_is_denied(stage: Stage, plane: ControlPlane) -> None:
    tenant = Queueing(plane, 4, name="a100-kueue")
    tenant.apply(pod("plain", 3))
    assert eventually(lambda: "[gpu-class]" in stage.neighbour.log())
    assert tenant.is_admitted()
    assert gates_of(tenant.get("plain")) == ITS_GATES


def test_a_placement_that_exceeds_the_quota_is_denied(stage: Stage, plane: ControlPlane) -> None:
    tenant = Queueing(plane, name="deny-kueue-class")
    tenant.quota({"gpus": "4", "classes": {"nvidia-t4": "1"}}, unclassifiedPods="TotalOnly")
    assert eventually(tenant.in_force)
    tenant.apply(pod("plain", 2))
    assert eventually(lambda: "deny-kueue-class/default" in stage.neighbour.log())
    assert tenant.is_admitted()
    assert gates_of(tenant.get("plain")) == ITS_GATES


@cases(
    ("documents", "pods", "gpus"),
    a_job=([job("one", 2)], 2, 2),
    a_jobset=([queued(jobset("one", 2, 1))], 2, 2),
    a_raycluster_with_its_head=([queued(raycluster("one", 2))], 3, 2),
    a_plain_pod_larger_than_the_quota=([pod("one-0", 3)], 1, 3),
    a_pod_group=(group(2), 2, 2),
    a_deployment=([replicated("Deployment", 2)], 2, 2),
)
def test_what_kueue_has_admitted_starts_beyond_a_quota_that_respects_it(
    stage: Stage,  # noqa: ARG001 - it runs
    plane: ControlPlane,
    documents: list[JSON],
    pods: int,
    gpus: int,
) -> None:
    tenant = Queueing(plane, 2, name=f"respects-kueue-{documents[0]['kind'].lower()}-{pods}")
    tenant.pod("holder", 2)
    assert tenant.runs(1)
    tenant.apply(waiting := spec_alone("other"))
    assert tenant.runs(1, "holder")
    for each in documents:
        tenant.apply(each)
    assert tenant.runs(pods, "one")
    assert eventually(lambda: used(tenant) == {"gpus": 2 + gpus}), used(tenant)
    assert tenant.gated(waiting["metadata"]["name"]), "others wait until the quota has room"

    def over() -> list[str]:
        shown = tenant.read("gpuquota", "default")["status"]["conditions"]
        return [each["message"] for each in shown if each["type"] == "Exceeded"]

    assert eventually(lambda: over() == [f"gpus: {2 + gpus} used of 2, {gpus} too many"]), over()


def test_a_smaller_gpuquota_denies_pods_of_what_kueue_admitted_and_the_job_controller_retries(
    stage: Stage,  # noqa: ARG001 - it runs
    plane: ControlPlane,
) -> None:
    tenant = Queueing(plane, 1, name="deny-kueue")
    tenant.apply(job("one", 2))
    assert tenant.tells("Job", "[gpu-quota]")
    assert tenant.is_admitted()
    assert tenant.runs(1)
    tenant.end(tenant.running()[0])
    assert eventually(lambda: len(tenant.pods()) == 2)
    assert tenant.runs(1)


@cases(
    "document",
    a_job=job("one", 2),
    a_raycluster=queued(raycluster("one", 2)),
)
def test_pods_of_what_it_admitted_wait_here_as_any_other(tenant: Queueing, document: JSON) -> None:
    tenant.pod("holder", 4)
    assert tenant.runs(1)
    tenant.apply(document)
    assert eventually(lambda: len(tenant.gated("one")) == 2)
    assert tenant.is_admitted()
    tenant.end("holder")
    assert eventually(lambda: used(tenant) == {"gpus": 2}, seconds=90), tenant.pods()
    assert not tenant.gated()


@cases(
    "documents",
    a_plain_pod=[pod("one-0", 2)],
    a_pod_group=group(2),
    a_deployment=[replicated("Deployment", 2)],
    a_statefulset=[replicated("StatefulSet", 2, podManagementPolicy="Parallel")],
)
def test_pods_under_its_gate_that_do_not_fit_wait_here_and_there(
    tenant: Queueing, documents: list[JSON]
) -> None:
    tenant.pod("holder", 4)
    tenant.hold("Hold")
    for each in documents:
        tenant.apply(each)
    pods = len(documents) if len(documents) > 1 else documents[0]["spec"].get("replicas", 1)
    assert eventually(lambda: len(tenant.gated("one")) == pods)
    assert all(gates_of(each) == [*ITS_GATES, GATE] for each in tenant.pods("one"))
    tenant.end("holder")
    tenant.pod("passes", 1)
    assert tenant.runs(1, "passes"), "others pass it until Kueue removes its gate"
    tenant.hold("None")
    assert tenant.runs(pods, "one")


def test_pods_under_its_gate_that_fit_count_from_their_creation(tenant: Queueing) -> None:
    tenant.hold("Hold")
    tenant.apply(replicated("Deployment", 2))
    assert eventually(lambda: used(tenant) == {"gpus": 2})
    assert [gates_of(each) for each in tenant.pods()] == [ITS_GATES] * 2
    tenant.hold("None")
    assert tenant.runs(2)


def test_a_jobset_that_it_admitted_waits_as_any_other_gang(tenant: Queueing) -> None:
    tenant.pod("holder", 1)
    assert tenant.runs(1)
    tenant.apply(queued(jobset("one", 2, 2)))
    assert tenant.runs(0, "one", gated=4)
    assert tenant.is_admitted()
    tenant.end("holder")
    assert tenant.runs(4, "one")


def test_what_it_evicts_gives_its_quota_back_and_is_started_again(tenant: Queueing) -> None:
    for name, pods in (("one", 1), ("two", 2)):
        tenant.apply(queued(jobset(name, 1, pods)))
    assert tenant.runs(3)
    assert eventually(lambda: used(tenant) == {"gpus": 3})
    tenant.hold("HoldAndDrain")
    assert tenant.runs(0)
    assert eventually(lambda: used(tenant) == {})
    tenant.hold("None")
    assert tenant.runs(3)
    tenant.remove("jobset", "one")
    assert tenant.runs(2)
    assert eventually(lambda: used(tenant) == {"gpus": 2})


def test_a_label_of_its_own_pods_alone_is_not_believed(tenant: Queueing) -> None:
    tenant.pod("holder", 4)
    document = job("alone", 1, labels={})
    document["spec"]["template"]["metadata"] = {"labels": {"kueue.x-k8s.io/podset": "main"}}
    tenant.apply(document)
    assert tenant.runs(0, "alone", gated=1)


def test_it_goes_on_after_our_webhook_was_away(stage: Stage, tenant: Queueing) -> None:
    stage.ours.webhook.kill()
    try:
        tenant.apply(job("one", 2))
        assert tenant.tells("Job", "failed calling webhook")
        assert not tenant.pods()
    finally:
        stage.ours.webhook.start()
    assert tenant.runs(2)


def test_it_goes_on_after_its_own_webhook_was_away(stage: Stage, tenant: Queueing) -> None:
    stage.neighbour.kill()
    status, answer = tenant.create(pod("plain"))
    stage.neighbour.start()
    assert (status, "mpod.kb.io" in answer["message"]) == (500, True)
    assert used(tenant) == {}
    tenant.apply(pod("plain"))
    assert tenant.runs(1)

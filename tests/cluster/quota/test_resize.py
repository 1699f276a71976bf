"""`pods/resize`, which we do not review: nothing that a quota counts changes by it."""

from typing import Any

from tests.builders import JSON
from tests.cases import cases
from tests.cluster.controllers import uses
from tests.cluster.quota.quotas import in_force
from tests.cluster.versions import since
from tests.controlplane import accepted
from tests.controlplane.client import STRATEGIC_PATCH
from tests.controlplane.gpuquota import Namespace

GPU = "nvidia.com/gpu"
CPU = {"resources": {"requests": {"cpu": "64"}}}


def resized(team: Namespace, change: JSON) -> tuple[int, Any]:
    """Resize a pod with an init container of one GPU and a container of two, for which the quota counts two."""
    in_force(team, {"gpus": "8"})
    loader = {
        "name": "load",
        "image": "loader",
        "resources": {"limits": {GPU: "1"}, "requests": {"cpu": "1"}},
    }
    team.pod("train", 2, initContainers=[loader], resources={"requests": {"cpu": "128"}})
    assert uses(team, 2)
    return team.client.patch(team.path("pods", "train") + "/resize", change, content_type=STRATEGIC_PATCH)


def container(name: str, amount: str) -> list[JSON]:
    return [{"name": name, "resources": {"limits": {GPU: amount}, "requests": {GPU: amount}}}]


@since(36, "init containers and whole pods are not resized")
@cases(
    "change",
    a_container={"spec": {"containers": container("train", "4")}},
    an_init_container={"spec": {"initContainers": container("load", "4")}},
    the_pod_as_a_whole={"spec": {"resources": {"limits": {GPU: "4"}, "requests": {GPU: "4"}}}},
)
def test_gpus_cannot_be_resized(team: Namespace, change: JSON) -> None:
    status, answer = resized(team, change)

    assert status == 422, answer
    assert "only cpu and memory resources" in answer["message"] or GPU in answer["message"]


@since(36, "init containers and whole pods are not resized")
def test_what_is_no_amount_is_not_changed(team: Namespace) -> None:
    metadata = {"labels": {"a": "b"}, "annotations": {"a": "b"}}
    before = {
        "nodeSelector": {"accelerator": "nvidia-t4"},
        "tolerations": [],
        "schedulingGates": [{"name": "a/b"}],
    }
    status, answer = resized(team, {"metadata": metadata, "spec": before})

    assert status == 200, answer
    assert not {"labels", "annotations"} & answer["metadata"].keys()
    assert not {"nodeSelector", "schedulingGates"} & answer["spec"].keys()
    assert answer["spec"]["tolerations"]


@since(36, "init containers and whole pods are not resized")
@cases(
    "change",
    an_init_container={"spec": {"initContainers": [{"name": "load", **CPU}]}},
    the_pod_as_a_whole={"spec": CPU},
)
def test_cpu_is_resized_and_counts_nothing(team: Namespace, change: JSON) -> None:
    accepted(resized(team, change))

    assert uses(team, 2)

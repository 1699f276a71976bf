"""PodGroups of Kubernetes, whose feature gates are off by default: of bare pods, of a Job that is a gang, and with a claim."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.builders import JSON
from tests.cluster.controllers import eventually, uses
from tests.cluster.quota.quotas import CLAIMS, DEVICE_CLASSES, claim, gpu_pod, in_force
from tests.cluster.versions import since
from tests.cluster.waiting.conftest import queueing
from tests.cluster.waiting.gangs import TEMPLATE, create, made
from tests.cluster.waiting.line import Line
from tests.controlplane import CLAIMS_API, ControlPlane, accepted, minor_version

HAS_BETA = minor_version() >= 37
GATES = (
    "GenericWorkload",
    *(("WorkloadWithJob", "DRAWorkloadResourceClaims") if HAS_BETA else ("GangScheduling",)),
)
VERSION = f"scheduling.k8s.io/{'v1beta1' if HAS_BETA else 'v1alpha2'}"

pytestmark = [pytest.mark.slow, since(36, "pods name no PodGroups")]
needs_beta = since(37, "no controller makes PodGroups or their claims")


@pytest.fixture(scope="module")
def grouping() -> Iterator[ControlPlane]:
    served = f"--runtime-config={VERSION}=true"
    with ControlPlane(controllers=True, gates=GATES, apiserver_args=[served]) as plane, queueing(plane):
        yield plane


@pytest.fixture
def line(grouping: ControlPlane) -> Line:
    return Line(grouping)


def pod_group(**spec: Any) -> JSON:
    return made(VERSION, "PodGroup", {"schedulingPolicy": {"gang": {"minCount": 3}}, **spec})


def test_pods_that_name_a_pod_group_are_a_gang(grouping: ControlPlane, line: Line) -> None:
    in_force(line, {"gpus": "4"})
    names = [f"gang-{number}" for number in range(3)]
    for name in names:
        line.pod(name, schedulingGroup={"podGroupName": "train"})
    assert all(map(line.waits, names)), "its PodGroup may come later"
    create(grouping, line, pod_group())
    assert line.starts(*names)


@needs_beta
def test_a_job_that_is_a_gang_by_its_own_field_starts_whole(grouping: ControlPlane, line: Line) -> None:
    """No Indexed Job: its controller makes the PodGroup, and names it in the pods."""
    in_force(line, {"gpus": "4"})
    line.pod("holder", 2)
    scheduling = {"schedulingPolicy": {"gang": {"minCount": 3}}}
    spec = {"completions": 3, "parallelism": 3, "template": TEMPLATE, "scheduling": scheduling}
    create(grouping, line, made("batch/v1", "Job", spec))

    assert eventually(lambda: len(line.waiting()) == 3)
    groups = {each["spec"]["schedulingGroup"]["podGroupName"] for each in map(line.get, line.waiting())}
    assert len(groups) == 1
    assert line.is_counted()
    assert len(line.waiting()) == 3, "two of them would fit"
    line.delete_pod("holder")
    assert eventually(lambda: not line.waiting())
    assert uses(line, 3)


@needs_beta
def test_a_claim_that_a_pod_group_shares_is_charged_once(grouping: ControlPlane, line: Line) -> None:
    accepted(line.client.post(DEVICE_CLASSES, {"metadata": {"name": "gpu.nvidia.com"}, "spec": {}}))
    in_force(line, {"gpus": "4"})
    template = {"metadata": {"name": "cards"}, "spec": {"spec": claim("cards", 2)["spec"]}}
    path = f"{CLAIMS_API}/namespaces/{line.name}/resourceclaimtemplates"
    accepted(line.client.post(path, template))
    shared = {"name": "cards", "resourceClaimTemplateName": "cards"}
    create(grouping, line, pod_group(resourceClaims=[shared]))
    for number in range(3):
        container = {"name": "train", "image": "trainer", "resources": {"claims": [{"name": "cards"}]}}
        spec = {
            "containers": [container],
            "resourceClaims": [shared],
            "schedulingGroup": {"podGroupName": "train"},
        }
        accepted(line.create({"metadata": {"name": f"gang-{number}"}, "spec": spec}))

    def claims() -> list[JSON]:
        found: list[JSON] = line.client.get(CLAIMS.format(line.name))[1]["items"]
        return found

    assert eventually(claims)
    (owner,) = claims()[0]["metadata"]["ownerReferences"]
    assert (len(claims()), owner["kind"]) == (1, "PodGroup")
    assert uses(line, 2)
    assert line.create(gpu_pod("one-more", 3), {"dryRun": "All"})[0] == 201, "it would wait"

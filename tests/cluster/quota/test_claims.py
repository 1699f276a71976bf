"""Claims and DeviceClasses against a quota on a real API server: what a tenant with the ClusterRole `admin` can try.

There is no DRA driver and no kubelet: what the scheduler does is done here as `system:kube-scheduler`, in its order
(extendeddynamicresources.go of Kubernetes 1.36.3: claim, the claim's status, the pod's status).
"""

from collections.abc import Iterator
from typing import Any

import pytest

from policies.quota.amounts import GPUS
from tests.builders import JSON
from tests.cluster.controllers import eventually, uses
from tests.cluster.quota.quotas import CLAIMS, DEVICE_CLASSES, FINALIZER, PODS, claim, gpu_pod, in_force
from tests.cluster.versions import since
from tests.controlplane import ControlPlane, accepted, create_gpu_node
from tests.controlplane.gpuquota import Namespace

MARK = "resource.kubernetes.io/extended-resource-claim"
SCHEDULER = "system:kube-scheduler"
ROLES = ("system:aggregate-to-admin", "system:aggregate-to-edit", "system:aggregate-to-view")
"""What makes up `admin`, which is empty here: the controller that aggregates it does not run."""


@pytest.fixture
def team(team: Namespace) -> Namespace:
    """Make `engineer` an administrator of the namespace."""
    for role in ROLES:
        team.bind_role("engineer", role)
    return team


@pytest.fixture
def device_classes(plane: ControlPlane) -> Iterator[Any]:
    client, made = plane.client(), []

    def make(name: str, extended: str = "", *selectors: str) -> None:
        spec: JSON = {"selectors": [{"cel": {"expression": each}} for each in selectors]}
        if extended:
            spec["extendedResourceName"] = extended
        accepted(client.post(DEVICE_CLASSES, {"metadata": {"name": name}, "spec": spec}))
        made.append(name)

    yield make
    for name in made:
        client.delete(f"{DEVICE_CLASSES}/{name}")


def claim_of(owner: JSON, name: str, device_class: str, count: int) -> JSON:
    """Return a claim as the scheduler makes it for a pod."""
    identity = {key: owner["metadata"][key] for key in ("name", "uid")}
    reference = {"apiVersion": "v1", "kind": "Pod", **identity, "controller": True}
    body = claim(name, count, device_class)
    body["metadata"] |= {"annotations": {MARK: "true"}, "ownerReferences": [reference]}
    return body


def created(team: Namespace, name: str, resource: str, gpus: int) -> JSON:
    pod = accepted(team.create(gpu_pod(name, gpus, resource)))
    return dict(pod)


def scheduled(plane: ControlPlane, team: Namespace, pod: JSON, device_class: str, count: int) -> str:
    """Do what the scheduler does for a pod with DRA extended resources; return the name of its claim."""
    scheduler, name = plane.client(SCHEDULER), f"{pod['metadata']['name']}-extended-resources-x"
    body = claim_of(pod, name, device_class, count)
    body["metadata"]["finalizers"] = [FINALIZER]
    accepted(scheduler.post(CLAIMS.format(team.name), body))
    container = pod["spec"]["containers"][0]
    (resource,) = (each for each in container["resources"]["limits"] if "/" in each)
    mapping = {"containerName": container["name"], "resourceName": resource, "requestName": "gpu"}
    extended = {"resourceClaimName": name, "requestMappings": [mapping]}
    path = f"{PODS.format(team.name)}/{pod['metadata']['name']}/status"
    patch = {"status": {"extendedResourceClaimStatus": extended}}
    accepted(team.client.patch(path, patch))
    return name


@since(36, "feature gate DRAExtendedResource is off")
def test_a_claim_made_again_is_charged_whatever_its_name_says(
    team: Namespace, plane: ControlPlane, device_classes: Any
) -> None:
    device_classes("remade.example", "nvidia.com/gpu", "device.driver == 'gpu.nvidia.com'")
    in_force(team, {"gpus": "4"})
    pod = created(team, "trainer", "nvidia.com/gpu", 1)
    name = scheduled(plane, team, pod, "remade.example", 1)
    assert uses(team, 1)
    tenant, claims = plane.client("engineer"), CLAIMS.format(team.name)
    one = f"{claims}/{name}"
    assert eventually(lambda: tenant.patch(one, {"metadata": {"finalizers": None}})[0] == 200)
    assert tenant.delete(one)[0] == 200

    remade = claim_of(pod, name, "remade.example", 3)
    refused = tenant.post(claims, remade)
    del remade["metadata"]["annotations"]
    owned = tenant.post(claims, remade)
    del remade["metadata"]["ownerReferences"]
    honest = tenant.post(claims, remade)
    marked = tenant.patch(one, {"metadata": {"annotations": {MARK: "true"}}})
    labelled = tenant.patch(one, {"metadata": {"labels": {"team": "ml"}}})

    assert [refused[0], owned[0], honest[0], marked[0], labelled[0]] == [403, 403, 201, 403, 200]
    assert "must not have a Pod as controller: only Kubernetes makes claims for pods" in owned[1]["message"]
    for _, answer in (refused, marked):
        want = f'metadata.annotations[{MARK}] = "true": remove the annotation; must be omitted'
        assert want in answer["message"]
    assert eventually(lambda: (team.used() or {}).get(GPUS) == 4)


@since(36, "feature gate DRAExtendedResource is off")
def test_a_device_class_gives_its_extended_name_to_the_quota(
    team: Namespace, plane: ControlPlane, device_classes: Any
) -> None:
    device_classes("fast.example", "example.com/fastgpu", 'device.driver == "gpu.nvidia.com"')
    in_force(team, {"gpus": "4"})
    pods = team.path("pods")

    def refused(gpus: int) -> bool:
        answer = team.client.post(pods, gpu_pod("fast", gpus, "example.com/fastgpu"), {"dryRun": "All"})
        return answer[0] == 403 and "exceeded quota" in answer[1]["message"]

    assert eventually(lambda: refused(8))
    pod = created(team, "fits", "example.com/fastgpu", 3)
    assert uses(team, 3)
    scheduled(plane, team, pod, "fast.example", 3)
    assert not refused(1)
    assert refused(2)
    assert uses(team, 3)


def test_what_nothing_charges_is_shown_on_the_quota(
    team: Namespace, plane: ControlPlane, device_classes: Any
) -> None:
    in_force(team, {"gpus": "4"})
    create_gpu_node(plane.client(), f"npus-of-{team.name}", resources={"example.com/npu": "4"})
    device_classes("of-another-driver", "", "device.driver == 'npu.example.com'")

    def unmapped_resources() -> str:
        condition = team.condition("UnmappedResources")
        return condition.message if condition else ""

    assert eventually(lambda: "example.com/npu" in unmapped_resources())
    assert eventually(lambda: "DeviceClass of-another-driver" in unmapped_resources()), unmapped_resources()
    # Other tests may have such DeviceClasses, too.
    assert unmapped_resources().startswith(
        "not counted, because no GPUResourceMapping names them: DeviceClass "
    )

"""Claims that pods are using, against a real scheduler and resource-claim controller: a tenant cannot have them vanish.

There is no DRA driver and no kubelet: devices are a ResourceSlice, and a bound pod is one whose devices are taken.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tests.builders import JSON
from tests.cluster.controllers import counting, eventually, uses
from tests.cluster.quota.quotas import DEVICE_CLASSES, FINALIZER, PODS, claim, in_force
from tests.cluster.versions import since
from tests.controlplane import CLAIMS_API, ControlPlane, create_gpu_node, minor_version
from tests.controlplane.client import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Client, accepted
from tests.controlplane.gpuquota import RBAC, Namespace

NODE, DEVICE_CLASS, EXTENDED = "with-taken-devices", "taken.example", "example.com/taken"
TENANT = "engineer"
REFUSED = (
    "metadata.finalizers: delete the pods that use the claim; its controller then removes the finalizer; must keep "
    f"{FINALIZER} while the claim is allocated: pods may be using its devices"
)
VERSIONS = (CLAIMS_API, "/apis/resource.k8s.io/v1beta1", "/apis/resource.k8s.io/v1beta2")


@pytest.fixture(scope="module")
def devices(full_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Eight GPUs of a DRA driver on a node, and a DeviceClass of them."""
    client = full_plane.client()
    slices, pool = f"{CLAIMS_API}/resourceslices", {"generation": 1, "resourceSliceCount": 1, "name": NODE}
    attributes = {"example.com/taken": {"bool": True}}
    cards = [{"name": f"gpu-{index}", "attributes": attributes} for index in range(8)]
    expression = "device.driver == 'gpu.nvidia.com' && device.attributes['example.com'].taken"
    device_class: JSON = {"selectors": [{"cel": {"expression": expression}}]}
    if minor_version() >= 36:
        device_class["extendedResourceName"] = EXTENDED
    create_gpu_node(client, NODE, resources={})
    for path, name, spec in (
        (DEVICE_CLASSES, DEVICE_CLASS, device_class),
        (slices, NODE, {"driver": "gpu.nvidia.com", "nodeName": NODE, "pool": pool, "devices": cards}),
    ):
        accepted(client.post(path, {"metadata": {"name": name}, "spec": spec}))
    with counting(full_plane):
        yield full_plane
    for path in (f"{slices}/{NODE}", f"{DEVICE_CLASSES}/{DEVICE_CLASS}", f"/api/v1/nodes/{NODE}"):
        client.delete(path)


@pytest.fixture
def team(devices: ControlPlane) -> Iterator[Namespace]:
    """Make a namespace of which `engineer` is the admin, with a quota of 2 GPUs."""
    team = Namespace(devices)
    team.bind_role(TENANT, "admin")
    in_force(team, {"gpus": "2"})
    yield team
    team.client.request("DELETE", team.path("pods"), {"gracePeriodSeconds": 0})
    team.client.delete(f"/api/v1/namespaces/{team.name}")


def claims(team: Namespace, name: str = "", *, version: str = "") -> str:
    return f"{version or CLAIMS_API}/namespaces/{team.name}/resourceclaims" + (f"/{name}" if name else "")


def stored(team: Namespace, name: str) -> JSON:
    status, answer = team.client.get(claims(team, name))
    return dict(answer) if status == 200 else {}


def is_allocated(team: Namespace, name: str) -> bool:
    return "allocation" in stored(team, name).get("status", {})


def is_bound(team: Namespace, name: str) -> bool:
    return "nodeName" in team.client.get(f"{PODS.format(team.name)}/{name}")[1].get("spec", {})


def make_claim_in_use(team: Namespace, tenant: Client, name: str = "taken") -> None:
    """Have a claim of two GPUs that a bound pod of the tenant uses."""
    assert eventually(lambda: tenant.post(claims(team), claim(name, 2, DEVICE_CLASS))[0] in {201, 409})
    body = {
        "metadata": {"name": f"uses-{name}"},
        "spec": {
            "containers": [{"name": "train", "image": "trainer", "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
        },
    }
    accepted(tenant.post(team.path("pods"), body))
    assert eventually(lambda: is_bound(team, f"uses-{name}")), team.client.get(team.path("pods"))
    assert is_allocated(team, name)


def end(team: Namespace, pod: str) -> None:
    """Do what a kubelet does with a pod that is to end."""
    assert team.client.delete(f"{PODS.format(team.name)}/{pod}", {"gracePeriodSeconds": 0})[0] in {200, 404}


def merged(team: Namespace, tenant: Client, finalizers: Any, version: str = "") -> tuple[int, Any]:
    path = claims(team, "taken", version=version)
    return tenant.patch(path, {"metadata": {"finalizers": finalizers}}, content_type=MERGE_PATCH)


def json_patched(team: Namespace, tenant: Client, version: str = "") -> tuple[int, Any]:
    patch = [{"op": "remove", "path": "/metadata/finalizers"}]
    return tenant.patch(claims(team, "taken", version=version), patch, content_type=JSON_PATCH)


def replaced(team: Namespace, tenant: Client, version: str = "") -> tuple[int, Any]:
    """As `kubectl replace` with the manifest from which the claim was made."""
    path = claims(team, "taken", version=version)
    body = tenant.get(path)[1]
    body["metadata"] = {key: body["metadata"][key] for key in ("name", "namespace", "uid", "resourceVersion")}
    body["metadata"]["labels"] = {"changed": "too"}
    return tenant.put(path, body)


def strategic(team: Namespace, tenant: Client) -> tuple[int, Any]:
    patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": [FINALIZER]}}
    return tenant.patch(claims(team, "taken"), patch, content_type=STRATEGIC_PATCH)


BESIDE = "merge patch with another one in its place"
WAYS: dict[str, Callable[[Namespace, Client], tuple[int, Any]]] = {
    "merge patch with null": partial(merged, finalizers=None),
    "merge patch with nothing left": partial(merged, finalizers=[]),
    BESIDE: partial(merged, finalizers=["example.com/mine"]),
    "strategic merge patch": strategic,
    **{f"JSON patch as {version}": partial(json_patched, version=version) for version in VERSIONS},
    **{f"replaced as {version}": partial(replaced, version=version) for version in VERSIONS},
}


def refuses_all(team: Namespace, tenant: Client, but: str = "") -> None:
    for name, way in WAYS.items():
        status, answer = way(team, tenant)
        if name != but:
            assert (status, REFUSED in answer.get("message", "")) == (403, True), (name, status, answer)


@pytest.mark.parametrize("role", ["admin", "edit"])
def test_a_tenant_cannot_have_a_claim_vanish_that_a_pod_uses(
    team: Namespace, devices: ControlPlane, role: str
) -> None:
    tenant = devices.client(TENANT)
    make_claim_in_use(team, tenant)
    if role != "admin":
        bindings = f"/apis/{RBAC}/v1/namespaces/{team.name}/rolebindings"
        team.bind_role(TENANT, role)
        assert team.client.delete(f"{bindings}/{TENANT}-admin")[0] == 200
        assert eventually(lambda: tenant.get(bindings)[0] == 403), "the admin role is gone"

    refuses_all(team, tenant)
    # Server-side apply removes only the finalizers of its own field manager.
    for finalizers in ([FINALIZER, "example.com/mine"], []):
        applied = claim("taken", 2, DEVICE_CLASS)
        applied["metadata"]["finalizers"] = finalizers
        query = {"fieldManager": "mine", "force": "true"}
        assert tenant.patch(claims(team, "taken"), applied, query, content_type=APPLY_PATCH)[0] == 200
    for policy in ("Orphan", "Foreground", "Background"):
        options = {"propagationPolicy": policy, "gracePeriodSeconds": 0}
        assert tenant.delete(claims(team, "taken"), options)[0] == 200
    assert tenant.delete(claims(team))[0] == 200
    # The API server rejects new finalizers on an object that is being deleted.
    refuses_all(team, tenant, but=BESIDE)

    assert FINALIZER in stored(team, "taken")["metadata"]["finalizers"]
    assert is_allocated(team, "taken")
    status, answer = tenant.post(claims(team), claim("more", 2, DEVICE_CLASS))
    assert (status, "exceeded quota" in answer["message"]) == (403, True), answer
    assert uses(team, 2)


def test_a_claim_goes_in_peace_once_its_pod_has_ended(team: Namespace, devices: ControlPlane) -> None:
    """Nobody is refused anything: the controller clears the allocation, and then removes the finalizer."""
    tenant = devices.client(TENANT)
    make_claim_in_use(team, tenant)
    assert tenant.delete(claims(team, "taken"))[0] == 200
    end(team, "uses-taken")

    assert eventually(lambda: not stored(team, "taken")), stored(team, "taken")
    assert uses(team, 0)
    # And where the pod ends first, which leaves the claim for the next one.
    make_claim_in_use(team, tenant, "again")
    end(team, "uses-again")
    assert eventually(lambda: not is_allocated(team, "again"))
    assert eventually(lambda: "finalizers" not in stored(team, "again")["metadata"])
    assert tenant.delete(claims(team, "again"))[0] == 200
    assert eventually(lambda: not stored(team, "again"))


def test_a_finalizer_that_is_removed_before_is_there_again_with_the_allocation(
    team: Namespace, devices: ControlPlane
) -> None:
    tenant, body = devices.client(TENANT), claim("taken", 2, DEVICE_CLASS)
    body["metadata"]["finalizers"] = [FINALIZER]
    assert eventually(lambda: tenant.post(claims(team), body)[0] in {201, 409})

    assert merged(team, tenant, None)[0] == 200
    make_claim_in_use(team, tenant)

    assert FINALIZER in stored(team, "taken")["metadata"]["finalizers"]


@since(36, "feature gate DRAExtendedResource is off")
def test_a_claim_of_the_scheduler_is_charged_with_its_pod_and_kept_like_any_other(
    team: Namespace, devices: ControlPlane
) -> None:
    tenant, pods = devices.client(TENANT), team.path("pods")
    container = {"name": "train", "image": "trainer", "resources": {"limits": {EXTENDED: "2"}}}
    body = {"metadata": {"name": "fast"}, "spec": {"containers": [container]}}
    assert eventually(lambda: tenant.post(pods, body)[0] in {201, 409})

    def name() -> str:
        status = team.client.get(f"{pods}/fast")[1].get("status", {})
        return str(status.get("extendedResourceClaimStatus", {}).get("resourceClaimName", ""))

    assert eventually(lambda: name() and is_bound(team, "fast")), team.client.get(f"{pods}/fast")
    made = name()
    unmark = {"metadata": {"annotations": None, "finalizers": None}}
    status, answer = tenant.patch(claims(team, made), unmark)

    assert (status, REFUSED in answer.get("message", "")) == (403, True), answer
    assert eventually(lambda: not team.ledger_object().reservations)
    assert uses(team, 2), "pod and claim are charged once"
    end(team, "fast")
    assert eventually(lambda: not stored(team, made)), stored(team, made)
    assert uses(team, 0)


@pytest.mark.parametrize(
    "role",
    ["cluster-admin", "system:controller:resource-claim-controller", "system:kube-scheduler"],
)
def test_who_may_clear_the_allocation_may_remove_the_finalizer(
    team: Namespace, devices: ControlPlane, role: str
) -> None:
    """The break glass, for when the resource-claim controller is gone; no configuration names anybody."""
    tenant = devices.client(TENANT)
    make_claim_in_use(team, tenant)
    assert merged(team, tenant, None)[0] == 403

    team.bind_role(TENANT, role)

    assert eventually(lambda: merged(team, tenant, None)[0] == 200)
    assert "finalizers" not in stored(team, "taken")["metadata"]


def test_a_claim_that_is_gone_is_charged_until_its_pod_has_ended(
    team: Namespace, devices: ControlPlane
) -> None:
    """An administrator has broken the glass; one that is made again under its name is charged beside it."""
    tenant = devices.client(TENANT)
    team.change_quota({"hard": {"gpus": "4"}})
    assert eventually(team.in_force)
    make_claim_in_use(team, tenant)
    assert merged(team, team.client, None)[0] == 200
    assert tenant.delete(claims(team, "taken"))[0] == 200
    assert not stored(team, "taken")

    assert tenant.post(claims(team), claim("taken", 2, DEVICE_CLASS))[0] == 201
    assert uses(team, 4)
    status, answer = tenant.post(claims(team), claim("more", 1, DEVICE_CLASS))
    assert (status, "exceeded quota" in answer.get("message", "")) == (403, True), answer
    assert tenant.delete(claims(team, "taken"))[0] == 200
    assert uses(team, 2)

    end(team, "uses-taken")
    assert uses(team, 0)


@pytest.mark.slow
def test_a_namespace_goes_with_its_claims(team: Namespace, devices: ControlPlane) -> None:
    make_claim_in_use(team, devices.client(TENANT))
    assert team.client.delete(f"/api/v1/namespaces/{team.name}")[0] == 200
    end(team, "uses-taken")

    assert eventually(lambda: team.client.get(f"/api/v1/namespaces/{team.name}")[0] == 404), stored(
        team, "taken"
    )

"""The three demos with which NVIDIA's DRA driver begins (`gpu-test1` to `3`), with a quota of one GPU, and what is seen of them.

The claims and pods have their shape. The real scheduler and resource-claim controller run; there is no driver and no kubelet.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from fractions import Fraction

import pytest

from tests.builders import JSON
from tests.cluster.configuration import install_configuration_kinds
from tests.cluster.controllers import Counting, counting, eventually, gpus
from tests.cluster.quota.quotas import DEVICE_CLASSES, PODS, claim, in_force
from tests.cluster.quota.slices import SLICES, put_slices
from tests.cluster.versions import since
from tests.controlplane import CLAIMS_API, ControlPlane, accepted, create_gpu_node
from tests.controlplane.gpuquota import Namespace, api_client
from tests.resource_slices import DRIVER, H100, node_slices
from webhook.cluster.capacity import capacity_by_class
from webhook.tools.status.permitted import Permitted
from webhook.tools.why.explaining import explain

pytestmark = since(36, "devices are partitions")

NODE, DEVICE_CLASS, CLASS = "with-two-cards", "demos.example", "nvidia-h100-80gb"
IS_CARD = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "gpu"'


@pytest.fixture(scope="module")
def counted(full_plane: ControlPlane) -> Iterator[Counting]:
    """Two cards on a node without a device plugin and without labels of a class."""
    client = full_plane.client()
    install_configuration_kinds(full_plane)
    create_gpu_node(client, NODE, resources={})
    spec = {"selectors": [{"cel": {"expression": IS_CARD}}]}
    accepted(client.post(DEVICE_CLASSES, {"metadata": {"name": DEVICE_CLASS}, "spec": spec}))
    put_slices(client, node_slices(NODE, cards=2, product=H100, partitions=False))
    with counting(full_plane) as running:
        yield running
    for each in client.get(SLICES)[1]["items"]:
        if each["spec"]["pool"]["name"] == NODE:
            client.delete(f"{SLICES}/{each['metadata']['name']}")
    for path in (f"{DEVICE_CLASSES}/{DEVICE_CLASS}", f"/api/v1/nodes/{NODE}"):
        client.delete(path)


@pytest.fixture
def team(counted: Counting) -> Iterator[Namespace]:
    team = Namespace(counted.plane)
    in_force(team, {"gpus": "1"})
    yield team
    team.client.request("DELETE", team.path("pods"), {"gracePeriodSeconds": 0})
    team.client.delete(f"/api/v1/namespaces/{team.name}")


def template(team: Namespace) -> None:
    spec = {
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DEVICE_CLASS}}]}}
    }
    path = f"{CLAIMS_API}/namespaces/{team.name}/resourceclaimtemplates"
    accepted(team.client.post(path, {"metadata": {"name": "single-gpu"}, "spec": spec}))


def create_pod(team: Namespace, name: str, source: JSON, containers: int = 1) -> None:
    uses = [
        {"name": f"ctr{index}", "image": "trainer", "resources": {"claims": [{"name": "gpu"}]}}
        for index in range(containers)
    ]
    claims = [{"name": "gpu", **source}]
    accepted(
        team.create({"metadata": {"name": name}, "spec": {"containers": uses, "resourceClaims": claims}})
    )


def is_bound(team: Namespace, name: str) -> bool:
    return "nodeName" in team.client.get(f"{PODS.format(team.name)}/{name}")[1].get("spec", {})


def reasons(counted: Counting, team: Namespace, name: str) -> list[str]:
    found = explain(api_client(counted.plane), "pod", name, team.name, datetime.now(UTC))
    return [each.message for each in found.reasons]


FROM_TEMPLATE, SHARED = {"resourceClaimTemplateName": "single-gpu"}, {"resourceClaimName": "single-gpu"}


def test_two_pods_from_a_template_have_a_claim_each_of_which_one_fits(
    team: Namespace, counted: Counting
) -> None:
    template(team)
    for name in ("pod1", "pod2"):
        create_pod(team, name, FROM_TEMPLATE)

    assert eventually(lambda: any(is_bound(team, name) for name in ("pod1", "pod2")))
    assert eventually(lambda: gpus(team) == 1)
    (waits,) = (name for name in ("pod1", "pod2") if not is_bound(team, name))
    assert eventually(
        lambda: any("was denied a ResourceClaim" in each for each in reasons(counted, team, waits))
    ), reasons(counted, team, waits)


def test_two_containers_of_a_pod_share_its_claim(team: Namespace) -> None:
    template(team)
    create_pod(team, "pod", FROM_TEMPLATE, containers=2)

    assert eventually(lambda: is_bound(team, "pod"))
    assert eventually(lambda: gpus(team) == 1)


def test_two_pods_share_a_claim_that_counts_before_and_after_them(team: Namespace) -> None:
    accepted(
        team.client.post(
            f"{CLAIMS_API}/namespaces/{team.name}/resourceclaims", claim("single-gpu", 1, DEVICE_CLASS)
        )
    )
    assert eventually(lambda: gpus(team) == 1)
    for name in ("pod1", "pod2"):
        create_pod(team, name, SHARED)
    assert eventually(lambda: all(is_bound(team, name) for name in ("pod1", "pod2")))
    assert gpus(team) == 1
    for name in ("pod1", "pod2"):
        team.set_phase(name, "Succeeded")
    assert not eventually(lambda: gpus(team) != 1, seconds=3)


def test_what_is_seen_of_the_cards(team: Namespace, counted: Counting) -> None:
    body = claim("both", 2, DEVICE_CLASS)
    other = Namespace(counted.plane)
    accepted(other.client.post(f"{CLAIMS_API}/namespaces/{other.name}/resourceclaims", body))
    accepted(other.create({"metadata": {"name": "takes"}, "spec": {
        "containers": [{"name": "ctr", "image": "trainer", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "both"}]}}))  # fmt: skip
    assert eventually(lambda: is_bound(other, "takes"))
    template(team)
    create_pod(team, "waits", FROM_TEMPLATE)

    wanted = (
        f"the scheduler found no device: 2 of 2 devices of DeviceClass {DEVICE_CLASS} match, all allocated"
    )
    assert eventually(lambda: any(each.endswith(wanted) for each in reasons(counted, team, "waits"))), (
        reasons(counted, team, "waits")
    )
    reader = Permitted(api_client(counted.plane))
    nodes = reader.gpu_nodes(reader.configuration(None)) or ()
    of_class = capacity_by_class(nodes)[CLASS]
    assert (of_class.gpus, of_class.free, of_class.blocked) == (Fraction(2), Fraction(0), Fraction(0))
    other.client.request("DELETE", other.path("pods"), {"gracePeriodSeconds": 0})
    other.client.delete(f"/api/v1/namespaces/{other.name}")

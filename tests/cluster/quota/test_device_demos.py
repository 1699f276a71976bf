"""The three demos with which NVIDIA's DRA driver begins (`gpu-test1` to `3`), with a quota of one GPU, and what is seen of them.

The claims and pods have their shape. The real scheduler and resource-claim controller run; there is no driver and no kubelet.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from fractions import Fraction

import pytest

from tests.cluster.controllers import Counting, eventually, gpus
from tests.cluster.quota.device_claims import (
    counting_devices,
    create_pod,
    create_template,
    is_bound,
    team_with_a_gpu,
)
from tests.cluster.quota.quotas import claim
from tests.cluster.versions import since
from tests.controlplane import CLAIMS_API, ControlPlane, accepted
from tests.controlplane.gpuquota import Namespace, api_client
from tests.resource_slices import DRIVER, H100, node_slices
from webhook.cluster.capacity import capacity_by_class
from webhook.tools.status.tolerant_reader import TolerantReader
from webhook.tools.why.explaining import explain

pytestmark = since(36, "devices are partitions")

NODE, DEVICE_CLASS, CLASS = "with-two-cards", "demos.example", "nvidia-h100-80gb"
IS_CARD = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "gpu"'


@pytest.fixture(scope="module")
def counted(full_plane: ControlPlane) -> Iterator[Counting]:
    """Two cards on a node."""
    slices = node_slices(NODE, cards=2, product=H100, partitions=False)
    with counting_devices(full_plane, NODE, DEVICE_CLASS, IS_CARD, slices) as running:
        yield running


@pytest.fixture
def team(counted: Counting) -> Iterator[Namespace]:
    with team_with_a_gpu(counted.plane) as team:
        yield team


def template(team: Namespace) -> None:
    create_template(team, {"exactly": {"deviceClassName": DEVICE_CLASS}}, "single-gpu")


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
    create_pod(other, "takes", {"resourceClaimName": "both"})
    assert eventually(lambda: is_bound(other, "takes"))
    template(team)
    create_pod(team, "waits", FROM_TEMPLATE)

    wanted = (
        f"the scheduler found no device: 2 of 2 devices of DeviceClass {DEVICE_CLASS} match, all allocated"
    )
    assert eventually(lambda: any(each.endswith(wanted) for each in reasons(counted, team, "waits"))), (
        reasons(counted, team, "waits")
    )
    reader = TolerantReader(api_client(counted.plane))
    nodes = reader.gpu_nodes(reader.configuration(None)) or ()
    of_class = capacity_by_class(nodes)[CLASS]
    assert (of_class.gpus, of_class.free, of_class.blocked) == (Fraction(2), Fraction(0), Fraction(0))
    other.client.request("DELETE", other.path("pods"), {"gracePeriodSeconds": 0})
    other.client.delete(f"/api/v1/namespaces/{other.name}")

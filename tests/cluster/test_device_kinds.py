"""Kinds of DRA devices on a real API server: the controller publishes them, and every process counts by them."""

from collections.abc import Iterator
from time import monotonic
from typing import Any

import msgspec
import pytest

from policies.gpus.device_slices import qualified_name
from policies.gpus.device_types import CARD_PARTS
from tests.builders import JSON
from tests.cluster.configuration import install_configuration_kinds
from tests.cluster.controllers import Counting, counting, eventually
from tests.cluster.versions import since
from tests.controlplane import CLAIMS_API, ControlPlane, accepted
from tests.lock_orders import no_circle
from tests.resource_slices import DRIVER, H100, node_slices
from webhook.cluster.objects import DEVICES
from webhook.configuration.dynamic_resources import PublishedDevices, decode_devices

SLICES = f"{CLAIMS_API}/resourceslices"
CONFIG_MAP = f"/api/v1/namespaces/default/configmaps/{DEVICES}"
H200 = ("NVIDIA H200", 132, 143771)


@pytest.fixture(scope="module")
def counted(quotas: ControlPlane) -> Iterator[Counting]:
    install_configuration_kinds(quotas)
    with no_circle(), counting(quotas, host=61) as running:
        yield running
    for each in quotas.client().get(SLICES)[1]["items"]:
        quotas.client().delete(f"{SLICES}/{each['metadata']['name']}")


def published(plane: ControlPlane) -> PublishedDevices:
    return decode_devices(msgspec.json.encode(plane.client().get(CONFIG_MAP)[1])).published


def products(plane: ControlPlane) -> set[str | None]:
    """Return the products of which devices exist, as published."""
    name = qualified_name(DRIVER, "productName")
    return {each.kind.attributes[name].string for each in published(plane).kinds if each.gone_since is None}


def in_force(counted: Counting) -> Any:
    return counted.running.manager.informers.configuration().resource_mapping.device_types


def put(plane: ControlPlane, *slices: JSON) -> None:
    for each in slices:
        accepted(plane.client().post(SLICES, each))


@since(36, "devices are partitions")
def test_kinds_are_published_and_in_force(counted: Counting) -> None:
    plane = counted.plane
    put(plane, *node_slices("kinds-a", cards=2))
    began = monotonic()
    assert eventually(lambda: products(plane) == {H100[0]})
    assert monotonic() - began < 5
    assert eventually(lambda: in_force(counted) == published(plane).device_types)
    kinds = in_force(counted).types
    by_profile = {kind.attributes.get(qualified_name(DRIVER, "profile")): kind.card_parts for kind in kinds}
    assert sorted(by_profile.values()) == [630, 630, 1260, 1260, 2520, 2520, 5040, 5040]
    slices = counted.running.manager.informers.slices
    part = (DRIVER, "kinds-a", "gpu-1-mig-1g10gb-3")
    assert eventually(lambda: slices.kind_of(in_force(counted), *part) is not None)
    assert kinds[slices.kind_of(in_force(counted), *part) or 0].card_parts == CARD_PARTS // 8
    assert slices.kind_of(in_force(counted), DRIVER, "kinds-a", "gpu-7") is None


def test_a_pool_counts_once_its_newest_generation_is_complete(counted: Counting) -> None:
    plane = counted.plane
    first, *others = node_slices("kinds-b", cards=2, product=H200)
    put(plane, first)
    put(plane, *node_slices("kinds-c", product=("NVIDIA T4", 40, 15360), partitions=False))
    assert eventually(lambda: "NVIDIA T4" in products(plane))
    assert H200[0] not in products(plane)
    put(plane, *others)
    assert eventually(lambda: H200[0] in products(plane))


def test_what_tenants_write_changes_no_kind(counted: Counting) -> None:
    plane, team = counted.plane, "kinds-team"
    accepted(plane.client().post("/api/v1/namespaces", {"metadata": {"name": team}}))
    plane.kubectl("create", "rolebinding", "all", "-n", team, "--clusterrole=admin", "--user=engineer")
    # This server has no controller that adds the rules of DRA to the role.
    plane.kubectl(
        "create", "clusterrole", "claims", "--verb=create", "--resource=resourceclaims.resource.k8s.io"
    )
    plane.kubectl("create", "rolebinding", "claims", "-n", team, "--clusterrole=claims", "--user=engineer")
    tenant = plane.client("engineer")
    assert eventually(lambda: products(plane))
    before = products(plane)
    (forged, _) = node_slices("kinds-forged", product=("forged", 1, 1))
    assert tenant.post(SLICES, forged)[0] == 403
    assert tenant.patch(CONFIG_MAP, {"data": {"devices": "{}"}})[0] == 403
    request = {"name": "gpu", "exactly": {"deviceClassName": "forged.example.com"}}
    claim = {"metadata": {"name": "forged"}, "spec": {"devices": {"requests": [request]}}}
    assert eventually(
        lambda: tenant.post(f"{CLAIMS_API}/namespaces/{team}/resourceclaims", claim)[0] in {201, 409}
    )
    put(plane, *node_slices("kinds-d", product=("NVIDIA L4", 58, 23034), partitions=False))
    assert eventually(lambda: "NVIDIA L4" in products(plane))
    assert products(plane) == before | {"NVIDIA L4"}


def test_a_kind_without_a_device_stays_published_and_in_force(counted: Counting) -> None:
    plane = counted.plane
    for each in node_slices("kinds-d", product=("NVIDIA L4", 58, 23034), partitions=False):
        accepted(plane.client().delete(f"{SLICES}/{each['metadata']['name']}"))
    slices = counted.running.manager.informers.slices
    assert eventually(lambda: "NVIDIA L4" not in products(plane))
    assert slices.kind_of(in_force(counted), DRIVER, "kinds-d", "gpu-0") is None
    name = qualified_name(DRIVER, "productName")
    assert "NVIDIA L4" in {kind.attributes[name].string for kind in in_force(counted).types}

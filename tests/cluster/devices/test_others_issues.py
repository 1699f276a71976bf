"""Issues of others about quotas for DRA, replayed: what ResourceQuota says of the same claims, and what we say.

What Kueue says is from its documentation (v0.19, `setup_dra.md`, KEP-2941) and the issues; it charges workloads that it queues,
and no claim that somebody makes beside them.
"""

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

import pytest

from tests.builders import JSON
from tests.cluster.controllers import counting, eventually, gpus
from tests.cluster.devices import native, slices
from tests.cluster.devices.cards import H100
from tests.cluster.devices.meanings import CARDS, SLICES, profile
from tests.cluster.devices.paths import path
from tests.cluster.devices.playing import EXPIRY, Cluster, devices, kinds_are_known, requests
from tests.cluster.devices.worlds import TAINTED, Node, pod
from tests.cluster.quota.quotas import DEVICE_CLASSES, in_force
from tests.controlplane import ControlPlane, accepted
from tests.controlplane.client import Client
from tests.controlplane.gpuquota import Namespace

MARK = "resource.kubernetes.io/extended-resource-claim"
OWN_CLASS, EXTENDED = "team.example.com", "example.com/card"


def tainted(node: str) -> list[slices.Slice]:
    parts = slices.partitioned(H100, node, 1)
    for device in parts[-1]["devices"]:
        device["taints"] = [TAINTED]
    return parts


NODES = [
    Node("healthy", slices.NVIDIA, slices.partitioned(H100, "healthy", 1)),
    Node("broken", slices.NVIDIA, tainted("broken")),
]


class Both(NamedTuple):
    """`unreviewed`: what native quota answers to marked claims before we are there."""

    plane: ControlPlane
    unreviewed: list[int]


@pytest.fixture(scope="module")
def both(running: Cluster) -> Iterator[Both]:
    with devices(running.plane, NODES):
        client, plane = running.plane.client(), running.plane
        of_class = {
            "selectors": [{"cel": {"expression": CARDS.selector.text}}],
            "extendedResourceName": EXTENDED,
        }
        accepted(client.post(DEVICE_CLASSES, {"metadata": {"name": OWN_CLASS}, "spec": of_class}))
        native_only = Namespace(plane)
        native.quota(client, native_only.name, {f"requests.{EXTENDED}": 1})
        unreviewed = [status for status, _ in marked_claims(native_only, 4)]
        with counting(plane, expiry=EXPIRY):
            kinds_are_known(plane, NODES)
            yield Both(plane, unreviewed)
        client.delete(f"{DEVICE_CLASSES}/{OWN_CLASS}")


@pytest.fixture
def plane(both: Both) -> ControlPlane:
    return both.plane


def marked_claims(team: Namespace, count: int) -> list[tuple[int, JSON]]:
    """Make a pod that no node takes, with one device by name, and claims that look as if the scheduler had made them for it."""
    waits = pod("waits", **{EXTENDED: "1"})
    waits["spec"]["nodeSelector"] = {"example.com/no": "node"}
    made = accepted(team.client.post(path(team.name, "pods"), waits))
    uid = made["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "waits", "uid": uid, "controller": True}
    marked = {"annotations": {MARK: "true"}, "ownerReferences": [owner]}
    spec = requests({"deviceClassName": OWN_CLASS})
    bodies = ({"metadata": {"name": f"marked-{number}", **marked}, "spec": spec} for number in range(count))
    return [team.client.post(path(team.name, "resourceclaims"), body) for body in bodies]


class Sides:
    """Two namespaces: one with a GPUQuota, one with a ResourceQuota of devices by DeviceClass."""

    def __init__(self, plane: ControlPlane, gpus: str, **devices: int) -> None:
        self.ours, self.native, self.client = Namespace(plane), Namespace(plane), plane.client()
        in_force(self.ours, {"gpus": gpus})
        hard = {native.key(name): count for name, count in devices.items()}
        native.quota(self.client, self.native.name, hard)

    def claim(self, name: str, spec: JSON, metadata: JSON | None = None) -> list[int]:
        """Make the claim in both; return what native quota and we answer."""
        body = {"metadata": {"name": name, **(metadata or {})}, "spec": spec}
        each = (self.native, self.ours)
        return [self.client.post(path(side.name, "resourceclaims"), body)[0] for side in each]

    def native_count(self, device_class: str) -> str:
        return native.used(self.client, self.native.name)[native.key(device_class)]


def of_profile(name: str, **more: object) -> JSON:
    chosen = [{"cel": {"expression": profile(name).text}}]
    return requests({"deviceClassName": SLICES.name, "selectors": chosen, **more})


def test_kubernetes_135404_marked_claims_pass_the_quota(both: Both) -> None:
    """Claims that look as if the scheduler had made them for a pod, and take nothing of the quota.

    Native quota of 1.37 forgives one such claim a pod, as much as the pod has: two devices of one. In a burst it
    forgives more, as its list of claims is some milliseconds old. We deny the mark to everybody but the scheduler.
    """
    team = Namespace(both.plane)
    in_force(team, {"gpus": "1"})
    ((status, answer),) = marked_claims(team, 1)

    assert 201 in both.unreviewed
    assert status == 403
    assert f"metadata.annotations[{MARK}]" in answer["message"]


def test_kueue_10108_a_slice_is_charged_as_a_slice(plane: ControlPlane) -> None:
    """Native quota counts devices: four slices of 1g are as much as four of 7g, which are four cards.

    Kueue charges a counter (memory) for workloads in its queues, if an administrator maps the DeviceClass to it.
    """
    sides = Sides(plane, "1", **{SLICES.name: 4})
    small = [sides.claim(f"small-{number}", of_profile("1g.10gb")) for number in range(4)]
    assert small == [[201, 201]] * 4
    assert eventually(lambda: gpus(sides.ours) == Fraction(4, 7))
    assert sides.native_count(SLICES.name) == "4"

    more = [sides.claim(f"more-{number}", of_profile("1g.10gb")) for number in range(4)]
    assert more == [[403, 201]] * 3 + [[403, 403]]
    assert eventually(lambda: gpus(sides.ours) == 1)

    other = Sides(plane, "1", **{SLICES.name: 4})
    large = [other.claim(f"large-{number}", of_profile("7g.80gb")) for number in range(4)]
    assert large == [[201, 201]] + [[201, 403]] * 3, "native quota grants four cards for four slices"


def test_kueue_15664_a_tainted_device_costs_what_it_costs(plane: ControlPlane) -> None:
    """Kueue charges it like any other, and asks each node whether it fits; native quota does not look at devices.

    We charge a claim the same whether it tolerates the taint or not: taints come and go, and a pod that has a device keeps it.
    """
    sides = Sides(plane, "1", **{SLICES.name: 8})
    tolerates = [{"key": TAINTED["key"], "operator": "Exists"}]
    assert sides.claim("plain", of_profile("3g.40gb")) == [201, 201]
    assert eventually(lambda: gpus(sides.ours) == Fraction(1, 2))
    assert sides.claim("tolerating", of_profile("3g.40gb", tolerations=tolerates)) == [201, 201]
    assert eventually(lambda: gpus(sides.ours) == 1)
    assert sides.claim("third", of_profile("1g.10gb")) == [201, 403]
    for name in ("plain", "tolerating"):
        uses = pod(f"uses-{name}", {"name": "gpu", "resourceClaimName": name})
        accepted(sides.client.post(path(sides.ours.name, "pods"), uses))

    def pools() -> dict[str, str]:
        claims = sides.client.get(path(sides.ours.name, "resourceclaims"))[1]["items"]
        return {
            each["metadata"]["name"]: result["pool"]
            for each in claims
            for result in each.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
        }

    assert eventually(lambda: len(pools()) == 2), pools()
    assert pools()["plain"] == "healthy"
    assert gpus(sides.ours) == 1


def test_kueue_10504_a_device_class_that_nothing_knows_any_more_is_not_free(plane: ControlPlane) -> None:
    """Kueue admits workloads at 0 GPUs without its feature gate, and none once it is on and the mapping is gone.

    We read DeviceClasses and slices, and need no mapping. Of a DeviceClass that is deleted each device counts as a card.
    """
    client, name = plane.client(), "gone.example.com"
    spec = {"selectors": [{"cel": {"expression": SLICES.selector.text}}]}
    accepted(client.post(DEVICE_CLASSES, {"metadata": {"name": name}, "spec": spec}))
    sides = Sides(plane, "2", **{name: 1})
    chosen = [{"cel": {"expression": profile("1g.10gb").text}}]
    wanted = requests({"deviceClassName": name, "selectors": chosen})
    assert eventually(
        lambda: dry_run(client, sides.ours.name, requests({"deviceClassName": name, "count": 3})) == 403
    )
    assert sides.claim("before", wanted) == [201, 201]
    assert eventually(lambda: gpus(sides.ours) == Fraction(1, 7)), gpus(sides.ours)

    accepted(client.delete(f"{DEVICE_CLASSES}/{name}"))

    assert eventually(lambda: gpus(sides.ours) == 1), gpus(sides.ours)
    assert sides.claim("after", wanted) == [403, 201]
    assert eventually(lambda: gpus(sides.ours) == 2), gpus(sides.ours)
    assert sides.claim("third", wanted) == [403, 403]


def dry_run(client: Client, namespace: str, spec: JSON) -> int:
    body = {"metadata": {"name": "dry"}, "spec": spec}
    return client.post(path(namespace, "resourceclaims"), body, {"dryRun": "All"})[0]

"""Plays a world: publishes its devices, makes its claims and pods, ends some, and deletes all; then asks the judge.

There is no kubelet. The scheduler allocates and binds, the resource-claim controller makes claims of templates and takes back
what pods have used; phases of pods are set here.
"""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import NamedTuple

from tests.builders import JSON
from tests.cluster.controllers import counting, eventually, gpus
from tests.cluster.devices import slices
from tests.cluster.devices.facts import devices_of
from tests.cluster.devices.judge import AFTER_CHANGES, WITHIN, Denial, Judge, Verdict
from tests.cluster.devices.meanings import ANY, DEVICE_CLASSES, product, profile
from tests.cluster.devices.mischief import Mischief
from tests.cluster.devices.native import Native, claimed
from tests.cluster.devices.paths import ADMIN_ACCESS, path
from tests.cluster.devices.worlds import CLASSES, Node, Wanted, World, objects
from tests.cluster.mixed.recording import Recording
from tests.cluster.quota import history
from tests.cluster.quota.quotas import DEVICE_CLASSES as CLASSES_PATH
from tests.controlplane import ControlPlane, accepted, create_gpu_node
from tests.controlplane.client import Client
from tests.controlplane.gpuquota import Namespace, install_quota_kind

KEPT = (
    "/registry/pods/",
    "/registry/resourceclaims/",
    "/registry/resourceslices/",
    "/registry/gpu-admission.dev/gpuquotaledgers/",
)
REST = WITHIN + 0.6
"""Seconds without changes, so that the judge can compare."""
EXPIRY = 10.0
LIGHT = Fraction(9, 10)
MAY_BE_GONE = (200, 404)
"""The garbage collector deletes a pod later whose claim was to be orphaned."""


class Cluster(NamedTuple):
    plane: ControlPlane
    recording: Recording


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Serve the API with scheduler and controllers, keep its history, and have the DeviceClasses of all worlds."""
    with ControlPlane(controllers=True, scheduler=True, apiserver_args=history.READABLE) as plane:
        install_quota_kind(plane.client())
        for each in DEVICE_CLASSES:
            spec: JSON = {"selectors": [{"cel": {"expression": each.selector.text}}]}
            accepted(plane.client().post(CLASSES_PATH, {"metadata": {"name": each.name}, "spec": spec}))
        yield Cluster(plane, Recording(plane, KEPT))


class Played(NamedTuple):
    world: World
    verdict: Verdict
    denials: list[Denial]
    native: Native


def play(cluster: Cluster, world: World) -> Played:
    """Play the world in a cluster that has nothing of another one, with a webhook and a controller that have seen none."""
    since = history.revision(cluster.plane)
    with devices(cluster.plane, world.nodes), counting(cluster.plane, expiry=EXPIRY):
        playing = _Play(cluster.plane, world)
        playing.run()
        until = time.time()
        judge = Judge(playing.namespace, CLASSES, world.meanings)
        events = [each for each in cluster.recording.complete() if each.event.revision > since]
        verdict = judge.replay(events, until, playing.denials)
        specs = (each.spec for each in world.wanted)
        native = claimed(
            cluster.plane.client(), f"native-{world.seed}", specs, judge.devices, Fraction(world.hard)
        )
    return Played(world, verdict, playing.denials, native)


@contextmanager
def devices(plane: ControlPlane, nodes: list[Node]) -> Iterator[None]:
    """Have the nodes, and their devices, which go with all others at the end."""
    client = plane.client()
    for node in nodes:
        publish(client, node)
    try:
        yield
    finally:
        client.delete(slices.SLICES)
        client.delete("/api/v1/nodes")
    assert eventually(lambda: not client.get(slices.SLICES)[1]["items"])


def publish(client: Client, node: Node) -> None:
    create_gpu_node(client, node.name, resources={})
    slices.publish(client, slices.pool(node.driver, node.name, node.slices))


def kinds_are_known(plane: ControlPlane, nodes: list[Node]) -> bool:
    """Wait until a claim for a part of a card is charged less than a card; return whether that came."""
    lightest, client = light_claim(nodes), plane.client()
    if lightest is None:
        time.sleep(AFTER_CHANGES)  # no claim tells
        return True
    probe = Namespace(plane, f"probe-{nodes[0].name}")
    probe.quota({"gpus": "9/10"})
    assert eventually(lambda: probe.used() is not None)
    claims, body = path(probe.name, "resourceclaims"), {"metadata": {"name": "probe"}, "spec": lightest}
    known = eventually(lambda: client.post(claims, body, {"dryRun": "All"})[0] == 201, seconds=10)
    client.delete(f"/api/v1/namespaces/{probe.name}")
    return known


def light_claim(nodes: list[Node]) -> JSON | None:
    """Return the spec of a claim that must be charged less than 9/10 of a card by these devices; None without such devices."""
    parts = (each["spec"] for node in nodes for each in slices.pool(node.driver, node.name, node.slices))
    for device in devices_of(parts):
        wanted: JSON = {"deviceClassName": ANY.name}
        if device.is_shared:
            return requests(wanted | {"capacity": {"requests": {"memory": "1Gi"}}})
        if device.get("profile") and device.weight < LIGHT:
            chosen = [profile(device.get("profile")), product(device.get("productName"))]
            return requests(wanted | {"selectors": [{"cel": {"expression": each.text}} for each in chosen]})
    return None


def requests(*wanted: JSON) -> JSON:
    """Return the spec of a claim with these exact requests."""
    return {
        "devices": {
            "requests": [{"name": f"r{number}", "exactly": each} for number, each in enumerate(wanted)]
        }
    }


class _Play:
    """One namespace with a quota, in which somebody makes the claims of the world."""

    def __init__(self, plane: ControlPlane, world: World) -> None:
        self.namespace = f"world-{world.seed}"
        self.denials: list[Denial] = []
        self._plane, self._client, self._world = plane, plane.client(), world
        self._pick = random.Random(~world.seed)  # noqa: S311
        self._mischief = Mischief(self._client, self.namespace, world.seed)

    def run(self) -> None:
        team = Namespace(self._plane, self.namespace)
        accepted(self._client.patch(f"/api/v1/namespaces/{self.namespace}", {"metadata": ADMIN_ACCESS}))
        team.quota({"gpus": self._world.hard})
        assert eventually(lambda: team.used() is not None)
        kinds_are_known(self._plane, self._world.nodes)
        assert eventually(team.in_force)
        for number, wanted in enumerate(self._world.wanted):
            self._make(wanted)
            if number % 12 == 11:
                time.sleep(REST)
            self._something()
            self._mischief.maybe()
            if number == len(self._world.wanted) // 2:
                self._change()
        if self._world.later or self._world.is_renewed:
            time.sleep(AFTER_CHANGES)
        time.sleep(REST)
        self._end(team)

    def _change(self) -> None:
        """Publish devices of other nodes, and a newer generation of a pool, slice by slice; then take back the older one."""
        for later in self._world.later:
            publish(self._client, later)
        if not self._world.is_renewed:
            return
        node = self._world.nodes[0]
        newer = slices.upgraded(node.slices, "580.95.5")
        slices.publish(self._client, slices.pool(node.driver, node.name, newer, 2))
        slices.withdraw(self._client, slices.pool(node.driver, node.name, node.slices))

    def _make(self, wanted: Wanted) -> None:
        for plural, body in objects(wanted):
            status, answer = self._client.post(path(self.namespace, plural), body)
            if status == 403 and plural == "resourceclaims":
                self.denials.append(Denial(time.time(), wanted.spec, answer["message"]))
                return
            assert status == 201, answer

    def _something(self) -> None:
        """Do what may happen between two claims: mostly nothing."""
        chance = self._pick.random()
        pods = self._client.get(path(self.namespace, "pods"))[1]["items"]
        bound = [each["metadata"]["name"] for each in pods if "nodeName" in each["spec"]]
        if chance < 0.3 and bound:
            phase = self._pick.choice(["Running", "Running", "Succeeded", "Failed"])
            one = path(self.namespace, "pods", self._pick.choice(bound))
            answer = self._client.patch(f"{one}/status", {"status": {"phase": phase}})
            assert answer[0] in MAY_BE_GONE, answer
        elif chance < 0.45 and pods:
            name = self._pick.choice(pods)["metadata"]["name"]
            answer = self._client.delete(path(self.namespace, "pods", name), {"gracePeriodSeconds": 0})
            assert answer[0] in MAY_BE_GONE, answer
        elif chance < 0.55:
            claims = self._client.get(path(self.namespace, "resourceclaims"))[1]["items"]
            if claims:
                name = self._pick.choice(claims)["metadata"]["name"]
                self._client.delete(path(self.namespace, "resourceclaims", name))

    def _end(self, team: Namespace) -> None:
        for plural in ("pods", "resourceclaimtemplates", "resourceclaims"):
            self._client.delete(path(self.namespace, plural), {"gracePeriodSeconds": 0})
        self._mischief.end()

        def is_empty() -> bool:
            plurals = ("pods", "resourceclaims")
            return not any(self._client.get(path(self.namespace, each))[1]["items"] for each in plurals)

        assert eventually(is_empty), "the controllers delete what nobody uses"
        time.sleep(REST)
        eventually(lambda: not team.ledger_object().reservations and not gpus(team), seconds=EXPIRY + 10)

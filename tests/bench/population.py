"""What `scale` fills a cluster with: GPU pods on nodes of one class, half of them in one namespace."""

from collections.abc import Callable

import msgspec

from tests.bench import bursts
from tests.bench.installation import wait_until
from tests.bench.seeding import CONTAINER, SEED, random_container, random_uid, running_pod, seed
from tests.controlplane import ControlPlane

BIG, SMALL = "big", "team-0000"
CLASS = "nvidia-a100-80gb"
MEMBERS = 10
"""Namespaces of a team: those of its number and one more digit."""


class Population(msgspec.Struct, frozen=True, kw_only=True):
    """`pods` in one namespace, as many over `namespaces` others, all of them on `nodes`."""

    pods: int
    namespaces: int
    nodes: int

    @property
    def each(self) -> int:
        """How many pods one of the other namespaces has."""
        return self.pods // self.namespaces


def populate(plane: ControlPlane, population: Population) -> None:
    """Make the nodes and the pods; return when the API server sees all."""
    client = plane.client()
    for name in (BIG, *(f"team-{number:04d}" for number in range(population.namespaces))):
        client.post("/api/v1/namespaces", {"metadata": {"name": name}})
    first = "node-000000"
    labels = {"accelerator": CLASS, "kubernetes.io/hostname": first, "nvidia.com/gpu.count": "8"}
    status, node = client.post("/api/v1/nodes", {"metadata": {"name": first, "labels": labels}})
    if status != 201:
        raise RuntimeError(f"no node: {node}")
    uid = node["metadata"]["uid"]
    seed(
        plane,
        f"/registry/minions/{first}",
        range(1, population.nodes),
        lambda number: {first: f"node-{number:06d}", uid: random_uid(0, number)},
    )
    _seed_pods(plane, BIG, range(1, population.pods), lambda _: BIG, population.nodes, kind=1)
    namespaces = population.namespaces
    _seed_pods(
        plane,
        SMALL,
        range(1, population.each * namespaces),
        lambda number: f"team-{number % namespaces:04d}",
        population.nodes,
        kind=2,
    )


def _seed_pods(
    plane: ControlPlane, namespace: str, numbers: range, of: Callable[[int], str], nodes: int, *, kind: int
) -> None:
    """Make the pod `seed-000000` and its copies, each in the namespace of its number; return when all are seen."""
    client = plane.client()
    name, node = f"{SEED}-000000", "node-000000"
    pod, status = running_pod(name, node)
    code, made = client.post(bursts.pods(namespace), pod)
    if code != 201:
        raise RuntimeError(f"no pod: {made}")
    client.patch(f"{bursts.pods(namespace)}/{name}/status", {"status": status})
    uid = made["metadata"]["uid"]

    def renamed(number: int) -> dict[str, str]:
        return {
            name: f"{SEED}-{number:06d}",
            node: f"node-{number % nodes:06d}",
            uid: random_uid(kind, number),
            CONTAINER: random_container(kind, number),
            namespace: of(number),
        }

    seed(plane, f"/registry/pods/{namespace}/{name}", numbers, renamed)
    last = f"{bursts.pods(of(numbers[-1]))}/{SEED}-{numbers[-1]:06d}"
    wait_until(lambda: client.get(last, {"resourceVersion": "0"})[0] == 200, "the pods are not seen")

"""A node with devices of NVIDIA's driver, a namespace with a quota, and pods with claims, on a real control plane."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.builders import JSON
from tests.cluster.configuration import install_configuration_kinds
from tests.cluster.controllers import Counting, counting
from tests.cluster.quota.quotas import DEVICE_CLASSES, PODS, in_force
from tests.cluster.quota.slices import SLICES, put_slices
from tests.controlplane import CLAIMS_API, ControlPlane, accepted, create_gpu_node
from tests.controlplane.gpuquota import Namespace


@contextmanager
def counting_devices(
    plane: ControlPlane, node: str, device_class: str, expression: str, slices: Sequence[JSON]
) -> Iterator[Counting]:
    """Run webhook and controller beside a node without a device plugin and without labels of a class, and a DeviceClass."""
    client = plane.client()
    install_configuration_kinds(plane)
    create_gpu_node(client, node, resources={})
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    accepted(client.post(DEVICE_CLASSES, {"metadata": {"name": device_class}, "spec": spec}))
    put_slices(client, [*slices])
    with counting(plane) as running:
        yield running
    for each in client.get(SLICES)[1]["items"]:
        if each["spec"]["pool"]["name"] == node:
            client.delete(f"{SLICES}/{each['metadata']['name']}")
    for path in (f"{DEVICE_CLASSES}/{device_class}", f"/api/v1/nodes/{node}"):
        client.delete(path)


@contextmanager
def team_with_a_gpu(plane: ControlPlane) -> Iterator[Namespace]:
    """Make a namespace with a quota of one GPU."""
    team = Namespace(plane)
    in_force(team, {"gpus": "1"})
    yield team
    team.client.request("DELETE", team.path("pods"), {"gracePeriodSeconds": 0})
    team.client.delete(f"/api/v1/namespaces/{team.name}")


def create_template(team: Namespace, request: JSON, name: str) -> None:
    spec = {"spec": {"devices": {"requests": [{"name": "gpu", **request}]}}}
    path = f"{CLAIMS_API}/namespaces/{team.name}/resourceclaimtemplates"
    accepted(team.client.post(path, {"metadata": {"name": name}, "spec": spec}))


def create_pod(team: Namespace, name: str, source: JSON, containers: int = 1, **spec: object) -> None:
    """Create a pod whose containers share a claim. source: its template, or its name."""
    uses = [
        {"name": f"ctr{index}", "image": "trainer", "resources": {"claims": [{"name": "gpu"}]}}
        for index in range(containers)
    ]
    claims = [{"name": "gpu", **source}]
    body = {"metadata": {"name": name}, "spec": {"containers": uses, "resourceClaims": claims, **spec}}
    accepted(team.create(body))


def is_bound(team: Namespace, name: str) -> bool:
    return "nodeName" in team.client.get(f"{PODS.format(team.name)}/{name}")[1].get("spec", {})

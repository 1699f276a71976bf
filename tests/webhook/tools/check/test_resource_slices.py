"""Claims of DRA counted by the kinds of devices: those of ResourceSlices in the input, and those that a cluster publishes."""

import json
from pathlib import Path
from typing import Any

import msgspec
from click.testing import CliRunner, Result

from policies.gpus.device_pools import DevicePools
from tests.builders import JSON, manifest
from tests.cases import cases
from tests.resource_slices import node_slices
from tests.webhook.cluster.apiserver import ApiServer, answering
from tests.webhook.commands.checked_cluster import FORBIDDEN, cluster
from webhook.commands import main
from webhook.configuration.dynamic_resources import PublishedDevices, PublishedKind
from webhook.configuration.loader import load_directory

PART = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"
CONFIG_MAP = "/api/v1/namespaces/gpu-admission/configmaps/gpu-admission-devices"
SLICES = node_slices("a", product=("A card of no class", 132, 81559))
"""An eighth of it is a partition of this profile."""
BROKEN = json.loads(json.dumps(SLICES).replace('"132"', "[]"))
DRA = "resource.k8s.io/v1"


def device_class() -> JSON:
    return manifest(DRA, "DeviceClass", "part.example.com", {"selectors": [{"cel": {"expression": PART}}]})


def claims(number: int) -> list[JSON]:
    devices = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "part.example.com"}}]}
    return [
        manifest(DRA, "ResourceClaim", f"c-{n}", {"devices": devices}, namespace="ml") for n in range(number)
    ]


QUOTA = manifest("gpu-admission.dev/v1alpha1", "GPUQuota", "default", {"hard": {"gpus": 1}}, namespace="ml")


def check(*documents: JSON, arguments: tuple[str, ...] = ()) -> Result:
    text = "\n---\n".join(map(json.dumps, documents))
    return CliRunner(env={"COLUMNS": None}).invoke(
        main, ["check", "-f", "-", "-o", "json", *arguments], input=text
    )


def fitting(result: Result) -> int:
    objects = json.loads(result.stdout)["objects"]
    return sum(each["verdict"] == "ok" for each in objects if each["kind"] == "ResourceClaim")


@cases(
    ("slices", "fit"),
    none=([], 1),
    of_the_node=(SLICES, 8),
    some_of_them=(SLICES[:1], 1),
    that_cannot_be_read=(BROKEN, 1),
)
def test_slices_of_the_same_input(slices: list[JSON], fit: int) -> None:
    assert fitting(check(*slices, device_class(), QUOTA, *claims(9))) == fit


def published() -> str:
    pools = DevicePools()
    for each in SLICES:
        pools.put(each["metadata"]["name"], None, pools.reader.read(msgspec.json.encode(each)))
    pools.refresh(load_directory(None).resource_mapping)
    kinds = tuple(map(PublishedKind, pools.inventory.device_types.types))
    return msgspec.json.encode(PublishedDevices(kinds)).decode()


def of_cluster(config_map: Any) -> dict[str, Any]:
    return {
        **cluster(),
        "/apis/resource.k8s.io": {"versions": [{"version": "v1"}]},
        f"/apis/{DRA}/deviceclasses": [device_class()],
        **({} if config_map is None else {CONFIG_MAP: config_map}),
    }


@cases(
    ("config_map", "fit"),
    not_installed=(None, 1),
    not_written_yet=({"metadata": {}}, 1),
    written=({"metadata": {}, "data": {"devices": published()}}, 8),
)
def test_kinds_that_the_cluster_publishes(config_map: JSON | None, fit: int, tmp_path: Path) -> None:
    with ApiServer(tmp_path, answering(of_cluster(config_map))) as server:
        result = check(QUOTA, *claims(9), arguments=("--kubeconfig", str(server.kubeconfig())))
    assert fitting(result) == fit


def test_slices_of_the_input_beside_a_cluster(tmp_path: Path) -> None:
    with ApiServer(tmp_path, answering(of_cluster(None))) as server:
        named = ("--kubeconfig", str(server.kubeconfig()))
        result = check(*SLICES, device_class(), QUOTA, *claims(9), arguments=named)
    assert fitting(result) == 8


def test_without_the_right_to_read_the_kinds_nothing_is_evaluated(tmp_path: Path) -> None:
    with ApiServer(tmp_path, answering(of_cluster(FORBIDDEN))) as server:
        result = check(QUOTA, *claims(1), arguments=("--kubeconfig", str(server.kubeconfig())))
    assert (result.exit_code, result.stderr) == (
        2,
        "error: use --config, or ask the platform team for the chart's tenants.readPolicies: you may not "
        "get configmaps/gpu-admission-devices -n gpu-admission, by which manifests are evaluated\n",
    )

"""A Deployment as an ML engineer writes it, from `kubectl apply` to the node that the scheduler binds its pods to."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.builders import JSON
from tests.cluster.configuration import default_policy
from tests.controlplane import ControlPlane, create_gpu_node
from tests.controlplane.webhook import serving

TAINTS = (
    {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
    {"key": "dedicated", "value": "ml-workloads", "effect": "NoSchedule"},
)

TOLERATIONS = [
    {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "dedicated", "value": "ml-workloads", "effect": "NoSchedule"},
]
POLICY = default_policy(
    {"gpu-toleration": {"tolerations": TOLERATIONS}, "readiness-delay": {"modelLoadSeconds": 60}}
)


@pytest.fixture(scope="module")
def plane(full_plane: ControlPlane) -> Iterator[ControlPlane]:
    client = full_plane.client()
    nodes = {"place-a100": "nvidia-a100-80gb", "place-t4": "nvidia-t4"}
    for node, gpu_class in nodes.items():
        create_gpu_node(client, node, labels={"accelerator": gpu_class}, taints=TAINTS)
    with serving(full_plane, POLICY, "placed", host=12):
        yield full_plane
    full_plane.kubectl("delete", "node", *nodes)


def deployment(name: str, gpu_class: str) -> JSON:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "placed"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {
                    "labels": {"app": name},
                    "annotations": {
                        "gpu-admission.dev/gpu-class": gpu_class,
                        "gpu-admission.dev/model-uri": "s3://models/llama-3",
                    },
                },
                "spec": {
                    "containers": [
                        {
                            "name": "server",
                            "image": "registry.example/server:1",
                            "resources": {"limits": {"nvidia.com/gpu": 2}},
                            "readinessProbe": {
                                "httpGet": {"path": "/health", "port": 8000},
                                "initialDelaySeconds": 5,
                            },
                        }
                    ]
                },
            },
        },
    }


def pods(plane: ControlPlane, name: str) -> list[JSON]:
    done = plane.kubectl("get", "pods", "-n", "placed", "-l", f"app={name}", "-o", "json")
    items: list[JSON] = json.loads(done.stdout)["items"]
    return items


def wait_for(plane: ControlPlane, name: str, holds: Any) -> list[JSON]:
    """Return the Deployment's two pods once `holds` is true of both."""
    deadline = time.monotonic() + 60
    while len(found := pods(plane, name)) != 2 or not all(holds(each) for each in found):
        assert time.monotonic() < deadline, f"still waiting: {[each.get('status') for each in found]}"
        time.sleep(0.2)
    return found


def test_its_pods_get_everything_and_are_bound_to_the_matching_node(plane: ControlPlane) -> None:
    plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(deployment("server", "nvidia-a100-80gb")))

    for pod in wait_for(plane, "server", lambda each: each["spec"].get("nodeName")):
        spec = pod["spec"]
        assert spec["nodeName"] == "place-a100"
        assert spec["nodeSelector"] == {"accelerator": "nvidia-a100-80gb"}
        assert {"nvidia.com/gpu", "dedicated"} <= {toleration["key"] for toleration in spec["tolerations"]}
        (server,) = spec["containers"]
        assert server["readinessProbe"]["initialDelaySeconds"] == 72  # 60 s and 20 % of it
        (fetcher,) = spec["initContainers"]
        assert fetcher["args"][0] == "s3://models/llama-3"
        cache = next(
            mount for mount in fetcher["volumeMounts"] if not mount["mountPath"].startswith("/var/run")
        )
        assert cache["name"] in {volume["name"] for volume in spec["volumes"]}
        mounted = next(mount for mount in server["volumeMounts"] if mount["name"] == cache["name"])
        assert mounted["readOnly"] is True

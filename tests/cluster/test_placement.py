"""A Deployment as an ML engineer writes it, from `kubectl apply` to the node that the scheduler binds its pods to."""

from collections.abc import Iterator

import pytest
import yaml

from tests.builders import JSON, deployment, gpu_container
from tests.cluster.configuration import default_policy
from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane, create_gpu_node
from tests.controlplane.webhook import serving

CLASS = "gpu-admission.dev/gpu-class"
DEDICATED = {"key": "dedicated", "value": "ml-workloads", "effect": "NoSchedule"}
TAINTS = ({"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}, DEDICATED)
TOLERATIONS = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}, DEDICATED]
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


def bound(plane: ControlPlane) -> list[JSON]:
    """Return the pods of the Deployment that are on a node."""
    listed = plane.client().get("/api/v1/namespaces/placed/pods", {"labelSelector": "app=server"})[1]
    return [pod for pod in listed["items"] if pod["spec"].get("nodeName")]


def test_its_pods_get_everything_and_are_bound_to_the_matching_node(plane: ControlPlane) -> None:
    probe = {"httpGet": {"path": "/health", "port": 8000}, "initialDelaySeconds": 5}
    annotations = {CLASS: "nvidia-a100-80gb", "gpu-admission.dev/model-uri": "s3://models/llama-3"}
    server = gpu_container(2, readinessProbe=probe)
    written = deployment("server", server, replicas=2, namespace="placed", annotations=annotations)
    plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(written))

    assert eventually(lambda: len(bound(plane)) == 2, seconds=60), plane.kubectl("get", "pods", "-A").stdout
    for pod in bound(plane):
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

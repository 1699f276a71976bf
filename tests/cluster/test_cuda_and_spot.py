"""Pods that name a CUDA version or the spot pool, on a real API server and by a real scheduler."""

from collections.abc import Iterator
from typing import Any

import pytest

from policies.rules.cuda_version import FULL, MAJOR
from tests.builders import JSON, gpu_container, pod
from tests.cluster.applying import apply, named, stored
from tests.cluster.configuration import default_policy
from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane, create_gpu_node
from tests.controlplane.webhook import Webhook, serving

NAMESPACE = "versions"
CUDA = "gpu-admission.dev/cuda"
SPOT = "gpu-admission.dev/spot"
POOL = {"key": "example.com/spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
ON_SPOT = {"nodeSelector": {"example.com/spot": "true"}, "tolerations": [POOL]}
POLICY = default_policy(
    {
        "cuda-version": {"exactVersion": True},
        "spot": {"mode": "enforce", "minTerminationSeconds": 120, **ON_SPOT},
    }
)
TOO_NEW = (
    f'Warning: pod versions/waiting: metadata.annotations[{CUDA}] = "13.0": use an image with an older CUDA; should be '
    f"at most 12.6, the newest CUDA "
    "of the nodes that can take the pod; or ask the platform team for newer drivers [cuda-version]"
)


@pytest.fixture(scope="module")
def plane(nodes_plane: ControlPlane) -> ControlPlane:
    client = nodes_plane.client()
    create_gpu_node(client, "older", labels={FULL: "12.2", MAJOR: "12"})
    create_gpu_node(client, "newer", labels={FULL: "12.6", MAJOR: "12"})
    taint = {"key": "example.com/spot", "value": "true", "effect": "NoSchedule"}
    create_gpu_node(client, "spot", labels={"example.com/spot": "true"}, taints=[taint])
    return nodes_plane


@pytest.fixture(scope="module", autouse=True)
def webhook(plane: ControlPlane) -> Iterator[Webhook]:
    reading = ("--kubeconfig", plane.kubeconfig())
    with serving(plane, POLICY, NAMESPACE, arguments=reading) as running:
        # The watch begins with the process; until it has listed once nothing is known of nodes.
        too_new = asking("waiting", {CUDA: "13.0"})
        assert eventually(lambda: TOO_NEW in apply(plane, too_new, dry_run=True)[1])
        yield running


def asking(name: str, annotations: dict[str, str], **spec: Any) -> JSON:
    return named(name, pod(gpu_container(), annotations=annotations, **spec), NAMESPACE)


def node_of(plane: ControlPlane, name: str) -> str:
    return str(stored(plane, name, NAMESPACE)["spec"].get("nodeName", ""))


def test_a_pod_runs_where_the_driver_has_its_cuda(plane: ControlPlane) -> None:
    accepted, said = apply(plane, asking("trainer", {CUDA: "12.4"}))

    assert accepted, said
    assert "Warning" not in said
    assert eventually(lambda: node_of(plane, "trainer") == "newer")


def test_a_pod_that_can_be_interrupted_runs_on_the_spot_pool(plane: ControlPlane) -> None:
    accepted, said = apply(plane, asking("batch", {SPOT: "true"}, restartPolicy="Never"))

    assert accepted, said
    assert "Warning" not in said
    assert stored(plane, "batch", NAMESPACE)["spec"]["terminationGracePeriodSeconds"] == 120
    assert eventually(lambda: node_of(plane, "batch") == "spot")

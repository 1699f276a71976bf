"""Karpenter and the cluster autoscaler: what they read on a pod is there, and a class without a node is no reason to refuse.

Reproduced, not the real ones: the scheduler is real, and a second actor makes the node that an autoscaler would.
"""

from collections.abc import Iterator

import pytest

from tests.builders import JSON, gpu_container
from tests.cluster.controllers import eventually
from tests.cluster.neighbours.team import TOLERATION, Team, body, ours
from tests.controlplane import ControlPlane, accepted, create_gpu_node

KEPT = {
    "karpenter.sh/do-not-disrupt": "true",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
}
CLASS = {"gpu-admission.dev/gpu-class": "nvidia-l4"}
NODE = "karpenter-l4-0"
POOL = {"karpenter.sh/nodepool": "gpu", "node.kubernetes.io/instance-type": "g6.xlarge"}


@pytest.fixture
def empty_pool(installed: ControlPlane) -> Iterator[ControlPlane]:
    """Return a cluster without a node of the class, and without pods of other tests that could take the GPUs of a new one."""
    installed.kubectl("delete", "pods", "--all", "--all-namespaces", "--force", "--grace-period=0")
    yield installed
    installed.client().delete(f"/api/v1/nodes/{NODE}")


def is_unschedulable(pod: JSON) -> bool:
    """Whether the scheduler has said what both autoscalers wait for."""
    conditions = pod["status"].get("conditions", [])
    return any(c["type"] == "PodScheduled" and c.get("reason") == "Unschedulable" for c in conditions)


def test_a_pool_is_scaled_up_from_zero(team: Team, empty_pool: ControlPlane) -> None:
    metadata = {"annotations": {**CLASS, **KEPT}}
    answer = accepted(team.create(body("server", gpu_container(), metadata=metadata)))
    # What an autoscaler goes by: the selector names the pool's label, and the toleration lets the pod onto its taint.
    assert answer["spec"]["nodeSelector"] == {"accelerator": "nvidia-l4"}
    assert ours(answer["spec"]["tolerations"]) == [TOLERATION]
    assert eventually(lambda: is_unschedulable(team.stored("server")))

    taint = {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}
    create_gpu_node(empty_pool.client(), NODE, labels={"accelerator": "nvidia-l4", **POOL}, taints=[taint])

    assert eventually(lambda: team.stored("server")["spec"].get("nodeName")) == NODE

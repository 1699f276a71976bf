"""The pods of a DaemonSet, which its controller pins to nodes itself."""

from collections.abc import Iterator

import pytest

from tests.builders import JSON, deployment, gpu_container
from tests.cluster.applying import apply
from tests.cluster.configuration import default_policy
from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane, create_gpu_node
from tests.controlplane.webhook import Webhook, serving

POLICY = default_policy({"gpu-class": {"default": "nvidia-a100-80gb"}})
NAMESPACE = "agents"
NODES = ("agent-node-0", "agent-node-1")
TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
RESERVED = {"key": "agents", "value": "only", "effect": "NoSchedule"}
"""Keeps the nodes free of pods that other tests have left pending: without a kubelet their GPUs would stay taken."""
DAEMONSET = deployment("monitor", gpu_container(), namespace=NAMESPACE) | {"kind": "DaemonSet"}
del DAEMONSET["spec"]["replicas"]
DAEMONSET["spec"]["template"]["spec"]["tolerations"] = [{"operator": "Equal", **RESERVED}]


@pytest.fixture(scope="module")
def webhook(full_plane: ControlPlane) -> Iterator[Webhook]:
    for name in NODES:
        # Of another class than the policy's default: a pod that is pinned runs on neither. And without the GPU taint: for a
        # node that its template does not tolerate, the DaemonSet controller makes no pod that we could add a toleration to.
        create_gpu_node(full_plane.client(), name, labels={"accelerator": "nvidia-t4"}, taints=[RESERVED])
    with serving(full_plane, POLICY, NAMESPACE) as running:
        yield running
    full_plane.kubectl("delete", "node", *NODES)


def bound_pods(plane: ControlPlane) -> list[JSON]:

    def bound() -> list[JSON]:
        chosen = {"labelSelector": "app=monitor"}
        pods: list[JSON] = plane.client().get(f"/api/v1/namespaces/{NAMESPACE}/pods", chosen)[1]["items"]
        on = sorted(each["spec"].get("nodeName", "") for each in pods)
        return pods if on == sorted(NODES) else []

    pods = eventually(bound, seconds=60)
    assert pods, plane.kubectl("get", "events", "-n", NAMESPACE).stdout
    return pods


def test_pods_of_a_daemonset_are_tolerated_but_not_pinned(full_plane: ControlPlane, webhook: Webhook) -> None:
    accepted, said = apply(full_plane, DAEMONSET)
    assert accepted, said
    assert (
        "Warning: DaemonSet agents/monitor: tolerations: add {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule} to the "
        "template; the DaemonSet controller makes no pod for a node whose taints the template does not tolerate "
        "[gpu-toleration]"
    ) in said

    pods = bound_pods(full_plane)

    assert all(TOLERATION in each["spec"]["tolerations"] for each in pods)
    assert all("nodeSelector" not in each["spec"] for each in pods)
    users = {line["user"] for line in webhook.audit() if line["name"].startswith("monitor-")}
    assert users == {"system:serviceaccount:kube-system:daemon-set-controller"}

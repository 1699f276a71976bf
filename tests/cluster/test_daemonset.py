"""Who gets an exemption by being who they are: the DaemonSet controller and kubelets, and nobody who only claims to be."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.builders import JSON, gpu_container, pod
from tests.cases import cases
from tests.cluster.configuration import default_policy
from tests.cluster.test_admission import apply, named, stored
from tests.controlplane import ControlPlane, create_gpu_node
from tests.controlplane.webhook import Webhook, serving

POLICY = default_policy({"gpu-class": {"default": "nvidia-a100-80gb"}})
NAMESPACE = "agents"
NODES = ("agent-node-0", "agent-node-1")
TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
RESERVED = {"key": "agents", "value": "only", "effect": "NoSchedule"}
"""Keeps the nodes free of pods that other tests have left pending: without a kubelet their GPUs would stay taken."""
BOUND_WITHIN = 60.0
"""Seconds; one on an idle machine."""
MIRROR = "kubernetes.io/config.mirror"

DAEMONSET: JSON = {
    "apiVersion": "apps/v1",
    "kind": "DaemonSet",
    "metadata": {"name": "monitor", "namespace": NAMESPACE},
    "spec": {
        "selector": {"matchLabels": {"app": "monitor"}},
        "template": {
            "metadata": {"labels": {"app": "monitor"}},
            "spec": {"containers": [gpu_container()], "tolerations": [{"operator": "Equal", **RESERVED}]},
        },
    },
}

# With the node authorizer kubelets may create their mirror pods; here it is off, and RBAC has to say so.
KUBELETS_MAY = [
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "test-kubelets"},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "patch"]}],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "test-kubelets"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "test-kubelets"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"}],
    },
]


@pytest.fixture(scope="module")
def webhook(full_plane: ControlPlane) -> Iterator[Webhook]:
    full_plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(KUBELETS_MAY))
    for name in NODES:
        # Of another class than the policy's default: a pod that is pinned runs on neither. And without the GPU taint: for a
        # node that its template does not tolerate, the DaemonSet controller makes no pod that we could add a toleration to.
        create_gpu_node(full_plane.client(), name, labels={"accelerator": "nvidia-t4"}, taints=[RESERVED])
    with serving(full_plane, POLICY, NAMESPACE) as running:
        yield running
    full_plane.kubectl("delete", "node", *NODES)
    full_plane.kubectl("delete", "clusterrole,clusterrolebinding", "test-kubelets")


def as_kubelet(node: str) -> list[str]:
    return [f"--as=system:node:{node}", "--as-group=system:nodes", "--as-group=system:authenticated"]


def mirror_pod(name: str, node: str) -> JSON:
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": "0", "controller": True}
    document = named(name, pod(gpu_container(), annotations={MIRROR: "hash"}, nodeName=node), NAMESPACE)
    document["metadata"]["ownerReferences"] = [owner]
    return document


def bound_pods(plane: ControlPlane) -> list[JSON]:
    """Return the pods of the DaemonSet once each node has one."""
    client = plane.client()
    deadline = time.monotonic() + BOUND_WITHIN
    while True:
        _, answer = client.get(f"/api/v1/namespaces/{NAMESPACE}/pods", {"labelSelector": "app=monitor"})
        pods: list[JSON] = answer["items"]
        if sorted(each["spec"].get("nodeName", "") for each in pods) == sorted(NODES):
            return pods
        if time.monotonic() > deadline:
            events = plane.kubectl("get", "events", "-n", NAMESPACE).stdout
            raise AssertionError(f"not one pod on each node: {json.dumps(pods)}\n{events}")
        time.sleep(0.2)


def is_injected(document: JSON) -> bool:
    return "gpu-admission.dev/injected" in document["metadata"].get("annotations", {})


def test_pods_of_a_daemonset_are_tolerated_but_not_pinned(full_plane: ControlPlane, webhook: Webhook) -> None:
    accepted, said = apply(full_plane, DAEMONSET)
    assert accepted, said
    assert (
        "Warning: tolerations: add nvidia.com/gpu:NoSchedule to the template; the DaemonSet controller makes no pod for a node "
        "whose taints the template does not tolerate [gpu-toleration]"
    ) in said

    pods = bound_pods(full_plane)

    assert all(TOLERATION in each["spec"]["tolerations"] for each in pods)
    assert all("nodeSelector" not in each["spec"] for each in pods)
    users = {line["user"] for line in webhook.audit() if line["name"].startswith("monitor-")}
    assert users == {"system:serviceaccount:kube-system:daemon-set-controller"}


@cases(("node", "exempt"), {"of-its-own-node": (NODES[0], True), "of-another-node": (NODES[1], False)})
def test_a_kubelet_s_mirror_pod_comes_through_untouched_on_its_own_node(
    full_plane: ControlPlane, webhook: Webhook, node: str, exempt: bool
) -> None:
    name = f"static-{node}"
    document = json.dumps(mirror_pod(name, node))
    full_plane.kubectl("apply", *as_kubelet(NODES[0]), "-f", "-", stdin=document)

    made = stored(full_plane, name, NAMESPACE)
    assert is_injected(made) is not exempt
    assert (TOLERATION in made["spec"]["tolerations"]) is not exempt
    lines: list[Any] = [line for line in webhook.audit() if line["name"] == name]
    assert {line["user"] for line in lines} == {f"system:node:{NODES[0]}"}
    assert lines[0]["verdict"] == ("allowed" if exempt else "patched")

"""A cluster on which nothing of ours is installed: nodes, and namespaces with what teams and a GPU stack run."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.builders import JSON, container, gpu_container
from tests.controlplane import ControlPlane, accepted, create_gpu_node

A100, NEW = "nvidia-a100-80gb", "NVIDIA-X900"
NODES = ("a100-1", "a100-2", "new-1")
STACK = "gpu-operator"
PODS_OF_A_TEAM = 20
PLUGINS = "/var/lib/kubelet/device-plugins"


class Population:
    def __init__(self, plane: ControlPlane) -> None:
        self._client = plane.client()

    def nodes(self) -> None:
        product = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.memory": "81920"}
        new = {"nvidia.com/gpu.product": NEW, "nvidia.com/gpu.memory": "97887"}
        taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
        create_gpu_node(self._client, NODES[0], labels=product, taints=[taint])
        create_gpu_node(self._client, NODES[1], labels=product)
        resources = {"nvidia.com/gpu": "8", "nvidia.com/mig-1g.12gb": "7", "example.com/npu": "4"}
        create_gpu_node(self._client, NODES[2], labels=new, taints=[taint], resources=resources)

    def teams(self, names: Iterable[str]) -> None:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(self._team, names))

    def _team(self, name: str) -> None:
        """Create 20 pods, 23 GPUs: a chat service of 10, training with 3 × 4, a web service of 4, and 3 by hand."""
        self._create("/api/v1/namespaces", {"metadata": {"name": name}})
        self._service(name, "chat", 10, gpu_container())
        self._service(name, "web", 4, container())
        self._owned(name, "Job", "train", 3, gpu_container("4"))
        self._pod(name, "notebook", container(), annotations={"gpu-admission.dev/gpu-class": "a1000"})
        self._pod(name, "typo", gpu_container(), annotations={"gpu-admission.dev/gpu-class": "a1000"})
        self._pod(name, "peek", container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]))

    def stack(self) -> None:
        self._create("/api/v1/namespaces", {"metadata": {"name": STACK}})
        mount = {"name": "plugins", "mountPath": PLUGINS}
        volumes = [{"name": "plugins", "hostPath": {"path": PLUGINS}}]
        self._owned(STACK, "DaemonSet", "device-plugin", 3, container(volumeMounts=[mount]), volumes=volumes)

    def _service(self, namespace: str, name: str, replicas: int, main: JSON) -> None:
        labels = {"app": name}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [main]}}
        spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        path = f"/apis/apps/v1/namespaces/{namespace}"
        deployment = self._create(f"{path}/deployments", {"metadata": {"name": name}, "spec": spec})
        owners = [_owner("apps/v1", "Deployment", deployment)]
        metadata = {"name": f"{name}-5d9f", "ownerReferences": owners}
        replica_set = self._create(f"{path}/replicasets", {"metadata": metadata, "spec": spec})
        owners = [_owner("apps/v1", "ReplicaSet", replica_set)]
        for index in range(replicas):
            self._pod(namespace, f"{name}-5d9f-{index}", main, ownerReferences=owners, labels=labels)

    def _owned(self, namespace: str, kind: str, name: str, pods: int, main: JSON, **spec: Any) -> None:
        labels, version = {"app": name}, "batch/v1" if kind == "Job" else "apps/v1"
        never = {"restartPolicy": "Never"} if kind == "Job" else {}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [main], **never, **spec}}
        whole: JSON = {"template": template}
        whole |= {} if kind == "Job" else {"selector": {"matchLabels": labels}}
        path = f"/apis/{version}/namespaces/{namespace}/{kind.lower()}s"
        made = self._create(path, {"metadata": {"name": name}, "spec": whole})
        for index in range(pods):
            owners = [_owner(version, kind, made)]
            self._pod(namespace, f"{name}-{index}", main, ownerReferences=owners, labels=labels, spec=spec)

    def _pod(self, namespace: str, name: str, main: JSON, spec: JSON | None = None, **metadata: Any) -> None:
        body = {"metadata": {"name": name, **metadata}, "spec": {"containers": [main], **(spec or {})}}
        path = f"/api/v1/namespaces/{namespace}/pods"
        self._create(path, body)
        binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": NODES[0]}}
        self._create(f"{path}/{name}/binding", binding)

    def _create(self, path: str, body: JSON) -> JSON:
        answer = accepted(self._client.post(path, body))
        return dict(answer)


def _owner(version: str, kind: str, made: JSON) -> JSON:
    metadata = made["metadata"]
    return {
        "apiVersion": version,
        "kind": kind,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }

"""A cluster of a few ML teams, installed and at work, for the tests of the console and its pictures.

`python -m tests.cluster.console.world` starts it, prints its kubeconfig, and keeps it until Ctrl-C.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from tests.cluster.controllers import Command, eventually, is_ready
from tests.cluster.doctor.installation import ACCOUNTS, CANARY_NAMESPACE, cluster
from tests.controlplane import Client, ControlPlane, create_gpu_node
from tests.controlplane.gpuquota import Namespace
from tests.controlplane.webhook import NAMESPACE, Webhook, strict_manifests

GPU = "nvidia.com/gpu"
TAINT = {"key": GPU, "value": "present", "effect": "NoSchedule"}
TENANT = "tenant"
"""A user who may read what is in one namespace, and nothing of the cluster."""
HOME = "speech"

NODES: Mapping[str, tuple[int, str, str, dict[str, str]]] = {
    "a100": (4, "nvidia-a100-80gb", "NVIDIA-A100-SXM4-80GB", {GPU: "8"}),
    "a100-mig": (1, "nvidia-a100-80gb", "NVIDIA-A100-SXM4-80GB", {"nvidia.com/mig-1g.10gb": "14"}),
    "h100": (2, "nvidia-h100-80gb", "NVIDIA-H100-80GB-HBM3", {GPU: "8"}),
    "l4": (3, "nvidia-l4", "NVIDIA-L4", {GPU: "4"}),
}
"""How many there are, their two labels and what they have."""

QUOTAS: Mapping[str, dict[str, Any]] = {
    "foundation": {"gpus": "32", "classes": {"nvidia-a100": "24", "nvidia-h100": "12"}},
    "inference": {"gpus": "12", "classes": {"nvidia-l4": "10"}},
    "recsys": {"gpus": "8"},
    HOME: {"gpus": "6", "classes": {"nvidia-a100": "4"}},
    "students": {"gpus": "2"},
    "vision": {"gpus": "16", "classes": {"nvidia-a100": "8", "nvidia-l4": "4"}},
}

WORKLOADS: tuple[tuple[str, str, str, int, int, str], ...] = (
    ("foundation", "Job", "llama-pretrain", 2, 8, "nvidia-a100-80gb"),
    ("foundation", "Job", "llama-eval", 1, 4, "nvidia-h100-80gb"),
    ("foundation", "Job", "tokenizer-ablation", 2, 1, "nvidia-a100-80gb"),
    ("inference", "Deployment", "chat", 4, 1, "nvidia-l4"),
    ("inference", "Deployment", "embeddings", 3, 1, "nvidia-l4"),
    ("recsys", "Job", "two-tower", 1, 4, ""),
    (HOME, "Job", "whisper-finetune", 1, 4, "nvidia-a100-80gb"),
    (HOME, "Deployment", "diarization", 3, 1, ""),
    ("students", "Deployment", "notebook", 2, 1, "nvidia-l4"),
    ("students", "Job", "sweep", 1, 4, ""),
    ("vision", "Job", "segment", 1, 2, "nvidia-a100-80gb"),
    ("vision", "Job", "detector", 1, 1, "nvidia-a100-80g"),
)
"""Namespace, kind, name, pods, GPUs of each, and class. In three namespaces something is denied."""


def workload(kind: str, name: str, pods: int, gpus: int, gpu_class: str) -> dict[str, Any]:
    template: dict[str, Any] = {
        "metadata": {
            "labels": {"app": name},
            "annotations": {"gpu-admission.dev/gpu-class": gpu_class} if gpu_class else {},
        },
        "spec": {
            "terminationGracePeriodSeconds": 0,  # there is no kubelet to confirm an end
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example.com/train:1",
                    "resources": {"limits": {GPU: str(gpus)}},
                }
            ],
        },
    }
    if kind == "Job":
        template["spec"] |= {"restartPolicy": "Never"}
        spec: dict[str, Any] = {"completions": pods, "parallelism": pods, "template": template}
    else:
        spec = {"replicas": pods, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {
        "apiVersion": "batch/v1" if kind == "Job" else "apps/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }


@contextmanager
def world() -> Iterator[ControlPlane]:
    """Run it: installed, counted, what fits bound to nodes, and what does not denied."""
    plane = ControlPlane(controllers=True, scheduler=True)
    plane.add_user(TENANT)
    with plane, Webhook(plane, arguments=cluster(plane), installation=NAMESPACE) as webhook:
        client = plane.client()
        client.post("/api/v1/namespaces", {"metadata": {"name": CANARY_NAMESPACE}})
        for name, (count, accelerator, product, resources) in NODES.items():
            for number in range(count):
                labels = {"accelerator": accelerator, "nvidia.com/gpu.product": product}
                create_gpu_node(
                    client, f"{name}-{number}", labels=labels, taints=(TAINT,), resources=resources
                )
        create_gpu_node(client, "cpu-0", resources={})
        webhook.register()
        for document in _around():
            assert client.apply(document).status < 300
        Command(plane, "controller", "--namespace", NAMESPACE, "--canary-namespace", CANARY_NAMESPACE).start()
        teams = {name: Namespace(plane, name, installation=NAMESPACE) for name in QUOTAS}
        teams[HOME].let_read(TENANT)
        for name, team in teams.items():
            team.quota(QUOTAS[name])
        for team in teams.values():
            assert eventually(lambda team=team: is_ready(team)), team.name  # type: ignore[misc]
        for document in _documents():
            assert client.apply(document).status < 300
        for namespace, kind, name, pods, gpus, gpu_class in WORKLOADS:
            document = workload(kind, name, pods, gpus, gpu_class)
            document["metadata"]["namespace"] = namespace
            assert client.apply(document).status < 300
            # One after the other: of two workloads over one quota, the later one is denied.
            settled = partial(_created_or_denied, client, namespace, name, pods)
            assert eventually(settled, seconds=60), f"{namespace}/{name}"
        assert eventually(lambda: run_bound_pods(plane) > len(WORKLOADS), seconds=60)
        yield plane


def _around() -> Iterator[dict[str, Any]]:
    """Yield what else is installed: accounts and their rights, the ConfigMap, and Deployments, whose pods nothing runs."""
    kinds = {*ACCOUNTS, "ConfigMap", "Deployment"}
    yield from (each for each in strict_manifests() if each["kind"] in kinds)


def run_bound_pods(plane: ControlPlane) -> int:
    """Say of every pod on a node that it runs, as its kubelet would; return how many there are."""
    client = plane.client()
    bound = [each for each in client.get("/api/v1/pods")[1]["items"] if each["spec"].get("nodeName")]
    for number, each in enumerate(bound):
        address = f"10.1.2.{number + 1}"
        ready = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready", "ContainersReady")]
        status = {"phase": "Running", "conditions": ready, "podIP": address, "podIPs": [{"ip": address}]}
        path = f"/api/v1/namespaces/{each['metadata']['namespace']}/pods/{each['metadata']['name']}/status"
        client.patch(path, {"status": status})
    return len(bound)


def _documents() -> Iterator[dict[str, Any]]:
    api = {"apiVersion": "gpu-admission.dev/v1alpha1", "kind": "GPUPolicy"}
    exempt = [{"namespaces": [NAMESPACE, "kube-system"], "reason": "the cluster's own components"}]
    yield {**api, "metadata": {"name": "default"}, "spec": {"exemptions": exempt}}
    serving = {"gpu-class": {"allowed": ["nvidia-l4", "nvidia-t4"]}}
    yield {
        **api,
        "metadata": {"name": "serving"},
        "spec": {
            "priority": 10,
            "match": {"namespaceSelector": {"matchLabels": {"serves": "models"}}},
            "rules": serving,
        },
    }


def _created_or_denied(client: Client, namespace: str, name: str, pods: int) -> bool:
    """Whether all pods of a workload exist, or an Event says that one was denied."""
    _, created = client.get(f"/api/v1/namespaces/{namespace}/pods", {"labelSelector": f"app={name}"})
    if len(created["items"]) == pods:
        return True
    _, events = client.get(f"/api/v1/namespaces/{namespace}/events", {"fieldSelector": "reason=FailedCreate"})
    return any(each["involvedObject"]["name"].startswith(name) for each in events["items"])


def main() -> None:
    with world() as plane:
        print(plane.kubeconfig(), plane.kubeconfig(TENANT), flush=True)  # noqa: T201 - a command
        while True:
            run_bound_pods(plane)
            time.sleep(10)


if __name__ == "__main__":
    main()

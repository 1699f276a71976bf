"""Pods and objects that say how many processes they start, and what rule parallelism says of them."""

import json
from typing import Any

from policies.finding import Severity
from policies.rules.parallelism import RULE, check, check_workload
from tests.builders import JSON, container, context, gpu_container, pod, view, workload

OPTIONS = RULE.options()
VLLM = ["vllm", "serve", "Qwen/Qwen3-32B"]


def findings(document: JSON) -> list[str]:
    found = list(check(view(document), OPTIONS, context()))
    assert all(finding.severity is Severity.WARNING for finding in found)
    return [finding.sentence() for finding in found]


def advice(document: JSON) -> list[str]:
    return [finding.sentence() for finding in check_workload(workload(document), OPTIONS, context())]


def shell(script: str, gpus: int = 2) -> JSON:
    return pod(gpu_container(gpus, command=["sh", "-c"], args=[script]))


def more(processes: int, gpus: int, whose: str = "the container") -> str:
    return f"set {gpus} or request {processes} GPUs; should be at most {gpus}, the GPUs of {whose}"


def fewer(processes: int, gpus: int, whose: str = "the container") -> str:
    return f"set {gpus} or request {processes}; should be {gpus}, the GPUs of {whose}: the others stay idle"


def job(kind: str, spec: JSON, api_version: str = "kubeflow.org/v1") -> JSON:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "train"}, "spec": spec}


def pytorch(processes: Any, gpus: int, command: str = "torchrun") -> JSON:
    template = {"spec": {"containers": [gpu_container(gpus, command=[command])]}}
    replicas = {"Master": {"template": template}, "Worker": {"template": template}}
    return job("PyTorchJob", {"nprocPerNode": processes, "pytorchReplicaSpecs": replicas})


def mpi(slots: int, gpus: int, launch: str) -> JSON:
    launcher = {"spec": {"containers": [container(command=["sh", "-c", launch])]}}
    replicas = {
        "Launcher": {"template": launcher},
        "Worker": {"template": {"spec": {"containers": [gpu_container(gpus)]}}},
    }
    return job("MPIJob", {"slotsPerWorker": slots, "mpiReplicaSpecs": replicas}, "kubeflow.org/v2beta1")


def train_job(processes: int, gpus: int) -> JSON:
    trainer = {"numProcPerNode": processes, "resourcesPerNode": {"limits": {"nvidia.com/gpu": gpus}}}
    return job("TrainJob", {"trainer": trainer}, "trainer.kubeflow.org/v1alpha1")


def runtime(policy: JSON, gpus: int) -> JSON:
    template = {"spec": {"template": {"spec": {"containers": [gpu_container(gpus)]}}}}
    spec = {"mlPolicy": policy, "template": {"spec": {"replicatedJobs": [{"template": template}]}}}
    return job("ClusterTrainingRuntime", spec, "trainer.kubeflow.org/v1alpha1")


def template(gpus: int, **container_: Any) -> JSON:
    return {"spec": {"containers": [gpu_container(gpus, **container_)]}}


def ray(params: str, gpus: int, **group: Any) -> JSON:
    worker = {"rayStartParams": {"num-gpus": params}, "template": template(gpus), **group}
    head = {"rayStartParams": {"num-gpus": "0"}, "template": template(1)}
    return job("RayCluster", {"headGroupSpec": head, "workerGroupSpecs": [worker]}, "ray.io/v1")


def ray_job(entrypoint: float, head: int, worker: int, params: str = "", **head_: Any) -> JSON:
    groups = {
        "headGroupSpec": {"template": template(head, **head_)},
        "workerGroupSpecs": [{"rayStartParams": {"num-gpus": params}, "template": template(worker)}],
    }
    return job("RayJob", {"entrypointNumGpus": entrypoint, "rayClusterSpec": groups}, "ray.io/v1")


def ray_service(config: JSON, gpus: int, replicas: int = 1, elastic: bool = False, **group: Any) -> JSON:
    worker = {"replicas": replicas, "template": template(gpus), **group}
    cluster = {"headGroupSpec": {"template": template(0)}, "workerGroupSpecs": [worker]}
    spec = {
        "serveConfigV2": json.dumps(config),
        "rayClusterConfig": {**cluster, "enableInTreeAutoscaling": elastic},
    }
    return job("RayService", spec, "ray.io/v1")


def served(gpus: float, **deployment: Any) -> JSON:
    return {"applications": [{"deployments": [{"ray_actor_options": {"num_gpus": gpus}, **deployment}]}]}


def llms(engine: JSON, more: JSON | None = None, **deployment: Any) -> JSON:
    configs = [{"engine_kwargs": engine, "deployment_config": deployment, **(more or {})}]
    return {
        "applications": [{"import_path": "ray.serve.llm:build_openai_app", "args": {"llm_configs": configs}}]
    }


def model_booster(gpus: int, pods: int, **config: int) -> JSON:
    named = {key.replace("_", "-"): value for key, value in config.items()}
    worker = {"resources": {"limits": {"nvidia.com/gpu": gpus}}, "pods": pods, "config": named}
    return job("ModelBooster", {"backend": {"workers": [worker]}}, "workload.serving.volcano.sh/v1alpha1")


def wrapped(document: JSON) -> JSON:
    return job("AppWrapper", {"components": [{"template": document}]}, "workload.codeflare.dev/v1beta2")


def nim(tensor: int, gpus: int) -> JSON:
    parallelism = {"tensor": tensor, "pipeline": 2}
    spec = {"resources": {"limits": {"nvidia.com/gpu": gpus}}, "multiNode": {"parallelism": parallelism}}
    return job("NIMService", spec, "apps.nvidia.com/v1alpha1")


def llm(parallelism: JSON, gpus: int, **container_: Any) -> JSON:
    spec = {"parallelism": parallelism, "template": template(gpus, **container_)["spec"]}
    return job("LLMInferenceService", spec, "serving.kserve.io/v1alpha2")


def vllm_runtime(tensor: int, gpus: str, *extra: str) -> JSON:
    spec = {"vllmConfig": {"tensorParallelSize": tensor, "extraArgs": extra}}
    return job(
        "VLLMRuntime",
        {**spec, "deploymentConfig": {"resources": {"gpu": gpus}}},
        "production-stack.vllm.ai/v1alpha1",
    )


def dynamo(nodes: int, gpus: str, *args: str) -> JSON:
    """Return a graph with a service of these nodes and GPUs, and one of a single node."""
    server = {"resources": {"limits": {"gpu": gpus}}, "multinode": {"nodeCount": nodes}}
    main = {"mainContainer": {"command": ["python3", "-m", "dynamo.vllm"], "args": [*args]}}
    services = {"Decode": {**server, "extraPodSpec": main}, "Other": {"resources": {"limits": {"gpu": "8"}}}}
    return job("DynamoGraphDeployment", {"services": services}, "nvidia.com/v1alpha1")


def group(size: int, gpus: int, command: str, leader: int = 0) -> JSON:
    """Return a LeaderWorkerSet with these GPUs in each pod, and in a leader of its own, if any."""
    script = {"command": ["sh", "-c", command]}
    leaders = {"leaderTemplate": template(leader, **script)} if leader else {}
    spec = {"leaderWorkerTemplate": {"size": size, "workerTemplate": template(gpus, **script), **leaders}}
    return job("LeaderWorkerSet", spec, "leaderworkerset.x-k8s.io/v1")

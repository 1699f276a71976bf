"""Fields of objects that say how many processes, one for each GPU, or GPUs their pods need. Rule `parallelism` reads them.

Over how many pods a model is spread is in the table of kinds: `gang` in `webhook/configuration/builtin/workload-kinds.yaml`.

Two fields are not here. KServe's operator computes nodes and GPUs from the product of `workerSpec.tensorParallelSize` and
`pipelineParallelSize` (kserve/kserve v0.20 pkg/controller/v1beta1/inferenceservice/components/predictor.go). In Flux, each of
`numProcPerNode` processes gets all GPUs (kubeflow/trainer v2.3 pkg/runtime/framework/plugins/flux/flux.go).
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import prod
from typing import Any

import msgspec

from policies.pods.field_paths import Parts, field_path, path_parts, value_at

_DIGITS = 4


class ProcessField(msgspec.Struct, frozen=True):
    """A number of processes in each pod below `pods`.

    path: of the number; `[]` and `*` are the items and keys on the way to the pods. times: of a number that multiplies it.
    torchrun: whether they are certain only if the command is torchrun, for a script may start its own.
    server: whether they are of a server, of which other arguments may set or multiply the number, as the setting `unless` may.
    before: the release before which 1 was started as written. Since then, 1 means one for each GPU.
    anywhere: whether they are in one of the pods, whichever has the GPUs, beside other processes.
    shared: whether they are in all pods that share a model, beside what other arguments start.
    """

    path: str
    pods: str
    torchrun: bool = False
    server: bool = False
    times: str = ""
    unless: str = ""
    before: str = ""
    anywhere: bool = False
    shared: bool = False


class StatedProcesses(msgspec.Struct, frozen=True):
    """A number of processes in each pod, and what multiplies it, each with its path.

    is_text: whether the number is written as text. unless: the setting that may change it.
    """

    field: ProcessField
    path: str
    count: int
    is_text: bool
    times: tuple[tuple[str, int], ...]
    unless: str


def stated_processes(group: str, kind: str, data: Any, pods: Parts) -> Iterator[StatedProcesses]:
    """Yield the numbers that an object, or the one inside it that has the pods, states about the pods at this path."""
    for length in range(len(pods), 0, -1):
        inner = value_at(data, pods[:length])
        if isinstance(inner, dict) and {"apiVersion", "kind"} <= inner.keys():
            group, kind = str(inner["apiVersion"]).rpartition("/")[0], str(inner["kind"])
            break
    else:
        length = 0
    object_path, below = pods[:length], pods[length:]
    for field in PROCESS_FIELDS.get((group, kind), ()):
        path, times, unless, pods_path = (
            (*object_path, *_with_items_of_pods(path, below))
            for path in (field.path, field.times, field.unless, field.pods)
        )
        written = value_at(data, path)
        count = _number(written)
        if count and pods[: len(pods_path)] == pods_path:
            factor = _number(value_at(data, times)) if field.times else 1
            multiplied = ((field_path(times), factor),) if factor > 1 else ()
            setting = str(value_at(data, unless) or "") if field.unless else ""
            is_text = isinstance(written, str)
            yield StatedProcesses(field, field_path(path), count, is_text, multiplied, setting)


def _with_items_of_pods(path: str, pods: Parts) -> Parts:
    """Return the path with the items and keys on the way to the pods."""
    parts = path_parts(path)
    return tuple(pods[i] if part in {"", "*"} and i < len(pods) else part for i, part in enumerate(parts))


def _number(value: Any) -> int:
    """Return a plain number of at most _DIGITS digits, which may be text; 0 for anything else: `auto`, a parameter."""
    text = str(value)
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else 0


def _of_ray(spec: str) -> tuple[ProcessField, ...]:
    groups = f"{spec}.headGroupSpec", f"{spec}.workerGroupSpecs[]"
    fields = "rayStartParams.num-gpus", "resources.GPU"
    return tuple(ProcessField(f"{group}.{field}", group) for group in groups for field in fields)


def _of_nim(spec: str) -> tuple[ProcessField, ...]:
    return (ProcessField(f"{spec}.multiNode.parallelism.tensor", f"{spec}.resources"),)


def _of_entrypoint(spec: str) -> tuple[ProcessField, ...]:
    # ray-project/kuberay v1.7 ray-operator/controllers/ray/common/job.go: --entrypoint-num-gpus, reserved on one node of Ray
    return (ProcessField(f"{spec}.entrypointNumGpus", f"{spec}.rayClusterSpec", anywhere=True),)


_SLOTS = (ProcessField("spec.slotsPerWorker", "spec.mpiReplicaSpecs.Worker"),)
_VLLM, _WORKER = "spec.vllmConfig", "spec.backend.workers[]"
_JOBS, _POLICY = "spec.template.spec.replicatedJobs", "spec.mlPolicy"
_RUNTIME = (
    ProcessField(f"{_POLICY}.torch.numProcPerNode", _JOBS),
    ProcessField(f"{_POLICY}.mpi.numProcPerNode", _JOBS, before="Kubeflow Trainer 2.1"),
)
_OF_LLM = tuple(
    ProcessField(
        f"{spec}.parallelism.tensor",
        f"{spec}.{pod}",
        server=True,
        times=f"{spec}.parallelism.dataLocal",
        unless=f"{spec}.parallelism.pipeline",
    )
    for spec in ("spec", "spec.prefill")
    for pod in ("template", "worker")
)

PROCESS_FIELDS: Mapping[tuple[str, str], tuple[ProcessField, ...]] = {
    # kubeflow/mpi-operator v0.8 pkg/apis/kubeflow/v2beta1/types.go: the slots of a worker in the hostfile
    ("kubeflow.org", "MPIJob"): _SLOTS,
    # kubedl-io/kubedl 114fb7a apis/training/v1alpha1/mpijob_types.go
    ("training.kubedl.io", "MPIJob"): _SLOTS,
    # kubeflow/trainer v1.9.4 pkg/apis/kubeflow.org/v1/pytorch_types.go: --nproc-per-node of torchrun, by PET_NPROC_PER_NODE
    ("kubeflow.org", "PyTorchJob"): (
        ProcessField("spec.nprocPerNode", "spec.pytorchReplicaSpecs", torchrun=True),
        ProcessField("spec.elasticPolicy.nProcPerNode", "spec.pytorchReplicaSpecs", torchrun=True),
    ),
    # aws/sagemaker-hyperpod-checkpointless-training examples/llama3/launch: likewise
    ("sagemaker.amazonaws.com", "HyperPodPyTorchJob"): (
        ProcessField("spec.nprocPerNode", "spec.replicaSpecs", torchrun=True),
    ),
    # kubeflow/trainer v2.3 pkg/apis/trainer/v1alpha1/trainjob_types.go, trainingruntime_types.go; `torch` v2.0
    ("trainer.kubeflow.org", "TrainJob"): (
        ProcessField("spec.trainer.numProcPerNode", "spec.trainer.resourcesPerNode"),
    ),
    ("trainer.kubeflow.org", "TrainingRuntime"): _RUNTIME,
    ("trainer.kubeflow.org", "ClusterTrainingRuntime"): _RUNTIME,
    # ray-project/kuberay v1.7 ray-operator/controllers/ray/common/pod.go: what Ray schedules on, by default the limits of the pod
    ("ray.io", "RayCluster"): _of_ray("spec"),
    ("ray.io", "RayJob"): (*_of_ray("spec.rayClusterSpec"), *_of_entrypoint("spec")),
    ("ray.io", "RayService"): _of_ray("spec.rayClusterConfig"),
    ("ray.io", "RayCronJob"): (*_of_ray("spec.jobTemplate.rayClusterSpec"), *_of_entrypoint("spec.jobTemplate")),
    # vllm-project/aibrix v0.7 api/orchestration/v1alpha1/raycluster_type.go: a RayCluster's spec
    ("orchestration.aibrix.ai", "RayClusterFleet"): _of_ray("spec.template.spec"),
    # NVIDIA/k8s-nim-operator v3.1 api/apps/v1alpha1/nimservice_types.go: the slots of each of `pipeline` pods in the hostfile
    ("apps.nvidia.com", "NIMService"): _of_nim("spec"),
    ("apps.nvidia.com", "NIMPipeline"): _of_nim("spec.services[].spec"),
    # vllm-project/production-stack 0.1.12 operator/internal/controller/vllmruntime_controller.go: --tensor-parallel-size
    ("production-stack.vllm.ai", "VLLMRuntime"): (
        ProcessField(f"{_VLLM}.tensorParallelSize", "spec", server=True, unless=f"{_VLLM}.extraArgs"),
    ),
    # volcano-sh/kthena v1.0 pkg/model-booster-controller/convert/model_serving.go: arguments of vLLM, on Ray if `pods` > 1
    ("workload.serving.volcano.sh", "ModelBooster"): (
        ProcessField(
            f"{_WORKER}.config.tensor-parallel-size",
            f"{_WORKER}.resources",
            times=f"{_WORKER}.config.pipeline-parallel-size",
            unless=f"{_WORKER}.config.data-parallel-size",
            server=True,
            shared=True,
        ),
    ),
    # kserve/kserve v0.20 pkg/apis/serving/v1alpha2/llm_inference_service_types.go, config/llmisvcconfig/config-llm-*.yaml:
    # --tensor-parallel-size of each server, of which `dataLocal` are in a pod
    ("serving.kserve.io", "LLMInferenceService"): _OF_LLM,
    ("serving.kserve.io", "LLMInferenceServiceConfig"): _OF_LLM,
}  # fmt: skip
"""By API group and kind. Comments: repository, version and file."""


_MAX_NUMBER = 10_000
"""Maximum of a number that is read, of replicas or GPUs."""
_OWN_BUNDLES = {"resources_per_bundle", "placement_group_config"}
"""Fields of `llm_configs` that say what the replicas need instead, such as parts of GPUs."""


def served_gpus(config: Any) -> Fraction:
    """Return the GPUs that all replicas of applications of Ray Serve need that are always there, by `serveConfigV2`.

    Only what is written counts: the code of an application may say more. Sources: Ray 2.56 python/ray/serve/schema.py, and
    python/ray/llm/_internal/serve/core/configs/llm_config.py (`llm_configs`: replicas have tensor × pipeline GPUs).
    """
    return sum((_replicas(deployment) * gpus for deployment, gpus in _deployments(config)), Fraction(0))


def _deployments(config: Any) -> Iterator[tuple[Any, Fraction]]:
    """Yield the options of each deployment, which have its number of replicas, and the GPUs of a replica."""
    for application in _maps(config, "applications"):
        for deployment in _maps(application, "deployments"):
            bundles = [_gpus(bundle.get("GPU")) for bundle in _maps(deployment, "placement_group_bundles")]
            own = _gpus(value_at(deployment, ("ray_actor_options", "num_gpus")))
            yield deployment, sum(bundles, Fraction(0)) if bundles else own
        for llm_config in _maps(value_at(application, ("args",)), "llm_configs"):
            sizes = (f"{name}_parallel_size" for name in ("tensor", "pipeline"))
            if not llm_config.keys() & _OWN_BUNDLES:
                gpus = prod(_gpus(value_at(llm_config, ("engine_kwargs", size))) or 1 for size in sizes)
                yield llm_config.get("deployment_config"), Fraction(gpus)


def _replicas(deployment: Any) -> Fraction:
    least = value_at(deployment, ("autoscaling_config", "min_replicas"))
    return _gpus(value_at(deployment, ("num_replicas",)) if least is None else least)


def _gpus(value: Any) -> Fraction:
    """Return a plain number; 0 for anything else: `auto`, a parameter."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return Fraction(str(value)) if is_number and 0 <= value <= _MAX_NUMBER else Fraction(0)


def _maps(data: Any, name: str) -> Iterator[Mapping[str, Any]]:
    items = value_at(data, (name,))
    return (item for item in items if isinstance(item, dict)) if isinstance(items, list) else iter(())

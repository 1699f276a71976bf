"""Kinds that create pods, and the paths of the pods in them: data, one row per kind.

A path starts at the object; `*` is every key of a map, `[]` every item of a list. It leads to a pod template, or one of the
other forms below. A row has the paths of all versions of a kind; absent ones are skipped. A kind belongs to its API group:
there are three PyTorchJobs.

Kinds that only other controllers write (Knative's Revision, Kueue's Workload) are omitted: their owner has been checked.
"""

import msgspec


class Template(msgspec.Struct, frozen=True):
    """The path leads to a pod template: `metadata` and `spec` of a pod."""

    path: str


class Spec(msgspec.Struct, frozen=True):
    """The path leads to the spec of a pod itself.

    Members named in `container` are containers outside its list of containers; paths in `containers` lead to more lists
    of them. With `defaults`, absent tolerations, nodeSelector, affinity and volumes are taken from there.
    """

    path: str
    container: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()
    defaults: str = ""


class ContainerResources(msgspec.Struct, frozen=True):
    """The path leads to the resources of the one container that matters; the rest of the pod comes from elsewhere."""

    path: str


class Whole(msgspec.Struct, frozen=True):
    """The path leads to a whole object of some other kind."""

    path: str


Form = Template | Spec | ContainerResources | Whole


def _templates(*paths: str) -> tuple[Form, ...]:
    return tuple(Template(path) for path in paths)


def _specs(*paths: str) -> tuple[Form, ...]:
    return tuple(Spec(path) for path in paths)


def _ray(place: str) -> tuple[Form, ...]:
    return _templates(f"{place}.headGroupSpec.template", f"{place}.workerGroupSpecs[].template")


# `model`, and before KServe 0.8 one member a framework, is the serving container.
_KSERVE_CONTAINERS = (
    "model", "sklearn", "xgboost", "tensorflow", "pytorch", "triton", "onnx", "huggingface", "pmml", "lightgbm", "paddle",
)  # fmt: skip


def _kserve(component: str) -> tuple[Form, ...]:
    return (Spec(component, container=_KSERVE_CONTAINERS), Spec(f"{component}.workerSpec"))


def _argo(spec: str) -> tuple[Form, ...]:
    lists = ("sidecars", "containerSet.containers")
    return (Spec(f"{spec}.templates[]", container=("container", "script"), containers=lists, defaults=spec),)


def _leader_worker(place: str) -> tuple[Form, ...]:
    return _templates(f"{place}.leaderTemplate", f"{place}.workerTemplate")


_JOB_SET = "spec.replicatedJobs[].template.spec.template"
_TEMPLATE = _templates("spec.template")
_LLM = _specs(
    "spec.template",
    "spec.worker",
    "spec.prefill.template",
    "spec.prefill.worker",
    "spec.router.scheduler.template",
)

WORKLOADS: dict[tuple[str, str], tuple[Form, ...]] = {
    # Kubernetes
    ("", "PodTemplate"): _templates("template"),
    ("", "ReplicationController"): _TEMPLATE,
    ("apps", "DaemonSet"): _TEMPLATE,
    ("apps", "Deployment"): _TEMPLATE,
    ("apps", "ReplicaSet"): _TEMPLATE,
    ("apps", "StatefulSet"): _TEMPLATE,
    ("batch", "CronJob"): _templates("spec.jobTemplate.spec.template"),
    ("batch", "Job"): _TEMPLATE,
    # Kubeflow: training operator, MPI operator (v1alpha1 had one template), trainer, notebooks, Katib, Spark
    ("kubeflow.org", "JAXJob"): _templates("spec.jaxReplicaSpecs.*.template"),
    ("kubeflow.org", "MPIJob"): _templates("spec.mpiReplicaSpecs.*.template", "spec.template"),
    ("kubeflow.org", "PaddleJob"): _templates("spec.paddleReplicaSpecs.*.template"),
    ("kubeflow.org", "PyTorchJob"): _templates("spec.pytorchReplicaSpecs.*.template"),
    ("kubeflow.org", "TFJob"): _templates("spec.tfReplicaSpecs.*.template"),
    ("kubeflow.org", "XGBoostJob"): _templates("spec.xgbReplicaSpecs.*.template"),
    ("kubeflow.org", "Notebook"): _TEMPLATE,
    ("kubeflow.org", "Experiment"): (Whole("spec.trialTemplate.trialSpec"),),
    ("trainer.kubeflow.org", "ClusterTrainingRuntime"): _templates("spec.template." + _JOB_SET),
    ("trainer.kubeflow.org", "TrainingRuntime"): _templates("spec.template." + _JOB_SET),
    ("trainer.kubeflow.org", "TrainJob"): (
        ContainerResources("spec.trainer.resourcesPerNode"),
        # What is laid over the runtime's own: 2.0, 2.1, and since 2.2.
        *_specs("spec.podSpecOverrides[]"),
        *_templates("spec.podTemplateOverrides[]", "spec.runtimePatches[].trainingRuntimeSpec.template." + _JOB_SET),
    ),
    ("sparkoperator.k8s.io", "SparkApplication"): _templates("spec.driver.template", "spec.executor.template"),
    ("sparkoperator.k8s.io", "ScheduledSparkApplication"): _templates(
        "spec.template.driver.template", "spec.template.executor.template"
    ),
    # Ray
    ("ray.io", "RayCluster"): _ray("spec"),
    ("ray.io", "RayJob"): (*_ray("spec.rayClusterSpec"), *_templates("spec.submitterPodTemplate")),
    ("ray.io", "RayService"): _ray("spec.rayClusterConfig"),
    ("ray.io", "RayCronJob"): (
        *_ray("spec.jobTemplate.rayClusterSpec"),
        *_templates("spec.jobTemplate.submitterPodTemplate"),
    ),
    # Batch and gangs
    ("jobset.x-k8s.io", "JobSet"): _templates(_JOB_SET),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): _leader_worker("spec.leaderWorkerTemplate"),
    ("disaggregatedset.x-k8s.io", "DisaggregatedSet"): _leader_worker("spec.roles[].spec.leaderWorkerTemplate"),
    ("batch.volcano.sh", "Job"): _templates("spec.tasks[].template"),
    ("batch.volcano.sh", "CronJob"): _templates("spec.jobTemplate.spec.tasks[].template"),
    ("workload.codeflare.dev", "AppWrapper"): (
        Whole("spec.components[].template"),
        Whole("spec.resources.GenericItems[].generictemplate"),
    ),
    ("grove.io", "PodCliqueSet"): _specs("spec.template.cliques[].spec.podSpec"),
    ("kubernetes.dask.org", "DaskCluster"): _templates("spec.worker", "spec.scheduler"),
    ("kubernetes.dask.org", "DaskJob"): _templates("spec.job", "spec.cluster.spec.worker", "spec.cluster.spec.scheduler"),
    ("sagemaker.amazonaws.com", "HyperPodPyTorchJob"): _templates("spec.replicaSpecs[].template"),
    ("elastic.pytorch.org", "ElasticJob"): _templates("spec.replicaSpecs.*.template"),
    # Serving
    ("serving.kserve.io", "InferenceService"): (
        *_kserve("spec.predictor"), *_kserve("spec.transformer"), *_kserve("spec.explainer"),
    ),
    ("serving.kserve.io", "ServingRuntime"): _specs("spec", "spec.workerSpec"),
    ("serving.kserve.io", "ClusterServingRuntime"): _specs("spec", "spec.workerSpec"),
    ("serving.kserve.io", "LLMInferenceService"): _LLM,
    ("serving.kserve.io", "LLMInferenceServiceConfig"): _LLM,
    ("serving.knative.dev", "Service"): _TEMPLATE,
    ("serving.knative.dev", "Configuration"): _TEMPLATE,
    ("machinelearning.seldon.io", "SeldonDeployment"): _templates("spec.predictors[].componentSpecs[]"),
    ("workload.serving.volcano.sh", "ModelServing"): _templates(
        "spec.template.roles[].entryTemplate", "spec.template.roles[].workerTemplate"
    ),
    ("orchestration.aibrix.ai", "RayClusterFleet"): _ray("spec.template.spec"),
    ("orchestration.aibrix.ai", "StormService"): _templates("spec.template.spec.roles[].template"),
    ("apps.nvidia.com", "NIMService"): (ContainerResources("spec.resources"),),
    ("apps.nvidia.com", "NIMPipeline"): (ContainerResources("spec.services[].spec.resources"),),
    # Argo, and what replaces Deployments
    ("argoproj.io", "Workflow"): _argo("spec"),
    ("argoproj.io", "WorkflowTemplate"): _argo("spec"),
    ("argoproj.io", "ClusterWorkflowTemplate"): _argo("spec"),
    ("argoproj.io", "CronWorkflow"): _argo("spec.workflowSpec"),
    ("argoproj.io", "Rollout"): _TEMPLATE,
    ("argoproj.io", "Experiment"): _templates("spec.templates[].template"),
    ("apps.kruise.io", "CloneSet"): _TEMPLATE,
    ("apps.kruise.io", "StatefulSet"): _TEMPLATE,
}  # fmt: skip
"""(API group, kind) → the paths of its pods."""

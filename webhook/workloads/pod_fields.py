"""Which fields belong to pods, containers and device requests, and which of them kinds without a pod template have."""

import msgspec

_TEKTON = "tekton.dev/v1"


class PodFields(msgspec.Struct, frozen=True):
    """`others`: steps, from the same map, to the part of the object that has every other field; empty without one.

    is_patch: whether that part is a text, which is merged into the spec of the pod.
    """

    fields: frozenset[str]
    others: tuple[str, ...] = ()
    is_patch: bool = False


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _fields(text: str, *others: str, is_patch: bool = False) -> PodFields:
    return PodFields(_names(text), others, is_patch)


ONLY_OF_PODS = _names(
    """activeDeadlineSeconds affinity automountServiceAccountToken dnsConfig dnsPolicy enableServiceLinks hostAliases hostIPC
    hostname hostnameOverride hostNetwork hostPID hostUsers imagePullSecrets nodeName nodeSelector os overhead preemptionPolicy
    priority priorityClassName readinessGates resourceClaims runtimeClassName schedulerName schedulingGates schedulingGroup
    serviceAccount serviceAccountName setHostnameAsFQDN shareProcessNamespace subdomain terminationGracePeriodSeconds tolerations
    topologySpreadConstraints volumes"""
)
"""Fields of PodSpec that Container does not have (staging/src/k8s.io/api/core/v1/types.go of Kubernetes 1.37)."""
ONLY_OF_CONTAINERS = _names(
    """args command env envFrom imagePullPolicy lifecycle livenessProbe ports readinessProbe resizePolicy restartPolicyRules
    startupProbe stdin stdinOnce terminationMessagePath terminationMessagePolicy tty volumeDevices volumeMounts workingDir"""
)
"""Fields of Container that neither PodSpec nor Volume has."""
OF_EXACT_REQUESTS = _names("adminAccess allocationMode capacity count deviceClassName selectors tolerations")
"""Fields of ExactDeviceRequest: below `exactly` since v1beta2, in the request itself in v1beta1 (api/resource, 1.37)."""

_PATCH = "podSpecPatch"
_OF_WORKFLOWS = _fields(
    "activeDeadlineSeconds affinity automountServiceAccountToken dnsConfig dnsPolicy hostAliases hostNetwork imagePullSecrets "
    "nodeSelector priority resourceClaims schedulerName serviceAccountName tolerations volumes",
    _PATCH,
    is_patch=True,
)
_OF_TEMPLATES = _fields(
    "activeDeadlineSeconds affinity automountServiceAccountToken hostAliases nodeSelector priority priorityClassName "
    "resourceClaims schedulerName serviceAccountName tolerations volumes",
    _PATCH,
    is_patch=True,
)
_OF_TASKS = _fields("volumes")
_OF_SPARK_PODS = _fields(
    "affinity dnsConfig hostAliases hostNetwork nodeSelector priorityClassName schedulerName serviceAccount "
    "shareProcessNamespace terminationGracePeriodSeconds tolerations",
    "template",
    "spec",
)
_OF_NIM = _fields("affinity nodeSelector priorityClassName runtimeClassName schedulerName tolerations")
_OF_MACHINES = _fields(
    "affinity dnsConfig dnsPolicy hostname nodeSelector priorityClassName resourceClaims schedulerName serviceAccountName "
    "subdomain terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes"
)


def _of_workflows(spec: str) -> dict[str, PodFields]:
    return {
        spec: _OF_WORKFLOWS,
        f"{spec}.templates[]": _OF_TEMPLATES,
        f"{spec}.templateDefaults": _OF_TEMPLATES,
    }


POD_FIELDS: dict[tuple[str, str], dict[str, PodFields]] = {
    # argoproj/argo-workflows, manifests/base/crds/full, 4.0; the smaller CRDs keep a field that no controller reads.
    ("argoproj.io/v1alpha1", "Workflow"): _of_workflows("spec"),
    ("argoproj.io/v1alpha1", "WorkflowTemplate"): _of_workflows("spec"),
    ("argoproj.io/v1alpha1", "ClusterWorkflowTemplate"): _of_workflows("spec"),
    ("argoproj.io/v1alpha1", "CronWorkflow"): _of_workflows("spec.workflowSpec"),
    # tektoncd/pipeline, config/300-crds; TaskSpec and PodTemplate: pkg/apis/pipeline
    (_TEKTON, "Task"): {"spec": _OF_TASKS},
    (_TEKTON, "TaskRun"): {
        "spec": _fields("serviceAccountName", "podTemplate"),
        "spec.taskSpec": _OF_TASKS,
    },
    (_TEKTON, "Pipeline"): {"spec.tasks[].taskSpec": _OF_TASKS, "spec.finally[].taskSpec": _OF_TASKS},
    (_TEKTON, "PipelineRun"): {
        "spec": _fields("serviceAccountName", "taskRunTemplate", "podTemplate"),
        "spec.pipelineSpec.tasks[].taskSpec": _OF_TASKS,
        "spec.pipelineSpec.finally[].taskSpec": _OF_TASKS,
    },
    # kubeflow/spark-operator, config/crd/bases
    ("sparkoperator.k8s.io/v1beta2", "SparkApplication"): {
        "spec": _fields("imagePullSecrets nodeSelector volumes", "executor", "template", "spec"),
        "spec.driver": _OF_SPARK_PODS,
        "spec.executor": _OF_SPARK_PODS,
    },
    # NVIDIA/k8s-nim-operator, config/crd/bases
    ("apps.nvidia.com/v1alpha1", "NIMService"): {"spec": _OF_NIM},
    ("apps.nvidia.com/v1alpha1", "NIMPipeline"): {"spec.services[].spec": _OF_NIM},
    # defilantech/LLMKube, config/crd/bases
    ("inference.llmkube.dev/v1alpha1", "InferenceService"): {
        "spec": _fields(
            "affinity imagePullSecrets nodeSelector priority priorityClassName runtimeClassName tolerations "
            "topologySpreadConstraints"
        )
    },
    # kubevirt/kubevirt, staging/src/kubevirt.io/api/core/v1/types.go, VirtualMachineInstanceSpec
    ("kubevirt.io/v1", "VirtualMachineInstance"): {"spec": _OF_MACHINES},
    ("kubevirt.io/v1", "VirtualMachine"): {"spec.template.spec": _OF_MACHINES},
}
"""By API version and kind: the path of a part of the object, and its fields (CRDs and Go types of the projects, 2026-11)."""

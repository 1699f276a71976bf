"""Where the GPUs of each kind are written: their amounts, and their paths in the object."""

from typing import Any

import msgspec
import pytest
import yaml

from policies.pods.field_paths import Parts, field_path
from policies.pods.workload import PodCount
from tests.builders import JSON
from webhook.configuration.loader import load_directory
from webhook.workloads.places import LONGEST_PATCHES, PodPlace, pod_places, workload_pods

CONFIGURATION = load_directory(None)
KINDS = CONFIGURATION.workload_kinds
LIMITS = {"limits": {"nvidia.com/gpu": "1"}}
CONTAINER = {"resources": LIMITS}
STANDS_FOR: dict[str, tuple[JSON, Parts]] = {
    "LIMITS": (LIMITS, ()),
    "GPU": (CONTAINER, ("resources",)),
    "TEMPLATE": ({"spec": {"containers": [CONTAINER]}}, ("spec", "containers", 0, "resources")),
}
TEMPLATE = "{spec: {containers: [{resources: {limits: {nvidia.com/gpu: 1}}}]}}"
PATCH = "containers: [{name: main, resources: {limits: {nvidia.com/gpu: %s}}}]"


def gpus(kind: str, data: object) -> list[str]:
    """Return `path = resource: amount` of each GPU resource in an object of the kind, `Kind.group`."""
    name, _, group = kind.partition(".")
    _, pods = workload_pods(KINDS, group, name, msgspec.json.encode(data))
    found = []
    for place, pod in pods:
        for request in CONFIGURATION.resource_mapping.requests(pod):
            path = place.located(f"{request.place.path}.resources.limits[{request.resource.name}]")
            found.append(f"{path} = {request.resource.name}: {request.quantity.value}")
    return found


def filled(data: Any, at: Parts, paths: list[str]) -> Any:
    """Return the data with one GPU for each word of STANDS_FOR, and add the path of the GPU to `paths`."""
    if isinstance(data, dict):
        return {key: filled(each, (*at, key), paths) for key, each in data.items()}
    if isinstance(data, list):
        return [filled(each, (*at, index), paths) for index, each in enumerate(data)]
    if data not in STANDS_FOR:
        return data
    value, inner = STANDS_FOR[data]
    paths.append(field_path((*at, *inner, "limits", "nvidia.com/gpu")))
    return value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        pytest.param("Deployment.apps", "spec: {template: TEMPLATE}", id="deployment"),
        pytest.param(
            "PyTorchJob.kubeflow.org",
            "spec: {pytorchReplicaSpecs: {Master: {template: TEMPLATE}, Worker: {replicas: 2, template: TEMPLATE}}}",
            id="every-role-of-a-training-job",
        ),
        pytest.param(
            "PyTorchJob.kubeflow.org",
            "spec: {pytorchReplicaSpecs: {a/b: {template: TEMPLATE}}}",
            id="a-key-with-a-slash",
        ),
        pytest.param(
            "RayCluster.ray.io",
            "spec: {headGroupSpec: {template: TEMPLATE}, workerGroupSpecs: [{template: TEMPLATE}, {template: TEMPLATE}]}",
            id="head-and-worker-groups",
        ),
        pytest.param("MPIJob.kubeflow.org", "spec: {template: TEMPLATE}", id="an-old-version"),
        pytest.param(
            "InferenceService.serving.kserve.io",
            "spec: {predictor: {tolerations: [], model: GPU}}",
            id="a-container-outside-of-containers",
        ),
        pytest.param(
            "InferenceService.serving.kserve.io",
            "spec: {predictor: {containers: [GPU], model: GPU}}",
            id="and-one-inside",
        ),
        pytest.param(
            "LLMInferenceService.serving.kserve.io",
            "spec: {prefill: {worker: {containers: [GPU]}}}",
            id="a-pod-spec-itself",
        ),
        pytest.param(
            "ServingRuntime.serving.kserve.io",
            "{metadata: {name: r}, spec: {containers: [GPU]}}",
            id="the-spec-is-a-pod-spec",
        ),
        pytest.param(
            "Workflow.argoproj.io",
            "spec: {templates: [null, {script: GPU}, {sidecars: [GPU]}, {containerSet: {containers: [GPU]}}]}",
            id="parts-of-argo-templates",
        ),
        pytest.param(
            "CronWorkflow.argoproj.io",
            "spec: {workflowSpec: {templateDefaults: {container: GPU}}}",
            id="argo-template-defaults",
        ),
        pytest.param(
            "AnalysisTemplate.argoproj.io",
            "spec: {metrics: [{provider: {job: {spec: {template: TEMPLATE}}}}]}",
            id="analysis-template",
        ),
        pytest.param(
            "TrainJob.trainer.kubeflow.org",
            "spec: {trainer: {resourcesPerNode: LIMITS}}",
            id="resources-alone",
        ),
        pytest.param(
            "AppWrapper.workload.codeflare.dev",
            """spec: {components: [null, {template: {apiVersion: jobset.x-k8s.io/v1alpha2, kind: JobSet,
                 spec: {replicatedJobs: [null, {template: {spec: {template: TEMPLATE}}}]}}}]}""",
            id="an-object-inside",
        ),
        pytest.param(
            "AppWrapper.workload.codeflare.dev",
            "spec: {components: [{template: {apiVersion: v1, kind: Pod, spec: {containers: [GPU]}}}]}",
            id="a-pod-inside",
        ),
        pytest.param(
            "Template.template.openshift.io",
            """objects: [{apiVersion: v1, kind: Service},
                         {apiVersion: apps/v1, kind: Deployment, spec: {template: TEMPLATE}}]""",
            id="openshift-template",
        ),
        pytest.param("DaemonSet.extensions", "spec: {template: TEMPLATE}", id="extensions-daemonset"),
        pytest.param("InferenceService.ome.io", "spec: {engine: {leader: {runner: GPU}}}", id="ome-leader"),
        pytest.param("ClusterServingRuntime.ome.io", "spec: {engineConfig: {runner: GPU}}", id="ome-runtime"),
        pytest.param(
            "ModelBooster.workload.serving.volcano.sh",
            "spec: {backend: {workers: [GPU]}}",
            id="model-booster",
        ),
        pytest.param(
            "Playground.inference.llmaz.io", "spec: {backendRuntimeConfig: GPU}", id="llmaz-playground"
        ),
        pytest.param(
            "OpenModel.llmaz.io", "spec: {inferenceConfig: {flavors: [LIMITS, LIMITS]}}", id="llmaz-flavors"
        ),
        pytest.param(
            "Service.inference.llmaz.io",
            "spec: {workloadTemplate: {workerTemplate: TEMPLATE}}",
            id="llmaz-service",
        ),
        pytest.param(
            "DynamoGraphDeployment.nvidia.com",
            "spec: {components: [{podTemplate: TEMPLATE}]}",
            id="dynamo-v1beta1",
        ),
        pytest.param("Workspace.kaito.sh", "inference: {template: TEMPLATE}", id="kaito-has-no-spec"),
        pytest.param(
            "PaddleJob.batch.paddlepaddle.org",
            "spec: {worker: {replicas: 2, template: TEMPLATE}}",
            id="paddle-operator",
        ),
        pytest.param(
            "XDLJob.training.kubedl.io",
            "spec: {xdlReplicaSpecs: {Worker: {template: TEMPLATE}}}",
            id="kubedl",
        ),
        pytest.param(
            "Task.tekton.dev", "spec: {steps: [{name: train, computeResources: LIMITS}]}", id="tekton-step"
        ),
        pytest.param(
            "Pipeline.tekton.dev",
            "spec: {tasks: [{taskSpec: {steps: [{name: train, computeResources: LIMITS}]}}]}",
            id="tekton-pipeline",
        ),
    ],
)
def test_each_gpu_is_found_at_its_path(kind: str, text: str) -> None:
    paths: list[str] = []
    data = filled(yaml.safe_load(text), (), paths)

    assert sorted(gpus(kind, data)) == sorted(f"{path} = nvidia.com/gpu: 1" for path in paths)


@pytest.mark.parametrize(
    ("kind", "text", "want"),
    [
        pytest.param(
            "AppWrapper.workload.codeflare.dev",
            "spec: {components: [{template: {kind: AppWrapper}}]}",
            "",
            id="not-twice",
        ),
        pytest.param(
            "PyTorchJob.example.com",
            "spec: {pytorchReplicaSpecs: {a: {template: " + TEMPLATE + "}}}",
            "",
            id="the-group-counts",
        ),
        pytest.param(
            "RayJob.ray.io", "spec: {rayClusterSpec: null, clusterSelector: {}}", "", id="nothing-there"
        ),
        pytest.param(
            "ServingRuntime.ome.io",
            "spec: {decoderConfig: {worker: {size: 2, runner: {resources: {limits: {amd.com/gpu: 8}}}}}}",
            "spec.decoderConfig.worker.runner.resources.limits[amd.com/gpu] = amd.com/gpu: 8",
            id="ome-workers-of-a-decoder",
        ),
        pytest.param(
            "DynamoGraphDeployment.nvidia.com",
            'spec: {services: {Frontend: {replicas: 1}, Worker: {resources: {limits: {gpu: "4"}}}}}',
            "spec.services.Worker.resources.limits.gpu = nvidia.com/gpu: 4",
            id="dynamo-bare-gpu",
        ),
        pytest.param(
            "DynamoGraphDeployment.nvidia.com",
            'spec: {services: {Worker: {resources: {limits: {gpu: "2", gpuType: gpu.intel.com/xe}}}}}',
            "spec.services.Worker.resources.limits.gpu = gpu.intel.com/xe: 2",
            id="dynamo-gpu-type",
        ),
        pytest.param(
            "VLLMRuntime.production-stack.vllm.ai",
            'spec: {deploymentConfig: {resources: {cpu: "8", gpu: "1", gpuType: amd.com/gpu}}}',
            "spec.deploymentConfig.resources.gpu = amd.com/gpu: 1",
            id="vllm-runtime",
        ),
        pytest.param(
            "VLLMRuntime.production-stack.vllm.ai",
            'spec: {resources: {cpu: "8", memory: 24Gi, gpu: "1"}}',
            "spec.resources.gpu = nvidia.com/gpu: 1",
            id="vllm-runtime-of-old",
        ),
        pytest.param(
            "SparkApplication.sparkoperator.k8s.io",
            "spec: {driver: {cores: 1}, executor: {instances: 2, gpu: {name: nvidia.com/gpu, quantity: 1}}}",
            "spec.executor.gpu.quantity = nvidia.com/gpu: 1",
            id="spark-executor",
        ),
        pytest.param(
            "ScheduledSparkApplication.sparkoperator.k8s.io",
            "spec: {template: {driver: {gpu: {name: amd.com/gpu, quantity: 2}}}}",
            "spec.template.driver.gpu.quantity = amd.com/gpu: 2",
            id="scheduled-spark-driver",
        ),
        pytest.param(
            "VirtualMachine.kubevirt.io",
            """spec: {template: {spec: {domain: {devices: {
                 gpus: [{name: a, deviceName: amd.com/gpu}, {name: b, deviceName: amd.com/gpu}]}}}}}""",
            "spec.template.spec.domain.devices.gpus[0].deviceName = amd.com/gpu: 2",
            id="devices-of-a-machine",
        ),
        pytest.param(
            "VirtualMachineInstance.kubevirt.io",
            "spec: {domain: {devices: {hostDevices: [{name: a, deviceName: amd.com/gpu}]}}}",
            "spec.domain.devices.hostDevices[0].deviceName = amd.com/gpu: 1",
            id="host-device",
        ),
        pytest.param(
            "Workflow.argoproj.io",
            f"spec: {{podSpecPatch: '{PATCH % 2}', templates: [{{name: a}}]}}",
            "spec.podSpecPatch.containers[0].resources.limits[nvidia.com/gpu] = nvidia.com/gpu: 2",
            id="argo-patch-of-all",
        ),
        pytest.param(
            "WorkflowTemplate.argoproj.io",
            """spec: {templates: [{podSpecPatch: '{"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}'}]}""",
            "spec.templates[0].podSpecPatch.containers[0].resources.limits[nvidia.com/gpu] = nvidia.com/gpu: 1",
            id="argo-patch-in-json",
        ),
        pytest.param(
            "Workflow.argoproj.io",
            "spec: {templates: [{podSpecPatch: '" + PATCH % '"{{inputs.parameters.gpus}}"' + "'}]}",
            "spec.templates[0].podSpecPatch.containers[0].resources.limits[nvidia.com/gpu] = nvidia.com/gpu: 1",
            id="argo-patch-with-a-parameter",
        ),
        pytest.param(
            "Workflow.argoproj.io",
            "spec: {templates: [{podSpecPatch: '{{=toJson(inputs.parameters)}}'}]}",
            "",
            id="argo-patch-that-is-an-expression",
        ),
        pytest.param(
            "Template.template.openshift.io",
            """objects: [{apiVersion: apps/v1, kind: Deployment, spec: {template: {spec: {
                 containers: [{name: a, resources: {limits: {nvidia.com/gpu: "${GPUS}"}}}]}}}}]""",
            "objects[0].spec.template.spec.containers[0].resources.limits[nvidia.com/gpu] = nvidia.com/gpu: 1",
            id="openshift-parameter",
        ),
        pytest.param(
            "NIMCache.apps.nvidia.com", "spec: {resources: {cpu: 1, memory: 8Gi}}", "", id="a-nim-cache"
        ),
    ],
)
def test_what_is_requested_and_where(kind: str, text: str, want: str) -> None:
    assert gpus(kind, yaml.safe_load(text)) == [want] * bool(want)


def place_of(kind: str, text: str) -> PodPlace:
    name, _, group = kind.partition(".")
    (place,) = pod_places(KINDS, group, name, yaml.safe_load(text))
    assert isinstance(place, PodPlace)
    return place


def test_nim_requests_claims() -> None:
    text = "spec: {resources: {}, draResources: [{resourceClaimTemplateName: gpu}], nodeSelector: {pool: a}}"
    place = place_of("NIMService.apps.nvidia.com", text)

    spec = place.data["spec"]
    assert spec["resourceClaims"] == [{"resourceClaimTemplateName": "gpu", "name": "claim-0"}]
    assert spec["containers"][0]["resources"]["claims"] == [{"name": "claim-0"}]
    assert spec["nodeSelector"] == {"pool": "a"}
    at = "spec.resourceClaims[0].resourceClaimTemplateName"
    assert place.located(at) == "spec.draResources[0].resourceClaimTemplateName"


@pytest.mark.parametrize(
    ("kind", "text", "want"),
    [
        pytest.param(
            "SparkApplication.sparkoperator.k8s.io",
            "spec: {executor: {gpu: {name: nvidia.com/gpu, quantity: 1}, tolerations: [{key: a}]}}",
            [{"key": "a"}],
            id="of-the-executor",
        ),
        pytest.param(
            "DynamoGraphDeployment.nvidia.com",
            'spec: {services: {W: {resources: {limits: {gpu: "1"}}}, X: {extraPodSpec: {tolerations: [{key: b}]}}}}',
            None,
            id="not-of-another-service",
        ),
        pytest.param(
            "Workflow.argoproj.io",
            f"spec: {{tolerations: [{{key: c}}], templateDefaults: {{tolerations: [{{key: d}}]}}, podSpecPatch: '{PATCH % 1}'}}",
            [{"key": "d"}],
            id="the-nearer-default",
        ),
    ],
)
def test_where_the_rest_of_the_pod_comes_from(kind: str, text: str, want: object) -> None:
    assert place_of(kind, text).data["spec"].get("tolerations") == want


def test_what_is_known_in_part_stays_as_it_is() -> None:
    data = yaml.safe_load('spec: {deploymentConfig: {resources: {gpu: "1"}}}')
    (place,) = pod_places(KINDS, "production-stack.vllm.ai", "VLLMRuntime", data)
    assert isinstance(place, PodPlace)

    assert place.is_partial
    assert place.replaced(data, {"spec": {"containers": [], "tolerations": [{"key": "a"}]}}) is data


def test_a_patch_that_is_too_long_is_not_read() -> None:
    text = PATCH % 1 + "\n" + "#" * LONGEST_PATCHES

    assert pod_places(KINDS, "argoproj.io", "Workflow", {"spec": {"podSpecPatch": text}}) == []


def test_a_part_for_one_container_and_the_amounts_are_one_pod() -> None:
    main = "{extraPodSpec: {mainContainer: {image: a, env: [{name: X}]}, tolerations: [{key: a}]}, resources: {limits: {gpu: 2}}}"
    place = place_of("DynamoGraphDeployment.nvidia.com", f"spec: {{services: {{Worker: {main}}}}}")

    (container,) = place.data["spec"]["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 2}}
    assert place.located("spec.containers[0].env[0].name") == (
        "spec.services.Worker.extraPodSpec.mainContainer.env[0].name"
    )


def test_without_amounts_the_other_paths_count() -> None:
    kind = "SparkApplication.sparkoperator.k8s.io"

    with_amounts = place_of(
        kind, "spec: {driver: {gpu: {name: amd.com/gpu, quantity: 1}, template: " + TEMPLATE + "}}"
    )
    without = place_of(kind, "spec: {driver: {template: " + TEMPLATE + "}}")

    assert (with_amounts.path, with_amounts.is_partial) == ("spec.driver", True)
    assert (without.path, without.is_partial) == ("spec.driver.template", False)


def test_of_a_number_of_gpus_that_a_parameter_fills_in_no_count_is_known() -> None:
    job = (
        "apiVersion: batch/v1, kind: Job, spec: {template: "
        + TEMPLATE.replace("gpu: 1", "gpu: '${trialParameters.g}'")
        + "}"
    )
    place = place_of("Experiment.kubeflow.org", f"spec: {{trialTemplate: {{trialSpec: {{{job}}}}}}}")

    assert (place.count, place.is_partial) == (PodCount(None), True)

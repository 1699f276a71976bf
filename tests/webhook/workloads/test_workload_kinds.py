"""Where the GPUs of each kind are written: their amounts, and their paths in the object."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from policies.pods.field_paths import Parts, field_path
from policies.pods.limits import MAX_CONTAINERS, MAX_RESOURCES
from policies.pods.workload import PodCount
from tests.builders import JSON
from tests.cases import cases
from webhook.configuration.loader import load_directory
from webhook.configuration.workload_kinds import WorkloadKind
from webhook.workloads.places import LONGEST_PATCHES, PodPlace, pod_places, workload_pods

CONFIGURATION = load_directory(None)
KINDS = CONFIGURATION.workload_kinds
LIMITS = {"limits": {"nvidia.com/gpu": "1"}}
CONTAINER = {"resources": LIMITS}
STANDS_FOR: dict[str, tuple[JSON, Parts]] = {
    "LIMITS": (LIMITS, ()),
    "GPU": (CONTAINER, ("resources",)),
    "POD": ({"spec": {"containers": [CONTAINER]}}, ("spec", "containers", 0, "resources")),
}
POD = "{spec: {containers: [{resources: {limits: {nvidia.com/gpu: 1}}}]}}"
PATCH = "containers: [{name: main, resources: {limits: {nvidia.com/gpu: %s}}}]"


def gpus(kind: str, data: object) -> list[str]:
    """Return `path = resource: amount` of each GPU resource in an object of the kind, `Kind.group`."""
    name, _, group = kind.partition(".")
    _, pods = workload_pods(KINDS, group, name, msgspec.json.encode(data))
    found = []
    for place, pod in pods:
        for request in CONFIGURATION.resource_mapping.requests(pod):
            path = place.path_in_object(f"{request.place.path}.resources.limits[{request.resource.name}]")
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


@cases(
    ("kind", "text"),
    deployment=("Deployment.apps", "spec: {template: POD}"),
    every_role_of_a_training_job=(
        "PyTorchJob.kubeflow.org",
        "spec: {pytorchReplicaSpecs: {Master: {template: POD}, Worker: {replicas: 2, template: POD}}}",
    ),
    a_key_with_a_slash=("PyTorchJob.kubeflow.org", "spec: {pytorchReplicaSpecs: {a/b: {template: POD}}}"),
    head_and_worker_groups=(
        "RayCluster.ray.io",
        "spec: {headGroupSpec: {template: POD}, workerGroupSpecs: [{template: POD}, {template: POD}]}",
    ),
    an_old_version=("MPIJob.kubeflow.org", "spec: {template: POD}"),
    a_container_outside=(
        "InferenceService.serving.kserve.io",
        "spec: {predictor: {tolerations: [], model: GPU}}",
    ),
    one_inside=("InferenceService.serving.kserve.io", "spec: {predictor: {containers: [GPU], model: GPU}}"),
    a_pod_spec=("LLMInferenceService.serving.kserve.io", "spec: {prefill: {worker: {containers: [GPU]}}}"),
    the_spec_is_a_pod_spec=("ServingRuntime.serving.kserve.io", "spec: {containers: [GPU]}"),
    parts_of_argo_templates=(
        "Workflow.argoproj.io",
        "spec: {templates: [null, {script: GPU}, {sidecars: [GPU]}, {containerSet: {containers: [GPU]}}]}",
    ),
    argo_defaults=("CronWorkflow.argoproj.io", "spec: {workflowSpec: {templateDefaults: {container: GPU}}}"),
    analysis=(
        "AnalysisTemplate.argoproj.io",
        "spec: {metrics: [{provider: {job: {spec: {template: POD}}}}]}",
    ),
    resources_alone=("TrainJob.trainer.kubeflow.org", "spec: {trainer: {resourcesPerNode: LIMITS}}"),
    an_object_inside=(
        "AppWrapper.workload.codeflare.dev",
        """spec: {components: [null, {template: {apiVersion: jobset.x-k8s.io/v1alpha2, kind: JobSet,
                 spec: {replicatedJobs: [null, {template: {spec: {template: POD}}}]}}}]}""",
    ),
    a_pod_inside=(
        "AppWrapper.workload.codeflare.dev",
        "spec: {components: [{template: {apiVersion: v1, kind: Pod, spec: {containers: [GPU]}}}]}",
    ),
    openshift_template=(
        "Template.template.openshift.io",
        """objects: [{apiVersion: v1, kind: Service},
                         {apiVersion: apps/v1, kind: Deployment, spec: {template: POD}}]""",
    ),
    extensions_daemonset=("DaemonSet.extensions", "spec: {template: POD}"),
    ome_leader=("InferenceService.ome.io", "spec: {engine: {leader: {runner: GPU}}}"),
    ome_runtime=("ClusterServingRuntime.ome.io", "spec: {engineConfig: {runner: GPU}}"),
    model_booster=("ModelBooster.workload.serving.volcano.sh", "spec: {backend: {workers: [GPU]}}"),
    llmaz_playground=("Playground.inference.llmaz.io", "spec: {backendRuntimeConfig: GPU}"),
    llmaz_flavors=("OpenModel.llmaz.io", "spec: {inferenceConfig: {flavors: [LIMITS, LIMITS]}}"),
    llmaz_service=("Service.inference.llmaz.io", "spec: {workloadTemplate: {workerTemplate: POD}}"),
    dynamo_v1beta1=("DynamoGraphDeployment.nvidia.com", "spec: {components: [{podTemplate: POD}]}"),
    kaito_has_no_spec=("Workspace.kaito.sh", "inference: {template: POD}"),
    paddle_operator=("PaddleJob.batch.paddlepaddle.org", "spec: {worker: {replicas: 2, template: POD}}"),
    kubedl=("XDLJob.training.kubedl.io", "spec: {xdlReplicaSpecs: {Worker: {template: POD}}}"),
    tekton_step=("Task.tekton.dev", "spec: {steps: [{name: train, computeResources: LIMITS}]}"),
    tekton_pipeline=(
        "Pipeline.tekton.dev",
        "spec: {tasks: [{taskSpec: {steps: [{name: train, computeResources: LIMITS}]}}]}",
    ),
)
def test_each_gpu_is_found_at_its_path(kind: str, text: str) -> None:
    paths: list[str] = []
    data = filled(yaml.safe_load(text), (), paths)

    assert sorted(gpus(kind, data)) == sorted(f"{path} = nvidia.com/gpu: 1" for path in paths)


@cases(
    ("kind", "text", "want"),
    once=("AppWrapper.workload.codeflare.dev", "spec: {components: [{template: {kind: AppWrapper}}]}", ""),
    by_its_group=("PyTorchJob.example.com", "spec: {pytorchReplicaSpecs: {a: {template: " + POD + "}}}", ""),
    nothing_there=("RayJob.ray.io", "spec: {rayClusterSpec: null, clusterSelector: {}}", ""),
    ome_workers_of_a_decoder=(
        "ServingRuntime.ome.io",
        "spec: {decoderConfig: {worker: {size: 2, runner: {resources: {limits: {amd.com/gpu: 8}}}}}}",
        "spec.decoderConfig.worker.runner.resources.limits[amd.com/gpu] = amd.com/gpu: 8",
    ),
    dynamo_bare_gpu=(
        "DynamoGraphDeployment.nvidia.com",
        'spec: {services: {Frontend: {replicas: 1}, Worker: {resources: {limits: {gpu: "4"}}}}}',
        "spec.services.Worker.resources.limits.gpu = nvidia.com/gpu: 4",
    ),
    dynamo_gpu_type=(
        "DynamoGraphDeployment.nvidia.com",
        'spec: {services: {Worker: {resources: {limits: {gpu: "2", gpuType: gpu.intel.com/xe}}}}}',
        "spec.services.Worker.resources.limits.gpu = gpu.intel.com/xe: 2",
    ),
    vllm_runtime=(
        "VLLMRuntime.production-stack.vllm.ai",
        'spec: {deploymentConfig: {resources: {cpu: "8", gpu: "1", gpuType: amd.com/gpu}}}',
        "spec.deploymentConfig.resources.gpu = amd.com/gpu: 1",
    ),
    vllm_runtime_of_old=(
        "VLLMRuntime.production-stack.vllm.ai",
        'spec: {resources: {cpu: "8", memory: 24Gi, gpu: "1"}}',
        "spec.resources.gpu = nvidia.com/gpu: 1",
    ),
    spark_executor=(
        "SparkApplication.sparkoperator.k8s.io",
        "spec: {driver: {cores: 1}, executor: {instances: 2, gpu: {name: nvidia.com/gpu, quantity: 1}}}",
        "spec.executor.gpu.quantity = nvidia.com/gpu: 1",
    ),
    scheduled_spark_driver=(
        "ScheduledSparkApplication.sparkoperator.k8s.io",
        "spec: {template: {driver: {gpu: {name: amd.com/gpu, quantity: 2}}}}",
        "spec.template.driver.gpu.quantity = amd.com/gpu: 2",
    ),
    devices_of_a_machine=(
        "VirtualMachine.kubevirt.io",
        """spec: {template: {spec: {domain: {devices: {
                 gpus: [{name: a, deviceName: amd.com/gpu}, {name: b, deviceName: amd.com/gpu}]}}}}}""",
        "spec.template.spec.domain.devices.gpus[0].deviceName = amd.com/gpu: 2",
    ),
    host_device=(
        "VirtualMachineInstance.kubevirt.io",
        "spec: {domain: {devices: {hostDevices: [{name: a, deviceName: amd.com/gpu}]}}}",
        "spec.domain.devices.hostDevices[0].deviceName = amd.com/gpu: 1",
    ),
    argo_patch_of_all=(
        "Workflow.argoproj.io",
        f"spec: {{podSpecPatch: '{PATCH % 2}', templates: [{{name: a}}]}}",
        "spec.podSpecPatch.containers[0].resources.limits[nvidia.com/gpu] = nvidia.com/gpu: 2",
    ),
    argo_patch_in_json=(
        "WorkflowTemplate.argoproj.io",
        """spec: {templates: [{podSpecPatch: '{"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}'}]}""",
        "spec.templates[0].podSpecPatch.containers[0].resources.limits[nvidia.com/gpu] = nvidia.com/gpu: 1",
    ),
    argo_patch_with_a_parameter=(
        "Workflow.argoproj.io",
        "spec: {templates: [{podSpecPatch: '" + PATCH % '"{{inputs.parameters.gpus}}"' + "'}]}",
        "spec.templates[0].podSpecPatch.containers[0].resources.limits[nvidia.com/gpu] = nvidia.com/gpu: 1",
    ),
    argo_patch_that_is_an_expression=(
        "Workflow.argoproj.io",
        "spec: {templates: [{podSpecPatch: '{{=toJson(inputs.parameters)}}'}]}",
        "",
    ),
    openshift_parameter=(
        "Template.template.openshift.io",
        """objects: [{apiVersion: apps/v1, kind: Deployment, spec: {template: {spec: {
                 containers: [{name: a, resources: {limits: {nvidia.com/gpu: "${GPUS}"}}}]}}}}]""",
        "objects[0].spec.template.spec.containers[0].resources.limits[nvidia.com/gpu] = nvidia.com/gpu: 1",
    ),
    llmkube=(
        "InferenceService.inference.llmkube.dev",
        "spec: {replicas: 3, resources: {gpu: 2}}",
        "spec.resources.gpu = nvidia.com/gpu: 2",
    ),
    the_base_of_steps=(
        "Task.tekton.dev",
        "spec: {stepTemplate: {computeResources: {limits: {nvidia.com/gpu: 1}}}, steps: [{name: a}]}",
        "spec.stepTemplate.computeResources.limits[nvidia.com/gpu] = nvidia.com/gpu: 1",
    ),
    a_step_that_says_more=(
        "Task.tekton.dev",
        "spec: {stepTemplate: {computeResources: {limits: {nvidia.com/gpu: 1}}}, steps: [{name: a, computeResources: "
        "{limits: {nvidia.com/gpu: 2}}}]}",
        "spec.steps[0].computeResources.limits[nvidia.com/gpu] = nvidia.com/gpu: 2",
    ),
    a_base_that_is_no_map=(
        "Task.tekton.dev",
        "spec: {stepTemplate: {computeResources: {limits: 5}}, steps: [{name: a, computeResources: "
        "{limits: {nvidia.com/gpu: 2}}}]}",
        "spec.steps[0].computeResources.limits[nvidia.com/gpu] = nvidia.com/gpu: 2",
    ),
    a_base_without_a_value=(
        "Task.tekton.dev",
        "spec: {stepTemplate: {resources: {limits: null}}, steps: [{name: a, computeResources: "
        "{limits: {nvidia.com/gpu: 2}}}]}",
        "spec.steps[0].computeResources.limits[nvidia.com/gpu] = nvidia.com/gpu: 2",
    ),
    a_run_as_a_whole=(
        "TaskRun.tekton.dev",
        "spec: {taskRef: {name: a}, computeResources: {limits: {nvidia.com/gpu: 1}}}",
        "spec.computeResources.limits[nvidia.com/gpu] = nvidia.com/gpu: 1",
    ),
    a_nim_cache=("NIMCache.apps.nvidia.com", "spec: {resources: {cpu: 1, memory: 8Gi}}", ""),
)
def test_what_is_requested_and_where(kind: str, text: str, want: str) -> None:
    assert gpus(kind, yaml.safe_load(text)) == [want] * bool(want)


def place_of(kind: str, text: str) -> PodPlace:
    name, _, group = kind.partition(".")
    (place,) = pod_places(KINDS, group, name, yaml.safe_load(text))
    assert isinstance(place, PodPlace)
    return place


def test_a_base_of_many_names_is_read_in_few_steps_only() -> None:
    limits = {f"example.com/r{number}": 1 for number in range(2_000)}
    base = {"computeResources": {"limits": limits}}
    place = place_of(
        "Task.tekton.dev",
        msgspec.json.encode({"spec": {"stepTemplate": base, "steps": [{"name": "a"}] * 2_000}}).decode(),
    )

    origins = [at for at in place.origins if at[-1] in limits]
    assert len(origins) == MAX_CONTAINERS * (MAX_RESOURCES + 1)


def test_nim_requests_claims() -> None:
    text = "spec: {resources: {}, draResources: [{resourceClaimTemplateName: gpu}], nodeSelector: {pool: a}}"
    place = place_of("NIMService.apps.nvidia.com", text)

    spec = place.data["spec"]
    assert spec["resourceClaims"] == [{"resourceClaimTemplateName": "gpu", "name": "claim-0"}]
    assert spec["containers"][0]["resources"]["claims"] == [{"name": "claim-0"}]
    assert spec["nodeSelector"] == {"pool": "a"}
    at = "spec.resourceClaims[0].resourceClaimTemplateName"
    assert place.path_in_object(at) == "spec.draResources[0].resourceClaimTemplateName"


@cases(
    ("kind", "text", "want"),
    of_the_executor=(
        "SparkApplication.sparkoperator.k8s.io",
        "spec: {executor: {gpu: {name: nvidia.com/gpu, quantity: 1}, tolerations: [{key: a}]}}",
        [{"key": "a"}],
    ),
    not_of_another_service=(
        "DynamoGraphDeployment.nvidia.com",
        'spec: {services: {W: {resources: {limits: {gpu: "1"}}}, X: {extraPodSpec: {tolerations: [{key: b}]}}}}',
        None,
    ),
    the_nearer_default=(
        "Workflow.argoproj.io",
        f"spec: {{tolerations: [{{key: c}}], templateDefaults: {{tolerations: [{{key: d}}]}}, podSpecPatch: '{PATCH % 1}'}}",
        [{"key": "d"}],
    ),
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
    assert container["name"] == "mainContainer"
    assert place.path_in_object("spec.containers[0].env[0].name") == (
        "spec.services.Worker.extraPodSpec.mainContainer.env[0].name"
    )


def test_without_amounts_the_other_paths_count() -> None:
    kind = "SparkApplication.sparkoperator.k8s.io"

    with_amounts = place_of(
        kind, "spec: {driver: {gpu: {name: amd.com/gpu, quantity: 1}, template: " + POD + "}}"
    )
    without = place_of(kind, "spec: {driver: {template: " + POD + "}}")

    assert (with_amounts.path, with_amounts.is_partial) == ("spec.driver", True)
    assert (without.path, without.is_partial) == ("spec.driver.template", False)


def test_of_a_number_of_gpus_that_a_parameter_fills_in_no_count_is_known() -> None:
    job = (
        "apiVersion: batch/v1, kind: Job, spec: {template: "
        + POD.replace("gpu: 1", "gpu: '${trialParameters.g}'")
        + "}"
    )
    place = place_of("Experiment.kubeflow.org", f"spec: {{trialTemplate: {{trialSpec: {{{job}}}}}}}")

    assert (place.count, place.is_partial) == (PodCount(None), True)


PAGE = Path(__file__).parents[3] / "docs" / "reference" / "workloads.md"
TABLE = re.compile(r"(?<=<!-- workload-kinds -->\n)(.*?)(?=<!-- end -->)", re.DOTALL)
HEADER = "| API group | kinds |\n|---|---|\n"


def workload_kinds() -> Iterator[str]:
    kinds_by_group: dict[str, list[str]] = {}
    for kind in load_directory(None).workload_kinds.values():
        if kind.pods:
            kinds_by_group.setdefault(kind.group or "core", []).append(kind.kind + marks(kind))
    for group, kinds in kinds_by_group.items():
        yield f"| {group} | {', '.join(kinds)} |\n"


def marks(kind: WorkloadKind) -> str:
    """Return the marks that the page explains."""
    is_unknown = any("unknown" in form.replicas for form in kind.pods)
    return "†" * kind.cluster_scoped + ("\\*" if kind.templates_only else "°" * is_unknown)


def test_the_table_is_what_the_code_knows() -> None:
    text = PAGE.read_text()
    written = TABLE.sub(lambda _: HEADER + "".join(workload_kinds()), text)

    if os.environ.get("UPDATE_DOCS") and written != text:
        PAGE.write_text(written)
    assert PAGE.read_text() == written, "UPDATE_DOCS=1 writes the table"

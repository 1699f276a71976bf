"""Kinds that write their GPUs otherwise than a pod does: what is asked for, and where that stands in the object."""

import msgspec
import pytest
import yaml

from policies.pods.workload import PodCount
from webhook.configuration.loader import load_directory
from webhook.workloads.places import LONGEST_PATCHES, PodPlace, pod_places, workload_pods

CONFIGURATION = load_directory(None)
KINDS = CONFIGURATION.workload_kinds
TEMPLATE = "{spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1}}}]}}"
IN_TEMPLATE = "spec.containers[0].resources.limits[nvidia.com/gpu] = nvidia.com/gpu: 1"
PATCH = "containers: [{name: main, resources: {limits: {nvidia.com/gpu: %s}}}]"


def gpus(kind: str, text: str) -> list[str]:
    """Return `path = resource: amount` of each GPU resource in an object of the kind, `Kind.group`."""
    name, _, group = kind.partition(".")
    _, pods = workload_pods(KINDS, group, name, msgspec.json.encode(yaml.safe_load(text)))
    found = []
    for place, pod in pods:
        for request in CONFIGURATION.resource_mapping.requests(pod):
            path = place.located(f"{request.place.path}.resources.limits[{request.resource.name}]")
            found.append(f"{path} = {request.resource.name}: {request.quantity.value}")
    return found


@pytest.mark.parametrize(
    ("kind", "text", "want"),
    [
        pytest.param(
            "DaemonSet.extensions",
            "spec: {template: " + TEMPLATE + "}",
            ["spec.template." + IN_TEMPLATE],
            id="extensions-daemonset",
        ),
        pytest.param(
            "ClusterServingRuntime.ome.io",
            "spec: {engineConfig: {runner: {name: ome-container, resources: {limits: {nvidia.com/gpu: 8}}}}}",
            ["spec.engineConfig.runner.resources.limits[nvidia.com/gpu] = nvidia.com/gpu: 8"],
            id="ome-cluster-runtime",
        ),
        pytest.param(
            "ServingRuntime.ome.io",
            "spec: {decoderConfig: {worker: {size: 2, runner: {resources: {limits: {amd.com/gpu: 8}}}}}}",
            ["spec.decoderConfig.worker.runner.resources.limits[amd.com/gpu] = amd.com/gpu: 8"],
            id="ome-workers-of-a-decoder",
        ),
        pytest.param(
            "InferenceService.ome.io",
            "spec: {engine: {leader: {runner: {resources: {limits: {nvidia.com/gpu: 4}}}}}}",
            ["spec.engine.leader.runner.resources.limits[nvidia.com/gpu] = nvidia.com/gpu: 4"],
            id="ome-leader",
        ),
        pytest.param(
            "ModelBooster.workload.serving.volcano.sh",
            "spec: {backend: {workers: [{type: server, resources: {limits: {nvidia.com/gpu: 2}}}]}}",
            ["spec.backend.workers[0].resources.limits[nvidia.com/gpu] = nvidia.com/gpu: 2"],
            id="model-booster",
        ),
        pytest.param(
            "Playground.inference.llmaz.io",
            "spec: {backendRuntimeConfig: {resources: {limits: {nvidia.com/gpu: 1}}}}",
            ["spec.backendRuntimeConfig.resources.limits[nvidia.com/gpu] = nvidia.com/gpu: 1"],
            id="llmaz-playground",
        ),
        pytest.param(
            "OpenModel.llmaz.io",
            "spec: {inferenceConfig: {flavors: [{limits: {nvidia.com/gpu: 1}}, {limits: {nvidia.com/gpu: 2}}]}}",
            [
                "spec.inferenceConfig.flavors[0].limits[nvidia.com/gpu] = nvidia.com/gpu: 1",
                "spec.inferenceConfig.flavors[1].limits[nvidia.com/gpu] = nvidia.com/gpu: 2",
            ],
            id="llmaz-flavors",
        ),
        pytest.param(
            "Service.inference.llmaz.io",
            "spec: {workloadTemplate: {workerTemplate: " + TEMPLATE + "}}",
            ["spec.workloadTemplate.workerTemplate." + IN_TEMPLATE],
            id="llmaz-service",
        ),
        pytest.param(
            "DynamoGraphDeployment.nvidia.com",
            'spec: {services: {Frontend: {replicas: 1}, Worker: {resources: {limits: {gpu: "4"}}}}}',
            ["spec.services.Worker.resources.limits.gpu = nvidia.com/gpu: 4"],
            id="dynamo-bare-gpu",
        ),
        pytest.param(
            "DynamoGraphDeployment.nvidia.com",
            'spec: {services: {Worker: {resources: {limits: {gpu: "2", gpuType: gpu.intel.com/xe}}}}}',
            ["spec.services.Worker.resources.limits.gpu = gpu.intel.com/xe: 2"],
            id="dynamo-gpu-type",
        ),
        pytest.param(
            "DynamoGraphDeployment.nvidia.com",
            "spec: {components: [{podTemplate: " + TEMPLATE + "}]}",
            ["spec.components[0].podTemplate." + IN_TEMPLATE],
            id="dynamo-v1beta1",
        ),
        pytest.param(
            "VLLMRuntime.production-stack.vllm.ai",
            'spec: {deploymentConfig: {resources: {cpu: "8", gpu: "1", gpuType: amd.com/gpu}}}',
            ["spec.deploymentConfig.resources.gpu = amd.com/gpu: 1"],
            id="vllm-runtime",
        ),
        pytest.param(
            "VLLMRuntime.production-stack.vllm.ai",
            'spec: {resources: {cpu: "8", memory: 24Gi, gpu: "1"}}',
            ["spec.resources.gpu = nvidia.com/gpu: 1"],
            id="vllm-runtime-of-old",
        ),
        pytest.param(
            "Workspace.kaito.sh",
            "inference: {template: " + TEMPLATE + "}",
            ["inference.template." + IN_TEMPLATE],
            id="kaito-has-no-spec",
        ),
        pytest.param(
            "PaddleJob.batch.paddlepaddle.org",
            "spec: {worker: {replicas: 2, template: " + TEMPLATE + "}}",
            ["spec.worker.template." + IN_TEMPLATE],
            id="paddle-operator",
        ),
        pytest.param(
            "XDLJob.training.kubedl.io",
            "spec: {xdlReplicaSpecs: {Worker: {template: " + TEMPLATE + "}}}",
            ["spec.xdlReplicaSpecs.Worker.template." + IN_TEMPLATE],
            id="kubedl",
        ),
        pytest.param(
            "SparkApplication.sparkoperator.k8s.io",
            "spec: {driver: {cores: 1}, executor: {instances: 2, gpu: {name: nvidia.com/gpu, quantity: 1}}}",
            ["spec.executor.gpu.quantity = nvidia.com/gpu: 1"],
            id="spark-executor",
        ),
        pytest.param(
            "ScheduledSparkApplication.sparkoperator.k8s.io",
            "spec: {template: {driver: {gpu: {name: amd.com/gpu, quantity: 2}}}}",
            ["spec.template.driver.gpu.quantity = amd.com/gpu: 2"],
            id="scheduled-spark-driver",
        ),
        pytest.param(
            "VirtualMachine.kubevirt.io",
            """spec: {template: {spec: {domain: {devices: {
                 gpus: [{name: a, deviceName: amd.com/gpu}, {name: b, deviceName: amd.com/gpu}]}}}}}""",
            ["spec.template.spec.domain.devices.gpus[0].deviceName = amd.com/gpu: 2"],
            id="devices-of-a-machine",
        ),
        pytest.param(
            "VirtualMachineInstance.kubevirt.io",
            "spec: {domain: {devices: {hostDevices: [{name: a, deviceName: amd.com/gpu}]}}}",
            ["spec.domain.devices.hostDevices[0].deviceName = amd.com/gpu: 1"],
            id="host-device",
        ),
        pytest.param(
            "Workflow.argoproj.io",
            f"spec: {{podSpecPatch: '{PATCH % 2}', templates: [{{name: a}}]}}",
            ["spec.podSpecPatch.containers[0].resources.limits[nvidia.com/gpu] = nvidia.com/gpu: 2"],
            id="argo-patch-of-all",
        ),
        pytest.param(
            "WorkflowTemplate.argoproj.io",
            """spec: {templates: [{podSpecPatch: '{"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}'}]}""",
            ["spec.templates[0].podSpecPatch.containers[0].resources.limits[nvidia.com/gpu] = nvidia.com/gpu: 1"],
            id="argo-patch-in-json",
        ),
        pytest.param(
            "Workflow.argoproj.io",
            "spec: {templates: [{podSpecPatch: '" + PATCH % '"{{inputs.parameters.gpus}}"' + "'}]}",
            ["spec.templates[0].podSpecPatch.containers[0].resources.limits[nvidia.com/gpu] = nvidia.com/gpu: 1"],
            id="argo-patch-with-a-parameter",
        ),
        pytest.param(
            "Workflow.argoproj.io",
            "spec: {templates: [{podSpecPatch: '{{=toJson(inputs.parameters)}}'}]}",
            [],
            id="argo-patch-that-is-an-expression",
        ),
        pytest.param(
            "CronWorkflow.argoproj.io",
            "spec: {workflowSpec: {templateDefaults: {container: {resources: {limits: {nvidia.com/gpu: 1}}}}}}",
            ["spec.workflowSpec.templateDefaults.container.resources.limits[nvidia.com/gpu] = nvidia.com/gpu: 1"],
            id="argo-template-defaults",
        ),
        pytest.param(
            "AnalysisTemplate.argoproj.io",
            "spec: {metrics: [{provider: {job: {spec: {template: " + TEMPLATE + "}}}}]}",
            ["spec.metrics[0].provider.job.spec.template." + IN_TEMPLATE],
            id="analysis-template",
        ),
        pytest.param(
            "Task.tekton.dev",
            "spec: {steps: [{name: train, computeResources: {limits: {nvidia.com/gpu: 1}}}]}",
            ["spec.steps[0].computeResources.limits[nvidia.com/gpu] = nvidia.com/gpu: 1"],
            id="tekton-step",
        ),
        pytest.param(
            "Pipeline.tekton.dev",
            "spec: {tasks: [{taskSpec: {steps: [{name: train, computeResources: {limits: {nvidia.com/gpu: 1}}}]}}]}",
            ["spec.tasks[0].taskSpec.steps[0].computeResources.limits[nvidia.com/gpu] = nvidia.com/gpu: 1"],
            id="tekton-pipeline",
        ),
        pytest.param(
            "Template.template.openshift.io",
            """objects:
               - {apiVersion: v1, kind: Service}
               - {apiVersion: apps/v1, kind: Deployment, spec: {template: """ + TEMPLATE + """}}""",
            ["objects[1].spec.template." + IN_TEMPLATE],
            id="openshift-template",
        ),
        pytest.param(
            "Template.template.openshift.io",
            """objects:
               - {apiVersion: apps/v1, kind: Deployment, spec: {template: {spec: {
                   containers: [{name: a, resources: {limits: {nvidia.com/gpu: "${GPUS}"}}}]}}}}""",
            ["objects[0].spec.template." + IN_TEMPLATE],
            id="openshift-parameter",
        ),
    ],
)  # fmt: skip
def test_what_is_asked_for_and_where(kind: str, text: str, want: list[str]) -> None:
    assert gpus(kind, text) == want


def place_of(kind: str, text: str) -> PodPlace:
    name, _, group = kind.partition(".")
    (place,) = pod_places(KINDS, group, name, yaml.safe_load(text))
    assert isinstance(place, PodPlace)
    return place


def test_nim_asks_for_claims() -> None:
    text = "spec: {resources: {}, draResources: [{resourceClaimTemplateName: gpu}], nodeSelector: {pool: a}}"
    place = place_of("NIMService.apps.nvidia.com", text)

    spec = place.data["spec"]
    assert spec["resourceClaims"] == [{"resourceClaimTemplateName": "gpu", "name": "claim-0"}]
    assert spec["containers"][0]["resources"]["claims"] == [{"name": "claim-0"}]
    assert spec["nodeSelector"] == {"pool": "a"}
    at = "spec.resourceClaims[0].resourceClaimTemplateName"
    assert place.located(at) == "spec.draResources[0].resourceClaimTemplateName"


def test_a_nim_cache_asks_for_no_gpu() -> None:
    assert gpus("NIMCache.apps.nvidia.com", "spec: {resources: {cpu: 1, memory: 8Gi}}") == []


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

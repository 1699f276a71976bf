"""Objects of unknown kinds: a warning if they name GPUs, and none otherwise."""

import re
from time import monotonic

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from policies.finding import Edit, Finding
from tests.builders import JSON
from tests.cases import cases
from tests.webhook.serving.served import admission, request
from webhook.commands import main
from webhook.configuration.documents import Document
from webhook.configuration.loader import load_directory
from webhook.workloads.gpu_amounts import MAX_SEARCHED
from webhook.workloads.unread import unread_gpus

BUILT_IN = load_directory(None)
MAPPING, KINDS = BUILT_IN.resource_mapping, BUILT_IN.workload_kinds
KIND = {"group": "example.com", "version": "v1", "kind": "TrainingJob"}
OURS: JSON = {
    "apiVersion": "example.com/v1",
    "kind": "TrainingJob",
    "metadata": {"name": "x"},
    "spec": {"worker": {"resources": {"limits": {"nvidia.com/gpu": "0.5"}}}},
}

ASK = "ask the platform team to name their paths in workloadKinds of a GPUResourceMapping"


@cases(
    ("text", "want"),
    a_limit=("spec: {limits: {nvidia.com/gpu: 1}}", "spec.limits[nvidia.com/gpu]"),
    half_a_gpu=("spec: {limits: {nvidia.com/gpu: 0.5}}", "spec.limits[nvidia.com/gpu]"),
    anywhere=("values: [{a: {amd.com/gpu: '2'}}]", "values[0].a[amd.com/gpu]"),
    a_name=("spec: {gpu: {name: nvidia.com/gpu}}", "spec.gpu.name"),
    a_resource_that_no_mapping_has=("spec: {limits: {squat.ai/vgpu: 2}}", "spec.limits[squat.ai/vgpu]"),
    a_quota=("spec: {hard: {requests.nvidia.com/gpu: 8}}", "spec.hard[requests.nvidia.com/gpu]"),
    a_parameter=("spec: {limits: {nvidia.com/gpu: '{{gpus}}'}}", "spec.limits[nvidia.com/gpu]"),
    a_key=("spec: {resources: {gpu: 2}}", "spec.resources.gpu"),
    a_key_of_two_words=("spec: {numGPUs: 2}", "spec.numGPUs"),
    a_key_of_three_words=("spec: {gpus_per_node: '8'}", "spec.gpus_per_node"),
    a_key_of_a_framework=(
        "spec: {conf: {spark.executor.resource.gpu.amount: '1'}}",
        "spec.conf[spark.executor.resource.gpu.amount]",
    ),
    a_count_below_the_key=("spec: {gpu: {enabled: true, count: 1}}", "spec.gpu.count"),
    a_count_of_selected_gpus=("spec: {gpuSelector: {count: 4, model: MI300X}}", "spec.gpuSelector.count"),
    a_count_in_a_list=(
        "spec: {guestAccelerators: [{type: t4, count: 1}]}",
        "spec.guestAccelerators[0].count",
    ),
    a_profile=("spec: {resourceProfile: 'nvidia-gpu-l4:2'}", "spec.resourceProfile"),
    a_manifest_as_text=('spec: {manifest: "a: b\\n  nvidia.com/gpu: 1"}', "spec.manifest"),
    json_as_text=("""spec: {manifest: '{"limits":{"nvidia.com/gpu":"1"}}'}""", "spec.manifest"),
    a_parameter_of_a_chart=(
        "spec: {source: {helm: {parameters: [{name: resources.limits.gpu, value: '1'}]}}}",
        "spec.source.helm.parameters[0]",
    ),
    a_parameter_with_an_escaped_dot=(
        "spec: {helm: {parameters: [{name: 'limits.nvidia\\.com/gpu', value: '1'}]}}",
        "spec.helm.parameters[0]",
    ),
    another_parameter=("spec: {helm: {parameters: [{name: replicas, value: '1'}, 7]}}", None),
    an_amount_of_zero=("spec: {limits: {nvidia.com/gpu: 0}, gpu: 0, gpus: '0'}", None),
    a_use=("spec: {gpuMemoryUtilization: 0.9, gpuLayers: 99, gpuThreshold: 80, disableGpu: 1}", None),
    a_value_below_the_key=("spec: {gpuDevicesRequest: {value: 1}}", "spec.gpuDevicesRequest.value"),
    of_each_gpu=("spec: {cpuPerGpu: 8, perGpuBatchSize: 4, memoryPerGPU: 16Gi}", None),
    another_word=("spec: {output: 2, inputs: 3, tensor: 4, throughput: 1}", None),
    a_status=("status: {capacity: {nvidia.com/gpu: 8}, gpuCount: 8}", None),
    an_image=("spec: {image: 'pytorch-gpu:2', host: 'gpu-node:9', profile: 'cpu:2'}", None),
    prose=('spec: {text: "Use nvidia.com/gpu.\\nThe gpu: it is fast. Of x.io/y: 1"}', None),
    a_description=('spec: {description: "Write\\n  nvidia.com/gpu: 1"}', None),
    labels_of_pods=("spec: {podLabels: {gpu: '1'}, machineSelector: {gpu: '2'}}", None),
    a_config_map_inside=(
        'spec: {objects: [{apiVersion: v1, kind: ConfigMap, data: {a: "x\\n  nvidia.com/gpu: 1"}}]}',
        None,
    ),
    a_slice=("spec: {a: {cpu: 1}, nvidia.com/mig-1g.5gb: 1}", "spec[nvidia.com/mig-1g.5gb]"),
    no_gpu=("spec: {limits: {cpu: 1, memory: 1Gi, example.com/nic: 1}}", None),
    a_toleration=("spec: {tolerations: [{key: nvidia.com/gpu, operator: Exists}]}", None),
    a_label_of_nodes=("spec: {nodeSelector: {nvidia.com/mig-1g.5gb: 'true'}}", None),
    an_annotation=("metadata: {annotations: {nvidia.com/gpu: '8'}}", None),
    a_text=("spec: {text: 'limits: {nvidia.com/gpu: 1}'}", None),
    no_amount=("spec: {nvidia.com/gpu: {enabled: true}}", None),
    only_the_domain=("{apiVersion: nvidia.com/v1, topologyKey: nvidia.com/gpu.clique}", None),
    a_switch=("spec: {nvidia.com/gpu.deploy.driver: 'true'}", None),
    nothing=("{}", None),
)
def test_gpus_of_kinds_that_nobody_reads(text: str, want: str | None) -> None:
    found = unread_gpus("example.com", "TrainingJob", yaml.safe_load(text), (), MAPPING, KINDS)

    message = f"GPUs in {want} are not read; {ASK} [workloads]"
    assert [each.sentence() for each in found] == ([f"{want}: {message}"] if want else [])


@pytest.mark.parametrize("kind", ["Application", "ApplicationSet", "HelmRelease"])
def test_values_of_a_chart_are_for_the_chart_to_place(kind: str) -> None:
    (found,) = unread_gpus(
        "", kind, yaml.safe_load("spec: {values: {limits: {nvidia.com/gpu: 1}}}"), (), MAPPING, KINDS
    )

    assert found.remedy == "render the chart, and check what it makes"


@cases(
    ("group", "kind", "want"),
    a_deployment=("apps", "Deployement", "Deployment"),
    a_pod_in_small_letters=("", "pod", "Pod"),
    a_job_of_an_operator=("kubeflow.org", "PytorchJob", "PyTorchJob"),
)
def test_a_kind_that_is_misspelt(group: str, kind: str, want: str) -> None:
    data = {"kind": kind, "spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 1}}}]}}
    (found,) = unread_gpus(group, kind, data, (), MAPPING, KINDS)

    message = "No kind of this name is read, and the object contains GPU resources [workloads]"
    assert found.sentence() == f'kind = "{kind}": did you mean {want}? {message}'
    assert found.fix == (Edit("kind", want),)


CLOUDS = (
    "compute.cnrm.cloud.google.com",
    "eks.services.k8s.aws",
    "containerservice.azure.com",
    "container.gcp.upbound.io",
    "ec2.aws.crossplane.io",
    "infrastructure.cluster.x-k8s.io",
    "core.gardener.cloud",
    "cloud.google.com",
    "hive.openshift.io",
    "karpenter.sh",
    "karpenter.k8s.aws",
    "kops.k8s.io",
)


@pytest.mark.parametrize("group", CLOUDS)
def test_machines_of_a_cloud_make_no_pods_here(group: str) -> None:
    machine = {"spec": {"guestAccelerators": [{"type": "nvidia-l4", "count": 8}]}}

    assert unread_gpus(group, "Machine", machine, (), MAPPING, KINDS) == []
    assert unread_gpus("kubernetes.crossplane.io", "Object", machine, (), MAPPING, KINDS) != []


@cases(
    ("group", "kind"),
    of_another_group=("example.com", "Deployment"),
    nothing_near=("apps", "Scaler"),
    with_a_word_more=("nvidia.com", "DynamoGraphDeploymentRequest"),
)
def test_a_kind_that_may_be_one(group: str, kind: str) -> None:
    (found,) = unread_gpus(group, kind, {"spec": {"nvidia.com/gpu": 1}}, (), MAPPING, KINDS)

    assert (found.remedy, found.escalation) == ("", ASK)


def test_only_so_many_values_are_searched() -> None:
    before = {str(number): 0 for number in range(MAX_SEARCHED)}

    def found(data: JSON) -> list[Finding]:
        return unread_gpus("", "T", data, (), MAPPING, KINDS)

    assert found({**before, "nvidia.com/gpu": 1}) == []
    assert found({**dict(list(before.items())[1:]), "nvidia.com/gpu": 1}) == []
    assert found({**dict(list(before.items())[2:]), "nvidia.com/gpu": 1}) != []


def reviewed(*by: Document) -> list[str]:
    response = admission(*by).validate(request(OURS, kind=KIND), monotonic() + 5)
    assert response.allowed
    return list(response.warnings or ())


def test_at_apply_the_author_of_a_kind_that_nobody_reads_is_warned() -> None:
    (warning,) = reviewed()

    assert (
        f"spec.worker.resources.limits[nvidia.com/gpu]: GPUs in spec.worker.resources.limits[nvidia.com/gpu] are not read; {ASK}"
        in warning
    )


def test_a_row_of_ones_own_has_them_read() -> None:
    pods = [{"path": "spec.worker.resources", "form": "resources"}]
    kinds = [{"group": "example.com", "kind": "TrainingJob", "pods": pods}]

    (warning,) = reviewed(Document("GPUResourceMapping", "ours", {"workloadKinds": kinds}))

    assert "its pods would be denied: spec.worker.resources.limits[nvidia.com/gpu]" in warning
    assert "not half of one" in warning


@pytest.mark.parametrize("data", [7, ["nvidia.com/gpu"], None], ids=["a-number", "a-list", "null"])
def test_what_is_no_object_is_left_to_the_api_server(data: object) -> None:
    assert admission().validate(request(data, kind=KIND), monotonic() + 5).allowed  # type: ignore[arg-type]


def check(data: JSON) -> str:
    stdin = msgspec.json.encode(data).decode()
    result = CliRunner().invoke(main, ["check", "-f", "-"], input=stdin)
    return " ".join(result.output.split())


def test_in_check_it_is_not_skipped() -> None:
    shown = check(OURS)

    assert "GPUs in spec.worker.resources.limits[nvidia.com/gpu] are not read" in shown
    assert shown.endswith("1 object: 0 denied, 0 would change, 0 ok, 1 warned about; 1 warning")


def test_in_check_a_kind_without_gpus_is_skipped() -> None:
    shown = check({**OURS, "spec": {"worker": {}}})

    assert shown.endswith("1 skipped (not known to have pods: TrainingJob.example.com)")


def unread_by_check(kind: str, text: str) -> str:
    """Return what `check` says of GPUs that are not read; the kind is one that it reads."""
    name, _, group = kind.partition(".")
    document = {"apiVersion": f"{group}/v1", "kind": name, "metadata": {"name": "x"}}
    shown = check({**document, "spec": yaml.safe_load(f"{{{text}}}")})
    assert not shown.startswith("skipped")
    return " ".join(re.findall(r"GPUs in [^;]*? are not read|the GPUs of .*? creates", shown))


GPU = "resources: {limits: {nvidia.com/gpu: 1}}"
OF_STEPS = "computeResources: {limits: {nvidia.com/gpu: 1}}"
RAY_GROUP = "{groupName: a, rayStartParams: {num-gpus: '1'}, template: {spec: {containers: [{name: a%s}]}}}"
HEAD = "headGroupSpec: {rayStartParams: {num-gpus: '0'}, template: {spec: {containers: [{name: a}]}}}"
SPARK = "sparkConf: {spark.executor.resource.gpu.amount: '1'}, driver: {cores: 1}, executor: {instances: 2%s}"


@cases(
    ("kind", "text", "want"),
    steps_of_tekton=("TaskRun.tekton.dev", f"taskSpec: {{steps: [{{name: a, {OF_STEPS}}}]}}", ""),
    a_step_template_of_tekton=(
        "Task.tekton.dev",
        f"stepTemplate: {{{OF_STEPS}}}, steps: [{{name: a}}], sidecars: [{{name: b}}]",
        "",
    ),
    a_run_of_tekton=("TaskRun.tekton.dev", f"taskRef: {{name: t}}, {OF_STEPS}", ""),
    ray_repeats_what_the_pods_request=(
        "RayCluster.ray.io",
        f"{HEAD}, workerGroupSpecs: [{RAY_GROUP % (', ' + GPU)}]",
        "",
    ),
    ray_alone=(
        "RayCluster.ray.io",
        f"{HEAD}, workerGroupSpecs: [{RAY_GROUP % ', resources: {}'}, {RAY_GROUP % (', ' + GPU)}]",
        "GPUs in spec.workerGroupSpecs[0].rayStartParams.num-gpus are not read",
    ),
    spark_in_its_own_configuration=(
        "SparkApplication.sparkoperator.k8s.io",
        SPARK % "",
        "GPUs in spec.sparkConf[spark.executor.resource.gpu.amount] are not read",
    ),
    spark_in_both=(
        "SparkApplication.sparkoperator.k8s.io",
        SPARK % ", gpu: {name: nvidia.com/gpu, quantity: 1}",
        "",
    ),
    gangs_repeat_their_pods=(
        "PyTorchJob.kubeflow.org",
        "runPolicy: {schedulingPolicy: {minResources: {nvidia.com/gpu: 2}}}, pytorchReplicaSpecs: {Worker: "
        f"{{template: {{spec: {{containers: [{{name: pytorch, {GPU}}}]}}}}}}}}",
        "",
    ),
    mpi_before_it_had_resources=("MPIJob.kubeflow.org", "gpus: 8", "GPUs in spec.gpus are not read"),
    llmkube=("InferenceService.inference.llmkube.dev", "replicas: 3, resources: {gpu: 2}", ""),
    a_manifest_in_a_workflow=(
        "Workflow.argoproj.io",
        'templates: [{name: a, resource: {action: create, manifest: "kind: Pod\\n  nvidia.com/gpu: 1"}}]',
        "GPUs in spec.templates[0].resource.manifest are not read",
    ),
    a_text_that_a_container_runs=(
        "Workflow.argoproj.io",
        'templates: [{name: a, script: {image: a, source: "x:\\n nvidia.com/gpu: 1"}}]',
        "",
    ),
    a_patch_of_two_lines=(
        "Workflow.argoproj.io",
        'podSpecPatch: "containers:\\n- {name: main, resources: {limits: {nvidia.com/gpu: 1}}}"',
        "",
    ),
    workers_of_a_predictor_that_requests_gpus=(
        "InferenceService.serving.kserve.io",
        f"predictor: {{model: {{{GPU}}}, workerSpec: {{pipelineParallelSize: 2}}}}",
        "the GPUs of spec.predictor.workerSpec are read only in the pods that the controller creates",
    ),
    workers_that_request_them=(
        "InferenceService.serving.kserve.io",
        f"predictor: {{model: {{}}, workerSpec: {{containers: [{{name: worker-container, {GPU}}}]}}}}",
        "",
    ),
    a_claim_of_a_machine_that_has_a_gpu=(
        "VirtualMachineInstance.kubevirt.io",
        "domain: {devices: {gpus: [{name: a, deviceName: nvidia.com/GA102GL_A10}, {name: b, claimName: c}]}}",
        "the GPUs of c are read only in the pods that the controller creates",
    ),
    a_machine=(
        "RAGEngine.kaito.sh",
        "compute: {instanceType: a}",
        "the GPUs of a are read only in the pods that the controller creates",
    ),
    a_quota_that_holds=(
        "Profile.kubeflow.org",
        "resourceQuotaSpec: {hard: {requests.nvidia.com/gpu: 8}}",
        "",
    ),
)
def test_gpus_of_kinds_that_are_read(kind: str, text: str, want: str) -> None:
    assert unread_by_check(kind, text) == want


def test_for_a_machine_that_has_gpus_there_is_no_other_field() -> None:
    data = {
        "apiVersion": "kaito.sh/v1beta1",
        "kind": "Workspace",
        "resource": {"instanceType": "Standard_NC24ads_A100_v4"},
    }

    assert (
        "resource.instanceType: the GPUs of Standard_NC24ads_A100_v4 are read only in the pods that the controller creates "
        "[workloads]"
    ) in check(data)


def test_a_misspelt_resource_with_a_parameter_is_refused_as_in_a_pod() -> None:
    template = {"name": "a", "container": {"image": "a", "resources": {"limits": {"nvidia": "{{x}}"}}}}
    data = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "spec": {"templates": [template]}}

    assert "spec.templates[0].container.resources.limits.nvidia" in check(data)


def test_a_quota_of_a_tenant_gets_the_sentence_of_a_resourcequota() -> None:
    hard = {"limits.nvidia.com/gpu": 8}
    spec = {"resourceQuotas": {"items": [{"hard": hard}]}}

    assert (
        "spec.resourceQuotas.items[0].hard[limits.nvidia.com/gpu]: remove limits.nvidia.com/gpu and set "
        "requests.nvidia.com/gpu: 8; has no effect: a ResourceQuota counts only requests of extended resources"
    ) in check({"apiVersion": "capsule.clastix.io/v1beta2", "kind": "Tenant", "spec": spec})


@cases(
    ("kind", "spec"),
    a_queue=("Queue.scheduling.volcano.sh", "capability: {nvidia.com/gpu: 8}"),
    kueue=("ProvisioningRequestConfig.kueue.x-k8s.io", "managed: [nvidia.com/gpu]"),
    kueue_itself=("Configuration.config.kueue.x-k8s.io", "r: [{input: nvidia.com/mig-1g.5gb}]"),
    ome=("AcceleratorClass.ome.io", "resources: [{name: nvidia.com/gpu}]"),
    open_data_hub=("AcceleratorProfile.dashboard.opendatahub.io", "identifier: nvidia.com/gpu"),
    hardware_profile=("HardwareProfile.infrastructure.opendatahub.io", "ids: [{id: nvidia.com/gpu}]"),
    openshift=("ClusterAutoscaler.autoscaling.openshift.io", "gpus: [{type: nvidia.com/gpu}]"),
    the_scheduler=(
        "KubeSchedulerConfiguration.kubescheduler.config.k8s.io",
        "resources: [{name: nvidia.com/gpu, weight: 5}]",
    ),
    a_quota=("ElasticQuota.scheduling.sigs.k8s.io", "max: {nvidia.com/gpu: 4}"),
    koordinator=("Device.scheduling.koordinator.sh", "d: {koordinator.sh/gpu-core: 100}"),
    karpenter=("NodeOverlay.karpenter.sh", "capacity: {nvidia.com/gpu: 8}"),
    node_features=("NodeFeatureRule.nfd.k8s-sigs.io", "r: {nvidia.com/gpu: 1}"),
)
def test_in_check_a_kind_that_is_known_to_have_no_pods_is_skipped(kind: str, spec: str) -> None:
    name, _, group = kind.partition(".")
    document = {"apiVersion": f"{group}/v1", "kind": name, "metadata": {"name": "x"}}

    shown = check({**document, "spec": yaml.safe_load(f"{{{spec}}}")})

    assert shown.endswith(f"1 skipped (not known to have pods: {kind})")


def test_the_quota_of_another_system_is_for_its_controller() -> None:
    data = {"spec": {"min": {"nvidia.com/gpu": 8}}}

    assert unread_gpus("scheduling.sigs.k8s.io", "ElasticQuota", data, (), MAPPING, KINDS) == []

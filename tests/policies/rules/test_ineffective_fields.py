"""ineffective-fields: what is written where nothing reads it is reported, with what was probably meant."""

from typing import Any

import pytest

from policies.finding import Edit, Severity
from policies.placement.nodes import NodeFacts, NodeState
from policies.pods.annotations import RULE_BY_ANNOTATION
from policies.pods.workload import Workload
from policies.registry import RULES
from policies.rules.ineffective_fields import READ_ANNOTATIONS, check, check_workload
from tests.builders import JSON, container, context, gpu_container, pod, view, workload
from tests.cases import cases
from tests.policies.rules.fields import BUILT_IN, OPTIONS, USING, findings

LIMIT = 'spec.containers[0].resources.limits[{}] (container "main"): '
REFUSED = "he API server rejects this name: those of extended resources are domain/name in lowercase"
UNKNOWN = "No device plugin that is known has this resource: the pod stays pending unless a node has it"
UNREAD = "o rule reads an annotation of this name"
WHOLE_POD = (
    "write it into resources.limits of the container that uses it; must not be a resource of the pod as a whole: "
    "only cpu, memory and hugepages can be"
)
CLASS = {"gpu-admission.dev/gpu-class": "nvidia-a100"}


def advice(document: JSON) -> list[str]:
    found = list(check_workload(workload(document), OPTIONS, context(resource_mapping=BUILT_IN)))
    assert all(finding.severity is Severity.WARNING for finding in found)
    return [finding.sentence() for finding in found]


@cases(
    ("name", "meant"),
    plural=("nvidia.com/gpus", "nvidia.com/gpu"),
    name_before_device_plugins=("alpha.kubernetes.io/nvidia-gpu", "nvidia.com/gpu"),
)
def test_name_that_the_api_server_takes_and_no_node_has(name: str, meant: str) -> None:
    want = f"{LIMIT.format(name)}did you mean {meant}? {UNKNOWN}"

    assert findings(pod(gpu_container(resource=name))) == [(Severity.WARNING, want)]


@pytest.mark.parametrize("name", ["NVIDIA.com/gpu", "requests.nvidia.com/gpu", "nvidia_com/gpu"])
def test_name_with_a_slash_that_the_api_server_refuses(name: str) -> None:
    want = f"{LIMIT.format(name)}did you mean nvidia.com/gpu? T{REFUSED}"

    assert findings(pod(gpu_container(resource=name))) == [(Severity.DENIAL, want)]


@cases(
    ("name", "amount", "moved"),
    with_an_equals_sign=("nvidia.com/gpu=2", None, 2),
    with_a_colon=("nvidia.com/gpu: 8", None, 8),
    with_an_amount_beside_it=("nvidia.com/gpu=2", 4, 4),
)
def test_an_amount_that_became_part_of_the_name(name: str, amount: int | None, moved: int) -> None:
    document = pod(container(resources={"limits": {name: amount}}))
    (found,) = check(view(document), OPTIONS, context(resource_mapping=BUILT_IN))

    assert found.sentence() == f"{LIMIT.format(name)}did you mean nvidia.com/gpu? T{REFUSED}"
    limits = "spec.containers[0].resources.limits"
    assert found.choices == ((Edit(f"{limits}[{name}]"), Edit(f"{limits}[nvidia.com/gpu]", moved)),)


def test_a_name_that_a_pattern_fits_and_the_api_server_refuses() -> None:
    want = f"{LIMIT.format('nvidia.com/gpu one')}write the whole name, such as nvidia.com/gpu; t{REFUSED}"

    assert findings(pod(gpu_container(resource="nvidia.com/gpu one"))) == [(Severity.DENIAL, want)]


def test_a_near_name_that_a_node_has() -> None:
    state = NodeState(resources=frozenset({"nvidia.com/gpu-shared"}))
    nodes = NodeFacts(keys=(), states={(): frozenset({state})})
    document = pod(gpu_container(resource="nvidia.com/gpu-shared"))

    without = check(view(document), OPTIONS, context(resource_mapping=BUILT_IN))
    assert [each.remedy for each in without] == ["did you mean nvidia.com/gpu.shared?"]
    assert [*check(view(document), OPTIONS, context(resource_mapping=BUILT_IN, nodes=nodes))] == []


@cases(
    ("name", "remedy"),
    gpu=("gpu", "did you mean nvidia.com/gpu? T"),
    capitals_and_plural=("GPUs", "did you mean nvidia.com/gpu? T"),
    vendor_without_domain=("nvidia-gpu", "did you mean nvidia.com/gpu? T"),
    another_vendor=("amd-gpu", "did you mean amd.com/gpu? T"),
    tpu=("tpu", "did you mean google.com/tpu? T"),
    nothing_near=("gpu-memory", "write the whole name, such as nvidia.com/gpu; t"),
)
def test_name_without_a_domain(name: str, remedy: str) -> None:
    want = f'spec.containers[0].resources.requests[{name}] (container "main"): {remedy}{REFUSED}'
    document = pod(container(resources={"requests": {"cpu": "1", name: "1"}}))

    assert findings(document) == [(Severity.DENIAL, want)]


def test_name_in_limits_and_requests_is_reported_once() -> None:
    both = {"limits": {"gpu": 1}, "requests": {"gpu": 1}}

    assert [severity for severity, _ in findings(pod(container(resources=both)))] == [Severity.DENIAL]


MAY_BE = """
nvidia.com/gpu nvidia.com/gpu.shared nvidia.com/vgpu nvidia.com/gpu-a100 nvidia.com/mig-1g.10gb nvidia.com/mlnxnics
k8s.amazonaws.com/vgpu gpu.intel.com/i915 aliyun.com/gpu arm.com/gpu rdma/hca_shared_devices_a
deviceclass.resource.kubernetes.io/gpu.example.com hugepages-2Mi ephemeral-storage dongle
{{inputs.parameters.gpu-resource}} $GPU_RESOURCE
"""


@pytest.mark.parametrize("name", MAY_BE.split())
def test_name_that_may_be_one(name: str) -> None:
    assert findings(pod(gpu_container(resource=name))) == []


@pytest.mark.parametrize("name", ["nvidia.com/gpu", "nvidia.com/gpus", "gpu", "amd.com/gpu"])
def test_gpus_of_the_pod_as_a_whole(name: str) -> None:
    document = pod(container(), resources={"limits": {name: 1, "cpu": 8, "hugepages-2Mi": "1Gi"}})

    assert findings(document) == [(Severity.DENIAL, f"spec.resources.limits[{name}]: {WHOLE_POD}")]


CLASS = {"gpu-admission.dev/gpu-class": "nvidia-a100"}
OFF = "has no effect: rule {} is off in namespace ml-training"


@cases(
    ("name", "value", "rule"),
    a_deadline=("max-runtime", "8h", "max-runtime"),
    one_that_is_no_duration_either=("max-runtime", "8hours", "max-runtime"),
    a_cuda_version=("cuda", "12.4", "cuda-version"),
    a_wish_for_spot_nodes=("spot", "true", "spot"),
    a_time_to_load=("model-load-seconds", "90", "readiness-delay"),
    a_model_to_fetch=("model-uri", "s3://models/llama", "model-warming"),
    its_path=("model-path", "/models/llama", "model-warming"),
    its_claim=("model-cache-claim", "cache", "model-warming"),
)
def test_an_annotation_whose_rule_is_off(name: str, value: str, rule: str) -> None:
    document = pod(gpu_container(), annotations={f"gpu-admission.dev/{name}": value})
    (found,) = check(view(document), OPTIONS, context(resource_mapping=BUILT_IN))
    where = f'metadata.annotations[gpu-admission.dev/{name}] = "{value}"'
    assert (found.severity, found.sentence()) == (Severity.WARNING, f"{where}: {OFF.format(rule)}")
    assert RULE_BY_ANNOTATION[f"gpu-admission.dev/{name}"] in {each.id for each in RULES}


NO_GPU = "request a GPU in resources.limits, such as nvidia.com/gpu: 1, or remove it; has no effect: the pod requests no GPU"


@cases(
    ("name", "value"),
    a_class=("gpu-class", "nvidia-a100"),
    a_deadline=("max-runtime", "8h"),
    a_model=("model-params", "70b"),
    a_model_to_fetch=("model-uri", "s3://models/llama"),
)
def test_an_annotation_for_gpus_on_a_pod_that_requests_none(name: str, value: str) -> None:
    key = f"gpu-admission.dev/{name}"
    document = pod(container(), annotations={key: value})

    (found,) = check(view(document), OPTIONS, context(resource_mapping=BUILT_IN))

    assert (found.severity, found.sentence()) == (
        Severity.WARNING,
        f'metadata.annotations[{key}] = "{value}": {NO_GPU}',
    )
    assert found.choices == (
        (Edit("spec.containers[0].resources.limits[nvidia.com/gpu]", 1),),
        (Edit(f"metadata.annotations[{key}]"),),
    )


@cases(
    "document",
    a_claim=pod(
        container(resources=USING),
        annotations=CLASS,
        resourceClaims=[{"name": "gpu", "resourceClaimName": "gpu"}],
    ),
    a_gpu_that_no_mapping_names=pod(gpu_container(resource="example.org/gpu"), annotations=CLASS),
)
def test_a_pod_that_may_request_a_gpu_keeps_its_annotations(document: JSON) -> None:
    assert findings(document) == []


@cases(
    ("metadata", "want"),
    suggested_name=(
        {"annotations": {"gpu-admission.dev/gpuclass": "nvidia-a100"}},
        f"metadata.annotations[gpu-admission.dev/gpuclass]: did you mean gpu-admission.dev/gpu-class? N{UNREAD}",
    ),
    singular=(
        {"annotations": {"gpu-admission.dev/model-load-second": "90"}},
        f"metadata.annotations[gpu-admission.dev/model-load-second]: did you mean "
        f"gpu-admission.dev/model-load-seconds? N{UNREAD}",
    ),
    another_domain=(
        {"annotations": {"gpu-admission.io/gpu-class": "nvidia-a100"}},
        f"metadata.annotations[gpu-admission.io/gpu-class]: did you mean gpu-admission.dev/gpu-class? N{UNREAD}",
    ),
    nothing_like_it=(
        {"annotations": {"gpu-admission.dev/team": "ml"}},
        f"metadata.annotations[gpu-admission.dev/team]: remove it; n{UNREAD}",
    ),
    label_that_is_no_annotation_either=(
        {"labels": {"gpu-admission.dev/team": "ml"}},
        "metadata.labels[gpu-admission.dev/team]: remove it; has no effect as a label",
    ),
    label=(
        {"labels": CLASS},
        "metadata.labels[gpu-admission.dev/gpu-class]: write it as annotation gpu-admission.dev/gpu-class; has "
        "no effect as a label",
    ),
    misspelt_label=(
        {"labels": {"gpu-admission.dev/gpuclass": "nvidia-a100"}},
        "metadata.labels[gpu-admission.dev/gpuclass]: write it as annotation gpu-admission.dev/gpu-class; has "
        "no effect as a label",
    ),
)
def test_annotation_that_nothing_reads(metadata: JSON, want: str) -> None:
    document = {**pod(gpu_container()), "metadata": {"name": "trainer", **metadata}}

    assert findings(document) == [(Severity.WARNING, f"{want}")]


@cases(
    ("of_pod", "annotations", "is_said"),
    alone=(container(), {}, True),
    beside_a_gpu=(gpu_container(), {}, False),
    beside_the_annotation=(container(), {"gpu-fraction": "0.5"}, False),
)
def test_a_part_of_a_gpu_as_a_label(of_pod: JSON, annotations: dict[str, str], is_said: bool) -> None:
    document = pod(of_pod, annotations=annotations)
    document["metadata"]["labels"] = {"gpu-fraction": "0.5"}

    want = "metadata.labels[gpu-fraction]: write it as annotation gpu-fraction; has no effect as a label"
    assert findings(document) == ([(Severity.WARNING, want)] if is_said else [])


def test_a_fact_with_a_word_between_is_another_one() -> None:
    document = pod(gpu_container(), annotations={"gpu-admission.dev/model-size": "140GB"})

    assert findings(document) == [
        (Severity.WARNING, f"metadata.annotations[gpu-admission.dev/model-size]: remove it; n{UNREAD}")
    ]


def test_annotations_that_are_read_and_those_of_others_are_left_alone() -> None:
    read = dict.fromkeys(READ_ANNOTATIONS, "x")
    others = {"gpu-admission.io/team": "ml", "gpuclass": "x", "nvidia.com/gpu-class": "x"}

    assert findings(pod(gpu_container(), annotations={**read, **others})) == []


def test_only_some_of_many_unknown_annotations_are_reported() -> None:
    many = {f"gpu-admission.dev/key-{number}": "x" for number in range(500)}

    assert len(findings(pod(gpu_container(), annotations=many))) == 10


# ---- workloads


def written(kind: str, api_version: str = "batch/v1", **fields: Any) -> JSON:
    return {"apiVersion": api_version, "kind": kind, **fields}


def deployment(of_pods: dict[str, str] | None = None, **metadata: Any) -> JSON:
    """Return a Deployment with that metadata, and those annotations on its pods."""
    template = {"metadata": {"annotations": of_pods or {}}, "spec": {"containers": [gpu_container()]}}
    return written("Deployment", "apps/v1", metadata=metadata, spec={"template": template})


@cases(
    ("document", "want"),
    annotation_on_the_deployment=(
        deployment(annotations=CLASS),
        "metadata.annotations[gpu-admission.dev/gpu-class]: write it into spec.template.metadata.annotations; "
        "has no effect here: the pods of a Deployment do not get its annotations",
    ),
    annotation_on_the_cronjob=(
        written(
            "CronJob",
            metadata={"annotations": CLASS},
            spec={"jobTemplate": {"spec": {"template": {"spec": {"containers": [gpu_container()]}}}}},
        ),
        "metadata.annotations[gpu-admission.dev/gpu-class]: write it into "
        "spec.jobTemplate.spec.template.metadata.annotations; has no effect here: the pods of a CronJob do not "
        "get its annotations",
    ),
    misspelt_on_the_deployment=(
        deployment(annotations={"gpu-admission.dev/gpuclass": "x"}),
        f"metadata.annotations[gpu-admission.dev/gpuclass]: did you mean gpu-admission.dev/gpu-class? N{UNREAD}",
    ),
    label_of_the_deployment=(
        deployment(labels=CLASS),
        "metadata.labels[gpu-admission.dev/gpu-class]: write it as annotation gpu-admission.dev/gpu-class; has "
        "no effect as a label",
    ),
    part_of_a_gpu_on_the_deployment=(
        written(
            "Deployment",
            "apps/v1",
            metadata={"annotations": {"gpu-fraction": "0.5"}},
            spec={"template": {"spec": {"containers": [container()]}}},
        ),
        "metadata.annotations[gpu-fraction]: write it into spec.template.metadata.annotations; has no effect here: "
        "the pods of a Deployment do not get its annotations",
    ),
    containers_below_the_spec_of_a_deployment=(
        {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"containers": [gpu_container()]}},
        "spec.containers: write it into spec.template.spec; is not a field of a Deployment: the API server "
        "rejects or drops it",
    ),
    containers_below_the_template_of_a_job=(
        written("Job", spec={"template": {"containers": [gpu_container()]}}),
        "spec.template.containers: write it into spec.template.spec; is not a field of a Job: the API server "
        "rejects or drops it",
    ),
    a_template_beside_the_spec_of_a_deployment=(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "template": {"spec": {"containers": [gpu_container()]}},
        },
        "template.spec: write its fields into spec.template.spec; is not a field of a Deployment: the API server "
        "rejects or drops it",
    ),
    a_deployment_without_containers=(
        {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"template": {"spec": {}}}},
        "containers: must list containers: the API server rejects a Deployment without them",
    ),
    init_containers_of_a_cronjob=(
        written("CronJob", spec={"jobTemplate": {"spec": {"initContainers": [{}]}}}),
        "spec.jobTemplate.spec.initContainers: write it into spec.jobTemplate.spec.template.spec; is not a field "
        "of a CronJob: the API server rejects or drops it",
    ),
    job_in_apps=(
        {"apiVersion": "apps/v1", "kind": "Job"},
        'apiVersion = "apps/v1": set apiVersion: batch/v1; has no kind Job',
    ),
    deployment_in_core=(
        {"apiVersion": "v1", "kind": "Deployment"},
        'apiVersion = "v1": set apiVersion: apps/v1; has no kind Deployment',
    ),
)
def test_field_of_a_workload_that_nothing_reads(document: JSON, want: str) -> None:
    assert advice(document) == [f"{want}"]


@cases(
    "document",
    nothing_of_ours=deployment(),
    on_the_pods_as_well=deployment(CLASS, annotations=CLASS),
    part_beside_whole_gpus=deployment(annotations={"gpu-memory": "12"}),
    operator_that_copies_annotations_to_pods=(
        written(
            "InferenceService",
            "serving.kserve.io/v1beta1",
            metadata={"annotations": CLASS},
            spec={"predictor": {"containers": [gpu_container()]}},
        )
    ),
    kind_with_containers_below_spec=(
        written("ServingRuntime", "serving.kserve.io/v1alpha1", spec={"containers": [gpu_container()]})
    ),
    job_of_another_group={"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job"},
    object_without_pods=(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"annotations": {"gpu-admission.dev/x": "1"}}}
    ),
)
def test_workload_that_is_left_alone(document: JSON) -> None:
    assert advice(document) == []


def test_fields_of_the_wrong_type_are_left_to_the_api_server() -> None:
    odd = Workload("apps", "Deployment", "ml-training", {"spec": {"template": [], "containers": 1}}, ())

    assert [finding.path for finding in check_workload(odd, OPTIONS, context())] == ["spec.containers"]

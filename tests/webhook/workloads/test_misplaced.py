"""GPU amounts, annotations and fields of a pod that are written beside their place."""

from typing import Any

import msgspec
import pytest
import yaml

from policies.finding import Edit, Finding, Json, as_plain_data, short_path
from policies.pods.field_paths import path_parts, with_edits
from policies.rules.ineffective_fields import GROUPS
from tests.cases import cases
from webhook.configuration.loader import load_directory
from webhook.workloads.misplaced import (
    MAX_MISPLACED,
    lost_fields,
    misplaced_fields,
    misplaced_gpus,
    misplaced_requests,
)
from webhook.workloads.places import PodPlace, workload_pods
from webhook.workloads.pod_fields import ONLY_OF_PODS, POD_FIELDS

BUILT_IN = load_directory(None)
MAPPING, KINDS = BUILT_IN.resource_mapping, BUILT_IN.workload_kinds
OURS_IN_TEXT = "gpu-admission.dev/gpu-class: nvidia-a100"
NOT_HERE = (
    "must not stand here: kubectl rejects an unknown field, and other clients lose it [ineffective-fields]"
)
POD, TEMPLATE = "metadata.annotations", "spec.template.metadata.annotations"
KEY = "[gpu-admission.dev/gpu-class]"


def test_a_gpu_that_stands_beside_the_resources() -> None:
    data = {"spec": {"containers": [{"name": "main", "nvidia.com/gpu": 1}]}}

    assert [each.sentence() for each in misplaced_gpus(data, [()], MAPPING)] == [
        "spec.containers[0][nvidia.com/gpu]: write it into resources.limits of the container; must not stand here: kubectl "
        "rejects an unknown field, and other clients lose it [ineffective-fields]"
    ]


@cases(
    ("kind", "text", "at", "into"),
    metadata_with_annotation=("v1 Pod", "metadata: {annotation: {OURS}}", f"metadata.annotation{KEY}", POD),
    bare_metadata=("v1 Pod", "metadata: {OURS}", f"metadata{KEY}", POD),
    the_spec=("v1 Pod", "spec: {annotations: {OURS}}", f"spec.annotations{KEY}", POD),
    the_spec_of_a_deployment=(
        "apps/v1 Deployment",
        "spec: {annotations: {OURS}, template: {spec: {containers: []}}}",
        f"spec.annotations{KEY}",
        TEMPLATE,
    ),
    a_template=(
        "apps/v1 Deployment",
        "spec: {template: {annotations: {OURS}, spec: {containers: []}}}",
        f"spec.template.annotations{KEY}",
        TEMPLATE,
    ),
    the_metadata_of_a_deployment=(
        "apps/v1 Deployment",
        "metadata: {annotation: {OURS}}\nspec: {template: {spec: {containers: []}}}",
        f"metadata.annotation{KEY}",
        TEMPLATE,
    ),
    a_template_of_an_operator=(
        "kubeflow.org/v1 PyTorchJob",
        "spec: {pytorchReplicaSpecs: {Worker: {template: {spec: {annotations: {OURS}}}}}}",
        f"spec.pytorchReplicaSpecs.Worker.template.spec.annotations{KEY}",
        "spec.pytorchReplicaSpecs.Worker.template.metadata.annotations",
    ),
    a_selector_in_a_container=(
        "v1 Pod",
        "spec: {containers: [{nodeSelector: {a: b}}]}",
        "spec.containers[0].nodeSelector",
        "spec",
    ),
    tolerations_in_an_init_container=(
        "apps/v1 Deployment",
        "spec: {template: {spec: {initContainers: [{tolerations: []}]}}}",
        "spec.template.spec.initContainers[0].tolerations",
        "spec.template.spec",
    ),
    a_runtime_class_in_a_template=(
        "ray.io/v1 RayCluster",
        "spec: {headGroupSpec: {template: {runtimeClassName: nvidia, spec: {containers: []}}}}",
        "spec.headGroupSpec.template.runtimeClassName",
        "spec.headGroupSpec.template.spec",
    ),
    tolerations_beside_the_spec=("v1 Pod", "tolerations: []\nspec: {}", "tolerations", "spec"),
    a_selector_above_the_template=(
        "batch/v1 CronJob",
        "spec: {jobTemplate: {spec: {nodeSelector: {a: b}, template: {spec: {containers: []}}}}}",
        "spec.jobTemplate.spec.nodeSelector",
        "spec.jobTemplate.spec.template.spec",
    ),
    mounts_in_the_spec=(
        "v1 Pod",
        "spec: {volumeMounts: [], containers: [{name: a}]}",
        "spec.volumeMounts",
        "spec.containers[0]",
    ),
    a_probe_in_a_volume=(
        "apps/v1 Deployment",
        "spec: {template: {spec: {containers: [{name: a}], volumes: [{name: b, livenessProbe: {}}]}}}",
        "spec.template.spec.volumes[0].livenessProbe",
        "spec.template.spec.containers[0]",
    ),
    a_selector_in_a_container_of_argo=(
        "argoproj.io/v1alpha1 Workflow",
        "spec: {templates: [{container: {nodeSelector: {a: b}}}]}",
        "spec.templates[0].container.nodeSelector",
        "spec.templates[0]",
    ),
)
def test_what_is_written_beside_its_place(kind: str, text: str, at: str, into: str) -> None:
    (found,) = misplaced(kind, text)

    assert found.sentence() == f"{short_path(at)}: write it into {into}; {NOT_HERE}"
    ((removed, moved),) = found.choices
    assert (removed, moved.path) == (Edit(at), f"{into}{KEY if KEY in at else '.' + at.rpartition('.')[2]}")


@cases(
    ("kind", "text"),
    annotations=("v1 Pod", "metadata: {annotations: {OURS}}\nspec: {nodeSelector: {OURS}}"),
    of_a_deployment=(
        "apps/v1 Deployment",
        "metadata: {annotations: {OURS}}\nspec: {selector: {}, template: {spec: {}}}",
    ),
    of_kserve=(
        "serving.kserve.io/v1beta1 InferenceService",
        "spec: {predictor: {annotations: {OURS}, model: {}}}",
    ),
    of_the_object_of_an_operator=(
        "kubeflow.org/v1 PyTorchJob",
        "spec: {annotations: {OURS}, pytorchReplicaSpecs: {Worker: {template: {spec: {}}}}}",
    ),
    of_the_job=(
        "batch/v1 Job",
        "spec: {activeDeadlineSeconds: 9, template: {spec: {activeDeadlineSeconds: 9, containers: []}}}",
    ),
    of_the_object_of_an_operator_above_its_pods=(
        "kubeflow.org/v1 PyTorchJob",
        "spec: {tolerations: [], pytorchReplicaSpecs: {Worker: {template: {spec: {}}}}}",
    ),
    an_image_as_a_volume=("v1 Pod", "spec: {containers: [], volumes: [{name: a, image: {reference: b}}]}"),
    what_a_template_of_argo_has=(
        "argoproj.io/v1alpha1 Workflow",
        "spec: {nodeSelector: {}, hostNetwork: true, templates: [{tolerations: [], volumes: [], container: {}}]}",
    ),
    of_the_wrong_type=("v1 Pod", "metadata: []\nspec: {containers: {a: 1}, initContainers: [1]}"),
)
def test_what_may_stand_there(kind: str, text: str) -> None:
    assert misplaced(kind, text) == []


def test_a_field_of_a_container_beside_several() -> None:
    (found,) = misplaced("v1 Pod", "spec: {env: [], containers: [{name: a}, {name: b}]}")

    assert found.sentence() == f"spec.env: write it into the container that it is for; {NOT_HERE}"
    assert found.choices == ()


UNKNOWN = "must not stand here: this kind has no such field, so that no pod gets it [ineffective-fields]"
PATCHED = '{runtimeClassName: "nvidia"}'


@cases(
    ("kind", "text", "at", "remedy", "edit"),
    a_workflow=(
        "argoproj.io/v1alpha1 Workflow",
        "spec: {runtimeClassName: nvidia, templates: []}",
        "spec.runtimeClassName",
        "write it into spec.podSpecPatch",
        Edit("spec.podSpecPatch", PATCHED),
    ),
    a_template_of_a_cron_workflow=(
        "argoproj.io/v1alpha1 CronWorkflow",
        "spec: {workflowSpec: {templates: [{runtimeClassName: nvidia, container: {}}]}}",
        "spec.workflowSpec.templates[0].runtimeClassName",
        "write it into spec.workflowSpec.templates[0].podSpecPatch",
        Edit("spec.workflowSpec.templates[0].podSpecPatch", PATCHED),
    ),
    a_task_run=(
        "tekton.dev/v1 TaskRun",
        "spec: {nodeSelector: {a: b}}",
        "spec.nodeSelector",
        "write it into spec.podTemplate",
        Edit("spec.podTemplate.nodeSelector", Json('{"a":"b"}')),
    ),
    an_executor_of_spark=(
        "sparkoperator.k8s.io/v1beta2 SparkApplication",
        "spec: {executor: {runtimeClassName: nvidia}}",
        "spec.executor.runtimeClassName",
        "write it into spec.executor.template.spec",
        Edit("spec.executor.template.spec.runtimeClassName", Json('"nvidia"')),
    ),
    an_application_of_spark=(
        "sparkoperator.k8s.io/v1beta2 SparkApplication",
        "spec: {runtimeClassName: nvidia}",
        "spec.runtimeClassName",
        "write it into spec.executor.template.spec",
        Edit("spec.executor.template.spec.runtimeClassName", Json('"nvidia"')),
    ),
    a_patch_that_is_there=(
        "argoproj.io/v1alpha1 Workflow",
        "spec: {hostIPC: true, podSpecPatch: '{}'}",
        "spec.hostIPC",
        "write it into spec.podSpecPatch",
        None,
    ),
    a_kind_without_another_place=(
        "apps.nvidia.com/v1alpha1 NIMService",
        "spec: {hostNetwork: true}",
        "spec.hostNetwork",
        "remove it",
        None,
    ),
)
def test_fields_of_pods_that_a_kind_does_not_have(
    kind: str, text: str, at: str, remedy: str, edit: Edit | None
) -> None:
    (found,) = misplaced(kind, text)

    assert found.sentence() == f"{short_path(at)}: {remedy}; {UNKNOWN}"
    assert found.choices == (((Edit(at), edit),) if edit else ())


def test_lost_fields_of_thousands_of_templates_are_named_for_the_first() -> None:
    document = {"spec": {"templates": [dict.fromkeys(ONLY_OF_PODS)] * 20_000}}

    found = list(lost_fields({"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", **document}))

    assert len(found) == MAX_MISPLACED
    assert {each.path.partition("[0]")[0] for each in found} == {"spec.templates"}


@pytest.mark.parametrize("kind", POD_FIELDS, ids=" ".join)
def test_a_lost_field_is_moved_to_where_the_kind_has_it(kind: tuple[str, str]) -> None:
    for path in POD_FIELDS[kind]:
        for field in ONLY_OF_PODS:
            data: Any = {field: "x"}
            for step in reversed(path_parts(path.replace("[]", "[0]"))):
                data = {step: data} if isinstance(step, str) else [data]
            data |= {"apiVersion": kind[0], "kind": kind[1]}
            for found in lost_fields(data):
                for choice in found.choices:
                    edits = [(path_parts(edit.path), as_plain_data(edit.value)) for edit in choice]
                    assert list(lost_fields(with_edits(data, edits))) == []


@cases(
    ("kind", "text", "at", "remedy"),
    beside_exactly=(
        "v1 ResourceClaim",
        "spec: {devices: {requests: [{name: gpu, deviceClassName: a, exactly: {deviceClassName: a}}]}}",
        "spec.devices.requests[0].deviceClassName",
        "write it into spec.devices.requests[0].exactly",
    ),
    in_a_template=(
        "v1beta2 ResourceClaimTemplate",
        "spec: {spec: {devices: {requests: [{name: gpu, count: 2, exactly: {deviceClassName: a}}]}}}",
        "spec.spec.devices.requests[0].count",
        "write it into spec.spec.devices.requests[0].exactly",
    ),
    exactly_before_it_came=(
        "v1beta1 ResourceClaim",
        "spec: {devices: {requests: [{name: gpu, deviceClassName: a, exactly: {count: 2}}]}}",
        "spec.devices.requests[0].exactly.count",
        "write it into spec.devices.requests[0]",
    ),
)
def test_device_requests_of_another_version(kind: str, text: str, at: str, remedy: str) -> None:
    (found,) = misplaced_requests(yaml.safe_load(text), f"resource.k8s.io/{kind.partition(' ')[0]}")

    assert found.sentence() == f"{short_path(at)}: {remedy}; {NOT_HERE}"


def test_a_class_of_resources_that_is_gone() -> None:
    data = {"spec": {"spec": {"resourceClassName": "gpu.nvidia.com"}}}

    assert [each.sentence() for each in misplaced_requests(data, "resource.k8s.io/v1alpha2")] == [
        "spec.spec.resourceClassName: name a DeviceClass in spec.spec.devices.requests[0].exactly of version v1; is gone since "
        "Kubernetes 1.31, as its API version is [ineffective-fields]"
    ]


@cases(
    ("version", "written"),
    exactly=("v1", "exactly: {deviceClassName: a, count: 2}"),
    alternatives=("v1", "firstAvailable: [{name: a, deviceClassName: a}]"),
    before_exactly=("v1beta1", "deviceClassName: a"),
    no_map=("v1", "exactly: []"),
    refused_as_a_whole=("v1", "deviceClassName: a"),
    refused_as_a_whole_in_v1beta1=("v1beta1", "exactly: {deviceClassName: a}"),
)
def test_device_requests_as_they_must_be(version: str, written: str) -> None:
    data = yaml.safe_load(f"spec: {{devices: {{requests: [{{name: gpu, {written}}}]}}}}")

    assert list(misplaced_requests(data, f"resource.k8s.io/{version}")) == []


def misplaced(kind: str, text: str) -> list[Finding]:
    version, _, name = kind.partition(" ")
    group = version.rpartition("/")[0]
    data = yaml.safe_load(text.replace("OURS", OURS_IN_TEXT))
    if name == "Pod":
        places = [PodPlace.of_pod()]
    else:
        _, pods = workload_pods(KINDS, group, name, msgspec.Raw(msgspec.json.encode(data)))
        places = [place for place, _ in pods]
    data |= {"apiVersion": version, "kind": name}
    found = misplaced_fields(data, places, is_built_in=GROUPS.get(name) == group)
    return [*found, *lost_fields(data)]

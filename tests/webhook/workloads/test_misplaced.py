"""GPU amounts, annotations and fields of a pod that are written beside their place."""

import msgspec
import yaml

from policies.finding import Edit, Finding, short_path
from policies.rules.ineffective_fields import GROUPS
from tests.cases import cases
from webhook.configuration.loader import load_directory
from webhook.workloads.misplaced import misplaced_fields, misplaced_gpus
from webhook.workloads.places import PodPlace, workload_pods

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
        "refuses an unknown field, and other clients lose it [ineffective-fields]"
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
    of_the_wrong_type=("v1 Pod", "metadata: []\nspec: {containers: {a: 1}, initContainers: [1]}"),
)
def test_what_may_stand_there(kind: str, text: str) -> None:
    assert misplaced(kind, text) == []


def misplaced(kind: str, text: str) -> list[Finding]:
    version, _, name = kind.partition(" ")
    group = version.rpartition("/")[0]
    data = yaml.safe_load(text.replace("OURS", OURS_IN_TEXT))
    if name == "Pod":
        places = [PodPlace.of_pod()]
    else:
        _, pods = workload_pods(KINDS, group, name, msgspec.Raw(msgspec.json.encode(data)))
        places = [place for place, _ in pods]
    return list(misplaced_fields(data, places, is_built_in=GROUPS.get(name) == group))

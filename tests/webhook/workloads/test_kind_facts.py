"""Each place for GPUs, name of an object with pods, and number of pods in the schema of a kind is read, or known not to be."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from tests.cases import cases
from tests.webhook.workloads.kind_facts import FACTS, facts_of, places
from webhook.configuration.loader import load_directory
from webhook.configuration.workload_kinds import EVERY_ITEM, EVERY_KEY, Factor, WorkloadKind, steps
from webhook.workloads.places import workload_pods
from webhook.workloads.unread import unread_gpus

CONFIGURATION = load_directory(None)
MAPPING, KINDS = CONFIGURATION.resource_mapping, CONFIGURATION.workload_kinds
ROWS = {row["kind"]: row for row in yaml.safe_load(FACTS.read_text())}
LEFT_OUT: dict[str, dict[str, str]] = yaml.safe_load(
    Path(__file__).with_name("kind-left-out.yaml").read_text()
)
"""By kind, or `*`: patterns of paths that no row has, and why."""

CONTAINER = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": 1}}}
WITH_GPUS: dict[str, Any] = {
    "template": {"spec": {"containers": [CONTAINER]}},
    "podSpec": {"containers": [CONTAINER]},
    "container": CONTAINER,
    "resources": CONTAINER["resources"],
    "amounts": {"nvidia.com/gpu": 1},
    "gpus": 1,
}

UNCHECKED = {
    "ClusterTask.tekton.dev": "gone from Tekton; of the shape of a Task",
    "DynamoComponentDeployment.nvidia.com": "its repository is too large to be read; by its documentation",
    "DynamoGraphDeployment.nvidia.com": "its repository is too large to be read; by its documentation",
    "ElasticJob.elastic.pytorch.org": "a retired project; by manifests",
    "HyperPodPyTorchJob.sagemaker.amazonaws.com": "no public source; by manifests",
    "Model.kubeai.org": "its pods are made of the configuration of KubeAI; by its documentation",
    "MultiRoleInference.kaito.sh": "makes InferenceSets; by its examples",
    "Quota.tenantoperator.stakater.com": "no public source; by its documentation",
    "VirtualMachinePool.pool.kubevirt.io": "of the shape of a VirtualMachine",
}
"""Kinds of which no schema was read, and what their rows are by."""


def row_of(kind: str) -> WorkloadKind:
    name, _, group = kind.partition(".")
    return KINDS[group, name]


def left_out(kind: str, path: str) -> bool:
    return any(fnmatchcase(path, each) for key in (kind, "*") for each in LEFT_OUT.get(key, ()))


def unknown(kind: str, path: str, shape: str) -> str:
    """Return what is wrong with the fact: that the row of the kind does not have it; "" if it does."""
    row = row_of(kind)
    if left_out(kind, path):
        return ""
    if shape == "opaque":
        return "" if any(way[: len(steps(path))] == steps(path) for way in paths_of(row)) else "is unchecked"
    if shape == "names":
        fields = [*row.unread, *(field for each in row.refers for field in each.fields)]
        return (
            "" if any(steps(each)[: len(steps(path))] == steps(path) for each in fields) else "is not named"
        )
    if shape == "pods":
        return "" if row.templates_only or steps(path) in numbers_of(row) else "is not counted"
    if shape == "podSpec" and any(way[:-1] == steps(path) for way in paths_of(row)):
        return ""  # read through a member
    holder, _, field = path.rpartition(".")
    data = data_with(path, WITH_GPUS[shape])
    names = {
        gpu.name.rpartition(".")[2] for each in row.pods for gpu in each.gpus if gpu.name and gpu.quantity
    }
    if shape == "gpus" and names:
        data = data_with(holder, {field: 1, **dict.fromkeys(names, "nvidia.com/gpu")})
    return "" if is_read(row, data, path) else "is not read"


def paths_of(row: WorkloadKind) -> Iterator[tuple[str, ...]]:
    for each in row.pods:
        yield steps(each.path)
        yield from ((*steps(each.path), *steps(member)) for member in each.containers)
        yield from (steps(path, each.path) for gpu in each.gpus for path in (gpu.quantity, gpu.name) if path)
    yield from map(steps, (*row.quotas, *row.repeats))


def numbers_of(row: WorkloadKind) -> set[tuple[str, ...]]:
    found = {steps(row.together)}
    for each in row.pods:
        for text in each.factor_texts.values():
            factor = Factor.of(text)
            found |= {steps(path, each.path) for path in (factor.every_path() if factor else ())}
    return found


def data_with(path: str, value: Any) -> Any:
    """Return an object with the value at the path, in the first item of lists, and under the key Worker of maps."""
    for step in reversed(steps(path)):
        value = [value] if step == EVERY_ITEM else {"Worker" if step == EVERY_KEY else step: value}
    return value


def is_read(row: WorkloadKind, data: dict[str, Any], path: str) -> bool:
    _, pods = workload_pods(KINDS, *row.key, msgspec.Raw(msgspec.json.encode(data)))
    requested = any(MAPPING.pod_requests_gpus(pod) for _, pod in pods)
    is_listed = any(steps(path)[: len(way)] == way for way in map(steps, (*row.quotas, *row.repeats)))
    return (requested or is_listed) and not unread_gpus(*row.key, data, pods, MAPPING, KINDS)


@pytest.mark.parametrize("kind", ROWS)
def test_the_row_of_a_kind_has_what_its_schema_has(kind: str) -> None:
    facts = ROWS[kind]["paths"].items()
    wrong = [
        f"{path} ({shape}) {unknown(kind, path, shape)}"
        for path, shape in facts
        if unknown(kind, path, shape)
    ]
    assert wrong == []


def test_a_field_that_is_not_read_is_found() -> None:
    assert unknown("RayCluster.ray.io", "spec.invented", "container") == "is not read"
    assert unknown("RayCluster.ray.io", "spec.inventedGroupSpecs[].template", "template") == "is not read"
    assert unknown("RayCluster.ray.io", "spec.workerGroupSpecs[].invented", "pods") == "is not counted"
    assert unknown("RayCluster.ray.io", "spec.invented", "opaque") == "is unchecked"
    assert unknown("RayCluster.ray.io", "spec.inventedRef", "names") == "is not named"


@pytest.mark.parametrize("kind", ROWS)
def test_gpus_at_a_place_that_no_row_has_are_named(kind: str) -> None:
    row = row_of(kind)
    for path, shape in ROWS[kind]["paths"].items():
        if shape in WITH_GPUS and left_out(kind, path):
            data = data_with(path, WITH_GPUS[shape])
            _, pods = workload_pods(KINDS, *row.key, msgspec.Raw(msgspec.json.encode(data)))
            (found,) = unread_gpus(*row.key, data, pods, MAPPING, KINDS)
            assert "are not read" in found.message


@pytest.mark.parametrize("key", LEFT_OUT)
def test_what_is_left_out_exists(key: str) -> None:
    paths = [path for kind, row in ROWS.items() if key in {"*", kind} for path in row["paths"]]

    assert [each for each in LEFT_OUT[key] if not any(fnmatchcase(path, each) for path in paths)] == []


AMOUNTS = {"additionalProperties": {"x-kubernetes-int-or-string": True}}
RESOURCES = {"properties": {"limits": AMOUNTS, "requests": AMOUNTS}}
POD: dict[str, Any] = {
    "properties": {each: {} for each in ("containers", "nodeSelector", "tolerations", "volumes")}
}
INTEGER = {"type": "integer"}


@cases(
    ("schema", "want"),
    a_template=({"properties": {"metadata": {}, "spec": POD}}, {"a": "template"}),
    a_pod_spec=(POD, {"a": "podSpec"}),
    a_pod_spec_with_a_container=(
        {
            "properties": {
                **POD["properties"],
                "model": {"properties": {"image": {}, "env": {}, "resources": RESOURCES}},
            }
        },
        {"a": "podSpec", "a.model": "container"},
    ),
    a_list_of_containers=(
        {"type": "array", "items": {"properties": {"image": {}, "env": {}, "resources": RESOURCES}}},
        {"a[]": "container"},
    ),
    resources=({"additionalProperties": RESOURCES}, {"a.*": "resources"}),
    a_quota=(
        {"properties": {"hard": AMOUNTS}},
        {"a.hard": "amounts"},
    ),
    gpus=(
        {"properties": dict.fromkeys(("numGPUs", "gpusPerNode", "gpuLayers"), INTEGER)},
        {"a.numGPUs": "gpus", "a.gpusPerNode": "gpus"},
    ),
    a_count_of_gpus=(
        {"properties": {"gpu": {"properties": {"count": INTEGER, "layers": INTEGER}}}},
        {"a.gpu.count": "gpus"},
    ),
    pods=(
        {"properties": {"replicas": INTEGER, "numNodes": INTEGER, "nodeCount": INTEGER, "port": INTEGER}},
        {"a.replicas": "pods", "a.numNodes": "pods", "a.nodeCount": "pods"},
    ),
    names_of_others=(
        {
            "properties": {
                "pipelineRef": {"properties": {"name": {}}},
                "baseRefs": {"type": "array", "items": {"properties": {"name": {}}}},
                "instanceType": {"type": "string"},
                "hfTokenSecretRef": {"properties": {"name": {}}},
            }
        },
        {"a.pipelineRef": "names", "a.baseRefs[]": "names", "a.instanceType": "names"},
    ),
    anything=({"x-kubernetes-preserve-unknown-fields": True}, {"a": "opaque"}),
    a_volume_claim=({"properties": {"accessModes": {}, "storageClassName": {}, "resources": RESOURCES}}, {}),
)
def test_the_shapes_that_a_schema_has(schema: dict[str, Any], want: dict[str, str]) -> None:
    assert dict(places(schema, "a")) == want


def test_the_paths_of_a_definition() -> None:
    text = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
spec:
  group: example.com
  names: {kind: Training}
  versions:
  - schema:
      openAPIV3Schema:
        properties: {status: {properties: {replicas: {type: integer}}}, spec: {properties: {gpus: {type: integer}}}}
  - schema: {openAPIV3Schema: {properties: {spec: {properties: {workers: {type: integer}}}}}}
"""
    assert facts_of(text, "Training.example.com") == {"spec.gpus": "gpus", "spec.workers": "pods"}
    assert facts_of(text, "Training.other.com") == {}


def test_of_each_kind_the_schema_was_read_or_it_is_said_why_not() -> None:
    kinds = {f"{row.kind}.{row.group}" for row in KINDS.values() if not row.has_no_gpus}

    assert kinds == ROWS.keys() | UNCHECKED.keys()
    assert not ROWS.keys() & UNCHECKED.keys()

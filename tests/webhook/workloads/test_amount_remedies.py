"""Remedies of GPUs that no resource list has: they name the field that the author writes, in every kind of the table."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import yaml

from policies.pods.field_paths import Parts, field_path
from tests.builders import JSON, manifest
from tests.cases import cases
from tests.webhook.commands.checking import document
from webhook.configuration.loader import load_directory
from webhook.configuration.workload_kinds import GPUAmount, PodForm, PodPath, WorkloadKind, steps
from webhook.workloads.places import workload_pods

CONFIGURATION = load_directory(None)
AMOUNTS = [
    pytest.param(row, pod_path, gpu, id=f"{row.kind}.{row.group}-{pod_path.path}-{index}")
    for row in CONFIGURATION.workload_kinds.values()
    for pod_path in row.pods
    if pod_path.form is PodForm.AMOUNTS
    for index, gpu in enumerate(pod_path.gpus)
]


def made(way: Sequence[str], value: Any) -> tuple[Any, Parts]:
    """Return data that have the value at these steps, and its path."""
    if not way:
        return value, ()
    step, (inner, at) = way[0], made(way[1:], value)
    if step == "[]":
        return [inner], (0, *at)
    key = "a" if step == "*" else step
    return {key: inner}, (key, *at)


@pytest.mark.parametrize(("row", "pod_path", "gpu"), AMOUNTS)
def test_the_field_to_edit_is_that_of_the_amount(
    row: WorkloadKind, pod_path: PodPath, gpu: GPUAmount
) -> None:
    way = steps(gpu.quantity or gpu.name, pod_path.path)
    data, at = made(way, 2 if gpu.quantity else "nvidia.com/gpu")
    if gpu.quantity and not gpu.resource:
        name = steps(gpu.name, pod_path.path)
        assert name[:-1] == way[:-1]
        data, _ = made(way[:-1], {way[-1]: 2, name[-1]: "nvidia.com/gpu"})

    _, pods = workload_pods(CONFIGURATION.workload_kinds, *row.key, msgspec.json.encode(data))
    [(place, pod)] = [each for each in pods if each[0].at == at[: len(each[0].at)]]
    [request] = CONFIGURATION.resource_mapping.requests(pod)

    path = f"{request.place.path}.resources.limits[{request.resource.name}]"
    assert place.path_of_edit(path) == (field_path(at) if gpu.quantity else "")
    assert place.path_of_edit("metadata.annotations[gpu-admission.dev/gpu-class]") == ""


QUOTA = manifest("gpu-admission.dev/v1alpha1", "GPUQuota", "default", {"hard": {"gpus": 4}}, namespace="ml")
DEVICES = [{"name": f"a{index}", "deviceName": "nvidia.com/gpu"} for index in range(5)]


def llmkube(gpu: Any) -> JSON:
    spec = {"modelRef": "llama", "resources": {"gpu": gpu}}
    return manifest("inference.llmkube.dev/v1alpha1", "InferenceService", "a", spec, namespace="ml")


def dynamo(gpu: Any) -> JSON:
    spec = {"services": {"a": {"replicas": 1, "resources": {"limits": {"gpu": gpu}}}}}
    return manifest("nvidia.com/v1alpha1", "DynamoGraphDeployment", "a", spec, namespace="ml")


VM = manifest(
    "kubevirt.io/v1",
    "VirtualMachine",
    "a",
    {"template": {"spec": {"domain": {"devices": {"gpus": DEVICES}}}}},
    namespace="ml",
)


@cases(
    ("written", "remedy", "edits"),
    beyond_the_quota=(llmkube(16), "set gpu: 4", [("spec.resources.gpu", 4)]),
    half_of_one=(llmkube("0.5"), "set gpu: 1", [("spec.resources.gpu", 1)]),
    of_a_part_of_it=(dynamo("16"), "set gpu: 4", [("spec.services.a.resources.limits.gpu", 4)]),
    devices_by_name=(VM, "", []),
)
def test_advice_names_the_fields_of_the_author(
    written: JSON, remedy: str, edits: list[tuple[str, Any]]
) -> None:
    shown, _ = document(stdin=yaml.safe_dump_all([written, QUOTA]))["objects"]
    findings = [*shown["findings"], *(each for pod in shown["pods"] for each in pod["findings"])]
    [found] = [each for each in findings if each["reason"] in {"QuotaCanNeverFit", "FractionalGPU"}]

    assert found["remedy"] == remedy
    assert [(each["path"], each["value"]) for each in found["fix"]] == edits

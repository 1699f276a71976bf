"""The field by which an object has fewer pods: each kind of the table has it, and it means what the advice counts on."""

from typing import Any

import pytest

from policies.pods.field_paths import path_parts
from policies.pods.workload import PodCount, PodNumber
from tests.builders import gpu_container
from tests.cases import cases
from webhook.configuration.loader import load_directory
from webhook.configuration.workload_kinds import (
    EVERY_ITEM,
    EVERY_KEY,
    PodPath,
    WorkloadKind,
    factors,
    steps,
)
from webhook.workloads.counts import pod_count
from webhook.workloads.places import PodPlace, pod_places

KINDS = load_directory(None).workload_kinds
TEMPLATE = {"spec": {"containers": [gpu_container()]}}
COUNTED = [
    pytest.param(row, pod_path, id=f"{row.kind}.{row.group} {pod_path.path}")
    for row in KINDS.values()
    for pod_path in row.pods
    if not row.templates_only and any(each.paths for each in factors(pod_path.replicas))
]


def numbers(group: str, kind: str, spec: Any) -> list[tuple[str, int, int, bool] | None]:
    places = pod_places(KINDS, group, kind, {"spec": spec})
    found = [place.count.number for place in places if isinstance(place, PodPlace)]
    return [(each.path, each.each, each.least, each.sets_gang) if each else None for each in found]


@cases(
    ("group", "kind", "spec", "want"),
    replicas_of_groups=("leaderworkerset.x-k8s.io", "LeaderWorkerSet",
        {"replicas": 2, "leaderWorkerTemplate": {"size": 4, "leaderTemplate": TEMPLATE, "workerTemplate": TEMPLATE}},
        [("spec.replicas", 1, 1, False), ("spec.replicas", 3, 1, False)]),
    not_the_size_of_a_group_beside_its_leader=("leaderworkerset.x-k8s.io", "LeaderWorkerSet",
        {"leaderWorkerTemplate": {"size": 4, "leaderTemplate": TEMPLATE, "workerTemplate": TEMPLATE}}, [None, None]),
    what_is_one_does_not_count=("jobset.x-k8s.io", "JobSet",
        {"replicatedJobs": [{"replicas": 1, "template": {"spec": {"parallelism": 8, "template": TEMPLATE}}}]},
        [("spec.replicatedJobs[0].template.spec.parallelism", 1, 1, False)]),
    both_are_several=("jobset.x-k8s.io", "JobSet",
        {"replicatedJobs": [{"replicas": 3, "template": {"spec": {"parallelism": 8, "template": TEMPLATE}}}]},
        [("spec.replicatedJobs[0].replicas", 8, 1, False)]),
    not_below_what_another_field_asks=("ray.io", "RayCluster",
        {"headGroupSpec": {}, "workerGroupSpecs": [{"replicas": 4, "minReplicas": 2, "template": TEMPLATE}]},
        [("spec.workerGroupSpecs[0].replicas", 1, 2, False)]),
    not_where_an_autoscaler_writes_it=("ray.io", "RayCluster", {"enableInTreeAutoscaling": True,
        "headGroupSpec": {}, "workerGroupSpecs": [{"replicas": 4, "maxReplicas": 8, "template": TEMPLATE}]}, [None]),
    a_gang_of_another_field=("batch.volcano.sh", "Job",
        {"minAvailable": 3, "tasks": [{"replicas": 4, "template": TEMPLATE}]},
        [("spec.tasks[0].replicas", 1, 1, False)]),
    a_text=("serving.knative.dev", "Service", {"template": {
        "metadata": {"annotations": {"autoscaling.knative.dev/min-scale": "2"}}, **TEMPLATE}}, [None]),
    in_another_object=("workload.codeflare.dev", "AppWrapper", {"components": [{"template": {
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
        "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 4, "template": TEMPLATE}}}}}]},
        [("spec.components[0].template.spec.pytorchReplicaSpecs.Worker.replicas", 1, 1, True)]),
)  # fmt: skip
def test_which_field_it_is(
    group: str, kind: str, spec: Any, want: list[tuple[str, int, int, bool] | None]
) -> None:
    assert numbers(group, kind, spec) == want


@cases(
    ("number", "gang", "value", "want"),
    any_number=(PodNumber("n"), None, 3, 3),
    whole_gangs=(PodNumber("n"), 2, 5, 4),
    each_makes_a_gang=(PodNumber("n", 4), 4, 3, 3),
    less_than_a_gang=(PodNumber("n"), 4, 3, 0),
    the_gang_is_smaller_then=(PodNumber("n", sets_gang=True), 4, 3, 3),
    less_than_has_an_effect=(PodNumber("n", least=3), None, 2, 0),
    without_a_field=(None, None, 3, 0),
)
def test_a_number_makes_whole_gangs(
    number: PodNumber | None, gang: int | None, value: int, want: int
) -> None:
    assert PodCount(8, None, gang, number).largest_valid(value) == want


def concrete(path: str, pod_path: PodPath) -> tuple[Any, ...]:
    """Return the path in the first item of lists, and under the key Worker of maps."""
    named = {EVERY_ITEM: 0, EVERY_KEY: "Worker"}
    return tuple(named.get(each, each) for each in steps(path, pod_path.path))


def with_numbers(pod_path: PodPath, number: int) -> Any:
    """Return an object in which each field that states a number of pods of one template has this one."""
    data: Any = {}
    for each in factors(pod_path.replicas):
        for path in filter(None, (*each.paths, each.at_most)):
            data = written(data, concrete(path, pod_path), number)
    return data


def written(data: Any, parts: tuple[Any, ...], value: Any) -> Any:
    if not parts:
        return value
    first, *rest = parts
    if first == 0:
        return [written(data[0] if data else {}, tuple(rest), value)]
    return {**data, first: written(data.get(first, {}), tuple(rest), value)}


@pytest.mark.parametrize(("row", "pod_path"), COUNTED)
def test_each_kind_that_states_a_number_of_pods_has_a_field_for_fewer(
    row: WorkloadKind, pod_path: PodPath
) -> None:
    at, data = concrete(pod_path.path, pod_path), with_numbers(pod_path, 4)
    count = pod_count(row, pod_path, data, at)
    assert count.number is not None
    value = count.largest_valid(3)
    assert value == 3

    fewer = pod_count(row, pod_path, written(data, path_parts(count.number.path), value), at)
    assert fewer.running == value * count.number.each
    assert (fewer.gang == count.gang) is not count.number.sets_gang or count.gang is None

"""What a pod may cost the API server in CEL: it denies a pod for which an expression or a policy costs too much.

The API server tells no cost. A pod with twice as much as `policies.pods.limits` admits costs at least twice as much: where it is
admitted, the largest pod costs at most half of each budget.
"""

from collections.abc import Callable

import pytest

from policies.pods.limits import MAX_COMPARED, MAX_CONTAINERS, MAX_IN_POD
from tests.builders import JSON, container, gpu_container, pod
from tests.cases import cases
from tests.cluster.exported import TEAM, create
from tests.controlplane import ControlPlane, accepted

TWICE = 2
VARIABLES = 4_000
"""Of all containers: with name and value they are most of `MAX_VALUES`."""
ANNOTATIONS = 6_500
"""Twice as many are as long as the API server accepts."""


def variables(count: int) -> list[JSON]:
    return [{"name": f"VARIABLE_{number}", "value": "x" * 40} for number in range(count)]


def containers(times: int, **fields: object) -> JSON:
    apps = [container(f"c{number}", **fields) for number in range(MAX_CONTAINERS * times)]
    inits = [container(f"i{number}", **fields) for number in range(MAX_CONTAINERS * times)]
    return {"containers": apps, "initContainers": inits}


def with_variables(times: int) -> JSON:
    return containers(times, env=variables(VARIABLES // MAX_CONTAINERS // 2))


def with_volumes(times: int) -> JSON:
    count = MAX_IN_POD * times
    volumes = [{"name": f"v{number}", "hostPath": {"path": f"/data/{number}"}} for number in range(count)]
    mounts = [{"name": f"v{number}", "mountPath": f"/mnt/{number}"} for number in range(count)]
    made = containers(times)
    for number, each in enumerate([*made["containers"], *made["initContainers"]]):
        each["volumeMounts"] = mounts[number :: MAX_CONTAINERS * 2 * times]
    return {**made, "volumes": volumes}


def with_tolerations(times: int) -> JSON:
    tolerations = [{"key": f"k{number}", "operator": "Exists"} for number in range(MAX_COMPARED * times)]
    selector = {f"example.com/l{number}": "v" for number in range(MAX_COMPARED * times)}
    return {**containers(1), "tolerations": tolerations, "nodeSelector": selector}


def with_resources(times: int) -> JSON:
    limits = {"nvidia.com/gpu": "0", "example.com/r": "1"}
    return containers(times, resources={"limits": limits, "requests": limits})


def with_annotations(times: int) -> JSON:
    return {
        **containers(1),
        "annotations": {f"example.com/{number}": "v" for number in range(ANNOTATIONS * times)},
    }


def with_some_of_all(times: int) -> JSON:
    """Return what is large in every way, and has as many values as one pod may have for each of `times`."""
    made = {**with_tolerations(times), **with_volumes(times)}
    for each in made["containers"]:
        each.update(env=variables(20), resources={"limits": {"nvidia.com/gpu": "0", "example.com/r": "1"}})
    return made


@pytest.mark.parametrize("has_gpu", [True, False])
@cases(
    "make",
    variables=with_variables,
    volumes=with_volumes,
    tolerations=with_tolerations,
    resources=with_resources,
    annotations=with_annotations,
    some_of_all=with_some_of_all,
)
def test_twice_the_largest_pod_costs_not_too_much(
    exported: ControlPlane, make: Callable[[int], JSON], has_gpu: bool
) -> None:
    spec = make(TWICE)
    if has_gpu:
        spec["containers"][0]["resources"] = gpu_container()["resources"]
    metadata = {"name": "large", "annotations": spec.pop("annotations", {})}
    document = {**pod(container()), "metadata": metadata, "spec": {**pod(container())["spec"], **spec}}

    accepted(create(exported.client(), document, TEAM))

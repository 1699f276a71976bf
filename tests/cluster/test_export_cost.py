"""What a pod may cost the API server in CEL: it denies a pod for which an expression or a policy costs too much.

The API server tells no cost. A pod with twice as much as `policies.pods.limits` admits costs at least twice as much: where it is
understood, the largest pod costs at most half of each budget. The policies here have twice the limits, so that they read it.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from policies.gpus.cards import MAX_RESOURCES
from policies.pods import limits
from policies.pods.limits import (
    MAX_AMOUNTS,
    MAX_COMPARED,
    MAX_CONTAINERS,
    MAX_HOST_PATHS,
    MAX_IN_POD,
    MAX_INIT_CONTAINERS,
    MAX_ITEMS,
    MAX_NAME_CHARACTERS,
    MAX_PATH_CHARACTERS,
)
from tests.builders import JSON, container, gpu_container, pod
from tests.cases import cases
from tests.cluster.exported import TEAM, configuration, create, installed
from tests.controlplane import ControlPlane, accepted
from webhook.tools.export import facts

ANNOTATIONS = 6_500
"""Twice as many are as long as the API server accepts."""
ADDED = 20
"""Tolerations that the policies and the API server add to a pod, at most; of variables, each container gets one."""


def containers(times: int) -> list[JSON]:
    """Return the app containers, and then the init containers, of which half are sidecars."""
    apps = [container(f"c{number}") for number in range(MAX_CONTAINERS * times)]
    inits = [container(f"i{number}") for number in range(MAX_INIT_CONTAINERS * times)]
    sidecars = [{**each, "restartPolicy": "Always"} for each in inits[: len(inits) // 2]]
    return [*apps, *sidecars, *inits[len(sidecars) :]]


def made(all_containers: list[JSON], **spec: Any) -> JSON:
    apps = [each for each in all_containers if each["name"].startswith("c")]
    return {"containers": apps, "initContainers": all_containers[len(apps) :], **spec}


def spread(all_containers: list[JSON], field: str, items: list[JSON]) -> list[JSON]:
    """Give the containers equal shares of the items."""
    for number, each in enumerate(all_containers):
        each.setdefault(field, []).extend(items[number :: len(all_containers)])
    return all_containers


def with_variables(times: int, name: str = "VARIABLE") -> JSON:
    listed = containers(times)
    variables = [{"name": name, "value": "x" * 40}] * (MAX_ITEMS * times - len(listed))
    return made(spread(listed, "env", variables))


def seeing_gpus(times: int) -> JSON:
    return with_variables(times, "NVIDIA_VISIBLE_DEVICES")


def mounting(times: int, path: str, *, at: str = "/mnt", count: int = MAX_HOST_PATHS) -> JSON:
    """Return a pod with as many mounts as there may be, of `count` files of the node; the last container mounts each."""
    names = [f"v{number}" for number in range(count)]
    volumes = [{"name": name, "hostPath": {"path": path}} for name in names]
    volumes += [{"name": f"e{number}", "emptyDir": {}} for number in range(MAX_IN_POD * times - count)]
    listed = containers(times)
    most = MAX_ITEMS * times - count - len(listed)
    spread(listed, "volumeMounts", [{"name": "e0", "mountPath": f"{at}/{number}"} for number in range(most)])
    listed[-1]["volumeMounts"] += [{"name": name, "mountPath": f"/host/{name}"} for name in names]
    return made(listed, volumes=volumes)


def with_volumes(times: int) -> JSON:
    path = "/data/" + "./a" * ((MAX_PATH_CHARACTERS // MAX_HOST_PATHS - 6) // 3)
    return mounting(times, path, count=MAX_HOST_PATHS * times)


def with_devices(times: int) -> JSON:
    return mounting(times, "/dev/nvidia0")


def with_lists_of_devices(times: int) -> JSON:
    return mounting(times, "/data", at="/var/run/nvidia-container-devices")


def with_tolerations(times: int) -> JSON:
    tolerations = [
        {"key": f"k{number}", "operator": "Exists"} for number in range(MAX_COMPARED * times - ADDED)
    ]
    selector = {f"example.com/l{number}": "v" for number in range(MAX_COMPARED * times)}
    return made(containers(1), tolerations=tolerations, nodeSelector=selector)


def requesting(listed: list[JSON], times: int, names: list[str]) -> list[JSON]:
    """Give the containers as many amounts as there may be, of these names one after the other."""
    each = MAX_AMOUNTS * times // 2 // len(listed)
    for number, one in enumerate(listed):
        chosen = [names[(number * each + more) % len(names)] for more in range(each)]
        one["resources"] = {side: dict.fromkeys(chosen, "0") for side in ("limits", "requests")}
    return listed


def with_resources(times: int) -> JSON:
    longest = MAX_NAME_CHARACTERS // MAX_AMOUNTS
    names = [f"example.com/r{number:04}".ljust(longest, "x") for number in range(MAX_AMOUNTS * times // 2)]
    return made(requesting(containers(times), times, names))


def with_long_names(times: int) -> JSON:
    """Return names that are as long as may be, each in a container of its own: to compare them is quadratic in their number."""
    prefix, listed = ".".join(["a" * 60] * 4), containers(1)
    length = MAX_NAME_CHARACTERS * times // 2 // len(listed)
    for number, each in enumerate(listed):
        amounts = {f"{prefix[: length - 55]}/r{number:053}": "0"}
        each["resources"] = {"limits": amounts, "requests": amounts}
    return made(listed)


def with_slices(times: int) -> JSON:
    """Return slices of many names in as many containers as there may be: what runs together is quadratic in their number."""
    names = [f"nvidia.com/mig-1g.{number}gb" for number in range(MAX_RESOURCES * times - 1)]
    return made(requesting(containers(1), 1, names))


def with_annotations(times: int, name: str = "example.com") -> JSON:
    return made(containers(1), annotations={f"{name}/{number}": "v" for number in range(ANNOTATIONS * times)})


def naming_devices(times: int) -> JSON:
    return with_annotations(times, "cdi.k8s.io")


def with_all(times: int) -> JSON:
    """Return what is as large as may be in every way at once."""
    files = with_volumes(times)
    listed = [*files["containers"], *files["initContainers"]]
    requesting(listed, times, ["nvidia.com/mig-1g.5gb", "nvidia.com/gpu"])
    for each in listed:
        half = len(each["volumeMounts"]) // 2
        each["env"] = [{"name": "VARIABLE", "value": "x" * 40}] * half
        each["volumeMounts"] = each["volumeMounts"][half:]
    annotations = with_annotations(times)["annotations"]
    return {**with_tolerations(times), **files, "annotations": annotations}


def document_of(spec: JSON, *, has_gpu: bool) -> JSON:
    if has_gpu:
        spec["containers"][0]["resources"] = gpu_container()["resources"]
    metadata = {"name": "large", "annotations": spec.pop("annotations", {})}
    # The API server would add a volume to the pod, and a mount of it to each container.
    spec |= {"automountServiceAccountToken": False}
    return {**pod(container()), "metadata": metadata, "spec": {**pod(container())["spec"], **spec}}


@pytest.fixture(scope="module")
def lenient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Serve the API with the exported policies, but with twice the limits."""
    with ExitStack() as stack:
        # Patched while it is exported, not for the other tests of this module.
        with pytest.MonkeyPatch.context() as patch:
            for name, value in vars(limits).copy().items():
                if isinstance(value, int):
                    patch.setattr(limits, name, value * TWICE)
            doubled = {name: most * TWICE for name, most in limits.POD_LIMITS.items()}
            patch.setattr(limits, "POD_LIMITS", doubled)
            patch.setattr(facts, "MAX_RESOURCES", MAX_RESOURCES * TWICE)
            plane = stack.enter_context(ControlPlane())
            stack.enter_context(installed(plane, configuration(tmp_path_factory.mktemp("lenient"))))
        yield plane


TWICE = 2
ADMITTED = ""
MORE = [{"name": "A", "value": "x"}] * (MAX_ITEMS + 1)
ITEMS = "items of env, envFrom and volumeMounts in all containers"
ISOLATED = "No container sees GPUs that it did not request, by a variable, files of the node or an annotation. [gpu-isolation]"


@pytest.mark.parametrize("has_gpu", [True, False])
@cases(
    ("make", "said"),
    variables=(with_variables, ADMITTED),
    variables_that_show_gpus=(seeing_gpus, ISOLATED),
    volumes=(with_volumes, ADMITTED),
    devices=(with_devices, ISOLATED),
    lists_of_devices=(with_lists_of_devices, ISOLATED),
    tolerations=(with_tolerations, ADMITTED),
    resources=(with_resources, ADMITTED),
    long_names=(with_long_names, ADMITTED),
    slices=(with_slices, ADMITTED),
    annotations=(with_annotations, ADMITTED),
    annotations_that_name_devices=(naming_devices, ISOLATED),
    all_of_it=(with_all, ADMITTED),
)
def test_twice_the_largest_pod_costs_not_too_much(
    lenient: ControlPlane, make: Callable[[int], JSON], said: str, has_gpu: bool
) -> None:
    answer = create(lenient.client(), document_of(make(TWICE), has_gpu=has_gpu), TEAM)

    if said == ADMITTED:
        accepted(answer)
    else:
        assert (answer[0], answer[1]["message"].endswith(said)) == (403, True), answer[1]["message"][-400:]


@pytest.mark.parametrize("has_gpu", [True, False])
def test_the_largest_pod_is_admitted(exported: ControlPlane, has_gpu: bool) -> None:
    accepted(create(exported.client(), document_of(with_all(1), has_gpu=has_gpu), TEAM))


EXCLUDED = re.compile(
    r'^apiserver_admission_match_condition_evaluation_seconds_count\{.*name="([^"]+)".*\} (\d+)', re.MULTILINE
)


def exclusions(plane: ControlPlane) -> Counter[str]:
    """Return by policy how many pods its match condition has excluded."""
    return Counter({name: int(count) for name, count in EXCLUDED.findall(plane.client().get("/metrics")[1])})


@cases(
    "document",
    without_a_gpu=pod(container(env=[{"name": "A", "value": "b"}])),
    with_gpus_within_every_limit=pod(gpu_container("2")),
)
def test_of_most_pods_no_finding_is_looked_for(exported: ControlPlane, document: JSON) -> None:
    before = exclusions(exported)

    accepted(create(exported.client(), document, TEAM))

    excluded = exclusions(exported) - before
    validating = ("gpu-isolation.exposed", "gpu-requests")
    assert {f"gpu-admission.team.{part}" for part in validating} | {"gpu-admission.limits"} <= set(excluded)
    assert "gpu-admission.team.gpu-isolation.void" not in excluded


@cases(
    ("spec", "said"),
    containers=(made([*containers(1), container("i-more")]), "spec.initContainers: must have at most 64 items, not 65"),
    variables=(made(spread(containers(1), "env", MORE)), f"spec: must have at most 4000 {ITEMS}, not "),
    hosts=(mounting(1, "/data", count=65), "spec.volumes: must have at most 64 with a hostPath, not 65"),
    paths=(mounting(1, "/" * 600), "spec.volumes: must have at most 32768 characters in all hostPaths, not 38400"),
    amounts=(with_resources(2), "spec.containers: must have at most 128 items, not 256"),
    names=(with_long_names(2), "spec: must have at most 32768 characters of resource names in all containers, not "),
    slices=(with_slices(2), "spec: must have at most 16 GPU resources in all containers, not "),
    tolerations=(with_tolerations(2), "spec.tolerations: must have at most 256 items, not "),
)  # fmt: skip
def test_a_longer_pod_is_refused_by_name(exported: ControlPlane, spec: JSON, said: str) -> None:
    status, answer = create(exported.client(), document_of({**spec}, has_gpu=False), TEAM)

    assert (status, said in answer["message"], "[limits]" in answer["message"]) == (403, True, True), answer

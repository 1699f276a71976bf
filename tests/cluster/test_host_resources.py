"""host-resources beside the API server's own LimitRanger: nothing that the rule adds makes it refuse a pod."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.builders import JSON, container, deployment, pod
from tests.cases import cases
from tests.cluster.applying import apply, named, stored
from tests.cluster.configuration import default_policy
from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane, accepted
from tests.controlplane.gpuquota import Namespace
from tests.controlplane.webhook import Webhook, serving

CLASS = """\
---
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUClass
metadata: {name: shared}
spec:
  memoryGiB: 80
  gpusPerNode: 8
  nodeLabels: [{key: accelerator, values: [shared]}]
  migProfiles: {1g.10gb: {sevenths: 1, memoryGiB: 10, perGPU: 7}}
  perGPU: {cpu: 12, memory: 120Gi}
"""
RULES = {"gpu-class": {"default": "shared"}, "host-resources": {"mode": "enforce", "max": 1.5}}
ON = "shares"
PROXY = container("proxy", resources={"limits": {"cpu": "1", "memory": "1Gi"}})


@pytest.fixture(scope="module", autouse=True)
def webhook(plane: ControlPlane) -> Iterator[Webhook]:
    reading = ("--kubeconfig", plane.kubeconfig())
    with serving(plane, default_policy(RULES) + CLASS, ON, arguments=reading) as running:
        yield running


def trainer(gpus: str = "1", resource: str = "nvidia.com/gpu", **amounts: JSON) -> JSON:
    limits = {resource: gpus, **amounts.get("limits", {})}
    return container(resources={**amounts, "limits": limits})


def in_container(**amounts: JSON) -> JSON:
    return {"type": "Container", **amounts}


def small(**more: str) -> JSON:
    return {"cpu": "1", "memory": "1Gi", **more}


def compute(amounts: JSON) -> tuple[str | None, str | None]:
    return amounts.get("cpu"), amounts.get("memory")


NOTHING = (None, None)


@cases(
    ("limits", "document", "requests", "limited", "qos"),
    no_limit_range=([], pod(trainer("2")), ("24", "240Gi"), NOTHING, "Burstable"),
    a_slice=([], pod(trainer(resource="nvidia.com/mig-1g.10gb")), ("1714m", "17554Mi"), NOTHING, "Burstable"),
    guaranteed_by_its_author=(
        [],
        pod(trainer(limits={"cpu": "4", "memory": "8Gi"})),
        ("4", "8Gi"),
        ("4", "8Gi"),
        "Guaranteed",
    ),
    small_defaults_and_a_max=(
        [in_container(default=small(), max={"cpu": "8", "memory": "64Gi"})],
        pod(trainer(), PROXY),
        ("8", "64Gi"),
        ("8", "64Gi"),
        "Guaranteed",
    ),
    a_request_of_the_author_beside_small_defaults=(
        [in_container(default=small(cpu="8"))],
        pod(trainer(requests={"cpu": "2"})),
        ("2", "120Gi"),
        ("8", "120Gi"),
        "Burstable",
    ),
    a_max_that_is_the_default_of_every_container=(
        [in_container(max={"cpu": "64", "memory": "512Gi"})],
        pod(trainer()),
        ("12", "120Gi"),
        ("12", "120Gi"),
        "Guaranteed",
    ),
    requests_below_limits=(
        [in_container(default={"cpu": "16", "memory": "16Gi"}, defaultRequest=small())],
        pod(trainer()),
        ("12", "120Gi"),
        ("16", "120Gi"),
        "Burstable",
    ),
    a_ratio=(
        [in_container(default={"cpu": "4"}, defaultRequest={"cpu": "2"}, maxLimitRequestRatio={"cpu": "2"})],
        pod(trainer(requests={"memory": "1Gi"})),
        ("12", "1Gi"),
        ("12", None),
        "Burstable",
    ),
    a_min_above_the_share=(
        [in_container(min={"cpu": "13"}, max={"cpu": "16"})],
        pod(trainer(requests={"memory": "1Gi"})),
        ("16", "1Gi"),
        ("16", None),
        "Burstable",
    ),
    the_max_of_a_pod=(
        [{"type": "Pod", "max": {"cpu": "5"}}],
        pod(trainer(requests={"memory": "1Gi"}), PROXY),
        ("4", "1Gi"),
        NOTHING,
        "Burstable",
    ),
    the_max_of_a_pod_beside_defaults=(
        [in_container(default={"cpu": "1"}), {"type": "Pod", "max": {"cpu": "5"}}],
        pod(trainer(requests={"memory": "1Gi"}), PROXY),
        ("4", "1Gi"),
        ("4", None),
        "Burstable",
    ),
    the_ratio_of_a_pod=(
        [in_container(default={"cpu": "1"}), {"type": "Pod", "maxLimitRequestRatio": {"cpu": "1"}}],
        pod(trainer(requests={"memory": "1Gi"})),
        ("1", "1Gi"),
        ("1", None),
        "Burstable",
    ),
    the_pod_has_resources_of_its_own=(
        [],
        pod(trainer(), resources={"limits": {"cpu": "8", "memory": "32Gi"}}),
        NOTHING,
        NOTHING,
        "Guaranteed",
    ),
    the_pod_has_memory_of_its_own=(
        [],
        pod(trainer(), resources={"limits": {"memory": "32Gi"}}),
        ("12", None),
        NOTHING,
        "Burstable",
    ),
    a_forged_annotation=(
        [in_container(default=small(), max={"cpu": "8", "memory": "64Gi"})],
        pod(
            trainer(limits={"cpu": "2", "memory": "2Gi"}),
            annotations={
                "kubernetes.io/limit-ranger": "LimitRanger plugin set: cpu request for container main"
            },
        ),
        ("2", "2Gi"),
        ("2", "2Gi"),
        "Guaranteed",
    ),
)
def test_what_a_pod_gets(
    plane: ControlPlane,
    limits: list[JSON],
    document: JSON,
    requests: tuple[str | None, ...],
    limited: tuple[str | None, ...],
    qos: str,
) -> None:
    team = Namespace(plane)
    if limits:
        body = {"metadata": {"name": "l"}, "spec": {"limits": limits}}
        accepted(team.client.post(team.path("limitranges"), body))
    made: dict[str, Any] = {}
    written = {**document, "metadata": {**document["metadata"], "namespace": team.name}}

    def gets() -> tuple[Any, ...]:
        nonlocal made
        status, made = team.create(written, DRY)
        if status != 201:  # the API server knows a maximum before the webhook does
            return ()
        (main,) = (each for each in made["spec"]["containers"] if each["name"] == "main")
        return compute(main["resources"].get("requests", {})), compute(main["resources"].get("limits", {}))

    # The watch of LimitRanges is a moment late, and until then a default stays a default.
    assert eventually(lambda: gets() == (requests, limited), seconds=10), made
    assert made["status"]["qosClass"] == qos


DRY = {"dryRun": "All"}


def test_a_second_apply_changes_nothing(plane: ControlPlane) -> None:
    document = named("twice", pod(trainer("2")), ON)
    first, said = apply(plane, document)
    made = stored(plane, "twice", ON)

    second, again = apply(plane, document)

    assert (first, second) == (True, True), (said, again)
    assert stored(plane, "twice", ON)["spec"] == made["spec"]
    assert made["metadata"]["annotations"]["gpu-admission.dev/injected"].splitlines()[-1] == (
        "host-resources: main: requests cpu=24, main: requests memory=240Gi"
    )


TOO_MUCH = (
    "must be at most 18: a GPU's share on shared is 12 CPUs, and max allows 1.5 times that; 64 leave 5 GPUs without CPUs "
    "of their own [host-resources]"
)


def test_a_pod_that_takes_the_share_of_others_is_denied(plane: ControlPlane) -> None:
    accepted_, said = apply(plane, named("greedy", pod(trainer(requests={"cpu": "64"})), ON))

    assert not accepted_
    assert (
        f'spec.containers[0].resources.requests[cpu] (container "main") = "64": set cpu: 18; {TOO_MUCH}'
        in said
    )


def test_the_author_of_a_deployment_hears_of_it_at_once(plane: ControlPlane) -> None:
    accepted_, said = apply(plane, deployment("greedy", trainer(requests={"cpu": "64"}), namespace=ON))

    assert accepted_
    assert f'containers[0].resources.requests.cpu (container "main") = "64": set cpu: 18; {TOO_MUCH}' in said

"""PodPatch: each verb sends the smallest patch that a JSON patch library can apply, and the next rule sees the same pod."""

from collections.abc import Callable
from typing import Any

import pytest

from policies.pods.patch import PodPatch
from policies.pods.pod import (
    Container,
    ContainerPlace,
    EmptyDir,
    NodeSelectorRequirement,
    Probe,
    Toleration,
    Volume,
    VolumeMount,
)
from tests.builders import JSON, apply, container, gpu_container, operations, pod, view

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TOLERATION = Toleration(key="nvidia.com/gpu", operator="Exists", effect="NoSchedule")
TOLERATION_JSON = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
OTHER_TOLERATION = {"key": "team", "value": "ml", "effect": "NoSchedule"}
IN_A100 = NodeSelectorRequirement(
    key="accelerator", operator="In", values=("nvidia-a100-40gb", "nvidia-a100-80gb")
)
IN_A100_JSON = {"key": "accelerator", "operator": "In", "values": ["nvidia-a100-40gb", "nvidia-a100-80gb"]}
IN_ZONE = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}
ON_NODE = {"key": "metadata.name", "operator": "In", "values": ["node-1"]}
SHM = Volume(name="shm", empty_dir=EmptyDir(medium="Memory", size_limit="1Gi"))
SHM_JSON = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}
MOUNT = VolumeMount(name="shm", mount_path="/dev/shm")  # noqa: S108 - the path in the container is the point
MOUNT_JSON = {"name": "shm", "mountPath": "/dev/shm"}  # noqa: S108 - likewise
HTTP = {"httpGet": {"path": "/health", "port": 8000}}
FETCH = Container(name="fetch", image="registry.example/fetch:1")
FETCH_JSON = {"name": "fetch", "image": "registry.example/fetch:1"}

Verb = Callable[[PodPatch], None]


def first(patch: PodPatch) -> ContainerPlace:
    return next(iter(patch.pod.places))


def first_init(patch: PodPatch) -> ContainerPlace:
    return next(place for place in patch.pod.places if place.list_name == "initContainers")


def affinity(*terms: JSON) -> JSON:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


def tolerate(patch: PodPatch) -> None:
    patch.add_toleration(TOLERATION)


def select(patch: PodPatch) -> None:
    patch.set_node_selector("example.com/accel~type", "nvidia-t4")


def require(patch: PodPatch) -> None:
    patch.require_node_affinity(IN_A100)


def add_volume(patch: PodPatch) -> None:
    patch.add_volume(SHM)


def annotate(patch: PodPatch) -> None:
    patch.set_annotation("gpu-admission.dev/injected", "gpu-class")


def add_mount(patch: PodPatch) -> None:
    patch.add_volume_mount(first(patch), MOUNT)


def limit(patch: PodPatch) -> None:
    patch.set_resource(first(patch), "limits", "nvidia.com/gpu", "1")


def add_env(patch: PodPatch) -> None:
    patch.add_env(first(patch), "NVIDIA_VISIBLE_DEVICES", "void")


def add_env_to_init(patch: PodPatch) -> None:
    patch.add_env(first_init(patch), "NVIDIA_VISIBLE_DEVICES", "void")


def delay(patch: PodPatch) -> None:
    patch.set_initial_delay(first(patch), 72)


def start(patch: PodPatch) -> None:
    readiness = first(patch).container.readiness_probe
    assert readiness is not None
    patch.set_startup_probe(
        first(patch), Probe(http_get=readiness.http_get, period_seconds=10, failure_threshold=9)
    )


def fetch_at(index: int) -> Verb:
    return lambda patch: patch.add_init_container(FETCH, index)


def with_main(**tweaks: Any) -> JSON:
    return pod(container(**tweaks))


@pytest.mark.parametrize(
    ("document", "verb", "want"),
    [
        pytest.param(pod(), tolerate, pod(tolerations=[TOLERATION_JSON]), id="toleration-without-a-list"),
        pytest.param(
            pod(tolerations=None),
            tolerate,
            pod(tolerations=[TOLERATION_JSON]),
            id="toleration-where-the-list-is-null",
        ),
        pytest.param(
            pod(tolerations=[]),
            tolerate,
            pod(tolerations=[TOLERATION_JSON]),
            id="toleration-in-an-empty-list",
        ),
        pytest.param(
            pod(tolerations=[OTHER_TOLERATION]),
            tolerate,
            pod(tolerations=[OTHER_TOLERATION, TOLERATION_JSON]),
            id="toleration-behind-another",
        ),
        pytest.param(
            pod(),
            select,
            pod(nodeSelector={"example.com/accel~type": "nvidia-t4"}),
            id="node-selector-without-a-map",
        ),
        pytest.param(
            pod(nodeSelector=None),
            select,
            pod(nodeSelector={"example.com/accel~type": "nvidia-t4"}),
            id="node-selector-where-the-map-is-null",
        ),
        pytest.param(
            pod(nodeSelector={"disk": "ssd"}),
            select,
            pod(nodeSelector={"disk": "ssd", "example.com/accel~type": "nvidia-t4"}),
            id="node-selector-key-with-slash-and-tilde",
        ),
        pytest.param(
            pod(),
            require,
            pod(affinity=affinity({"matchExpressions": [IN_A100_JSON]})),
            id="affinity-without-any",
        ),
        pytest.param(
            pod(affinity=None),
            require,
            pod(affinity=affinity({"matchExpressions": [IN_A100_JSON]})),
            id="affinity-that-is-null",
        ),
        pytest.param(
            pod(affinity={"podAffinity": {"unread": True}}),
            require,
            pod(affinity={"podAffinity": {"unread": True}} | affinity({"matchExpressions": [IN_A100_JSON]})),
            id="affinity-beside-pod-affinity",
        ),
        pytest.param(
            pod(affinity={"nodeAffinity": {"preferred": ["kept"], REQUIRED: None}}),
            require,
            pod(
                affinity={
                    "nodeAffinity": {
                        "preferred": ["kept"],
                        REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [IN_A100_JSON]}]},
                    }
                }
            ),
            id="affinity-beside-preferred",
        ),
        pytest.param(
            pod(affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": None}}}),
            require,
            pod(affinity=affinity({"matchExpressions": [IN_A100_JSON]})),
            id="affinity-whose-terms-are-null",
        ),
        pytest.param(
            pod(affinity=affinity({"matchExpressions": [IN_ZONE]}, {"matchFields": [ON_NODE]})),
            require,
            pod(
                affinity=affinity(
                    {"matchExpressions": [IN_ZONE, IN_A100_JSON]},
                    {"matchFields": [ON_NODE], "matchExpressions": [IN_A100_JSON]},
                )
            ),
            id="affinity-in-every-alternative",
        ),
        pytest.param(
            pod(affinity=affinity({}, {"matchExpressions": [IN_ZONE]})),
            require,
            pod(affinity=affinity({}, {"matchExpressions": [IN_ZONE, IN_A100_JSON]})),
            id="affinity-not-in-an-empty-alternative-which-matches-nothing",
        ),
        pytest.param(pod(), add_volume, pod(volumes=[SHM_JSON]), id="volume-without-a-list"),
        pytest.param(
            pod(volumes=[{"name": "data", "csi": {"driver": "unread"}}]),
            add_volume,
            pod(volumes=[{"name": "data", "csi": {"driver": "unread"}}, SHM_JSON]),
            id="volume-behind-one-we-do-not-read",
        ),
        pytest.param(
            pod(), fetch_at(0), pod(initContainers=[FETCH_JSON]), id="init-container-without-a-list"
        ),
        pytest.param(
            pod(initContainers=[]),
            fetch_at(0),
            pod(initContainers=[FETCH_JSON]),
            id="init-container-in-an-empty-list",
        ),
        pytest.param(
            pod(initContainers=[container("proxy"), container("setup")]),
            fetch_at(1),
            pod(initContainers=[container("proxy"), FETCH_JSON, container("setup")]),
            id="init-container-in-between",
        ),
        pytest.param(
            pod(initContainers=[container("proxy")]),
            fetch_at(1),
            pod(initContainers=[container("proxy"), FETCH_JSON]),
            id="init-container-at-the-end",
        ),
        pytest.param(
            pod(),
            annotate,
            pod(annotations={"gpu-admission.dev/injected": "gpu-class"}),
            id="annotation-without-a-map",
        ),
        pytest.param(
            pod(annotations={"a/b": "c"}),
            annotate,
            pod(annotations={"a/b": "c", "gpu-admission.dev/injected": "gpu-class"}),
            id="annotation-beside-another",
        ),
        pytest.param(
            {"spec": {"containers": [container()]}},
            annotate,
            {
                "metadata": {"annotations": {"gpu-admission.dev/injected": "gpu-class"}},
                "spec": {"containers": [container()]},
            },
            id="annotation-without-metadata",
        ),
        pytest.param(
            with_main(),
            limit,
            with_main(resources={"limits": {"nvidia.com/gpu": "1"}}),
            id="limit-without-resources",
        ),
        pytest.param(
            with_main(resources=None),
            limit,
            with_main(resources={"limits": {"nvidia.com/gpu": "1"}}),
            id="limit-where-resources-are-null",
        ),
        pytest.param(
            with_main(resources={"requests": {"nvidia.com/gpu": "1"}, "limits": None}),
            limit,
            with_main(resources={"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}),
            id="limit-where-limits-are-null",
        ),
        pytest.param(
            with_main(resources={"limits": {"memory": "1Gi"}}),
            limit,
            with_main(resources={"limits": {"memory": "1Gi", "nvidia.com/gpu": "1"}}),
            id="limit-beside-another",
        ),
        pytest.param(
            with_main(),
            add_env,
            with_main(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]),
            id="env-without-a-list",
        ),
        pytest.param(
            with_main(env=[{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]),
            add_env,
            with_main(
                env=[
                    {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                    {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"},
                ]
            ),
            id="env-behind-a-value-from",
        ),
        pytest.param(
            pod(initContainers=[container("setup")]),
            add_env_to_init,
            pod(
                initContainers=[container("setup", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}])]
            ),
            id="env-of-an-init-container",
        ),
        pytest.param(with_main(), add_mount, with_main(volumeMounts=[MOUNT_JSON]), id="mount-without-a-list"),
        pytest.param(
            with_main(volumeMounts=[{"name": "data", "mountPath": "/data"}]),
            add_mount,
            with_main(volumeMounts=[{"name": "data", "mountPath": "/data"}, MOUNT_JSON]),
            id="mount-behind-another",
        ),
        pytest.param(
            with_main(readinessProbe=HTTP),
            delay,
            with_main(readinessProbe={**HTTP, "initialDelaySeconds": 72}),
            id="delay-that-was-not-set",
        ),
        pytest.param(
            with_main(readinessProbe={**HTTP, "initialDelaySeconds": 5, "periodSeconds": 3}),
            delay,
            with_main(readinessProbe={**HTTP, "initialDelaySeconds": 72, "periodSeconds": 3}),
            id="delay-in-place-of-another",
        ),
        pytest.param(
            with_main(readinessProbe=HTTP),
            start,
            with_main(readinessProbe=HTTP, startupProbe={**HTTP, "periodSeconds": 10, "failureThreshold": 9}),
            id="startup-probe-with-a-copied-handler",
        ),
        pytest.param(
            with_main(readinessProbe=HTTP, startupProbe=None),
            start,
            with_main(readinessProbe=HTTP, startupProbe={**HTTP, "periodSeconds": 10, "failureThreshold": 9}),
            id="startup-probe-that-is-null",
        ),
    ],
)
def test_verb(document: JSON, verb: Verb, want: JSON) -> None:
    patch = PodPatch(view(document))

    verb(patch)

    patched = apply(document, patch)
    assert patched == want
    assert patch.pod == view(patched)  # what the next rule sees is what the API server will see
    assert len(patch.changes) == 1


@pytest.mark.parametrize(
    ("document", "verb", "want"),
    [
        pytest.param(pod(), tolerate, "toleration nvidia.com/gpu:NoSchedule", id="toleration"),
        pytest.param(pod(), select, "nodeSelector example.com/accel~type=nvidia-t4", id="node-selector"),
        pytest.param(
            pod(), require, "node affinity accelerator In nvidia-a100-40gb,nvidia-a100-80gb", id="affinity"
        ),
        pytest.param(pod(), add_volume, "volume shm", id="volume"),
        pytest.param(pod(), fetch_at(0), "initContainer fetch", id="init-container"),
        pytest.param(pod(), annotate, "annotation gpu-admission.dev/injected", id="annotation"),
        pytest.param(pod(), limit, "main: limits nvidia.com/gpu=1", id="limit"),
        pytest.param(pod(), add_env, "main: env NVIDIA_VISIBLE_DEVICES=void", id="env"),
        pytest.param(pod(), add_mount, "main: volumeMount /dev/shm", id="mount"),
        pytest.param(
            with_main(readinessProbe=HTTP),
            delay,
            "main: readinessProbe.initialDelaySeconds=72",
            id="initial-delay",
        ),
        pytest.param(
            with_main(readinessProbe=HTTP), start, "main: startupProbe for 90 s", id="startup-probe"
        ),
    ],
)
def test_words_for_people(document: JSON, verb: Verb, want: str) -> None:
    patch = PodPatch(view(document))

    verb(patch)

    assert [change.what for change in patch.changes] == [want]


def test_second_toleration_is_appended_to_the_list_that_the_first_one_made() -> None:
    document = pod()
    patch = PodPatch(view(document))

    patch.add_toleration(TOLERATION)
    patch.add_toleration(Toleration(key="dedicated", value="ml-workloads", effect="NoSchedule"))

    assert [(op["op"], op["path"]) for op in operations(patch)] == [
        ("add", "/spec/tolerations"),
        ("add", "/spec/tolerations/-"),
    ]
    assert apply(document, patch)["spec"]["tolerations"] == [
        TOLERATION_JSON,
        {"key": "dedicated", "value": "ml-workloads", "effect": "NoSchedule"},
    ]


def test_a_place_is_read_again_after_each_change_to_its_container() -> None:
    document = with_main(readinessProbe=HTTP)
    patch = PodPatch(view(document))

    delay(patch)
    start(patch)
    add_env(patch)

    patched = apply(document, patch)
    assert patch.pod == view(patched)
    assert patched["spec"]["containers"][0] == {
        **container(),
        "readinessProbe": {**HTTP, "initialDelaySeconds": 72},
        "startupProbe": {**HTTP, "periodSeconds": 10, "failureThreshold": 9},
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
    }


def test_initial_delay_needs_a_readiness_probe() -> None:
    patch = PodPatch(view(pod(gpu_container())))

    with pytest.raises(ValueError, match=r"^spec\.containers\[0\] has no readinessProbe$"):
        patch.set_initial_delay(first(patch), 72)


def test_fork_leaves_the_draft_alone() -> None:
    document = pod()
    patch = PodPatch(view(document))

    fork = patch.fork()
    tolerate(fork)

    assert len(fork.changes) == 1
    assert patch.changes == []
    assert patch.pod == view(document)


def test_two_verbs_with_a_place_that_was_looked_up_once() -> None:
    patch = PodPatch(view(pod(gpu_container())))
    place = patch.pod.places[0]

    patch.add_env(place, "ONE", "1")
    patch.add_env(place, "TWO", "2")

    assert [variable.name for variable in patch.pod.places[0].container.env or ()] == ["ONE", "TWO"]
    patched = apply(pod(gpu_container()), patch)
    assert patched["spec"]["containers"][0]["env"] == [
        {"name": "ONE", "value": "1"},
        {"name": "TWO", "value": "2"},
    ]

"""PodPatch: each verb sends the smallest patch that a JSON patch library can apply, and the next rule sees the same pod."""

from collections.abc import Callable
from operator import methodcaller
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
from tests.cases import cases

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

ACCELERATOR = "example.com/accel~type"
SELECTED = {ACCELERATOR: "nvidia-t4"}
INJECTED = {"gpu-admission.dev/injected": "gpu-class"}
VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
FROM_FIELD = {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
GPU = {"nvidia.com/gpu": "1"}
CSI = {"name": "data", "csi": {"driver": "unread"}}
DATA = {"name": "data", "mountPath": "/data"}
STARTUP = {**HTTP, "periodSeconds": 10, "failureThreshold": 9}
PROXY, SETUP = container("proxy"), container("setup")
UNREAD = {"podAffinity": {"unread": True}}


def first(patch: PodPatch) -> ContainerPlace:
    return next(iter(patch.pod.places))


def affinity(*terms: JSON) -> JSON:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


def expressions(*requirements: JSON, **more: Any) -> JSON:
    return {"matchExpressions": list(requirements), **more}


PINNED = affinity(expressions(IN_A100_JSON))

tolerate: Verb = methodcaller("add_toleration", TOLERATION)
select: Verb = methodcaller("set_node_selector", ACCELERATOR, "nvidia-t4")
require: Verb = methodcaller("require_node_affinity", IN_A100)
add_volume: Verb = methodcaller("add_volume", SHM)
annotate: Verb = methodcaller("set_annotation", "gpu-admission.dev/injected", "gpu-class")


def add_mount(patch: PodPatch) -> None:
    patch.add_volume_mount(first(patch), MOUNT)


def limit(patch: PodPatch) -> None:
    patch.set_resource(first(patch), "limits", "nvidia.com/gpu", "1")


def add_env(patch: PodPatch) -> None:
    patch.add_env(first(patch), "NVIDIA_VISIBLE_DEVICES", "void")


def add_env_to_init(patch: PodPatch) -> None:
    place = next(place for place in patch.pod.places if place.list_name == "initContainers")
    patch.add_env(place, "NVIDIA_VISIBLE_DEVICES", "void")


def delay(patch: PodPatch) -> None:
    patch.set_initial_delay(first(patch), 72)


def start(patch: PodPatch) -> None:
    readiness = first(patch).container.readiness_probe
    assert readiness is not None
    probe = Probe(http_get=readiness.http_get, period_seconds=10, failure_threshold=9)
    patch.set_startup_probe(first(patch), probe)


def fetch_at(index: int) -> Verb:
    return lambda patch: patch.add_init_container(FETCH, index)


def assert_patched(document: JSON, verb: Verb, want: JSON) -> None:
    patch = PodPatch(view(document))

    verb(patch)

    patched = apply(document, patch)
    assert patched == want
    assert patch.pod == view(patched)  # what the next rule sees is what the API server will see
    assert len(patch.changes) == 1


@cases(
    ("verb", "field", "before", "after"),
    toleration_without_a_list=(tolerate, "tolerations", ..., [TOLERATION_JSON]),
    toleration_where_the_list_is_null=(tolerate, "tolerations", None, [TOLERATION_JSON]),
    toleration_in_an_empty_list=(tolerate, "tolerations", [], [TOLERATION_JSON]),
    behind_another=(tolerate, "tolerations", [OTHER_TOLERATION], [OTHER_TOLERATION, TOLERATION_JSON]),
    node_selector_without_a_map=(select, "nodeSelector", ..., SELECTED),
    node_selector_where_the_map_is_null=(select, "nodeSelector", None, SELECTED),
    node_selector_beside_another=(select, "nodeSelector", {"a": "b"}, {"a": "b", **SELECTED}),
    affinity_without_any=(require, "affinity", ..., PINNED),
    affinity_that_is_null=(require, "affinity", None, PINNED),
    affinity_beside_pod_affinity=(require, "affinity", UNREAD, UNREAD | PINNED),
    affinity_beside_preferred=(
        require,
        "affinity",
        {"nodeAffinity": {"preferred": ["kept"], REQUIRED: None}},
        {"nodeAffinity": {"preferred": ["kept"], **PINNED["nodeAffinity"]}},
    ),
    no_terms=(require, "affinity", {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": None}}}, PINNED),
    affinity_in_every_alternative=(
        require,
        "affinity",
        affinity(expressions(IN_ZONE), {"matchFields": [ON_NODE]}),
        affinity(expressions(IN_ZONE, IN_A100_JSON), expressions(IN_A100_JSON, matchFields=[ON_NODE])),
    ),
    affinity_not_in_an_empty_alternative_which_matches_nothing=(
        require,
        "affinity",
        affinity({}, expressions(IN_ZONE)),
        affinity({}, expressions(IN_ZONE, IN_A100_JSON)),
    ),
    volume_without_a_list=(add_volume, "volumes", ..., [SHM_JSON]),
    volume_behind_one_we_do_not_read=(add_volume, "volumes", [CSI], [CSI, SHM_JSON]),
    init_container_without_a_list=(fetch_at(0), "initContainers", ..., [FETCH_JSON]),
    init_container_in_an_empty_list=(fetch_at(0), "initContainers", [], [FETCH_JSON]),
    init_container_between=(fetch_at(1), "initContainers", [PROXY, SETUP], [PROXY, FETCH_JSON, SETUP]),
    init_container_at_the_end=(fetch_at(1), "initContainers", [PROXY], [PROXY, FETCH_JSON]),
    env_of_an_init_container=(add_env_to_init, "initContainers", [SETUP], [{**SETUP, "env": [VOID]}]),
)
def test_verb_on_the_pod(verb: Verb, field: str, before: Any, after: Any) -> None:
    assert_patched(pod(**({} if before is ... else {field: before})), verb, pod(**{field: after}))


@cases(
    ("verb", "before", "after"),
    limit_without_resources=(limit, {}, {"resources": {"limits": GPU}}),
    limit_where_resources_are_null=(limit, {"resources": None}, {"resources": {"limits": GPU}}),
    limit_where_limits_are_null=(
        limit,
        {"resources": {"requests": GPU, "limits": None}},
        {"resources": {"requests": GPU, "limits": GPU}},
    ),
    limit_beside_another=(
        limit,
        {"resources": {"limits": {"memory": "1Gi"}}},
        {"resources": {"limits": {"memory": "1Gi", **GPU}}},
    ),
    env_without_a_list=(add_env, {}, {"env": [VOID]}),
    env_behind_a_value_from=(add_env, {"env": [FROM_FIELD]}, {"env": [FROM_FIELD, VOID]}),
    mount_without_a_list=(add_mount, {}, {"volumeMounts": [MOUNT_JSON]}),
    mount_behind_another=(add_mount, {"volumeMounts": [DATA]}, {"volumeMounts": [DATA, MOUNT_JSON]}),
    delay=(delay, {"readinessProbe": HTTP}, {"readinessProbe": {**HTTP, "initialDelaySeconds": 72}}),
    delay_in_place_of_another=(
        delay,
        {"readinessProbe": {**HTTP, "initialDelaySeconds": 5, "periodSeconds": 3}},
        {"readinessProbe": {**HTTP, "initialDelaySeconds": 72, "periodSeconds": 3}},
    ),
    its_handler=(start, {"readinessProbe": HTTP}, {"readinessProbe": HTTP, "startupProbe": STARTUP}),
    startup_probe_that_is_null=(
        start,
        {"readinessProbe": HTTP, "startupProbe": None},
        {"readinessProbe": HTTP, "startupProbe": STARTUP},
    ),
)
def test_verb_on_a_container(verb: Verb, before: JSON, after: JSON) -> None:
    assert_patched(pod(container(**before)), verb, pod(container(**after)))


@cases(
    ("before", "after"),
    without_a_map=(pod(), pod(annotations=INJECTED)),
    beside_another=(pod(annotations={"a/b": "c"}), pod(annotations={"a/b": "c", **INJECTED})),
    without_metadata=({"spec": {}}, {"spec": {}, "metadata": {"annotations": INJECTED}}),
)
def test_annotation(before: JSON, after: JSON) -> None:
    assert_patched(before, annotate, after)


@cases(
    ("verb", "want"),
    annotation=(annotate, "annotation gpu-admission.dev/injected"),
    gate=(methodcaller("add_scheduling_gate", "example.com/a"), "schedulingGate example.com/a"),
    volume=(add_volume, "volume shm"),
    toleration=(tolerate, "toleration nvidia.com/gpu:NoSchedule"),
    variable=(add_env, "main: env NVIDIA_VISIBLE_DEVICES=void"),
    probe=(start, "main: startupProbe for 90 s"),
)
def test_a_change_in_words(verb: Verb, want: str) -> None:
    patch = PodPatch(view(pod(container(readinessProbe=HTTP))))
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


def test_initial_delay_needs_a_readiness_probe() -> None:
    patch = PodPatch(view(pod(gpu_container())))

    with pytest.raises(ValueError, match=r"^spec\.containers\[0\] has no readinessProbe$"):
        patch.set_initial_delay(first(patch), 72)


def test_a_patch_leaves_its_pod_alone() -> None:
    written = view(pod())
    patch = PodPatch(written)

    tolerate(patch)

    assert len(patch.changes) == 1
    assert written == view(pod())


def test_verbs_with_a_place_that_was_looked_up_once() -> None:
    document = pod(container(readinessProbe=HTTP))
    patch = PodPatch(view(document))
    place = first(patch)

    patch.add_env(place, "ONE", "1")
    patch.add_env(place, "TWO", "2")
    patch.set_initial_delay(place, 72)

    patched = apply(document, patch)
    assert patch.pod == view(patched)
    assert patched["spec"]["containers"] == [
        container(
            env=[{"name": "ONE", "value": "1"}, {"name": "TWO", "value": "2"}],
            readinessProbe={**HTTP, "initialDelaySeconds": 72},
        )
    ]

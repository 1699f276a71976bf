"""Bodies that nobody sends by accident: valid reviews, mutated at random but the same for the same seed.

A body is a review of a pod, a workload or something else, with a few of its values replaced, left out, doubled or nested, and
sometimes with its bytes damaged on top.
"""

import random
from collections.abc import Iterator
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from policies.pods import annotations
from tests.builders import JSON, container, gpu_container, pod
from tests.webhook.serving import served
from tests.webhook.serving.hostile_values import (
    ANNOTATIONS,
    BROKEN,
    LABELS,
    LITERALS,
    NUMBERS,
    QUANTITIES,
    RESOURCES,
    TEXTS,
    TYPES,
    URIS,
    VALUES,
    VARIABLES,
)

LONG = 100_000
"""Bytes by which one mutation may make a body longer; objects of megabytes have tests of their own."""

DOUBTFUL = (b"\\ud", b"[[[[[[", b'{"a":{"a":{"a":', b'{"spec":{"spec":{"spec":')
"""Half surrogates and deep nesting: JSON by its grammar, but not every decoder takes them."""


class Body(NamedTuple):
    """`sound`: a review that has to be answered with a review, whatever is wrong with the object in it."""

    endpoint: str
    data: bytes
    sound: bool


def raw(text: str | bytes) -> msgspec.Raw:
    return msgspec.Raw(text if isinstance(text, bytes) else text.encode())


PROBE = {
    "httpGet": {"path": "/", "port": 80},
    "initialDelaySeconds": 5,
    "periodSeconds": 10,
    "failureThreshold": 3,
}
ENVIRONMENT = [
    {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
    {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
]
TERMS = {
    "nodeSelectorTerms": [
        {"matchExpressions": [{"key": "accelerator", "operator": "In", "values": ["nvidia-a100"]}]},
        {},
    ]
}


def seeds() -> list[JSON]:
    rich = pod(
        gpu_container(
            resources={
                "limits": {"nvidia.com/gpu": 2, "cpu": "4"},
                "requests": {"nvidia.com/gpu": 2},
                "claims": [{"name": "c"}],
            },
            env=ENVIRONMENT,
            volumeMounts=[{"name": "data", "mountPath": "/data"}],
            readinessProbe=PROBE,
            livenessProbe=PROBE,
            securityContext={"privileged": False, "capabilities": {"drop": ["ALL"]}},
        ),
        container("sidecar", readinessProbe=PROBE, startupProbe=PROBE),
        annotations={
            annotations.GPU_CLASS: "nvidia-a100-80gb",
            annotations.MODEL_LOAD_SECONDS: "90",
            "team": "ml",
        },
        initContainers=[container("init"), gpu_container("1", "proxy", restartPolicy="Always")],
        volumes=[
            {"name": "data", "emptyDir": {}},
            {"name": "nv", "hostPath": {"path": "/dev/nvidia0"}},
            {"name": "s", "secret": {"secretName": "s"}},
        ],
        tolerations=[
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": None}
        ],
        affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": TERMS}},
        nodeSelector={"zone": "a"},
        overhead={"nvidia.com/gpu": "0"},
        securityContext={"runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
    )
    rich["metadata"] |= {
        "labels": {"app": "x"},
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "controller": True}],
    }
    models = [
        pod(
            gpu_container("4", readinessProbe=PROBE, livenessProbe=PROBE),
            annotations={annotations.MODEL_URI: uri, annotations.MODEL_PATH: "/models"},
        )
        for uri in ("hf://org/model", "s3://bucket/model", "https://models.example/m.bin")
    ]
    estimated = pod(
        gpu_container("1"),
        annotations={
            annotations.MODEL_PARAMS: "7B",
            annotations.MODEL_PRECISION: "bf16",
            annotations.MODEL_PHASE: "serving",
            annotations.MODEL_BATCH: "1",
        },
    )
    plain = [
        pod(gpu_container()),
        pod(gpu_container("2", resource="nvidia.com/mig-1g.10gb")),
        pod(annotations={"gpu-fraction": "0.5"}),
        pod(),
    ]
    claiming = pod(
        container(resources={"claims": [{"name": "gpu"}]}),
        resourceClaims=[{"name": "gpu", "resourceClaimName": "shared"}],
    )
    return [rich, rich, *models, estimated, *plain, claiming]


def reviews() -> list[bytes]:
    found = []
    for number, document in enumerate(seeds()):
        found.append(review("", "Pod", document))
        if number % 3 == 0:
            found.append(review("", "Pod", document, operation="UPDATE", oldObject=document))
        template = {"metadata": document["metadata"], "spec": document["spec"]}
        group, kind = WORKLOADS[number % len(WORKLOADS)]
        found.append(review(group, kind, workload(kind, template)))
    for group, kind in (
        ("", "Node"),
        ("kubeflow.org", "PyTorchJob"),
        ("gpu-admission.dev", "GPUPolicy"),
        ("", "Event"),
    ):
        found.append(review(group, kind, seeds()[0]))
    found.append(review("", "Pod", None, operation="DELETE", oldObject=seeds()[0]))
    found.append(review("", "Pod", seeds()[0], operation="CONNECT", subResource="exec"))
    return found


WORKLOADS = [
    ("apps", "Deployment"),
    ("batch", "Job"),
    ("batch", "CronJob"),
    ("", "PodTemplate"),
    ("apps", "DaemonSet"),
    ("ray.io", "RayCluster"),
    ("kubeflow.org", "PyTorchJob"),
    ("serving.kserve.io", "InferenceService"),
    ("argoproj.io", "Workflow"),
]


def workload(kind: str, template: JSON) -> JSON:
    match kind:
        case "CronJob":
            body: JSON = {"spec": {"schedule": "@daily", "jobTemplate": {"spec": {"template": template}}}}
        case "PodTemplate":
            body = {"template": template}
        case "RayCluster":
            body = {
                "spec": {
                    "headGroupSpec": {"template": template},
                    "workerGroupSpecs": [{"template": template}],
                }
            }
        case "PyTorchJob":
            body = {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": template}}}}
        case "InferenceService":
            body = {"spec": {"predictor": {**template["spec"], "model": template["spec"]["containers"][0]}}}
        case "Workflow":
            main = {"name": "main", "container": template["spec"]["containers"][0]}
            body = {"spec": {"templates": [main], "tolerations": [{"key": "a", "operator": "Exists"}]}}
        case _:
            body = {"spec": {"replicas": 3, "template": template}}
    return {"kind": kind, "metadata": {"name": "w"}, **body}


def review(group: str, kind: str, document: JSON | None, **tweaks: Any) -> bytes:
    fields: JSON = {
        "kind": {"group": group, "version": "v1", "kind": kind},
        "namespace": "ml",
        "name": "",
        "userInfo": {"username": "system:node:n", "groups": ["system:nodes"]},
        "oldObject": None,
        "dryRun": False,
    }
    return msgspec.json.encode(served.review(document, **{**fields, **tweaks}))


# ---- mutation


def bodies(seed: int) -> Iterator[Body]:
    choose = random.Random(seed)  # noqa: S311  the same bodies in every run
    starts = reviews()
    while True:
        document = msgspec.json.decode(choose.choice(starts))
        document["request"]["namespace"] = choose.choice(["defaults", "strict"])
        document["request"]["uid"] = str(UUID(int=choose.getrandbits(128)))
        if target_metadata := (document["request"]["object"] or {}).get("metadata"):
            target_metadata["uid"] = str(UUID(int=choose.getrandbits(128)))
        damaged = choose.random() < 0.2
        target = document if damaged and choose.random() < 0.5 else document["request"]["object"]
        for _ in range(choose.choice([1, 1, 2, 3, 5])):
            if target:
                mutate(choose, target)
        data = msgspec.json.encode(document)
        endpoint = choose.choice(["/mutate", "/mutate", "/validate"])
        if damaged:
            data = damage(choose, data)
        yield Body(endpoint, data, sound=not damaged and not any(part in data for part in DOUBTFUL))


def mutate(choose: random.Random, target: JSON) -> None:
    """Change one value somewhere in the target, often one of the few on which rules depend."""
    parent: Any = target
    key = step(choose, parent)
    context = key
    while isinstance(parent[key], dict | list) and parent[key] and choose.random() < 0.9:
        parent = parent[key]
        key = step(choose, parent)
        context = key if isinstance(key, str) else context
        if context in NAMED and isinstance(parent[key], dict):
            name, value = (choose.choice(options) for options in NAMED[context])
            parent[key][name] = value
            return
    change(choose, parent, key)


def step(choose: random.Random, parent: Any) -> Any:
    """Return a key of the map or list, one with more below it rather than one without."""
    keys = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
    deep = [key for key in keys if isinstance(parent[key], dict | list)]
    return choose.choice(deep if deep and choose.random() < 0.7 else keys)


NAMED: dict[str, tuple[list[str], list[Any]]] = {
    "limits": (RESOURCES, QUANTITIES),
    "requests": (RESOURCES, QUANTITIES),
    "overhead": (RESOURCES, QUANTITIES),
    "annotations": (ANNOTATIONS, URIS + VALUES + TEXTS),
    "labels": (LABELS, TEXTS),
    "nodeSelector": (LABELS, TEXTS + VALUES),
}
"""Maps whose keys are the author's choice, and what is put there."""


def change(choose: random.Random, parent: Any, key: Any) -> None:
    """Replace a value, leave it out, repeat it, or give it another name as well."""
    old = parent[key]
    kind = choose.random()
    if kind < 0.7:
        parent[key] = instead_of(choose, old)
    elif kind < 0.85:
        del parent[key]
    elif isinstance(parent, dict):
        parent[choose.choice(TEXTS[:20] + list(parent))] = old
    else:
        times, encoded = choose.choice([1, 3, 300]), msgspec.json.encode(old)
        if times * len(encoded) < LONG:
            parent.extend([raw(encoded)] * times)


def instead_of(choose: random.Random, old: Any) -> Any:
    match choose.choice(["type", "text", "quantity", "nest", "double", "raw"]):
        case "type":
            return raw(msgspec.json.encode(choose.choice(TYPES)))
        case "text":
            return choose.choice(choose.choice([TEXTS, URIS, VALUES, VARIABLES, RESOURCES]))
        case "quantity":
            return choose.choice(QUANTITIES)
        case "nest":
            depth = choose.choice([1, 5, 60, 2000])
            opening, closing = choose.choice([(b"[", b"]"), (b'{"a":', b"}"), (b'{"spec":', b"}")])
            return raw(opening * depth + msgspec.json.encode(old) + closing * depth)
        case "double" if isinstance(old, dict) and old:
            return with_a_key_twice(choose, old)
        case _:
            return raw(choose.choice(choose.choice([LITERALS, NUMBERS])))


def with_a_key_twice(choose: random.Random, old: JSON) -> msgspec.Raw:
    other = {choose.choice(list(old)): raw(msgspec.json.encode(choose.choice(TYPES)))}
    one, two = choose.sample([msgspec.json.encode(old), msgspec.json.encode(other)], 2)
    return raw(one[:-1] + b"," + two[1:])


def damage(choose: random.Random, data: bytes) -> bytes:
    """Return the bytes with something wrong, or as they are: then the values outside the object are hostile."""
    start, middle, end = data, b"", b""
    place = choose.randrange(len(data))
    match choose.choice(["flip", "cut", "insert", "delete", "surrogate", "none", "none"]):
        case "flip":
            flipped = bytearray(data)
            for _ in range(choose.choice([1, 3, 30])):
                flipped[choose.randrange(len(flipped))] ^= 1 << choose.randrange(8)
            start = bytes(flipped)
        case "cut":
            start = data[:place]
        case "insert":
            start, middle, end = data[:place], choose.choice(BROKEN), data[place:]
        case "delete":
            start, end = data[:place], data[place + choose.choice([1, 2, 50]) :]
        case "surrogate":
            start = data.replace(b'":"', b'":"\\ud800', choose.choice([1, 5, -1]))
        case _:
            pass
    return start + middle + end

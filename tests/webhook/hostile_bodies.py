"""Bodies that nobody sends by accident: valid reviews, mutated at random but the same for the same seed.

A body is a review of a pod, a workload or something else, with a few of its values replaced, left out, doubled or nested, and
sometimes with its bytes damaged on top.
"""

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from policies import annotations
from tests.builders import JSON, container, gpu_container, pod

LONGEST = 3 * 1024 * 1024
"""Bytes; the API server takes no larger object."""

UID = "705ab4f5-6393-11e8-b7cc-42010a800002"


DOUBTFUL = (b"\\ud", b"[[[[[[", b'{"a":{"a":{"a":', b'{"spec":{"spec":{"spec":')
"""Half surrogates and deep nesting: JSON by its grammar, but not every decoder takes them."""


class Body(NamedTuple):
    """`sound`: a review that has to be answered with a review, whatever is wrong with the object in it."""

    endpoint: str
    data: bytes
    sound: bool


def raw(text: str | bytes) -> msgspec.Raw:
    return msgspec.Raw(text if isinstance(text, bytes) else text.encode())


NUMBERS = [
    "0",
    "-1",
    "1e3",
    "0.5",
    "1e308",
    "1e400",
    "-0",
    "9223372036854775808",
    "-9223372036854775809",
    "9" * 400,
    "1" + "0" * 4000,
]
QUANTITIES = [
    "",
    " ",
    "0",
    "1",
    "2",
    "-1",
    "0.5",
    "1500m",
    "9",
    "1e19",
    "1e400",
    "1e999999999",
    "1e-999999999",
    "1e4294967296",
    "NaN",
]
QUANTITIES += [
    "Infinity",
    "0x10",
    "1_0",
    "١",
    "½",
    "1 Gi",
    "1Ki",
    "16Ei",
    "+",
    ".",
    "1" * 300,
    "0." + "0" * 300 + "1",
    "\x00",
    "1\n",
]
TEXTS = [
    "",
    " ",
    "\x00",
    "\n",
    "a\r\nb",
    "\x1b[31m",
    "\u202e",
    "\u2028",
    "\ud7ff\ue000",
    "\U0010ffff",
    "é" * 300,
    "/",
    "~",
    "~1",
    "..",
    "../../etc/passwd",
]
TEXTS += [
    "a" * 300,
    "a" * 70_000,
    "%s%n{0}",
    "${HOME}",
    "`id`",
    '"',
    "\\",
    "'; rm -rf /; '",
    "-",
    "--",
    "[]",
    "null",
    "*",
    "nvidia.com/gpu",
    "spec",
]
URIS = [
    "s3://",
    "s3://b",
    "s3://b/k",
    "s3://user:secret@b/k?x=1#y",
    "gs://b/../..",
    "hf://o/m",
    "hf://o/m@r",
    "hf://",
    "hf://o/m/x/y",
    "hf://o/m@" + "r" * 300,
]
URIS += [
    "https://",
    "https://h/m",
    "https://u:p@h:99999999/m?token=x",
    "https://[::1",
    "https://[::1]/m",
    "https://h:port/m",
    "https://h\x00/m",
    "https://h/\n",
]
URIS += [
    "http://169.254.169.254/latest",
    "file:///etc/passwd",
    "ftp://h/m",
    "pvc://c/p",
    "pvc://",
    "S3://B/K",
    "//h/m",
    "://",
    "https://ｈ/m",
    "https://xn--/m",
    "s3://b/%zz",
]
VALUES = [
    "0.5",
    "1.5",
    "-1",
    "0",
    "half",
    "2000",
    "2Gi",
    "7B",
    "70e9",
    "1e999",
    "nan",
    "inf",
    "bf16",
    "int4",
    "training",
    "serving",
    "90",
    "86401",
    "9" * 30,
]
VALUES += [
    "nvidia-a100-80gb",
    "nvidia-a100",
    "nvidia-a1000",
    "amd-mi300x",
    "١٢",
    "1_000",
    "/models",
    "relative",
    "/",
    "/dev/shm",
    "/etc/../..",
    "models",
    "Models!",
]  # noqa: S108  a mount
RESOURCES = [
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared",
    "nvidia.com/mig-1g.10gb",
    "nvidia.com/mig-",
    "nvidia.com/mig-9g.9gb.shared",
    "nvidia.com/gpumem",
    "amd.com/gpu",
]
RESOURCES += [
    "nvidia.com/" + "g" * 70_000,
    "gpu.intel.com/i915",
    "deviceclass.resource.kubernetes.io/x",
    "requests.nvidia.com/gpu",
    "/",
    "nvidia.com/gpu/",
    "google.com/tpu",
    "cpu",
]
QUANTITIES += ["1", "1", "2", "2", "1000m", "500m"]
VARIABLES = ["NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "", "A=B", "\x00", "HF_TOKEN", "é"]
ANNOTATIONS = [
    value for name, value in vars(annotations).items() if name.startswith(("GPU_", "MODEL_", "INJECTED"))
]
ANNOTATIONS += [
    "gpu-fraction",
    "gpu-memory",
    "kubernetes.io/config.mirror",
    "gpu-admission.dev/",
    "gpu-admission.dev/unknown",
    "a/b/c",
    "~0~1",
]
LABELS = ["accelerator", "nvidia.com/gpu.product", "", "~1", "a" * 300]
TYPES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1.5,
    "",
    "x",
    [],
    {},
    [None],
    [[]],
    [{}],
    {"": None},
    {"name": 7},
    ["x", 1, {}],
]
LITERALS = [
    '"\\ud800"',
    '"\\udfff\\ud800"',
    '"\\u0000"',
    '"a\\u000ab"',
    "1e400",
    "-1e400",
    "0e99999999999999999999",
]
BROKEN = [
    b"{",
    b"}",
    b'"',
    b",",
    b"\x00",
    b"\\",
    b"null",
    b"01",
    b"+1",
    b"NaN",
    b"'x'",
    b'"\t"',
    b"{,}",
    b"[1,]",
    b"[" * 5000,
]

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
    """Return the objects that the bodies start from, all of them valid."""
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
    """Return the reviews that the bodies start from."""
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
        ("", ""),
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
]


def workload(kind: str, template: JSON) -> JSON:
    match kind:
        case "CronJob":
            body: JSON = {"spec": {"schedule": "@daily", "jobTemplate": {"spec": {"template": template}}}}
        case "PodTemplate":
            body = {"template": template}
        case _:
            body = {"spec": {"replicas": 3, "template": template}}
    return {"kind": kind, "metadata": {"name": "w"}, **body}


def review(group: str, kind: str, document: JSON | None, **tweaks: Any) -> bytes:
    user = {"username": "system:node:n", "groups": ["system:nodes"]}
    request = {
        "uid": UID,
        "kind": {"group": group, "version": "v1", "kind": kind},
        "operation": "CREATE",
        "namespace": "ml",
    }
    request |= {
        "name": "",
        "userInfo": user,
        "object": document,
        "oldObject": None,
        "dryRun": False,
        **tweaks,
    }
    return msgspec.json.encode(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    )


# ---- mutation


def bodies(seed: int) -> Iterator[Body]:
    """Yield hostile bodies without end."""
    choose = random.Random(seed)  # noqa: S311  the same bodies in every run
    starts = reviews()
    while True:
        document = msgspec.json.decode(choose.choice(starts))
        document["request"]["namespace"] = choose.choice(["defaults", "strict"])
        damaged = choose.random() < 0.2
        target = document if damaged and choose.random() < 0.5 else document["request"]["object"]
        for _ in range(choose.choice([1, 1, 2, 3, 5])):
            if target:
                mutate(choose, target)
        data = msgspec.json.encode(document)
        if len(data) > LONGEST:
            continue
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
    old = parent[key]
    match choose.choice(
        ["type", "text", "number", "quantity", "remove", "nest", "double", "literal", "repeat", "swap"]
    ):
        case "type":
            parent[key] = raw(msgspec.json.encode(choose.choice(TYPES)))
        case "text":
            parent[key] = choose.choice(choose.choice([TEXTS, URIS, VALUES, VARIABLES, RESOURCES]))
        case "number":
            parent[key] = raw(choose.choice(NUMBERS))
        case "quantity":
            parent[key] = choose.choice(QUANTITIES)
        case "remove":
            del parent[key]
        case "nest":
            depth = choose.choice([1, 5, 60, 2000])
            opening, closing = choose.choice([(b"[", b"]"), (b'{"a":', b"}"), (b'{"spec":', b"}")])
            parent[key] = raw(opening * depth + msgspec.json.encode(old) + closing * depth)
        case "double" if isinstance(old, dict) and old:
            again = choose.choice(list(old))
            doubled = {again: old[again]}, {again: choose.choice(TYPES)}
            first, second = choose.sample([msgspec.json.encode(half) for half in doubled], 2)
            rest = msgspec.json.encode({name: value for name, value in old.items() if name != again})
            parent[key] = raw(first[:-1] + b"," + second[1:-1] + (b"," + rest[1:] if rest != b"{}" else b"}"))
        case "literal":
            parent[key] = raw(choose.choice(LITERALS))
        case "repeat" if isinstance(parent, list):
            parent.extend([old] * choose.choice([1, 3, 300]))
        case _ if isinstance(parent, dict):
            parent[choose.choice(TEXTS[:20] + list(parent))] = old


def damage(choose: random.Random, data: bytes) -> bytes:
    """Return the bytes with something wrong, or as they are: then the values outside the object are hostile."""
    place = choose.randrange(len(data))
    match choose.choice(["flip", "cut", "insert", "delete", "invalid", "surrogate", "none", "none"]):
        case "flip":
            found = bytearray(data)
            for _ in range(choose.choice([1, 3, 30])):
                found[choose.randrange(len(found))] ^= 1 << choose.randrange(8)
            return bytes(found)
        case "cut":
            return data[:place]
        case "insert":
            return data[:place] + choose.choice(BROKEN) + data[place:]
        case "delete":
            return data[:place] + data[place + choose.choice([1, 2, 50]) :]
        case "invalid":
            return (
                data[:place]
                + choose.choice([b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"])
                + data[place:]
            )
        case "surrogate":
            return data.replace(b'":"', b'":"\\ud800', choose.choice([1, 5, -1]))
        case _:
            return data

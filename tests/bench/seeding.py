"""Objects by the ten thousand, as the API server would have stored them, written into etcd beside it.

Through the API 40,000 pods take minutes. So one is made there, and what etcd then has of it is written again under other names;
all that differs has the same length, so that the protobuf around it stays valid. The API server learns of them from its watch of
etcd, as of what another API server writes.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from random import Random
from uuid import UUID

from tests.bench.pods import JSON, model_server
from tests.controlplane import ControlPlane
from tests.controlplane.etcd import Etcd

SEED = "seed"
CONTAINER = "fedcba9876543210" * 4
"""The id of the container of a pod that is made."""
BATCH = 100
"""Objects in a transaction, of 128 at most (etcd's --max-txn-ops) and 1.5 MiB (--max-request-bytes)."""


def running_pod(name: str, node: str) -> tuple[JSON, JSON]:
    """Return a pod of a Deployment on a node, and the status that a kubelet gives it: 6 KB together, as of many a real one."""
    pod = model_server(name, gpus=1)
    pod["metadata"]["labels"] |= {"app": SEED, "pod-template-hash": "5d4f8c7b96"}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "model-server-5d4f8c7b96"}
    pod["metadata"]["ownerReferences"] = [
        owner | {"uid": f"{0:08x}-0000-4000-8000-{0:012x}", "controller": True}
    ]
    pod["metadata"]["annotations"] = {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": "8080",
        "kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z",
    }
    pod["spec"]["nodeName"] = node
    pod["spec"]["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    then = "2026-01-01T00:00:00Z"
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    digest = "0123456789abcdef" * 4
    container = {
        "name": "server",
        "image": pod["spec"]["containers"][0]["image"],
        "imageID": f"registry.example/model-server@sha256:{digest}",
        "containerID": f"containerd://{CONTAINER}",
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": then}},
    }
    status = {
        "phase": "Running",
        "conditions": [{"type": kind, "status": "True", "lastTransitionTime": then} for kind in kinds],
        "hostIP": "10.0.0.1",
        "podIP": "10.1.0.1",
        "podIPs": [{"ip": "10.1.0.1"}],
        "startTime": then,
        "containerStatuses": [container],
    }
    return pod, status


def random_uid(*of: int) -> str:
    """Return a uid that is always the same for these numbers. Like real ones it cannot be compressed: answers are."""
    return str(UUID(int=Random(str(of)).getrandbits(128), version=4))  # noqa: S311 - no secret


def random_container(*of: int) -> str:
    """Return the id of a container, likewise."""
    return f"{Random(str(of)).getrandbits(256):064x}"  # noqa: S311 - no secret


def seed(plane: ControlPlane, key: str, numbers: range, renamed: Callable[[int], Mapping[str, str]]) -> None:
    """Write the object of `key` again for each number, with the texts of `renamed` replaced in key and value.

    Raises ValueError where a text and its replacement differ in length.
    """
    etcd = Etcd(plane)
    (stored,) = json.loads(etcd.call("/v3/kv/range", {"key": _base64(key.encode())}).read())["kvs"]
    value = b64decode(stored["value"])

    def copies() -> Iterator[Mapping[str, str]]:
        for number in numbers:
            named, copied = key.encode(), value
            for old, new in renamed(number).items():
                if len(old) != len(new):
                    raise ValueError(f"{new!r} is not as long as {old!r}")
                named, copied = (each.replace(old.encode(), new.encode()) for each in (named, copied))
            yield {"key": _base64(named), "value": _base64(copied)}

    remaining = copies()
    while batch := list(islice(remaining, BATCH)):
        etcd.call("/v3/kv/txn", {"success": [{"requestPut": copy} for copy in batch]}).read()
    etcd.close()


def _base64(data: bytes) -> str:
    return b64encode(data).decode()

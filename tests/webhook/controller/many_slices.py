"""The ResourceSlices of many nodes: an API server that makes them as it answers, and what reading them takes in a process alone.

`python -m tests.webhook.controller.many_slices serve FOLDER NODES`, and `… read KUBECONFIG NODES`.
"""

import json
import sys
import threading
from pathlib import Path
from time import monotonic, process_time
from types import SimpleNamespace
from typing import Any

from tests.builders import JSON
from tests.resource_slices import DRIVER, node_slices
from tests.webhook.cluster.apiserver import Answer, ApiServer, Request, group, status
from webhook.cluster.access import load_access
from webhook.cluster.api import ApiClient
from webhook.configuration.loader import load_directory
from webhook.controller.device_slices import DeviceSlices

PLACEHOLDER = "the-node"
CARDS = 8
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
MODULE = ("-m", "tests.webhook.controller.many_slices")


def node_name(number: int) -> str:
    return f"node-{number:05d}"


def slices_of(number: int) -> list[JSON]:
    return node_slices(node_name(number), cards=CARDS)


def texts() -> list[str]:
    """Return the slices of one node with 8 cards of 26 devices, as an API server encodes them."""
    found = []
    for index, each in enumerate(node_slices(PLACEHOLDER, cards=CARDS)):
        managed = {"manager": "gpu-kubelet-plugin", "operation": "Update", "fieldsV1": {"f:spec": {".": {}}}}
        metadata = {"uid": f"{PLACEHOLDER}-{index}", "resourceVersion": "5", "managedFields": [managed]}
        document: JSON = {**each, "metadata": {**each["metadata"], **metadata}}
        found.append(json.dumps(document, separators=(",", ":")))
    return found


class Nodes:
    """Answers the list of slices in pages, and the watch with the events that `changed` puts into it."""

    def __init__(self, nodes: int) -> None:
        self._texts, self._nodes = texts(), nodes

    def __call__(self, request: Request) -> Answer:
        if request.path == "/apis/resource.k8s.io":
            return group("v1")
        if request.path != SLICES:
            return status(404, f"no {request.path}", "NotFound")
        if "watch" in request.query:
            return Answer(stream=[], wait=threading.Event())
        first, limit = int(request.query.get("continue", "0")), int(request.query["limit"])
        total = self._nodes * len(self._texts)
        items = [self._text(index) for index in range(first, min(first + limit, total))]
        following = str(first + limit) if first + limit < total and limit > 1 else ""
        metadata = json.dumps({"resourceVersion": "7", "continue": following})
        return Answer(f'{{"metadata":{metadata},"items":[{",".join(items)}]}}'.encode())

    def _text(self, index: int) -> str:
        node, part = divmod(index, len(self._texts))
        return self._texts[part].replace(PLACEHOLDER, node_name(node))


def serve(folder: str, nodes: str) -> None:
    with ApiServer(Path(folder), Nodes(int(nodes))) as server:
        sys.stdout.write(f"{server.kubeconfig()}\n")
        sys.stdout.flush()
        sys.stdin.read()


def read(kubeconfig: str, nodes: str) -> None:
    """Print what it takes to read everything, and to take over one pool that changed."""
    before, configuration = _megabytes(), load_directory(None)
    slices = DeviceSlices(ApiClient(load_access(kubeconfig), read_seconds=60.0), lambda: configuration)
    began, worked = monotonic(), process_time()
    threading.Thread(target=slices.run, args=(threading.Event(),), daemon=True).start()
    last = node_name(int(nodes) - 1)
    while slices.inventory is None or slices.inventory.published == {}:
        threading.Event().wait(0.05)
    found: dict[str, Any] = {
        "seconds": monotonic() - began,
        "cpuSeconds": process_time() - worked,
        "megabytes": _megabytes(),
        "megabytesBefore": before,
        "kinds": len(slices.inventory.device_types.types),
        "knowsTheLast": slices._pools.type_key_of(DRIVER, last, "gpu-0") is not None,
    }
    worked = process_time()
    slices.sync()
    found["syncWithoutChange"] = process_time() - worked
    events = [SimpleNamespace(text=text.replace(PLACEHOLDER, last)) for text in texts()]
    worked = process_time()
    for generation in range(2, 12):
        for each in events:
            newer = each.text.replace('"generation":1', f'"generation":{generation}')
            record = slices._record(newer.encode())
            slices._changed(getattr(each, "record", None), record)
            each.record = record
        slices.sync()
    found["cpuSecondsOfAPool"] = (process_time() - worked) / 10
    sys.stdout.write(json.dumps(found))


def _megabytes() -> float:
    """Return the most memory that this program has had. `ru_maxrss` also has that of the process that started it."""
    (peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    return int(peak.split()[1]) / 1024


if __name__ == "__main__":
    {"serve": serve, "read": read}[sys.argv[1]](*sys.argv[2:])

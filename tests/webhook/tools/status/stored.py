"""What the controller publishes of nodes; a claim that may get a card or a slice of it, its pod, and the slices of its node."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from fractions import Fraction
from typing import Any

import msgspec

from tests.builders import JSON, container, uid
from tests.resource_slices import DRIVER, node_slices
from tests.webhook.cluster.apiserver import Collections, collection, group
from webhook.cluster.capacity import counted_node_reader
from webhook.cluster.published_capacity import PublishedCapacity, encode, published_classes
from webhook.configuration.loader import load_directory

CONFIG_MAP = "/api/v1/namespaces/gpu-admission/configmaps/gpu-admission-capacity"
GPU = "nvidia.com/gpu"


def published(at: datetime, nodes: Sequence[JSON], used_on: Mapping[str, int]) -> JSON:
    """Return the ConfigMap that the controller wrote then; `used_on`: whole GPUs by node."""
    configuration = load_directory(None)
    read = counted_node_reader(configuration)
    found = []
    for each in nodes:
        counted = read(msgspec.Raw(msgspec.json.encode(each)))
        assert counted.gpus is not None
        used = {GPU: Fraction(used_on.get(counted.name, 0))}
        found.append(msgspec.structs.replace(counted.gpus, used=used))
    classes = published_classes(found, {}, configuration.classes)
    return {"metadata": {"name": "x"}, **json.loads(encode(PublishedCapacity(at, classes)))}


POD = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid("p"), "controller": True}


def allocated(*devices: str, request: str = "gpu/small", made_for_pod: bool = True) -> dict[str, Any]:
    """Return a claim of a card, or else of a slice, that has these devices."""
    choices = [
        {"name": name, "deviceClassName": DRIVER, "selectors": [{"cel": {"expression": expression}}]}
        for name, expression in (
            ("large", f'device.attributes["{DRIVER}"].type == "gpu"'),
            ("small", f'device.attributes["{DRIVER}"].type == "mig"'),
        )
    ]
    results = [{"request": request, "driver": DRIVER, "pool": "n1", "device": each} for each in devices]
    status = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": "p", "uid": uid("p")}],
    }
    metadata = {"name": "c", "namespace": "ml", "uid": uid("c"), "resourceVersion": "1"}
    return {
        "metadata": {**metadata, "ownerReferences": [POD]} if made_for_pod else metadata,
        "spec": {"devices": {"requests": [{"name": "gpu", "firstAvailable": choices}]}},
        "status": status if devices else {},
    }


def cluster_with(claim: dict[str, Any], node_name: str = "n1") -> Collections:
    """Return a cluster with the claim and its pod, in which nothing is installed: no kinds of devices are published."""
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    pod = {
        "metadata": {"name": "p", "namespace": "ml", "uid": uid("p"), "resourceVersion": "1"},
        "spec": {
            "containers": [container(resources={"claims": [{"name": "gpu"}]})],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}],
            **({"nodeName": node_name} if node_name else {}),
        },
        "status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "c"}]},
    }
    cluster = Collections(
        pods=[pod],
        nodes=[],
        resourceclaims=[claim],
        resourceclaimtemplates=[],
        deviceclasses=[{"metadata": {"name": DRIVER}, "spec": {"selectors": [selector]}}],
        resourceslices=node_slices("n1"),
    )
    cluster.answers |= {"/apis/resource.k8s.io": group("v1"), "/api": collection([]), "/apis": collection([])}
    return cluster

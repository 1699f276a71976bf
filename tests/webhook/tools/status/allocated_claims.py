"""A claim that may get a card or a slice of it, its pod, and the slices of its node, for a scripted API server."""

from typing import Any

from tests.builders import container, uid
from tests.resource_slices import DRIVER, node_slices
from tests.webhook.cluster.apiserver import Collections, collection, group

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

"""ResourceClaims that ask for devices."""

from typing import Any

import msgspec

from policies.gpus.claimed_devices import ResourceClaim, decode_claim
from policies.quota.claim_protection import EXTENDED_RESOURCE_CLAIM
from tests.builders import JSON

GPU, H100, LARGE, ANY = "gpu.nvidia.com", "h100.example.com", "large.example.com", "any.example.com"
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "trainer", "uid": "pod-1", "controller": True}


def claim(*requests: JSON) -> JSON:
    named = [{"name": f"request-{index}", **request} for index, request in enumerate(requests)]
    return {"kind": "ResourceClaim", "spec": {"devices": {"requests": named}}}


def devices(device_class: str, **more: Any) -> JSON:
    return {"deviceClassName": device_class, **more}


def exactly(device_class: str, **more: Any) -> JSON:
    return {"exactly": devices(device_class, **more)}


def decoded(document: JSON, annotation: str | None = "true", owner: JSON | None = OWNER) -> ResourceClaim:
    annotations = {} if annotation is None else {EXTENDED_RESOURCE_CLAIM: annotation}
    metadata = {"uid": "c", "annotations": annotations, "ownerReferences": [owner] if owner else None}
    return decode_claim(msgspec.json.encode({**document, "metadata": metadata}))

"""ResourceClaims that ask for devices."""

from typing import Any

from tests.builders import JSON

GPU, H100, LARGE, ANY = "gpu.nvidia.com", "h100.example.com", "large.example.com", "any.example.com"


def claim(*requests: JSON) -> JSON:
    named = [{"name": f"request-{index}", **request} for index, request in enumerate(requests)]
    return {"kind": "ResourceClaim", "spec": {"devices": {"requests": named}}}


def devices(device_class: str, **more: Any) -> JSON:
    return {"deviceClassName": device_class, **more}


def exactly(device_class: str, **more: Any) -> JSON:
    return {"exactly": devices(device_class, **more)}

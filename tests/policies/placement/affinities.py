"""Node affinities of pods."""

from tests.builders import JSON, REQUIRED

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
PRODUCT = "nvidia.com/gpu.product"


def affine(how: str, key: str, operator: str, *values: str, field: str = "matchExpressions") -> JSON:
    """Return the fields of a spec with one node affinity, required or preferred."""
    term = {field: [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}
    affinity = {"nodeSelectorTerms": [term]} if how == REQUIRED else [{"weight": 1, "preference": term}]
    return {"affinity": {"nodeAffinity": {how: affinity}}}


def selecting(key: str, value: str = "some") -> JSON:
    return {"nodeSelector": {key: value}}

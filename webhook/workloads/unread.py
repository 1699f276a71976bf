"""GPUs in objects of kinds of which nobody knows where the pods are."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from policies.finding import Finding, Severity
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.field_paths import Parts, field_path

ID = "workloads"
"""Stands where a rule's id does."""

MOST_VALUES = 20_000
"""Values of an object that are searched."""

_LABELS = frozenset({"annotations", "labels", "matchLabels", "nodeSelector"})
"""Maps of which the keys are labels: labels of nodes are called like resources, such as nvidia.com/mig-1g.5gb.count."""


def unread_gpus(kind: str, data: Any, resource_mapping: ResourceMapping) -> list[Finding]:
    """Return a warning at the first of the GPU resources in the object that nothing reads, none where it names no GPU."""
    found = next(_amounts(data, resource_mapping), None)
    if found is None:
        return []
    message = f"gpu-admission does not read GPU resources of kind {kind}"
    remedy = "name their paths in workloadKinds of a GPUResourceMapping"
    path = field_path(found)
    return [Finding(rule=ID, severity=Severity.WARNING, path=path, message=message, remedy=remedy)]


def _amounts(data: Any, resource_mapping: ResourceMapping) -> Iterator[Parts]:
    """Yield the paths of the GPU resources that stand in the object as the key of an amount, or as a name beside one."""
    for at, value in islice(_values(data), MOST_VALUES):
        if isinstance(value, dict | list) or not at:
            continue
        # The key of a toleration, and of a label, is called like the resource.
        for name in (at[-1], value if at[-1] != "key" else ""):
            if isinstance(name, str) and "/" in name and resource_mapping.resource(name) is not None:
                yield at


def _values(data: Any) -> Iterator[tuple[Parts, Any]]:
    """Yield every value with its path, without recursion: depth is the author's choice."""
    rest: list[tuple[Parts, Any]] = [((), data)]
    while rest:
        at, value = rest.pop()
        yield at, value
        if isinstance(value, dict):
            rest += [((*at, key), each) for key, each in reversed(value.items()) if key not in _LABELS]
        elif isinstance(value, list):
            rest += [((*at, index), each) for index, each in reversed(list(enumerate(value)))]

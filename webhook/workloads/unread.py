"""Warns of GPUs in objects of unknown kinds, whose pods the webhook cannot find."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

from policies.finding import Finding, Severity
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.field_paths import Parts, field_path
from policies.pods.limits import LONGEST_NAME
from policies.pods.quantity import readable
from policies.reason import Reason

ID = "workloads"
"""Rule id of the findings of this module."""

MOST_VALUES = 20_000
"""Values of an object that are searched."""
MOST_NAMES = 500
"""Names in an object that are compared with the resource patterns. Each takes 20 µs."""

_OF_CHARTS = frozenset({"Application", "ApplicationSet", "HelmRelease"})
"""Kinds of Argo CD and Flux that hold the values of a Helm chart."""
_LABELS = frozenset({"annotations", "labels", "matchLabels", "nodeLabels", "nodeSelector"})
"""Maps of labels. They are skipped, because node labels look like resources: nvidia.com/mig-1g.5gb.count."""


def unread_gpus(kind: str, data: Any, resource_mapping: ResourceMapping) -> list[Finding]:
    """Return a warning at the first GPU resource in the object, or nothing."""
    found = next(_amounts(data, resource_mapping), None)
    if found is None:
        return []
    message = f"{kind} contains GPU resources that gpu-admission does not read"
    remedy = "name their paths in workloadKinds of a GPUResourceMapping"
    if kind in _OF_CHARTS:
        remedy = "render the chart, and check what it makes"
    path = field_path(found)
    return [
        Finding(
            rule=ID,
            reason=Reason.UNREAD_GPUS,
            severity=Severity.WARNING,
            path=path,
            message=message,
            remedy=remedy,
        )
    ]


def _amounts(data: Any, resource_mapping: ResourceMapping) -> Iterator[Parts]:
    """Yield the paths of GPU resources in the object. They are keys with an amount, or values such as a resource name."""
    domains, compared = {each.pattern.partition("/")[0] for each in resource_mapping.patterns}, 0
    for at, value in islice(_values(data), MOST_VALUES):
        key = at[-1] if at else ""
        if isinstance(value, dict | list):
            continue
        is_amount = "/" in str(key) and isinstance(value, str | int | float) and readable(str(value))
        # `key` belongs to a toleration or a label, which are named like resources.
        name = str(key) if is_amount else value if key != "key" else None
        if not isinstance(name, str) or len(name) > LONGEST_NAME or name.partition("/")[0] not in domains:
            continue
        compared += 1
        if compared > MOST_NAMES:
            return
        named = (
            resource_mapping.resource(name) is not None if is_amount else _is_listed(name, resource_mapping)
        )
        if named:
            yield at


def _is_listed(name: str, resource_mapping: ResourceMapping) -> bool:
    """Whether a pattern other than `domain/*` matches. API groups and labels use the domains of the vendors, too."""
    if resource_mapping.resource(name) is None:
        return False
    patterns = (each.pattern for each in resource_mapping.patterns if not each.pattern.endswith("/*"))
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _values(data: Any) -> Iterator[tuple[Parts, Any]]:
    """Yield every value with its path, without recursion: the author chooses the depth."""
    yield (), data
    rest = [_items((), data)]
    while rest:
        item = next(rest[-1], None)
        if item is None:
            rest.pop()
            continue
        yield item
        rest.append(_items(*item))


def _items(at: Parts, value: Any) -> Iterator[tuple[Parts, Any]]:
    if isinstance(value, dict):
        yield from (((*at, key), each) for key, each in value.items() if key not in _LABELS)
    elif isinstance(value, list):
        yield from (((*at, index), each) for index, each in enumerate(value))

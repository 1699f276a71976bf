"""Warns of GPUs that nothing reads: in objects of unknown kinds, and outside the resources of the containers of a pod."""

from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice, takewhile
from typing import Any

from policies.finding import UNREAD_GPUS, Edit, Finding, Severity, together
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.field_paths import Parts, field_path, value_at
from policies.pods.limits import LONGEST_NAME
from policies.pods.quantity import readable
from policies.rules.ineffective_fields import GROUPS, MISPLACED_FIELD
from policies.rules.ineffective_fields import ID as INEFFECTIVE_FIELDS
from webhook.configuration.workload_kinds import WorkloadKind, steps

ID = "workloads"
"""Rule id of the findings of this module."""

MAX_VALUES = 20_000
"""Values of an object that are searched."""
MAX_NAMES = 500
"""Names in an object that are compared with the resource patterns. Each takes 20 µs."""
MAX_MISPLACED = 10
"""Misplaced amounts that are reported of one object."""

_READ = {("resources", "limits"), ("resources", "requests")}
_CONTAINERS = {("containers",), ("initContainers",), ("ephemeralContainers",)}
_OF_CHARTS = frozenset({"Application", "ApplicationSet", "HelmRelease"})
"""Kinds of Argo CD and Flux that hold the values of a Helm chart."""
_LABELS = frozenset({"annotations", "labels", "matchLabels", "nodeLabels", "nodeSelector"})
"""Maps of labels. They are skipped, because node labels look like resources: nvidia.com/mig-1g.5gb.count."""

_warning = partial(Finding, severity=Severity.WARNING)


def unread_gpus(kind: str, data: Any, resource_mapping: ResourceMapping) -> list[Finding]:
    """Return a warning at the first GPU resource in the object, or nothing."""
    at = next(_amounts(data, resource_mapping), None)
    if at is None:
        return []
    message = f"{kind} contains GPU resources that gpu-admission does not read"
    remedy = "name their paths in workloadKinds of a GPUResourceMapping"
    if kind in _OF_CHARTS:
        remedy = "render the chart, and check what it makes"
    return [_warning(rule=ID, reason=UNREAD_GPUS, path=field_path(at), message=message, remedy=remedy)]


def unread_containers(
    workload_kind: WorkloadKind, data: Any, places: Collection[Parts], resource_mapping: ResourceMapping
) -> list[Finding]:
    """Return a warning at the first GPU resource of a container outside the places of pods; without places, at the first.

    Kinds of Kubernetes have a rule that says more.
    """
    if not workload_kind.pods or GROUPS.get(workload_kind.kind) == workload_kind.group:
        return []
    for at in _amounts(data, resource_mapping):
        is_in_a_pod = any(at[: len(place)] == place for place in places)
        if not places or (_is_of_container(at) and not is_in_a_pod):
            message = f"no pod of a {workload_kind.kind} has its containers here"
            near = max(workload_kind.pods, key=lambda form: _shared_steps(steps(form.path), at))
            remedy = f"write them into {near.path}"
            return [
                _warning(rule=ID, reason=UNREAD_GPUS, path=field_path(at), message=message, remedy=remedy)
            ]
    return []


def _shared_steps(path: Parts, other: Parts) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(path, other, strict=False)))


def misplaced_gpus(
    data: Any, pods: Collection[Parts], resource_mapping: ResourceMapping
) -> Iterator[Finding]:
    """Yield a warning for each GPU amount in a pod that is not in the resources of a container.

    `pods`: the paths of its pod templates, or the empty path for kinds of Kubernetes, which have amounts nowhere else.
    """
    for at in islice(_amounts(data, resource_mapping), MAX_MISPLACED):
        # Other kinds have containers in fields of other names.
        is_read = _is_of_container(at) or (at[-3:-1] in _READ and () not in pods)
        if is_read or at[-2:-1] == ("overhead",) or resource_mapping.resource(str(at[-1])) is None:
            continue
        if any(at[: len(pod)] == pod for pod in pods):
            yield _warning(
                rule=INEFFECTIVE_FIELDS,
                reason=MISPLACED_FIELD,
                path=field_path(at),
                message="must not stand here: kubectl refuses an unknown field, and other clients lose it",
                choices=together(*_into_limits(data, at)),
                remedy="write it into resources.limits of the container",
            )


def _is_of_container(at: Parts) -> bool:
    return at[-3:-1] in _READ and at[-5:-4] in _CONTAINERS


def _into_limits(data: Any, at: Parts) -> tuple[Edit, ...]:
    """Return the edits that move an amount from a container, or its resources, into the limits."""
    for length in (len(at) - 2, len(at) - 3):
        container, below = at[:length], at[length:-1]
        if container[-2:-1] in _CONTAINERS and below in {("resources",), ("limits",), ("requests",)}:
            limits = (*container, "resources", "limits", at[-1])
            if value_at(data, limits) is None:
                return Edit(field_path(at)), Edit(field_path(limits), value_at(data, at))
    return ()


def _amounts(data: Any, resource_mapping: ResourceMapping) -> Iterator[Parts]:
    """Yield the paths of GPU resources in the object. They are keys with an amount, or values such as a resource name."""
    domains, compared = {each.pattern.partition("/")[0] for each in resource_mapping.patterns}, 0
    for at, value in islice(_values(data), MAX_VALUES):
        key = at[-1] if at else ""
        if isinstance(value, dict | list):
            continue
        is_amount = "/" in str(key) and isinstance(value, str | int | float) and readable(str(value))
        # `key` belongs to a toleration or a label, which are named like resources.
        name = str(key) if is_amount else value if key != "key" else None
        if not isinstance(name, str) or len(name) > LONGEST_NAME or name.partition("/")[0] not in domains:
            continue
        compared += 1
        if compared > MAX_NAMES:
            return
        if resource_mapping.resource(name) is None:
            continue
        # Not by `domain/*`: API groups and labels use the domains of the vendors, too.
        listed = (each.pattern for each in resource_mapping.patterns if not each.pattern.endswith("/*"))
        if is_amount or any(fnmatchcase(name, pattern) for pattern in listed):
            yield at


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

"""Warns of GPUs in objects of unknown kinds, and of GPUs, annotations and fields in the wrong place of a pod."""

from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice, takewhile
from typing import Any

import msgspec

from policies.finding import UNREAD_GPUS, Edit, Finding, Json, Severity, together
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.field_paths import Parts, field_path, value_at
from policies.pods.limits import LONGEST_NAME
from policies.pods.pod import Container, PodSpec
from policies.pods.quantity import readable
from policies.rules.ineffective_fields import GROUPS, MISPLACED_FIELD, READ
from policies.rules.ineffective_fields import ID as INEFFECTIVE_FIELDS
from webhook.configuration.workload_kinds import WorkloadKind, steps
from webhook.workloads.places import PodPlace

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

_ONLY_OF_PODS = {each.encode_name for each in msgspec.structs.fields(PodSpec)} - {
    each.encode_name for each in msgspec.structs.fields(Container)
}
"""Fields of a pod that a container does not have."""
_ALIKE = 0.8
"""How much a kind must be like one that is known."""

_warning = partial(Finding, severity=Severity.WARNING)
_misplaced = partial(
    _warning,
    rule=INEFFECTIVE_FIELDS,
    reason=MISPLACED_FIELD,
    message="must not stand here: kubectl refuses an unknown field, and other clients lose it",
)


def unread_gpus(
    group: str, kind: str, data: Any, resource_mapping: ResourceMapping, known: Iterable[tuple[str, str]]
) -> list[Finding]:
    """Return a warning at the first GPU resource in the object, or nothing. known: groups and kinds that are read."""
    at = next(_amounts(data, resource_mapping), None)
    if at is None:
        return []
    kinds = {other.lower(): other for kind_group, other in (*known, ("", "Pod")) if kind_group == group}
    near = get_close_matches(kind.lower()[:LONGEST_NAME], kinds, n=1, cutoff=_ALIKE)
    if near:
        return [
            _warning(
                rule=ID,
                reason=UNREAD_GPUS,
                path="kind",
                value=kind,
                message="no kind of this name is read, and the object contains GPU resources",
                choices=together(Edit("kind", kinds[near[0]])),
                remedy=f"did you mean {kinds[near[0]]}?",
            )
        ]
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
            yield _misplaced(
                path=field_path(at),
                choices=together(*_into_limits(data, at)),
                remedy="write it into resources.limits of the container",
            )


def misplaced_fields(data: Any, places: Iterable[PodPlace], *, is_built_in: bool) -> Iterator[Finding]:
    """Yield a warning for each annotation outside the annotations of a pod, and for each field of the pod in a container.

    is_built_in: whether the kind is one of Kubernetes, which has none of them above its pods either.
    """
    for place in places:
        spec, annotations = (
            place.parts_in_object(("spec",)),
            place.parts_in_object(("metadata", "annotations")),
        )
        if spec[-1:] != ("spec",):  # a predictor of KServe has fields of its own
            continue
        targets = [
            *(
                (at, (*annotations, at[-1]))
                for at in _our_keys(data, spec, 0 if is_built_in else len(place.at))
            ),
            *((at, (*spec, at[-1])) for at in _in_containers(value_at(data, spec), spec)),
        ]
        for at, target in islice(targets, MAX_MISPLACED):
            moved = Json(msgspec.json.encode(value_at(data, at)).decode())
            is_free = value_at(data, target) is None
            yield _misplaced(
                path=field_path(at),
                choices=together(Edit(field_path(at)), Edit(field_path(target), moved)) if is_free else (),
                remedy=f"write it into {field_path(target[:-1])}",
            )


def _our_keys(data: Any, spec: Parts, start: int) -> Iterator[Parts]:
    """Yield the paths of annotations in the fields on the way to a pod, and in the maps there, that hold no annotations."""
    on_the_way = (spec[:length] for length in range(start, len(spec) + 1))
    for at in (each for way in on_the_way for each in (way, (*way, "metadata"))):
        holder = value_at(data, at)
        for key, value in holder.items() if isinstance(holder, dict) else ():
            if key in READ:
                yield (*at, key)
            is_read = key == "nodeSelector" or (at[-1:] == ("metadata",) and key in {"annotations", "labels"})
            if (
                isinstance(value, dict)
                and not is_read
                and key != "metadata"
                and (*at, key) != spec[: len(at) + 1]
            ):
                yield from ((*at, key, each) for each in value if each in READ)


def _in_containers(pod: Any, spec: Parts) -> Iterator[Parts]:
    for (kind,) in sorted(_CONTAINERS):
        containers = value_at(pod, (kind,))
        for index, container in enumerate(containers if isinstance(containers, list) else ()):
            fields = container if isinstance(container, dict) else ()
            yield from ((*spec, kind, index, field) for field in fields if field in _ONLY_OF_PODS)


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

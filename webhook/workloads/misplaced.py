"""Warns of GPU amounts, annotations and fields of a pod that are written in the wrong place of an object."""

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from policies.finding import Edit, Finding, Json, together, warning
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.field_paths import Parts, field_path, value_at
from policies.pods.pod import Container, PodSpec
from policies.rules.ineffective_fields import ID as INEFFECTIVE_FIELDS
from policies.rules.ineffective_fields import MISPLACED_FIELD, READ
from webhook.workloads.gpu_amounts import gpu_amounts
from webhook.workloads.places import PodPlace

MAX_MISPLACED = 10
"""Misplaced amounts that are reported of one object."""
_AMOUNT_MAPS = {("resources", "limits"), ("resources", "requests")}
CONTAINER_LISTS = ("containers", "ephemeralContainers", "initContainers")
_CONTAINERS = {(each,) for each in CONTAINER_LISTS}
_ONLY_OF_PODS = {each.encode_name for each in msgspec.structs.fields(PodSpec)} - {
    each.encode_name for each in msgspec.structs.fields(Container)
}
"""Fields of a pod that a container does not have."""
_misplaced = partial(
    warning,
    rule=INEFFECTIVE_FIELDS,
    reason=MISPLACED_FIELD,
    message="must not stand here: kubectl rejects an unknown field, and other clients lose it",
)


def misplaced_gpus(
    data: Any, pods: Collection[Parts], resource_mapping: ResourceMapping
) -> Iterator[Finding]:
    """Yield a warning for each GPU amount in a pod that is not in the resources of a container.

    `pods`: the paths of its pod templates, or `[()]`, the whole object, for kinds of Kubernetes.
    """
    for at in (amount.at for amount in islice(gpu_amounts(data, resource_mapping, {}), MAX_MISPLACED)):
        is_of_container = at[-3:-1] in _AMOUNT_MAPS and at[-5:-4] in _CONTAINERS
        if is_of_container or at[-2:-1] == ("overhead",) or resource_mapping.resource(str(at[-1])) is None:
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
    """Yield the paths of our annotations that stand outside `metadata.annotations`, on the path to a pod."""
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
    for kind in CONTAINER_LISTS:
        containers = value_at(pod, (kind,))
        for index, container in enumerate(containers if isinstance(containers, list) else ()):
            fields = container if isinstance(container, dict) else ()
            yield from ((*spec, kind, index, field) for field in fields if field in _ONLY_OF_PODS)


def _into_limits(data: Any, at: Parts) -> tuple[Edit, ...]:
    """Return the edits that move an amount from a container, or its resources, into the limits."""
    for length in (len(at) - 2, len(at) - 3):
        container, below = at[:length], at[length:-1]
        if container[-2:-1] in _CONTAINERS and below in {("resources",), ("limits",), ("requests",)}:
            limits = (*container, "resources", "limits", at[-1])
            if value_at(data, limits) is None:
                return Edit(field_path(at)), Edit(field_path(limits), value_at(data, at))
    return ()

"""Warns of GPU amounts, annotations and fields of a pod or claim that are written in the wrong place of an object."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from policies.finding import Edit, Finding, Json, one_choice, warning
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.field_paths import Parts, field_path, value_at
from policies.rules.ineffective_fields import ID as INEFFECTIVE_FIELDS
from policies.rules.ineffective_fields import MISPLACED_FIELD, READ_ANNOTATIONS
from webhook.configuration.workload_kinds import EVERY_ITEM, steps
from webhook.workloads.counts import values
from webhook.workloads.gpu_amounts import gpu_amounts
from webhook.workloads.places import PodPlace
from webhook.workloads.pod_fields import (
    OF_EXACT_REQUESTS,
    ONLY_OF_CONTAINERS,
    ONLY_OF_PODS,
    POD_FIELDS,
    PodFields,
)

MAX_MISPLACED = 10
"""Misplaced amounts that are reported of one object."""
_AMOUNT_MAPS = {("resources", "limits"), ("resources", "requests")}
CONTAINER_LISTS = ("containers", "ephemeralContainers", "initContainers")
_CONTAINERS = {(container_list,) for container_list in CONTAINER_LISTS}
_ALSO_OF_JOBS = frozenset({"activeDeadlineSeconds"})
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
                choices=one_choice(*_into_limits(data, at)),
                remedy="write it into resources.limits of the container",
            )


def misplaced_fields(data: Any, places: Iterable[PodPlace], *, is_built_in: bool) -> Iterator[Finding]:
    """Yield a warning for each annotation outside the annotations of a pod, and for each field of a pod or container elsewhere.

    is_built_in: whether the kind is one of Kubernetes, which has none of them above its pods either.
    """
    for place in places:
        spec = place.parts_in_object(("spec",))
        pod = value_at(data, place.at) if () in place.origins else place.data
        found = list(_in_containers(place, pod, spec))
        if () in place.origins:
            annotations = place.parts_in_object(("metadata", "annotations"))
            start = 0 if is_built_in else len(place.at)
            above = [spec[:length] for length in range(start, len(spec))]
            found += ((at, (*annotations, at[-1])) for at in _our_keys(data, spec, above))
            found += _beside_spec(data, spec, above)
            found += _beside_containers(value_at(data, spec), spec)
        for at, target in islice(found, MAX_MISPLACED):
            yield _moved(data, at, target)


def lost_fields(data: Any) -> Iterator[Finding]:
    """Yield a warning for each field of a pod where the kind of the object does not have it.

    The API server drops some of them, and stores those of a CRD without a schema, such as Argo's smaller ones. It yields at most
    MAX_MISPLACED: a Workflow may have thousands of templates.
    """
    parts = (
        (at, holder, known)
        for path, known in POD_FIELDS.get((str(data.get("apiVersion")), str(data.get("kind"))), {}).items()
        for at, holder in values(data, steps(path))
        if isinstance(holder, dict)
    )
    lost = (
        ((*at, field), known)
        for at, holder, known in parts
        for field in holder
        if field in ONLY_OF_PODS and field not in known.fields
    )
    yield from (_lost(data, at, known) for at, known in islice(lost, MAX_MISPLACED))


def misplaced_requests(data: Any, api_version: str) -> Iterator[Finding]:
    """Yield a warning for each field of a claim's device request (DRA) that this API version has elsewhere, or no longer.

    A request that has none where this version reads it is refused (`invalid_requests`).
    """
    is_flat = api_version.endswith("/v1beta1")
    for spec in (("spec",), ("spec", "spec")):
        for at, request in values(data, (*spec, "devices", "requests", EVERY_ITEM)):
            holder, target = ((*at, "exactly"), at) if is_flat else (at, (*at, "exactly"))
            read = ("deviceClassName" if is_flat else "exactly", "firstAvailable")
            is_read = isinstance(request, dict) and any(request.get(field) for field in read)
            fields = value_at(data, holder) if is_read else None
            for field in fields if isinstance(fields, dict) else ():
                if field in OF_EXACT_REQUESTS:
                    yield _moved(data, (*holder, field), (*target, field))
        if value_at(data, (*spec, "resourceClassName")) is not None:
            yield _misplaced(
                path=field_path((*spec, "resourceClassName")),
                message="is gone since Kubernetes 1.31, as its API version is",
                remedy=f"name a DeviceClass in {field_path((*spec, 'devices'))}.requests[0].exactly of version v1",
            )


def _moved(data: Any, at: Parts, target: Parts) -> Finding:
    """Return a warning whose choice moves the value; without a target, one that says only where it belongs."""
    moved = _json(value_at(data, at))
    is_free = bool(target) and value_at(data, target) is None
    return _misplaced(
        path=field_path(at),
        choices=one_choice(Edit(field_path(at)), Edit(field_path(target), moved)) if is_free else (),
        remedy=f"write it into {field_path(target[:-1]) if target else 'the container that it is for'}",
    )


def _lost(data: Any, at: Parts, known: PodFields) -> Finding:
    """Return a warning of a field of a pod that the kind does not have at the path."""
    others, moved = (*at[:-1], *known.others), _json(value_at(data, at))
    target, value = (others, f"{{{at[-1]}: {moved.text}}}") if known.is_patch else ((*others, at[-1]), moved)
    is_free = bool(known.others) and value_at(data, target) is None
    return _misplaced(
        path=field_path(at),
        message="must not stand here: this kind has no such field, so that no pod gets it",
        choices=one_choice(Edit(field_path(at)), Edit(field_path(target), value)) if is_free else (),
        remedy=f"write it into {field_path(others)}" if known.others else "remove it",
    )


def _our_keys(data: Any, spec: Parts, above: Iterable[Parts]) -> Iterator[Parts]:
    """Yield the paths of our annotations that stand outside `metadata.annotations`, on the path to a pod."""
    for at in (place for way in (*above, spec) for place in (way, (*way, "metadata"))):
        holder = value_at(data, at)
        for key, value in holder.items() if isinstance(holder, dict) else ():
            if key in READ_ANNOTATIONS:
                yield (*at, key)
            is_read = key == "nodeSelector" or (at[-1:] == ("metadata",) and key in {"annotations", "labels"})
            if (
                isinstance(value, dict)
                and not is_read
                and key != "metadata"
                and (*at, key) != spec[: len(at) + 1]
            ):
                yield from ((*at, key, field) for field in value if field in READ_ANNOTATIONS)


def _beside_spec(data: Any, spec: Parts, above: Sequence[Parts]) -> Iterator[tuple[Parts, Parts]]:
    """Yield (path, target) of fields of the pod beside its spec, or further above."""
    for at in above:
        holder = value_at(data, at)
        is_of_job = at != spec[:-1]
        for field in holder if isinstance(holder, dict) else ():
            if field in ONLY_OF_PODS and not (is_of_job and field in _ALSO_OF_JOBS):
                yield (*at, field), (*spec, field)


def _in_containers(place: PodPlace, pod: Any, spec: Parts) -> Iterator[tuple[Parts, Parts]]:
    """Yield (path, target) of fields of the pod in its containers."""
    for kind in CONTAINER_LISTS:
        containers = value_at(pod, ("spec", kind))
        for index, container in enumerate(containers if isinstance(containers, list) else ()):
            at = place.parts_in_object(("spec", kind, index))
            fields = container if isinstance(container, dict) else ()
            yield from (((*at, field), (*spec, field)) for field in fields if field in ONLY_OF_PODS)


def _beside_containers(pod: Any, spec: Parts) -> Iterator[tuple[Parts, Parts]]:
    """Yield (path, target) of fields of a container in the pod's spec and volumes; no target beside several containers."""
    containers, volumes = (value_at(pod, (name,)) for name in ("containers", "volumes"))
    is_single = isinstance(containers, list) and len(containers) == 1
    holders = [
        ((), pod),
        *(((("volumes", n), each) for n, each in enumerate(volumes)) if isinstance(volumes, list) else ()),
    ]
    for at, holder in holders:
        for field in holder if isinstance(holder, dict) else ():
            if field in ONLY_OF_CONTAINERS:
                yield (*spec, *at, field), (*spec, "containers", 0, field) if is_single else ()


def _into_limits(data: Any, at: Parts) -> tuple[Edit, ...]:
    """Return the edits that move an amount from a container, or its resources, into the limits."""
    for length in (len(at) - 2, len(at) - 3):
        container, below = at[:length], at[length:-1]
        if container[-2:-1] in _CONTAINERS and below in {("resources",), ("limits",), ("requests",)}:
            limits = (*container, "resources", "limits", at[-1])
            if value_at(data, limits) is None:
                return Edit(field_path(at)), Edit(field_path(limits), value_at(data, at))
    return ()


_CLASS, _EXACTLY, _ALTERNATIVES = "deviceClassName", "exactly", "firstAvailable"
_FIELDS = {
    "resource.k8s.io/v1": _EXACTLY,
    "resource.k8s.io/v1beta2": _EXACTLY,
    "resource.k8s.io/v1beta1": _CLASS,
}
"""By version, the field of a request that has no alternatives."""
_invalid = partial(Finding, rule=INEFFECTIVE_FIELDS, reason=MISPLACED_FIELD)


def invalid_requests(data: Mapping[str, Any], path: Parts) -> Iterator[Finding]:
    """Yield a denial for each request without devices, or with two kinds of them. path: of the claim's spec in the object.

    resource.k8s.io v1beta1 has the fields of a device in the request itself, v1beta2 and v1 have them below `exactly`
    (`validateDeviceRequest` in pkg/apis/resource/validation/validation.go of k8s.io/kubernetes v1.37.2, and each version's
    types).
    """
    version, requests = str(data.get("apiVersion")), value_at(data, (*path, "devices", "requests"))
    for index, request in enumerate(requests if isinstance(requests, list) else ()):
        at = field_path((*path, "devices", "requests", index))
        if version in _FIELDS and isinstance(request, dict):
            yield from _of_request(request, at, version)


def _of_request(request: dict[str, Any], at: str, version: str) -> Iterator[Finding]:
    field = _FIELDS[version]
    devices = {at: request} if field == _CLASS else {f"{at}.{_EXACTLY}": request.get(_EXACTLY)}
    alternatives = request.get(_ALTERNATIVES)
    if alternatives:
        if request.get(field):
            choices = one_choice(Edit(f"{at}.{field}"))
            yield _invalid(
                path=f"{at}.{field}", message=f"must not be set beside {_ALTERNATIVES}", choices=choices
            )
        items = alternatives if isinstance(alternatives, list) else ()
        devices = {f"{at}.{_ALTERNATIVES}[{index}]": alternative for index, alternative in enumerate(items)}
    elif not request.get(field):
        yield _without_devices(request, at, version)
        return
    for path, device in devices.items():
        if isinstance(device, dict) and not device.get(_CLASS):
            yield _invalid(path=f"{path}.{_CLASS}", message="must be set")


def _without_devices(request: dict[str, Any], at: str, version: str) -> Finding:
    """Return the denial of a request that has nothing where its version reads it."""
    field = _FIELDS[version]
    if field == _EXACTLY:
        moved = {name: value for name, value in request.items() if name != "name"}
        edits = [*(Edit(f"{at}.{name}") for name in moved), Edit(f"{at}.{_EXACTLY}", _json(moved))]
        remedy = f"write its fields below {_EXACTLY}"
    else:
        moved = request.get(_EXACTLY) or {}
        edits = [Edit(f"{at}.{_EXACTLY}"), *(Edit(f"{at}.{name}", _json(moved[name])) for name in moved)]
        remedy = f"write the fields of {_EXACTLY} into the request"
    is_whole = bool(moved.get(_CLASS))
    return _invalid(
        path=f"{at}.{field}",
        message=f"must be set, or {_ALTERNATIVES}: {version} reads no device anywhere else",
        choices=one_choice(*edits) if is_whole else (),
        remedy=remedy if is_whole else "",
    )


def _json(value: Any) -> Json:
    return Json(msgspec.json.encode(value).decode())

"""Finds the pod templates in workload objects, or builds pods from parts of the objects.

A PodPlace translates paths in the pod to paths in the object.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Self

import msgspec

from policies.pods.field_paths import Parts, field_path, path_parts, value_at, with_edit
from policies.pods.limits import MAX_CONTAINERS, MAX_RESOURCES
from policies.pods.pod import Pod, decode_pod
from policies.pods.workload import NO_OWNER, Owner, PodCount
from webhook.configuration.decoding import Problem
from webhook.configuration.workload_kinds import PodForm, PodPath, WorkloadKind, WorkloadKinds, steps
from webhook.configuration.yaml_documents import YamlDocument, load_documents
from webhook.workloads.counts import first_value, follow, pod_count, resolved_path, values, with_gang_sizes
from webhook.workloads.gpu_amounts import CLAIM_FIELDS
from webhook.workloads.owners import owner_of_template
from webhook.workloads.parameters import (
    container_without_parameters,
    is_parameter,
    quantity_without_parameters,
    resources_without_parameters,
    template_without_parameters,
)

MAX_PLACES = 100
"""Maximum number of pods of one object that are checked. An object of 3 MiB can have 100,000."""

MAX_FOUND = 1_000
"""Maximum number of values at one path. More than MAX_PLACES, because many templates of a Workflow create no pod."""
LONGEST_PATCHES = 8_192
"""Maximum number of characters in all YAML patches of one object. Parsing takes 2 µs for each character."""
_SHORTEST_PATCH = 64
"""A shorter patch counts as this many characters, because each patch takes some time."""

_DEFAULTS = ("affinity", "nodeSelector", "tolerations", "volumes")
_DEFAULTS_OF_SPECS = (*_DEFAULTS, "resourceClaims")
"""A template of a Workflow without claims of its own gets those of the Workflow (workflow/controller/workflowpod.go)."""
_RESOURCES = ("resources", "computeResources")
_AMOUNTS = ("limits", "requests")

_FIRST = ("spec", "containers", 0)

Origins = dict[Parts, Parts]
"""Path in the pod → path in the object."""
PodData = tuple[dict[str, Any], Origins]


class PodPlace(msgspec.Struct, frozen=True):
    """A future pod as plain data, and its path in the object (`at`). `origins`: path in the pod → path in the object."""

    at: Parts
    data: dict[str, Any]
    origins: Mapping[Parts, Parts]
    is_partial: bool = False
    """Whether the object has only a part of the pod. Then the rest of the pod is unknown."""
    count: PodCount = PodCount()
    owner: Owner = NO_OWNER
    """The object that has the pod, by the table of kinds: of an object in another, the inner one."""

    is_countless: bool = False
    """Whether its GPUs are named one by one, so that no field has an amount."""

    @classmethod
    def of_pod(cls, data: dict[str, Any] | None = None) -> Self:
        """Return the place of a pod that is an object itself."""
        return cls((), data or {}, {(): ()})

    @property
    def path(self) -> str:
        """Path in the object: `spec.template` for a Deployment, empty for a Pod."""
        return field_path(self.at)

    def parts_in_object(self, parts: Parts) -> Parts:
        """Translate a path in the pod to a path in the object, by the longest prefix in `origins`."""
        for length in range(len(parts), -1, -1):
            origin = self.origins.get(parts[:length])
            if origin is not None:
                return (*origin, *parts[length:])
        return self.at

    def path_in_object(self, path: str) -> str:
        """Translate a field path in the pod to a field path in the object."""
        return field_path(self.parts_in_object(path_parts(path)))

    def path_of_edit(self, path: str) -> str:
        """Return the same of a field to edit; "" if the object does not have it."""
        parts = path_parts(path)
        has_field = any(parts[:length] in self.origins for length in range(len(parts) + 1))
        is_amount = self.is_countless and parts[-2:-1] in {("limits",), ("requests",)}
        return self.path_in_object(path) if has_field and not is_amount else ""

    def replaced(self, whole: dict[str, Any], pod: dict[str, Any]) -> Any:
        """Return the object with its pod replaced by `pod`; unchanged if the pod is partial."""
        if self.is_partial:
            return whole
        if () in self.origins:
            return with_edit(whole, self.at, pod)
        before, after = self.data["spec"], pod["spec"]
        for key in after:
            if key != "containers" and after[key] != before.get(key):
                whole = with_edit(whole, (*self.at, key), after[key])
        for index, (was, container) in enumerate(zip(before["containers"], after["containers"], strict=True)):
            at = self.parts_in_object(("spec", "containers", index))
            for key in container:
                if container[key] != was.get(key):
                    whole = with_edit(whole, (*at, key), container[key])
        return whole


def workload_pods(
    kinds: WorkloadKinds, group: str, kind: str, document: bytes | msgspec.Raw
) -> tuple[Any, list[tuple[PodPlace, Pod]]]:
    """Return the decoded object and its pods. Raises `msgspec.ValidationError` with the path of a wrong value."""
    try:
        data = msgspec.json.decode(document)
        if not isinstance(data, dict):
            raise msgspec.ValidationError("must be a map")
        return data, [_decoded(place) for place in pod_places(kinds, group, kind, data)]
    except RecursionError:
        raise msgspec.ValidationError("must not be nested this deeply") from None


def pod_places(kinds: WorkloadKinds, group: str, kind: str, data: Any) -> list[PodPlace | Problem]:
    """Return the pods of an object, at most MAX_PLACES, and a Problem for each value of the wrong type."""
    workload_kind = kinds.get((group, kind))
    return [] if workload_kind is None else _counted(kinds, workload_kind, data)


def _counted(kinds: WorkloadKinds, workload_kind: WorkloadKind, data: Any) -> list[PodPlace | Problem]:
    """Return the first MAX_PLACES places, with gang sizes, which depend on all of them."""
    places = list(islice(_without_duplicates(_places(kinds, workload_kind, data)), MAX_PLACES))
    if not workload_kind.together:
        return places
    counts = [place.count for place in places if isinstance(place, PodPlace)]
    with_gangs = iter(with_gang_sizes(workload_kind, data, counts))
    return [
        msgspec.structs.replace(place, count=next(with_gangs)) if isinstance(place, PodPlace) else place
        for place in places
    ]


def _decoded(place: PodPlace | Problem) -> tuple[PodPlace, Pod]:
    if isinstance(place, Problem):
        raise msgspec.ValidationError(f"{place.message} - at `$.{place.path}`")
    try:
        return place, decode_pod(msgspec.json.encode(place.data))
    except msgspec.ValidationError as error:
        # msgspec reports the path in the pod ("… - at `$.spec`"). Users need the path in the object.
        message, _, path = str(error).partition(" - at `$")
        in_object = place.path_in_object(path.strip("`."))
        raise msgspec.ValidationError(f"{message} - at `$.{in_object}`") from None


def _without_duplicates(places: Iterator[PodPlace | Problem]) -> Iterator[PodPlace | Problem]:
    """Skip duplicates: Problems and places that an earlier path has found."""
    known: set[Problem | Parts] = set()
    for place in places:
        key = place if isinstance(place, Problem) else place.at
        if key not in known:
            known.add(key)
            yield place


def _places(kinds: WorkloadKinds, workload_kind: WorkloadKind, data: Any) -> Iterator[PodPlace | Problem]:
    amount_paths: list[Parts] = []
    characters_left = LONGEST_PATCHES
    for pod_path in workload_kind.pods:
        leaf = str if pod_path.form is PodForm.PATCH else dict
        for found in islice(follow(data, steps(pod_path.path), (), leaf), MAX_FOUND):
            if isinstance(found, Problem):
                yield found
                continue
            at, value = found
            if pod_path.form is PodForm.PATCH:
                characters_left -= max(len(value), _SHORTEST_PATCH)
                if characters_left < 0:
                    continue
            count = pod_count(workload_kind, pod_path, data, at)
            if pod_path.form is PodForm.OBJECT:
                yield from _inner(kinds, at, value, count)
            elif any(at[: len(enclosing)] == enclosing for enclosing in amount_paths):
                continue  # the enclosing field describes the same pods
            elif (made := _pod_data(pod_path, data, at, value)) is not None:
                if pod_path.form is PodForm.AMOUNTS:
                    amount_paths.append(at)
                owner = owner_of_template(workload_kind, pod_path, data, at)
                is_countless = bool(pod_path.gpus) and not any(gpu.quantity for gpu in pod_path.gpus)
                yield PodPlace(at, *made, pod_path.is_partial, count, owner, is_countless)


def _inner(kinds: WorkloadKinds, at: Parts, data: Any, outer: PodCount) -> Iterator[PodPlace | Problem]:
    """Yield the pods of an object that is embedded in another. Skip YAML patches and objects embedded in it."""
    group, kind = str(data.get("apiVersion")).rpartition("/")[0], str(data.get("kind"))
    if (group, kind) == ("", "Pod"):
        yield _place_without_parameters(
            PodPlace(at, data, {(): at}, count=_multiplied_count(outer, PodCount(), at))
        )
        return
    workload_kind = kinds.get((group, kind))
    if workload_kind is None:
        return
    workload_kind = msgspec.structs.replace(
        workload_kind,
        pods=tuple(
            pod_path
            for pod_path in workload_kind.pods
            if pod_path.form not in {PodForm.OBJECT, PodForm.PATCH}
        ),
    )
    for place in _counted(kinds, workload_kind, data):
        if isinstance(place, Problem):
            yield Problem((*at, *place.parts), place.message)
            continue
        origins = {inner: (*at, *origin) for inner, origin in place.origins.items()}
        owner = place.owner
        if owner.deadline_path:
            path = field_path((*at, *path_parts(owner.deadline_path)))
            owner = msgspec.structs.replace(owner, deadline_path=path)
        count = _multiplied_count(outer, place.count, at)
        inner_place = msgspec.structs.replace(
            place, at=(*at, *place.at), origins=origins, count=count, owner=owner
        )
        yield _place_without_parameters(inner_place)


def _place_without_parameters(place: PodPlace) -> PodPlace:
    """Return the place. If its quantities have parameters, the pod is partial and its count unknown."""
    data = template_without_parameters(place.data)
    if data is place.data:
        return place
    count = place.count if place.count.running == 0 else PodCount(running=None)
    return msgspec.structs.replace(place, data=data, is_partial=True, count=count)


def _multiplied_count(outer: PodCount, inner: PodCount, at: Parts) -> PodCount:
    """Return the count of the pods of an inner object at `at`, multiplied by the count of the outer object."""
    times = outer.running
    if 0 in {times, inner.running}:
        return PodCount(running=0)
    running, maximum = (
        None if None in {times, number} else (times or 0) * (number or 0)
        for number in (inner.running, inner.maximum)
    )
    number = inner.number
    if number is not None and times:
        path = field_path((*at, *path_parts(number.path)))
        number = msgspec.structs.replace(number, path=path, each=number.each * times)
    return PodCount(running, maximum, inner.gang, number)


def _pod_data(pod_path: PodPath, whole: Any, at: Parts, value: Any) -> PodData | None:
    """Return the pod that `value` at `at` describes, and the origins of its parts. None if it describes no pod."""
    match pod_path.form:
        case PodForm.TEMPLATE:
            return value, {(): at}
        case PodForm.SPEC:
            made = _pod_of_spec(pod_path, at, value)
        case PodForm.RESOURCES:
            made = _pod_of_resources(pod_path, whole, at, value)
        case PodForm.AMOUNTS:
            made = _pod_of_amounts(pod_path, whole, at, value)
        case _:
            made = _pod_of_patch(at, value)
    if made is None:
        return None
    pod, origins = made
    spec = pod["spec"]
    fields = _DEFAULTS_OF_SPECS if pod_path.form is PodForm.SPEC else _DEFAULTS
    for path in pod_path.defaults:
        outer = resolved_path(pod_path, at, path)
        for key in fields:
            if spec.get(key) is None:
                for origin, default in values(whole, (*outer, key)):
                    spec[key] = default
                    origins["spec", key] = origin
    return pod, origins


def _pod_of_spec(pod_path: PodPath, at: Parts, data: dict[str, Any]) -> PodData | None:
    members, own = list(_members(pod_path, data)), data.get("containers")
    if not (isinstance(own, list) or members):
        return None
    containers = list(own) if isinstance(own, list) else []
    origins: Origins = {("spec",): at, ("metadata",): (*at, "metadata")}
    for index, (at_member, member) in enumerate(members):
        here: Parts = ("spec", "containers", len(containers))
        origins[here] = (*at, *at_member)
        container, below = member, Origins()
        if index < MAX_CONTAINERS:  # a pod with more is not evaluated
            container, below = _with_base(container, at_member, pod_path, data)
        origins |= {(*here, *inner): (*at, *outer) for inner, outer in below.items()}
        containers.append(container)
    spec = {**data, "containers": [container_without_parameters(container) for container in containers]}
    return {"metadata": data.get("metadata"), "spec": spec}, origins


def _with_base(
    member: dict[str, Any], at: Parts, pod_path: PodPath, data: Any
) -> tuple[dict[str, Any], Origins]:
    """Return a container with what its base has, and the origins of resources that are not in `resources` of the container.

    A step of Tekton v1 names its resources `computeResources`, and merges those of the stepTemplate.
    """
    way = steps(pod_path.bases.get(str(at[0]), ""))
    base = value_at(data, way) if way else None
    base = base if isinstance(base, dict) else {}
    if not (base or "computeResources" in member):
        return member, {}
    merged: dict[str, Any] = {}
    origins: Origins = {("resources",): (*at, "computeResources")} if "computeResources" in member else {}
    for holder, here in ((base, way), (member, at)):
        for field in _RESOURCES:
            resources = holder.get(field)
            for kind, amounts in resources.items() if isinstance(resources, dict) else ():
                before = merged.get(kind)
                if not (isinstance(amounts, dict) and kind in _AMOUNTS):
                    merged[kind] = amounts
                    continue
                amounts = dict(islice(amounts.items(), MAX_RESOURCES + 1))  # noqa: PLW2901 - a pod with more is not evaluated
                merged[kind] = {**(before if isinstance(before, dict) else {}), **amounts}
                origins |= {("resources", kind, name): (*here, field, kind, name) for name in amounts}
    container = {key: value for key, value in {**base, **member}.items() if key not in _RESOURCES}
    return {**container, "resources": merged}, origins


def _members(pod_path: PodPath, data: dict[str, Any]) -> Iterator[tuple[Parts, dict[str, Any]]]:
    """Yield the containers in members of their own, each with its path; one without a name has that of its field."""
    for path in pod_path.containers:
        for way in (path, f"{path}[]"):
            for at, member in values(data, steps(way)):
                if isinstance(member, dict):
                    name = next(str(step) for step in reversed(at) if not isinstance(step, int))
                    yield at, {"name": name, **member}


def _pod_of_resources(pod_path: PodPath, whole: Any, at: Parts, data: dict[str, Any]) -> PodData:
    field = str(at[-2:][0])  # which has these resources: the container gets its name
    container: dict[str, Any] = {"name": field, "resources": resources_without_parameters(data)}
    spec: dict[str, Any] = {"containers": [container]}
    origins: Origins = {("spec", "containers", 0, "resources"): at}
    claims = first_value(whole, pod_path, at, pod_path.claims) if pod_path.claims else None
    listed = (
        [claim for claim in claims if isinstance(claim, dict) and claim.keys() & CLAIM_FIELDS]
        if isinstance(claims, list)
        else []
    )
    if listed:
        names = [f"claim-{index}" for index in range(len(listed))]
        spec["resourceClaims"] = [{**claim, "name": name} for name, claim in zip(names, listed, strict=True)]
        container["resources"] = {**container["resources"], "claims": [{"name": name} for name in names]}
        origins["spec", "resourceClaims"] = resolved_path(pod_path, at, pod_path.claims)
    return {"spec": spec}, origins


def _pod_of_amounts(pod_path: PodPath, whole: Any, at: Parts, data: dict[str, Any]) -> PodData | None:
    limits: dict[str, Any] = {}
    origins: Origins = {}
    for name, quantity, origin in _amounts(pod_path, whole, at):
        before = limits.get(name)
        # Quantities as text are not added up: the last one counts.
        limits[name] = quantity + before if type(quantity) is type(before) is int else quantity
        origins.setdefault((*_FIRST, "resources", "limits", name), origin)
    if not limits:
        return None
    members = list(_members(pod_path, data))
    containers = [member for _, member in members] or [{"name": str(at[-1])}]
    origins |= {("spec", "containers", index): (*at, *part) for index, (part, _) in enumerate(members)}
    written = containers[0].get("resources")
    resources = resources_without_parameters(written) if isinstance(written, dict) else {}
    written_limits = resources.get("limits")
    containers[0]["resources"] = {
        **resources,
        "limits": {**(written_limits if isinstance(written_limits, dict) else {}), **limits},
    }
    return {
        "spec": {"containers": [containers[0], *map(container_without_parameters, containers[1:])]}
    }, origins


def _amounts(pod_path: PodPath, whole: Any, at: Parts) -> Iterator[tuple[str, Any, Parts]]:
    """Yield the name of each resource, its amount, and the path of the amount."""
    for gpu in pod_path.gpus:
        names = list(values(whole, resolved_path(pod_path, at, gpu.name))) if gpu.name else []
        if not gpu.quantity:
            amounts = [(name, 1, origin) for origin, name in names]
        else:
            name = names[0][1] if names else gpu.resource
            amounts = [
                (name, quantity_without_parameters(value), origin)
                for origin, value in values(whole, resolved_path(pod_path, at, gpu.quantity))
            ]
        yield from (
            each for each in amounts if isinstance(each[0], str) and each[0] and not is_parameter(each[0])
        )


def _pod_of_patch(at: Parts, text: str) -> PodData | None:
    """Return the pod that a YAML patch describes. None for an expression, and for text that is not a map."""
    spec = yaml_field_data(text)
    if not isinstance(spec, dict) or not isinstance(spec.get("containers"), list):
        return None
    containers = [container_without_parameters(container) for container in spec["containers"]]
    return {"spec": {**spec, "containers": containers}}, {("spec",): at}


def yaml_field_data(text: str) -> Any:
    """Return what a field of YAML text says; None if it is not one document of plain data."""
    documents = list(load_documents(text, aliases=0))
    if len(documents) != 1 or not isinstance(documents[0], YamlDocument):
        return None
    try:
        return msgspec.json.decode(msgspec.json.encode(documents[0].data))
    except (TypeError, OverflowError, msgspec.DecodeError):
        return None


_FIELD = {("ray.io", "RayService"): ("spec", "serveConfigV2")}


def serve_config(group: str, kind: str, data: Any) -> Any:
    """Return what the field says, as plain data; None for other kinds, and for text that cannot be read or is too long."""
    text = value_at(data, _FIELD.get((group, kind), ("",)))
    return yaml_field_data(text) if isinstance(text, str) and len(text) <= LONGEST_PATCHES else None

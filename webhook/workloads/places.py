"""Pods in the objects of workloads, with the way from paths in a pod to paths in its object."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from policies.pods.field_paths import Parts, field_path, path_parts
from policies.pods.pod import Pod, decode_pod
from policies.pods.workload import PodCount
from webhook.configuration.decoding import Problem
from webhook.workloads.kinds import WORKLOADS, ContainerResources, Form, Spec, Template, Whole

MOST_PLACES = 100
"""Maximum of pods that are checked of one object: one of 3 MiB could have a hundred thousand."""

_DEFAULTS = ("affinity", "nodeSelector", "tolerations", "volumes")
_PLACEHOLDERS = ("{{", "${")


class PodPlace(msgspec.Struct, frozen=True):
    """A future pod as plain data, its path in the object (`at`), and `origins`: path in the pod → path in the object."""

    at: Parts
    data: dict[str, Any]
    origins: Mapping[Parts, Parts]
    is_partial: bool = False
    """Whether the rest of the pod comes from elsewhere, so that it is unknown what the pod lacks."""
    count: PodCount = PodCount()

    @property
    def path(self) -> str:
        """Path in the object: `spec.template` for a Deployment, empty for a Pod."""
        return field_path(self.at)

    def parts(self, parts: Parts) -> Parts:
        """Return the path in the object of a path in the pod, by the deepest of its `origins`."""
        for length in range(len(parts), -1, -1):
            origin = self.origins.get(parts[:length])
            if origin is not None:
                return (*origin, *parts[length:])
        return self.at

    def located(self, path: str) -> str:
        return field_path(self.parts(path_parts(path)))

    def replaced(self, whole: dict[str, Any], pod: dict[str, Any]) -> Any:
        """Return the object with `pod` in the place of the original."""
        if () in self.origins:
            return _replaced(whole, self.at, pod)
        before, after = self.data["spec"], pod["spec"]
        for key in after:
            if key != "containers" and after[key] != before.get(key):
                whole = _replaced(whole, (*self.at, key), after[key])
        for index, (was, container) in enumerate(zip(before["containers"], after["containers"], strict=True)):
            at = self.parts(("spec", "containers", index))
            for key in container:
                if container[key] != was.get(key):
                    whole = _replaced(whole, (*at, key), container[key])
        return whole


def workload_pods(
    group: str, kind: str, document: bytes | msgspec.Raw
) -> tuple[Any, list[tuple[PodPlace, Pod]]]:
    """Return an object from its JSON, and the pods of it.

    Raises `msgspec.ValidationError` with the path of a value of the wrong type.
    """
    try:
        data = msgspec.json.decode(document)
        return data, [_decoded(place) for place in pod_places(group, kind, data)]
    except RecursionError:
        raise msgspec.ValidationError("must not be nested this deeply") from None


def pod_places(group: str, kind: str, data: Any) -> list[PodPlace | Problem]:
    """Return the pods of an object, at most MOST_PLACES, and a Problem for each value of the wrong type."""
    return list(islice(_once(_places(WORKLOADS.get((group, kind), ()), data)), MOST_PLACES))


def _decoded(place: PodPlace | Problem) -> tuple[PodPlace, Pod]:
    if isinstance(place, Problem):
        raise msgspec.ValidationError(f"{place.message} - at `$.{place.path}`")
    try:
        return place, decode_pod(msgspec.json.encode(place.data))
    except msgspec.ValidationError as error:
        # msgspec starts its paths at what it was given ("… - at `$.spec`"); the reader's object starts further up.
        message, _, path = str(error).partition(" - at `$")
        located = place.located(path.strip("`."))
        raise msgspec.ValidationError(f"{message} - at `$.{located}`") from None


def _once(places: Iterator[PodPlace | Problem]) -> Iterator[PodPlace | Problem]:
    """Omit repeated Problems: several forms can meet the same one."""
    known = set()
    for place in places:
        if isinstance(place, Problem):
            if place in known:
                continue
            known.add(place)
        yield place


def _places(forms: Sequence[Form], data: Any) -> Iterator[PodPlace | Problem]:
    for form in forms:
        for found in _follow(data, tuple(form.path.replace("[]", ".[]").split(".")), ()):
            if isinstance(found, Problem):
                yield found
            else:
                yield from _read(form, data, *found)


def _follow(data: Any, steps: tuple[str, ...], at: Parts) -> Iterator[tuple[Parts, dict[str, Any]] | Problem]:
    """Yield every map that the steps lead to, with its path."""
    if data is None:
        return
    if steps[:1] == ("[]",):
        if isinstance(data, list):
            for index, item in enumerate(data):
                yield from _follow(item, steps[1:], (*at, index))
        else:
            yield Problem(at, "must be a list")
    elif not isinstance(data, dict):
        yield Problem(at, "must be a map")
    elif steps:
        for key in data if steps[0] == "*" else steps[:1]:
            yield from _follow(data.get(key), steps[1:], (*at, key))
    else:
        yield at, data


def _read(form: Form, whole: dict[str, Any], at: Parts, data: dict[str, Any]) -> Iterator[PodPlace | Problem]:
    match form:
        case Template():
            yield PodPlace(at, data, {(): at})
        case Spec():
            yield from _spec(form, whole, at, data)
        case ContainerResources():
            pod = {"spec": {"containers": [{"name": str(at[-2]), "resources": _decided(data)}]}}
            yield PodPlace(at, pod, {("spec", "containers", 0, "resources"): at}, is_partial=True)
        case Whole():
            yield from _inner(at, data)


def _spec(form: Spec, whole: dict[str, Any], at: Parts, data: dict[str, Any]) -> Iterator[PodPlace]:
    spec = dict(data)
    origins: dict[Parts, Parts] = {("spec",): at}
    if form.defaults:
        outer = path_parts(form.defaults)
        for key in _DEFAULTS:
            value = _value(whole, (*outer, key))
            if spec.get(key) is None and value is not None:
                spec[key] = value
                origins["spec", key] = (*outer, key)
    elsewhere, own = _members(form, data), data.get("containers")
    if isinstance(own, list) or elsewhere:
        containers = list(own) if isinstance(own, list) else []
        for at_member, member in elsewhere:
            origins["spec", "containers", len(containers)] = (*at, *at_member)
            containers.append({"name": str(at_member[0]), **member})
        spec["containers"] = [_with_decided(container) for container in containers]
        pod = {"metadata": data.get("metadata"), "spec": spec}
        yield PodPlace(at, pod, origins | {("metadata",): (*at, "metadata")})


def _members(form: Spec, data: dict[str, Any]) -> list[tuple[Parts, dict[str, Any]]]:
    found: list[tuple[Parts, Any]] = [((name,), data.get(name)) for name in form.container]
    for parts in map(path_parts, form.containers):
        listed = _value(data, parts)
        found += (
            [((*parts, index), item) for index, item in enumerate(listed)] if isinstance(listed, list) else []
        )
    return [(at, member) for at, member in found if isinstance(member, dict)]


def _inner(at: Parts, data: dict[str, Any]) -> Iterator[PodPlace | Problem]:
    """Yield the pods of an object inside another; objects wrapped twice are not unwrapped."""
    group, kind = str(data.get("apiVersion")).rpartition("/")[0], str(data.get("kind"))
    if (group, kind) == ("", "Pod"):
        yield PodPlace(at, data, {(): at})
        return
    forms = [form for form in WORKLOADS.get((group, kind), ()) if not isinstance(form, Whole)]
    for place in _places(forms, data):
        if isinstance(place, Problem):
            yield Problem((*at, *place.parts), place.message)
        else:
            origins = {inner: (*at, *origin) for inner, origin in place.origins.items()}
            yield PodPlace((*at, *place.at), place.data, origins, place.is_partial)


def _replaced(data: Any, at: Parts, value: Any) -> Any:
    if not at:
        return value
    copied: Any = data.copy()
    copied[at[0]] = _replaced(data[at[0]], at[1:], value) if at[1:] else value
    return copied


def _value(data: Any, parts: Parts) -> Any:
    for part in parts:
        data = data.get(part) if isinstance(data, dict) else None
    return data


def _with_decided(container: Any) -> Any:
    if not isinstance(container, dict) or not isinstance(container.get("resources"), dict):
        return container
    return {**container, "resources": _decided(container["resources"])}


def _decided(resources: dict[str, Any]) -> dict[str, Any]:
    """Return the resources without quantities that are parameters (`{{inputs.parameters.gpus}}`)."""
    return {
        name: {key: value for key, value in member.items() if not _is_placeholder(value)}
        if isinstance(member, dict)
        else member
        for name, member in resources.items()
    }


def _is_placeholder(value: Any) -> bool:
    return isinstance(value, str) and any(mark in value for mark in _PLACEHOLDERS)

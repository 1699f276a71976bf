"""Finds the pod templates in workload objects. A PodPlace translates paths in the pod to paths in the object."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec

from policies.pods.field_paths import Parts, field_path, path_parts, with_value
from policies.pods.pod import Pod, decode_pod
from policies.pods.workload import PodCount
from webhook.configuration.decoding import Problem
from webhook.configuration.workload_kinds import PodForm, WorkloadKind, WorkloadKinds, steps
from webhook.workloads.counts import follow, pod_count, together
from webhook.workloads.forms import decided_template, pod_data

MAX_PLACES = 100
"""Maximum number of pods of one object that are checked. An object of 3 MiB can have 100,000."""

MAX_FOUND = 1_000
"""Maximum number of values at one path. More than MAX_PLACES, because many templates of a Workflow create no pod."""
LONGEST_PATCHES = 8_192
"""Maximum number of characters in all YAML patches of one object. Parsing takes 2 µs for each character."""
_SHORTEST_PATCH = 64
"""A shorter patch counts as this many characters, because each patch takes some time."""


class PodPlace(msgspec.Struct, frozen=True):
    """A future pod as plain data, and its path in the object (`at`). `origins`: path in the pod → path in the object."""

    at: Parts
    data: dict[str, Any]
    origins: Mapping[Parts, Parts]
    is_partial: bool = False
    """Whether the object has only a part of the pod. Then the rest of the pod is unknown."""
    count: PodCount = PodCount()

    @property
    def path(self) -> str:
        """Path in the object: `spec.template` for a Deployment, empty for a Pod."""
        return field_path(self.at)

    def parts(self, parts: Parts) -> Parts:
        """Translate a path in the pod to a path in the object, by the longest prefix in `origins`."""
        for length in range(len(parts), -1, -1):
            origin = self.origins.get(parts[:length])
            if origin is not None:
                return (*origin, *parts[length:])
        return self.at

    def located(self, path: str) -> str:
        """Translate a field path in the pod to a field path in the object."""
        return field_path(self.parts(path_parts(path)))

    def replaced(self, whole: dict[str, Any], pod: dict[str, Any]) -> Any:
        """Return the object with its pod replaced by `pod`; unchanged if the pod is partial."""
        if self.is_partial:
            return whole
        if () in self.origins:
            return with_value(whole, self.at, pod)
        before, after = self.data["spec"], pod["spec"]
        for key in after:
            if key != "containers" and after[key] != before.get(key):
                whole = with_value(whole, (*self.at, key), after[key])
        for index, (was, container) in enumerate(zip(before["containers"], after["containers"], strict=True)):
            at = self.parts(("spec", "containers", index))
            for key in container:
                if container[key] != was.get(key):
                    whole = with_value(whole, (*at, key), container[key])
        return whole


def workload_pods(
    kinds: WorkloadKinds, group: str, kind: str, document: bytes | msgspec.Raw
) -> tuple[Any, list[tuple[PodPlace, Pod]]]:
    """Return the decoded object and its pods.

    Raises `msgspec.ValidationError` with the path of a value of the wrong type.
    """
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
    """Return the first MAX_PLACES places. `together` computes the gang size from all of them."""
    found = list(islice(_once(_places(kinds, workload_kind, data)), MAX_PLACES))
    if not workload_kind.together:
        return found
    counts = iter(together(workload_kind, data, [each.count for each in found if isinstance(each, PodPlace)]))
    return [
        msgspec.structs.replace(each, count=next(counts)) if isinstance(each, PodPlace) else each
        for each in found
    ]


def _decoded(place: PodPlace | Problem) -> tuple[PodPlace, Pod]:
    if isinstance(place, Problem):
        raise msgspec.ValidationError(f"{place.message} - at `$.{place.path}`")
    try:
        return place, decode_pod(msgspec.json.encode(place.data))
    except msgspec.ValidationError as error:
        # msgspec reports the path in the pod ("… - at `$.spec`"). Users need the path in the object.
        message, _, path = str(error).partition(" - at `$")
        located = place.located(path.strip("`."))
        raise msgspec.ValidationError(f"{message} - at `$.{located}`") from None


def _once(places: Iterator[PodPlace | Problem]) -> Iterator[PodPlace | Problem]:
    """Skip duplicates: Problems and places that an earlier path has found."""
    known: set[Problem | Parts] = set()
    for place in places:
        key = place if isinstance(place, Problem) else place.at
        if key not in known:
            known.add(key)
            yield place


def _places(kinds: WorkloadKinds, workload_kind: WorkloadKind, data: Any) -> Iterator[PodPlace | Problem]:
    amounts: list[Parts] = []
    unread = LONGEST_PATCHES
    for form in workload_kind.pods:
        leaf = str if form.form is PodForm.PATCH else dict
        for found in islice(follow(data, steps(form.path), (), leaf), MAX_FOUND):
            if isinstance(found, Problem):
                yield found
                continue
            at, value = found
            if form.form is PodForm.PATCH:
                unread -= max(len(value), _SHORTEST_PATCH)
                if unread < 0:
                    continue
            count = pod_count(workload_kind, form, data, at)
            if form.form is PodForm.OBJECT:
                yield from _inner(kinds, at, value, count)
            elif any(at[: len(above)] == above for above in amounts):
                continue  # `amounts` already has an enclosing field, which describes the same pods
            elif (made := pod_data(form, data, at, value)) is not None:
                if form.form is PodForm.AMOUNTS:
                    amounts.append(at)
                yield PodPlace(at, *made, form.is_partial, count)


def _inner(kinds: WorkloadKinds, at: Parts, data: Any, outer: PodCount) -> Iterator[PodPlace | Problem]:
    """Yield the pods of an object that is embedded in another. Skip YAML patches and objects embedded in it."""
    group, kind = str(data.get("apiVersion")).rpartition("/")[0], str(data.get("kind"))
    if (group, kind) == ("", "Pod"):
        yield _decided_place(PodPlace(at, data, {(): at}, count=_times(outer, PodCount())))
        return
    workload_kind = kinds.get((group, kind))
    if workload_kind is None:
        return
    workload_kind = msgspec.structs.replace(
        workload_kind,
        pods=tuple(form for form in workload_kind.pods if form.form not in {PodForm.OBJECT, PodForm.PATCH}),
    )
    for place in _counted(kinds, workload_kind, data):
        if isinstance(place, Problem):
            yield Problem((*at, *place.parts), place.message)
            continue
        origins = {inner: (*at, *origin) for inner, origin in place.origins.items()}
        found = PodPlace((*at, *place.at), place.data, origins, place.is_partial, _times(outer, place.count))
        yield _decided_place(found)


def _decided_place(place: PodPlace) -> PodPlace:
    """Return the place. If its quantities have template parameters, the pod is partial and its count unknown."""
    decided = decided_template(place.data)
    if decided is place.data:
        return place
    count = place.count if place.count.running == 0 else PodCount(running=None)
    return msgspec.structs.replace(place, data=decided, is_partial=True, count=count)


def _times(outer: PodCount, inner: PodCount) -> PodCount:
    """Return the count of the pods of an inner object, multiplied by the count of the outer object."""
    times = outer.running
    if 0 in {times, inner.running}:
        return PodCount(running=0)
    running, most = (
        None if None in {times, each} else (times or 0) * (each or 0) for each in (inner.running, inner.most)
    )
    return PodCount(running, most, inner.gang)

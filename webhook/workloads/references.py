"""Other objects that an object names (`refers` of a kind): a Model with its number of GPUs, or a runtime with its pods."""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from time import monotonic
from typing import Any

import msgspec

from policies.finding import UNREAD_GPUS, warning
from policies.pods.field_paths import field_path, value_at, with_edits
from webhook.cluster import errors
from webhook.cluster.api import REVIEW_READ_SECONDS, ApiClient
from webhook.cluster.informer import Resource
from webhook.configuration.workload_kinds import Reference, WorkloadKinds, plural, steps
from webhook.workloads.counts import values

ID = "workloads"
"""Rule id of the findings about GPUs that are not read."""

MAX_REFERENCED = 100
"""Maximum number of objects that are read for one reference, as many as the pods that are checked."""

GPUS_READ_IN_PODS = "the GPUs of {} are read only in the pods that the controller creates".format
unread = partial(warning, rule=ID, reason=UNREAD_GPUS)


class ObjectReference(msgspec.Struct, frozen=True):
    """Where the API has an object. `namespace` is "" for a cluster-scoped kind."""

    group: str
    version: str
    kind: str
    plural: str
    namespace: str
    name: str

    @property
    def path(self) -> str:
        """Raises errors.NotFound for a name that no object has."""
        prefix = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        return Resource(prefix, self.plural).path(self.namespace, self.name)


class ReferenceField(msgspec.Struct, frozen=True):
    """A field that names another object, which is the first that exists of `candidates`. `kind` is that of the first."""

    reference: Reference
    path: str
    kind: str
    name: str
    candidates: tuple[ObjectReference, ...]


def find_references(
    kinds: WorkloadKinds, key: tuple[str, str], namespace: str, data: Any
) -> Iterator[ReferenceField]:
    """Yield the fields that name other objects, of an object with that API group and kind (`key`)."""
    workload_kind = kinds.get(key)
    for reference in workload_kind.refers if workload_kind else ():
        found = chain.from_iterable(values(data, steps(field)) for field in reference.fields)
        for at, name in islice(found, MAX_REFERENCED):
            if isinstance(name, str) and name:
                written = value_at(data, (*at[:-1], "kind"))
                written_kind = written if isinstance(written, str) and written else ""
                candidates = [
                    _object_name(kinds, kind, str(data.get("apiVersion")), namespace, name)
                    for kind in reference.kinds
                ]
                if written_kind:
                    candidates = [each for each in candidates if each.kind.lower() == written_kind.lower()]
                kind = candidates[0].kind if candidates else written_kind
                yield ReferenceField(reference, field_path(at), kind, name, tuple(candidates))


def referred_kinds(kinds: WorkloadKinds) -> set[tuple[str, str]]:
    """Return API group and resource of the kinds that objects of these kinds refer to."""
    found = (
        _object_name(kinds, text, f"{workload_kind.group}/", "", "")
        for workload_kind in kinds.values()
        for reference in workload_kind.refers
        for text in reference.kinds
    )
    return {(reference.group, reference.plural) for reference in found}


def _object_name(
    kinds: WorkloadKinds, text: str, own_version: str, namespace: str, name: str
) -> ObjectReference:
    """`text`: one of `kinds` of a Reference. `own_version`: the API version of the object that has it."""
    api_version, _, kind = text.rpartition("/")
    group, _, version = (api_version or own_version).rpartition("/")
    workload_kind = kinds.get((group, kind))
    resource = workload_kind.plural if workload_kind else plural(kind)
    return ObjectReference(
        group,
        version,
        kind,
        resource,
        "" if workload_kind and workload_kind.cluster_scoped else namespace,
        name,
    )


def with_copied_fields(reference: Reference, data: Any, other: Any) -> Any:
    """Return the object with the values that the other one gives it. A value that is not 0 replaces the object's own."""
    edits = []
    for path, sources in reference.gives.items():
        found = (value_at(other, steps(source)) for source in sources)
        value = next(filter(None, found), None)
        if value is not None:
            edits.append((steps(path), reference.names.get(str(value), value)))
    return with_edits(data, edits)


def read_object(api: ApiClient, name: ObjectReference, deadline: float) -> Any:
    """Return the object, read before a `monotonic` deadline, or None."""
    if (seconds := min(deadline - monotonic(), REVIEW_READ_SECONDS)) > 0:
        with suppress(errors.ApiError, msgspec.MsgspecError):
            return msgspec.json.decode(api.get(name.path, timeout=seconds))
    return None

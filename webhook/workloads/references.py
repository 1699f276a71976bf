"""An object with the numbers of another one, which it names (`refers` of a kind): the Model of an InferenceService."""

from contextlib import suppress
from time import monotonic
from typing import Any

import msgspec

from policies.finding import UNREAD_GPUS, Finding, warning
from policies.pods.field_paths import value_at, with_edits
from webhook.cluster import errors
from webhook.cluster.api import REVIEW_READ_SECONDS, ApiClient, api_path
from webhook.configuration.workload_kinds import Reference, plural, steps

IN_ITS_PODS = "the GPUs of {} are read only in the pods that the controller creates".format


def name_of(reference: Reference, data: Any) -> str:
    """Return the name of the other object; "" without one."""
    name = value_at(data, steps(reference.name))
    return name if isinstance(name, str) else ""


def completed(reference: Reference, data: Any, other: Any) -> Any:
    """Return the object with the values of the other one, which precede its own if they are not 0."""
    edits = []
    for path, sources in reference.gives.items():
        found = (value_at(other, steps(source)) for source in sources)
        value = next(filter(None, found), None)
        if value is not None:
            edits.append((steps(path), reference.names.get(str(value), value)))
    return with_edits(data, edits)


def unknown(kind: str, path: str, name: str) -> Finding:
    """Return a warning that the object of that kind, which the field names, is not known."""
    return warning(
        rule="workloads",
        reason=UNREAD_GPUS,
        path=path,
        value=name,
        message=f"names a {kind} that is not known here, nor are its GPUs",
        remedy=f"apply the {kind} first, or check both together",
    )


def read_reference(
    api: ApiClient, namespace: str, api_version: str, kind: str, name: str, deadline: float
) -> Any:
    """Return the object of that kind, read before a `monotonic` deadline, or None."""
    if (seconds := min(deadline - monotonic(), REVIEW_READ_SECONDS)) > 0:
        with suppress(errors.ApiError, msgspec.MsgspecError):
            path = api_path(f"/apis/{api_version}", "namespaces", namespace, plural(kind), name)
            return msgspec.json.decode(api.get(path, timeout=seconds))
    return None

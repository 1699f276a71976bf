"""Restores injected fields that an update of a pod lacks.

Most of a pod's spec is immutable. So the API server rejects an update by a manifest without the injected fields: a second
`kubectl apply`, `kubectl diff`, server-side apply, `kubectl replace`. Its own plugins that add tolerations
(DefaultTolerationSeconds, ExtendedResourceToleration) complete updates for the same reason.

A restored field gets its stored value and place. List items are compared as the API server compares them. An update that it
would accept stays unchanged.
"""

from collections.abc import Mapping
from copy import deepcopy
from functools import partial
from typing import Any

import msgspec

from policies.finding import Finding, Reason, Severity
from policies.pods.annotations import INJECTED
from policies.pods.field_paths import Parts, field_path, json_pointer, value_at
from policies.pods.patch import Change, Operation
from policies.pods.pod import Pod
from policies.pods.submission import find_injected

JSON = Any

_IDENTITY: Mapping[str | int, tuple[str, ...]] = {
    "tolerations": ("key", "operator", "value", "effect"),  # tolerationSeconds may change
    "matchExpressions": ("key", "operator", "values"),
    "volumes": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumeMounts": ("mountPath",),
}
"""Fields that identify an item of a list."""
_RAISED = frozenset({"initialDelaySeconds", "terminationGracePeriodSeconds"})
"""Values of the author that rules raise, and never lower."""


class Restored(msgspec.Struct, frozen=True):
    """The restored changes, and warnings about values of the update that were overwritten.

    `note` adds the annotation that lists the changes, if the update lacks it.
    """

    changes: tuple[Change, ...] = ()
    note: Change | None = None
    warnings: tuple[Finding, ...] = ()


def restore(stored: Pod, before: bytes, after: bytes, wanted: Mapping[str, str]) -> Restored:
    """Restore fields of the `stored` pod (JSON `before`) in the update (JSON `after`).

    wanted: the changes that may be restored, in the words of `policies.pods.patch`, each with its rule.
    """
    found = find_injected(stored, wanted.keys())
    if not found:
        return Restored()
    old, new = msgspec.json.decode(before), msgspec.json.decode(after)
    changes: list[Change] = []
    warnings: list[Finding] = []
    for path, what in found:
        place = _place(("spec", *path), old, new)
        if place is None:
            continue
        value, sent = value_at(old, ("spec", *path)), value_at(new, place)
        if _is_present(place, value, new):
            continue
        changes.append(Change(what, (_put(new, place, value),), wanted[what]))
        if place[-1] in _RAISED and sent is not None:
            # The author may not have lowered it just now.
            message = f"stays {value}: it was raised when the pod was created, and cannot be changed since"
            kept = partial(Finding, reason=Reason.INJECTION_KEPT, severity=Severity.WARNING, message=message)
            warnings.append(kept(rule=wanted[what], path=field_path(place), value=str(sent)))
    note = stored.annotations.get(INJECTED)
    place = ("metadata", "annotations", INJECTED)
    is_lost = bool(changes) and note is not None and value_at(new, place) is None
    restored_note = Change(f"annotation {INJECTED}", (_put(new, place, note),)) if is_lost else None
    return Restored(tuple(changes), restored_note, tuple(warnings))


def _place(path: Parts, old: JSON, new: JSON) -> Parts | None:
    """Return the path in the new pod. Containers are found by name. None if the container is missing."""
    _, part, *rest = path
    if part not in {"containers", "initContainers"} or len(rest) == 1:
        return path
    name = value_at(old, (*path[:3], "name"))
    containers = value_at(new, path[:2]) or []
    index = next((at for at, each in enumerate(containers) if each.get("name") == name), None)
    return None if index is None else (*path[:2], index, *path[3:])


def _is_present(place: Parts, value: JSON, new: JSON) -> bool:
    if isinstance(place[-1], int):
        fields = _IDENTITY[place[-2]]
        same = [value.get(field) for field in fields]
        items = value_at(new, place[:-1]) or ()
        return any([item.get(field) for field in fields] == same for item in items)
    sent = value_at(new, place)
    return sent is not None and (place[-1] not in _RAISED or sent >= value)


def _put(node: JSON, path: Parts, value: JSON) -> Operation:
    """Put the value at the path below the node, with missing parents. Return the JSON Patch operation."""
    depth = 0
    while depth < len(path) - 1 and (child := value_at(node, (path[depth],))) is not None:
        node, depth = child, depth + 1
    last = path[depth]
    for part in reversed(path[depth + 1 :]):
        value = [value] if isinstance(part, int) else {part: value}
    if isinstance(node, list):
        last = min(int(last), len(node))
        node.insert(last, value)
    else:
        node[last] = value
    # A copy, because later changes may go into the value.
    return Operation("add", json_pointer(*path[:depth], last), deepcopy(value))

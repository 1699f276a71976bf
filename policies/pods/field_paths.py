"""Field paths as Kubernetes prints them (`field.Path` of k8s.io/apimachinery), and JSON pointers.

`spec.containers[0].resources.limits[nvidia.com/gpu]`: indices, and keys with a dot or a slash, are in brackets without quotes.
"""

import re
from collections.abc import Iterable
from typing import Any

Parts = tuple[str | int, ...]
"""A path as keys and indices."""

ANNOTATIONS = "metadata.annotations"

_MAPS = {"annotations", "labels", "limits", "nodeSelector", "requests", "resources", "securityContext"}
_LISTS = {"env", "envFrom", "tolerations", "volumeMounts", "volumes"}
OPTIONAL = frozenset(_MAPS | _LISTS)
"""Fields that mean the same when they are empty as when they are left out. Others stay as `{}`: `emptyDir: {}` is a volume."""

APPENDED = "-"
"""The part of a path behind the last item of a list, as in `spec.tolerations[-]` (RFC 6901 has it, too)."""

_PART = re.compile(r"\[([^\]]*)\]|([^.\[]+)")


def field_path(parts: Parts) -> str:
    """Return the path of the parts: `spec.rules.gpu-class.allowed[0]`, `hard[nvidia.com/gpu]`."""
    text = ""
    for part in parts:
        if isinstance(part, int) or part == APPENDED or "." in part or "/" in part:
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def path_parts(path: str) -> Parts:
    """Return the parts of a path in the form that `field_path` writes."""
    return tuple(
        int(bracketed) if bracketed.isdecimal() else bracketed or plain
        for bracketed, plain in _PART.findall(path)
    )


def value_at(data: Any, parts: Parts) -> Any:
    """Return the value in plain data, None where there is none."""
    for part in parts:
        if isinstance(data, list) and isinstance(part, int):
            data = data[part] if part < len(data) else None
        else:
            data = data.get(part) if isinstance(data, dict) else None
    return data


def with_edit(data: Any, parts: Parts, value: Any) -> Any:
    """Return a copy of the data with the value at the path; what is not on the way there is shared.

    None removes the field, and optional parents that become empty. Missing parents become maps, or a list to which the value is
    appended. A parent of another type is left as it is.
    """
    if not parts:
        return value
    part, rest = parts[0], parts[1:]
    if part == APPENDED and isinstance(data, list | None):
        return [*(data or ()), value]
    if isinstance(part, int):
        if not isinstance(data, list) or part >= len(data):
            return data
        changed = with_edit(data[part], rest, value)
        return [*data[:part], *(() if changed is None else (changed,)), *data[part + 1 :]]
    members = dict(data or {}) if isinstance(data, dict | None) else {}
    key = next((key for key in members if str(key) == part), part)
    if not isinstance(data, dict | None) or (value is None and key not in members):
        return data
    changed = with_edit(members.get(key), rest, value)
    if changed is None or (value is None and not changed and part in OPTIONAL):
        members.pop(key, None)
    else:
        members[key] = changed
    return members


def with_edits(data: Any, edits: Iterable[tuple[Parts, Any]]) -> Any:
    """Return a copy of the data with several edits, whose positions are those before any of them."""
    for parts, value in sorted(edits, key=lambda edit: edit_order(*edit), reverse=True):
        data = with_edit(data, parts, value)
    return data


def edit_order(parts: Parts, value: object) -> tuple[bool, bool, Parts]:
    """Return the sort key, in descending order: additions before removals, so that no map is empty in between.

    Removed items of lists come last, and of these the last item first, because the items behind a removed one move up.
    """
    is_item = value is None and isinstance(parts[-1], int)
    return (value is not None, not is_item, parts if is_item else ())


def annotation_path(key: str) -> str:
    """Return the path of an annotation: `metadata.annotations[gpu-admission.dev/gpu-class]`."""
    return f"{ANNOTATIONS}[{key}]"


def json_pointer(*parts: str | int) -> str:
    """Return the JSON pointer of the parts, escaped as RFC 6901 says (`nvidia.com/gpu` → `nvidia.com~1gpu`)."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)

"""Field paths as Kubernetes prints them (`field.Path` of k8s.io/apimachinery), and JSON pointers.

`spec.containers[0].resources.limits[nvidia.com/gpu]`: indices, and keys with a dot or a slash, stand in brackets without quotes.
"""

import re
from typing import Any

Parts = tuple[str | int, ...]
"""A path as keys and indices."""

ANNOTATIONS = "metadata.annotations"

_PART = re.compile(r"\[([^\]]*)\]|([^.\[]+)")


def field_path(parts: Parts) -> str:
    """Return the path of the parts: `spec.rules.gpu-class.allowed[0]`, `hard[nvidia.com/gpu]`."""
    text = ""
    for part in parts:
        if isinstance(part, int) or "." in part or "/" in part:
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


def with_value(data: Any, parts: Parts, value: Any) -> Any:
    """Return a copy of the data with the value in its place; what is not on the way there is shared."""
    if not parts:
        return value
    copied = data.copy()
    copied[parts[0]] = with_value(data[parts[0]], parts[1:], value) if parts[1:] else value
    return copied


def with_edit(data: Any, parts: Parts, value: Any) -> Any:
    """Return a copy of the data with the value in its place, or without what is there if the value is None.

    Missing parents become maps, and what is in the place of a parent stays.
    """
    key, *below = parts
    is_there = key in data if isinstance(data, dict) else isinstance(data, list) and key in range(len(data))
    if not isinstance(data, dict | list) or (not is_there and (value is None or isinstance(data, list))):
        return data
    copied: Any = data.copy()
    if below:
        child = copied[key] if is_there else None
        copied[key] = with_edit({} if child is None else child, tuple(below), value)
    elif value is None:
        del copied[key]
    else:
        copied[key] = value
    return copied


def annotation_path(key: str) -> str:
    """Return the path of an annotation: `metadata.annotations[gpu-admission.dev/gpu-class]`."""
    return f"{ANNOTATIONS}[{key}]"


def json_pointer(*parts: str | int) -> str:
    """Return the JSON pointer of the parts, escaped as RFC 6901 says (`nvidia.com/gpu` → `nvidia.com~1gpu`)."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)
